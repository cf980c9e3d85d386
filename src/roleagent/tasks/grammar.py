"""Task grammars: what can be varied in an environment's tasks, for simulators that write tasks (GenEnv).

A generated task's id is its specification: every machine reads the same task from it. A grammar names the fields of a
task, each with a closed list of values. It converts between a simulator's line (``kind=heat item=egg``), a
:class:`TaskSpec` and a task id. :meth:`TaskGrammar.check` accepts a task only if the commands of its own plan win it.

An environment names its grammar in its :class:`~roleagent.env_card.EnvCard` and plays generated ids if it is made with
``generated_tasks=True``, on training splits only.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import gymnasium
from numpy.random import Generator

from roleagent.env_card import card_of
from roleagent.tasks.split import TaskSplit

REFUSALS = ("syntax", "vocabulary", "inconsistent", "unsolvable", "too_long", "trivial", "duplicate", "held_out")
"""The reasons to refuse a proposed task, in the order of the checks."""
MAX_LINE = 2000  # characters of a proposal
_PAIR = re.compile(r"([^\s=]+)=(\S+)")


class Refused(ValueError):
    """A proposed task is refused.

    Attributes:
        reason: one of :data:`REFUSALS`.
    """

    def __init__(self, reason: str, message: str = ""):
        super().__init__(message or reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A task of a grammar.

    Attributes:
        values: one value per field, in the grammar's order.
        seed: decides everything that no field sets, e.g. where things lie; ≥ 0.
    """

    values: tuple[str, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Validation:
    """The result of :meth:`TaskGrammar.check`.

    Attributes:
        accepted: whether the task may be played.
        reason: one of :data:`REFUSALS`; ``""`` if it is accepted.
        plan: commands that win the task; empty if none were found.
    """

    accepted: bool
    reason: str = ""
    plan: tuple[str, ...] = ()


class TaskForm(NamedTuple):
    """What a model that follows instructions must know to write a task.

    Attributes:
        description: what a line holds.
        example: the form of a line.
        differ: how a new task differs from the recent one.
        solution: what a writer must know of solutions.
    """

    description: str
    example: str
    differ: str
    solution: str


class TaskGrammar(ABC):
    """The tasks that can be written for an environment.

    Args:
        env: the environment, on a training split. The grammar plays on a copy.
        plan_share: of the environment's ``max_steps`` that a plan may have, in (0, 1].

    Attributes:
        fields: the values of each field, in the order of a line. Values have no blanks and no ``=``.
        seed_draws_goal: whether the same values with another seed have another goal, and are worth writing again.
        varies: whether tasks have variations (:meth:`vary`).
    """

    fields: Mapping[str, tuple[str, ...]]
    seed_draws_goal: bool = False
    varies: bool = True

    def __init__(self, env: gymnasium.Env, plan_share: float = 0.5):
        self.env: Any = copy.deepcopy(env.unwrapped)
        self.plan_share = plan_share

    @abstractmethod
    def task_id(self, spec: TaskSpec) -> str:
        """The task's id: canonical, and read back by :meth:`spec`."""

    @abstractmethod
    def spec(self, task_id: str) -> TaskSpec:
        """Reads an id of a generated task.

        Raises:
            ValueError: it is no such id.
        """

    @abstractmethod
    def base(self, rng: Generator) -> TaskSpec:
        """A task drawn as the tasks of the environment's training split were drawn."""

    @abstractmethod
    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        """A task with these values, and a seed drawn so that the values fit together.

        Raises:
            Refused: no seed fits (``inconsistent``).
        """

    @abstractmethod
    def content(self, spec: TaskSpec) -> str:
        """What must not occur in a held-out task, e.g. the scene."""

    @abstractmethod
    def held_out_contents(self) -> frozenset[str]:
        """The :meth:`content` of every task of the evaluation splits."""

    def is_listed(self, spec: TaskSpec) -> bool:
        """Whether it is a task of the split, word by word: nothing that a writer has written."""
        return False

    def solve(self, spec: TaskSpec) -> Sequence[str]:
        """Commands that win the task: the environment's walkthrough. :meth:`check` plays them.

        Raises:
            Refused: the values do not fit together (``inconsistent``), or nothing wins (``unsolvable``).
        """
        try:
            self.env.reset(options={"task_id": self.task_id(spec)})
        except ValueError as error:
            raise Refused("inconsistent", str(error)) from None
        return self.env.walkthrough()

    def task_type(self, spec: TaskSpec) -> str:
        """The type of the task, as the environment reports it in ``info``: the value of the first field."""
        return spec.values[0]

    def vary(self, spec: TaskSpec, rng: Generator) -> TaskSpec:
        """A task that differs from ``spec`` in one field (:meth:`others`).

        The seed changes only if the new value needs another.

        Raises:
            Refused: no other value of any field fits (``inconsistent``).
        """
        others = [self.others(name, value) for name, value in zip(self.fields, spec.values, strict=True)]
        by_field = {place: values for place, values in enumerate(others) if values}
        while by_field:  # every field alike, however many values it has
            place = list(by_field)[int(rng.integers(len(by_field)))]
            values = by_field[place]
            value = values.pop(int(rng.integers(len(values))))
            if not values:
                del by_field[place]
            try:
                return self.complete((*spec.values[:place], value, *spec.values[place + 1 :]), rng)
            except Refused:
                continue
        raise Refused("inconsistent", f"no variation of {self.write(spec)} fits")

    def others(self, name: str, value: str) -> list[str]:
        """The values that a variation may give a field in place of ``value``; a number becomes one of its neighbors."""
        values = self.fields[name]
        if not self.is_number(name):
            return [one for one in values if one != value]
        ordered = sorted(values, key=int)
        place = ordered.index(value)
        return [*ordered[max(0, place - 1) : place], *ordered[place + 1 : place + 2]]

    def is_number(self, name: str) -> bool:
        """Whether the values of a field are numbers, which have neighbors."""
        return all(value.isdigit() for value in self.fields[name])

    def write(self, spec: TaskSpec) -> str:
        """The task as a simulator writes it: ``field=value field=value …``, without the seed."""
        return " ".join(f"{name}={value}" for name, value in zip(self.fields, spec.values, strict=True))

    def form(self) -> TaskForm:
        """How a model is asked for a task."""
        fields = "\n".join(f"- {name}: {', '.join(values)}" for name, values in self.fields.items())
        return TaskForm(
            f"A task is one line that gives every field one of its values:\n{fields}",
            " ".join(f"{name}=value" for name in self.fields),
            "It differs from the recent task in at least one field.",
            "Write no solutions.",
        )

    def longest(self, length: Callable[[str], int]) -> TaskSpec:
        """A task that is as long as any, by a measure of texts."""
        return TaskSpec(tuple(max(values, key=length) for values in self.fields.values()))

    def read(self, line: Any) -> tuple[tuple[str, ...], bool]:
        """Reads a line of :meth:`write`.

        Case and the order of the fields are repaired; nothing else is.

        Returns:
            one value per field in the grammar's order, and whether the line was repaired.

        Raises:
            Refused: ``syntax`` or ``vocabulary``; nothing else, whatever the line.
        """
        if not isinstance(line, str) or len(line) > MAX_LINE:
            raise Refused("syntax")
        pairs = [_PAIR.fullmatch(word) for word in line.split()]
        if not pairs or not all(pairs):
            raise Refused("syntax")
        given: dict[str, str] = {}
        for pair in pairs:
            name, value = pair[1].lower(), pair[2]  # type: ignore[index]
            if name in given:
                raise Refused("syntax")
            given[name] = value
        if not given.keys() <= self._values.keys():
            raise Refused("vocabulary")
        if given.keys() != self._values.keys():
            raise Refused("syntax")
        try:
            values = tuple(self._values[name][given[name].lower()] for name in self._values)
        except KeyError:
            raise Refused("vocabulary") from None
        written = " ".join(f"{name}={value}" for name, value in zip(self._values, values, strict=True))
        return values, written != line.strip()

    @cached_property
    def _values(self) -> dict[str, dict[str, str]]:
        return {name: {value.lower(): value for value in values} for name, values in self.fields.items()}

    def check(self, spec: TaskSpec) -> Validation:
        """Whether a task may be played: its own plan wins it in the environment, and no held-out task is like it."""
        try:
            plan = tuple(self.solve(spec))
            self._replay(spec, plan)
        except Refused as refused:
            return Validation(False, refused.reason)
        if len(plan) > self.plan_share * self.env.max_steps:
            return Validation(False, "too_long", plan)
        if len(plan) < 2:
            return Validation(False, "trivial", plan)
        if self.content(spec) in self._held_out:
            return Validation(False, "held_out", plan)
        return Validation(True, "", plan)

    @cached_property
    def _held_out(self) -> frozenset[str]:
        return self.held_out_contents()

    def _replay(self, spec: TaskSpec, plan: Sequence[str]) -> None:
        _, info = self.env.reset(options={"task_id": self.task_id(spec)})
        for command in plan:
            *_, terminated, truncated, info = self.env.step(command)
            if terminated or truncated:
                break
        if not info["won"]:
            raise Refused("unsolvable")


@dataclass(frozen=True)
class OpenTaskSplit(TaskSplit):
    """A task split that also accepts generated ids. Its length, order and digest are those of the listed tasks.

    Attributes:
        is_generated: whether an id is a well-formed generated one; a function of a module, so that it pickles.
    """

    is_generated: Callable[[str], bool] = lambda task_id: False

    @classmethod
    def of(cls, task_split: TaskSplit, is_generated: Callable[[str], bool]) -> OpenTaskSplit:
        """The same tasks, and generated ones.

        Raises:
            ValueError: it is an evaluation split.
        """
        if task_split.split != "train":
            raise ValueError(f"generated tasks are for training: the split {task_split.split} plays its own tasks only")
        return cls(task_split.env_id, task_split.split, task_split.task_ids, is_generated)

    def __contains__(self, task_id: object) -> bool:
        return super().__contains__(task_id) or (isinstance(task_id, str) and self.is_generated(task_id))


def grammar_of(env: gymnasium.Env, **options: Any) -> TaskGrammar:
    """The environment's task grammar.

    Args:
        env: made with ``generated_tasks=True``; wrappers are followed.
        options: of the grammar, e.g. ``plan_share``.

    Raises:
        ValueError: the environment has none, or does not play generated tasks.
    """
    card = card_of(env)
    make = card.load("task_grammar")
    if make is None:
        raise ValueError(f"the environment {card.env_id or env} has no task grammar")
    if not isinstance(getattr(env.unwrapped, "task_split", None), OpenTaskSplit):
        raise ValueError(f"the environment {card.env_id} plays generated tasks only with generated_tasks=True")
    return make(env, **options)


__all__ = [
    "REFUSALS",
    "OpenTaskSplit",
    "Refused",
    "TaskGrammar",
    "TaskSpec",
    "Validation",
    "grammar_of",
]
