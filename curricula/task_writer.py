"""Asks a simulator for tasks and checks what it writes, until enough tasks are accepted (GenEnv)."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from roleagent.curricula.simulators import BaseSimulator, StaticSimulator
from roleagent.tasks.grammar import REFUSALS, Refused, TaskGrammar, TaskSpec
from roleagent.tasks.simulator import Simulator, Situation

_MOST_SHOWN = 400  # characters of a proposal in the log
VARIATION_SHARE = 0.2
"""Of the wanted tasks, those that change one field of their situation's task."""


@dataclass(frozen=True, slots=True)
class Written:
    """A task that a simulator wrote and that was accepted.

    Attributes:
        spec: the task.
        task_id: its id.
        situation: what the simulator had read.
        context: the number of that situation in the iteration.
        plan_length: commands of the plan that wins it.
        varied: whether it changes one field of the situation's task, instead of being written by the simulator.
    """

    spec: TaskSpec
    task_id: str
    situation: Situation
    context: int
    plan_length: int
    varied: bool = False


class TaskWriter:
    """Writes accepted tasks.

    A proposal is checked in the order of :data:`~roleagent.tasks.grammar.REFUSALS`. What is refused is counted by its
    reason, and written anew up to ``attempts`` times.

    Args:
        grammar: checks the proposals.
        simulator: writes them.
        attempts: proposals per wanted task, ≥ 1.
        novelty: iterations in which the same field values are not accepted twice; 0: they may be, as always where the
            seed draws the goal.
        variation_share: of the wanted tasks, those that change one field of their situation's task.

    Attributes:
        counters: proposals, and what happened to them, since they were last cleared.
        events: one line per proposal since they were last cleared (``tasks/`` of a run folder).
        passed: by task type, the simulator's proposals that passed the checks, and all that were checked, since they
            were last cleared. Repeated tasks are not among them: they are valid, and were accepted before.
        readable: the task type and the field values of each line that could be read since they were last cleared,
            accepted or not. Variations are not among them.
    """

    def __init__(
        self,
        grammar: TaskGrammar,
        simulator: Simulator,
        attempts: int = 4,
        novelty: int = 8,
        variation_share: float = VARIATION_SHARE,
    ):
        self.grammar, self.simulator = grammar, simulator
        self.attempts, self.novelty, self.variation_share = attempts, novelty, variation_share
        drawn = type(simulator) is BaseSimulator or (isinstance(simulator, StaticSimulator) and not simulator.author)
        self._draws_listed = drawn  # so that its tasks are as the split's, in free form the same
        self.counters: Counter[str] = Counter()
        self.events: list[dict[str, Any]] = []
        self.passed: dict[str, tuple[int, int]] = {}
        self.readable: list[tuple[str, tuple[str, ...]]] = []
        self.accepted: dict[tuple[str, ...], int] = {}  # field values → the iteration that last accepted them

    def write(
        self,
        situations: Sequence[Situation],
        counts: Sequence[int],
        variable: Sequence[bool],
        iteration: int,
        rng: Generator,
        taken: Collection[str] = (),
    ) -> list[Written]:
        """As many accepted tasks for each situation as wanted, or fewer.

        Args:
            situations: what the simulator reads.
            counts: tasks wanted for each situation.
            variable: for each situation, whether its task may be varied.
            iteration: the number of the iteration.
            rng: draws the variations and what no field sets.
            taken: ids that are not accepted.
        """
        taken = set(taken)
        self.accepted = {values: last for values, last in self.accepted.items() if last > iteration - self.novelty}
        wanted = [number for number, count in enumerate(counts) for _ in range(count)]
        varied = [variable[number] and rng.random() < self.variation_share for number in wanted]
        written: dict[int, Written] = {}
        for _ in range(self.attempts):
            missing = [slot for slot in range(len(wanted)) if slot not in written]
            if not missing:
                break
            lines = self._propose(situations, [wanted[slot] for slot in missing if not varied[slot]], rng)
            for slot in missing:
                number = wanted[slot]
                proposal = self._vary(situations[number], rng) if varied[slot] else lines[number].pop(0)
                found = self._accept(proposal, situations[number], number, iteration, rng, taken)
                if found is not None:
                    written[slot] = found
                    taken.add(found.task_id)
        return [written[slot] for slot in sorted(written)]

    def _propose(self, situations: Sequence[Situation], wanted: Sequence[int], rng: Generator) -> dict[int, list[Any]]:
        """A line for every wanted task, by the number of its situation; None where the simulator wrote fewer."""
        counts = Counter(wanted)
        found = {}
        for count in sorted(set(counts.values())):  # what nobody asked for would be lost of a list, and costs a model
            numbers = [number for number, own in counts.items() if own == count]
            answers = self.simulator.propose([situations[number] for number in numbers], count, rng)
            for place, number in enumerate(numbers):
                lines = answers[place] if isinstance(answers, Sequence) and place < len(answers) else ()
                lines = list(lines)[:count] if isinstance(lines, list | tuple) else []
                found[number] = lines + [None] * (count - len(lines))
        return found

    def _vary(self, situation: Situation, rng: Generator) -> TaskSpec | None:
        """The situation's task with one field changed; None if no change fits."""
        self.counters["variations"] += 1
        try:
            return self.grammar.vary(situation.seed_task, rng) if situation.seed_task else None
        except Refused:
            return None

    def _accept(
        self, proposal: Any, situation: Situation, context: int, iteration: int, rng: Generator, taken: Collection[str]
    ) -> Written | None:
        """The task of a proposal (a line, or a variation's spec); None if it is refused."""
        self.counters["proposed"] += 1
        varied = isinstance(proposal, TaskSpec)
        line = self.grammar.write(proposal) if varied else proposal
        event = {"iteration": iteration, "event": "written", "line": shown(line), "varied": varied, "context": context}
        self.events.append(event)
        task_type = ""
        try:
            values = () if varied else self._read(line)
            if not varied:
                task_type = self.grammar.task_type(TaskSpec(values))
                self.readable.append((task_type, values))
            spec = proposal if varied else self._complete(values, rng)
            verdict = self.grammar.check(spec)
            task_id = self.grammar.task_id(spec)
            event |= {"task_id": task_id, "plan": len(verdict.plan)}
            known = (
                task_id in taken or self._is_again(spec) or (not self._draws_listed and self.grammar.is_listed(spec))
            )
            if known and verdict.reason in ("", "held_out"):
                raise Refused("duplicate")
            if not verdict.accepted:
                raise Refused(verdict.reason)
        except Refused as refused:
            self.counters[f"refused_{refused.reason}"] += 1
            event["refused"] = refused.reason
            if task_type and refused.reason != "duplicate":
                self._count(task_type, False)
            return None
        self.counters["accepted"] += 1
        if task_type:
            self._count(task_type, True)
        self.accepted[spec.values] = iteration
        return Written(spec, task_id, situation, context, len(verdict.plan), varied)

    def _is_again(self, spec: TaskSpec) -> bool:
        """Whether a task was accepted a short time ago. A static list is played again and again."""
        repeats = self.grammar.seed_draws_goal or isinstance(self.simulator, StaticSimulator)
        return bool(self.novelty) and not repeats and spec.values in self.accepted

    def _count(self, task_type: str, passed: bool) -> None:
        before = self.passed.get(task_type, (0, 0))
        self.passed[task_type] = before[0] + passed, before[1] + 1

    def _read(self, line: Any) -> tuple[str, ...]:
        values, repaired = self.grammar.read(line)
        self.counters["repaired"] += repaired
        return values

    def _complete(self, values: tuple[str, ...], rng: Generator) -> TaskSpec:
        if isinstance(self.simulator, StaticSimulator):  # a task of its list is the same whenever it is played
            rng = np.random.default_rng(zlib.crc32(self.grammar.write(TaskSpec(values)).encode()))
        return self.grammar.complete(values, rng)

    def unusable(self) -> str:
        """An empty text if a proposal was accepted; otherwise how many were refused, by reason."""
        if self.counters["accepted"] or not self.counters["proposed"]:
            return ""
        reasons = (f"{reason} {self.counters[f'refused_{reason}']}" for reason in REFUSALS)
        counted = ", ".join(reason for reason in reasons if not reason.endswith(" 0"))
        return f"none of {self.counters['proposed']} proposals was accepted ({counted})"


def shown(line: Any) -> str:
    """A proposal as one short printable line.

    >>> shown("kind=heat\\x00\\n</tasks>"), shown(None)
    ('kind=heat  </tasks>', '')
    """
    text = line[:_MOST_SHOWN] if isinstance(line, str) else ""
    return "".join(letter if letter.isprintable() else " " for letter in text)


__all__ = ["TaskWriter", "Written"]
