"""Task simulators without a model: a table that learns, the grammar's own distribution, and a fixed list."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from roleagent.slow_notice import count, waiting
from roleagent.tasks.grammar import Refused, TaskGrammar, TaskSpec
from roleagent.tasks.simulator import Simulator, SimulatorRecord, Situation

_DRAWS = 2000  # base tasks that a table begins with
_ASKED, _PER_QUESTION = 32, 8  # questions at once to the author of a list, and tasks that each asks for
_NEIGHBOR = 0.25  # of a record, for each neighbor of a number in it


class BaseSimulator:
    """Writes tasks as the grammar's base distribution has them, and never learns.

    Args:
        grammar: the tasks that can be written.
    """

    def __init__(self, grammar: TaskGrammar):
        self.grammar = grammar

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        """``n`` base tasks for each situation."""
        return [[self.grammar.write(self.grammar.base(rng)) for _ in range(n)] for _ in situations]

    def update(self, records: Sequence[SimulatorRecord], rng: Generator) -> dict[str, float]:
        """Learns nothing."""
        return {}

    def initial(self) -> Simulator:
        """The simulator itself."""
        return self

    def costs(self) -> dict[str, float]:
        """None."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """No state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to load."""


class StaticSimulator(BaseSimulator):
    """Writes tasks from a list that was made once, before training.

    It goes through the list in order and then begins again.

    Args:
        grammar: the tasks that can be written.
        tasks: length of the list, ≥ 1.
        rng: draws the list from the base distribution. A resumed run draws it again.
        author: writes the list instead, such as a model behind a server (offline augmentation). It is asked at the
            first task; a checkpoint keeps the list.
    """

    def __init__(self, grammar: TaskGrammar, tasks: int, rng: Generator, author: Simulator | None = None):
        super().__init__(grammar)
        self.tasks, self.author = tasks, author
        self.lines = [] if author else [grammar.write(grammar.base(rng)) for _ in range(tasks)]
        self.position = 0

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        """The next ``n`` tasks of the list for each situation.

        Raises:
            ValueError: the author writes nothing that can be read.
        """
        if not self.lines:
            with waiting("the list of tasks to be written"):
                self.lines = self._written(situations[0].target, rng)
        return [[self._next() for _ in range(n)] for _ in situations]

    def _written(self, target: float, rng: Generator) -> list[str]:
        """The author's tasks that can be read, each once, fewer than wanted if it repeats itself."""
        assert self.author is not None
        found: dict[str, None] = {}
        for _ in range(2 * math.ceil(self.tasks / (_ASKED * _PER_QUESTION))):
            answers = self.author.propose([Situation({}, target=target)] * _ASKED, _PER_QUESTION, rng)
            before = len(found)
            found |= dict.fromkeys(line for lines in answers for line in lines if self._can_be_read(line))
            count("tasks written", len(found) - before)
            if len(found) >= self.tasks or not any(answers):  # or the server is gone
                break
        if not found:
            raise ValueError("simulator.kind=static: the model at endpoint.url wrote no task that can be read")
        return list(found)[: self.tasks]

    def _can_be_read(self, line: str) -> bool:
        try:
            return bool(self.grammar.read(line))
        except Refused:
            return False

    def _next(self) -> str:
        line = self.lines[self.position % len(self.lines)]
        self.position += 1
        return line

    def costs(self) -> dict[str, float]:
        """What the author's work cost since the last call."""
        return self.author.costs() if self.author else {}

    def state_dict(self) -> dict[str, Any]:
        """The position in the list, and an author's list."""
        return {"position": self.position, "lines": self.lines if self.author else []}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues at the position where :meth:`state_dict` was taken."""
        self.position = int(state["position"])
        if self.author:
            self.lines = list(state["lines"])


class TableSimulator(BaseSimulator):
    """A categorical distribution of the task types and, for each type, one of every field.

    It begins as the base distribution. An update is reward-weighted regression in closed form: each distribution
    becomes the weighted frequencies of the records, with the initial distribution as a prior of ``anchor`` records.
    The weights of an update are scaled to a mean of 1. Of the task types a record counts as the proposals that its type
    needs for an accepted one: otherwise each update would favor the types that the checks refuse least, whatever they
    earn. A record counts for the neighbors of its numbers, too: otherwise a length between two that base tasks have
    would hardly ever be written.

    Args:
        grammar: the tasks that can be written.
        rng: draws the base tasks that the table begins with.
        anchor: strength of the prior, in records, > 0.
    """

    def __init__(self, grammar: TaskGrammar, rng: Generator, anchor: float = 2.0):
        super().__init__(grammar)
        self.anchor = anchor
        self._fields = [list(values) for values in grammar.fields.values()]
        self._neighbors = [
            np.array([[other in grammar.others(name, value) for other in values] for value in values], dtype=float)
            if grammar.is_number(name)
            else None
            for name, values in grammar.fields.items()
        ]
        self._places = [{value: place for place, value in enumerate(values)} for values in self._fields]
        drawn = [grammar.base(rng) for _ in range(_DRAWS)]
        counted = self._count([(grammar.task_type(spec), spec.values, 1.0) for spec in drawn])
        uniform = [np.full(len(values), 1 / len(values)) for values in self._fields]
        # A value that base tasks never have counts as a share of one record: a variation may find it.
        self._types = {name: float(sum(rows[0])) / _DRAWS for name, rows in counted.items()}
        self._start = {
            name: [(row + part) / (row.sum() + 1) for row, part in zip(rows, uniform, strict=True)]
            for name, rows in counted.items()
        }
        self.types, self.table = dict(self._types), dict(self._start)

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        """``n`` tasks for each situation, whatever it is."""
        return [[self._draw(rng) for _ in range(n)] for _ in situations]

    def _draw(self, rng: Generator) -> str:
        names = list(self.types)
        name = names[int(rng.choice(len(names), p=list(self.types.values())))]
        places = [int(rng.choice(len(row), p=row)) for row in self.table[name]]
        values = (choices[place] for choices, place in zip(self._fields, places, strict=True))
        return self.grammar.write(TaskSpec(tuple(values)))

    def update(self, records: Sequence[SimulatorRecord], rng: Generator) -> dict[str, float]:
        """Fits the table to the records.

        Returns:
            ``kl``: KL divergence of the table from the initial one, in nats per task.
        """
        scale = len(records) / sum(record.weight for record in records)
        names = [self.grammar.task_type(self.grammar.spec(record.task_id)) for record in records]
        counted = self._count(
            [(name, record.values, record.weight * scale) for name, record in zip(names, records, strict=True)]
        )
        for rows in counted.values():
            rows[:] = [
                row + _NEIGHBOR * row @ near if near is not None else row
                for row, near in zip(rows, self._neighbors, strict=True)
            ]
        for name in counted:
            if name not in self._types:  # base tasks never have this type
                self._types[name] = 1e-6
                self._start[name] = [np.full(len(values), 1 / len(values)) for values in self._fields]
        proposed: dict[str, float] = {}
        for name, record in zip(names, records, strict=True):
            proposed[name] = proposed.get(name, 0.0) + record.weight * record.proposals
        scale = len(records) / sum(proposed.values())
        weights = {name: self.anchor * share + scale * proposed.get(name, 0.0) for name, share in self._types.items()}
        self.types = {name: weight / sum(weights.values()) for name, weight in weights.items()}
        self.table = {
            name: [
                (self.anchor * first + seen) / (self.anchor + seen.sum())
                for first, seen in zip(rows, counted.get(name, [np.zeros(len(row)) for row in rows]), strict=True)
            ]
            for name, rows in self._start.items()
        }
        return {"kl": self.divergence()}

    def divergence(self) -> float:
        """The KL divergence of the table from the initial one, in nats per task."""
        return sum(
            share * (np.log(share / self._types[name]) + sum(map(_kl, self.table[name], self._start[name])))
            for name, share in self.types.items()
        )

    def initial(self) -> Simulator:
        """A table as it was before the first update."""
        total = sum(self._types.values())  # above 1 with types that came later
        types = {name: share / total for name, share in self._types.items()}
        other = object.__new__(TableSimulator)
        other.__dict__ |= self.__dict__ | {"types": types, "table": dict(self._start)}
        return other

    def _count(self, tasks: Sequence[tuple[str, Sequence[str], float]]) -> dict[str, list[np.ndarray]]:
        """Weights by task type, field and value."""
        counted: dict[str, list[np.ndarray]] = {}
        for name, values, weight in tasks:
            rows = counted.setdefault(name, [np.zeros(len(choices)) for choices in self._fields])
            for row, places, value in zip(rows, self._places, values, strict=True):
                row[places[value]] += weight
        return counted

    def state_dict(self) -> dict[str, Any]:
        """The table and the initial one."""
        tables = {
            name: {key: [row.tolist() for row in rows] for key, rows in table.items()}
            for name, table in (("table", self.table), ("start", self._start))
        }
        return {"types": dict(self.types), "start_types": dict(self._types), **tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the table of :meth:`state_dict`."""
        self.types, self._types = dict(state["types"]), dict(state["start_types"])
        self.table, self._start = (
            {name: [np.array(row) for row in rows] for name, rows in state[key].items()} for key in ("table", "start")
        )


def _kl(p: np.ndarray, q: np.ndarray) -> float:
    """KL divergence of p from q in nats; q > 0 wherever p is.

    >>> round(_kl(np.array([1.0, 0.0]), np.array([0.5, 0.5])), 3)
    0.693
    """
    some = p > 0
    return float((p[some] * np.log(p[some] / q[some])).sum())


__all__ = ["BaseSimulator", "StaticSimulator", "TableSimulator"]
