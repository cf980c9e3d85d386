"""An episode of the office, read from its text: which calls were made, and which of them the task needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from roleagent.envs.failures.detectors import is_malformed
from roleagent.envs.office.goals import Plan, key_of, understand
from roleagent.envs.tools.calls.command import read_command
from roleagent.tools import Call
from roleagent.types import Trajectory

_VALUE = re.compile(r"[pr]\d+|[A-Z]\w+ [A-Z]\w+|\d+")
_NAMING = ("id", "name", "amount", "numbers")  # arguments that a result or the goal must have shown


@dataclass(frozen=True, slots=True)
class Step:
    """One turn.

    Attributes:
        number: of the turn, 0-based.
        call: the only call of the turn, or None.
        error: why it failed, a name such as ``refused``, or None.
        answer: what was answered, or None.
        malformed: whether the reply could not be read.
        needed: the call, or the answer, that the task needed here; None if the goal is not understood.
        known: the goal and the results before.
    """

    number: int
    call: Call | None
    error: str | None
    answer: str | None
    malformed: bool
    needed: Call | str | None
    known: str

    @property
    def invented(self) -> str:
        """An id, name or number in the call that nothing had shown, or ``""``."""
        named = self.call.arguments if self.call else {}
        values = [value for name in _NAMING for value in _VALUE.findall(str(named.get(name, "")))]
        return next((value for value in values if not re.search(rf"(?<!\d){value}(?!\w)", self.known)), "")


@dataclass(frozen=True)
class Trace:
    """A whole episode.

    Attributes:
        plan: of the goal; None if it is not understood.
    """

    plan: Plan | None
    steps: tuple[Step, ...]

    def calls(self, *tools: str) -> Iterator[tuple[Step, Call]]:
        """The steps that call some tools, all of them by default."""
        for step in self.steps:
            if step.call is not None and (not tools or step.call.name in tools):
                yield step, step.call

    def on_the_way(self, call: Call) -> bool:
        """Whether the task needs this call at some point of the episode."""
        needed = [step.needed for step in self.steps]
        return any(isinstance(one, Call) and key_of(one) == key_of(call) for one in needed)

    @property
    def answer(self) -> Step | None:
        """The step that answered."""
        return self.steps[-1] if self.steps and self.steps[-1].answer is not None else None


def read_trace(trajectory: Trajectory) -> Trace:
    """Follows the results through an episode."""
    goal = trajectory.task.goal
    plan, known = understand(goal), goal
    results: dict[str, str] = {}
    steps: list[Step] = []
    for number, turn in enumerate(trajectory.turns):
        command = read_command(turn.action)
        call, answer = next(iter(command.readable), None), command.answer
        needed = plan.next(results.get) if plan is not None else None
        described = turn.info.get("calls") or ()
        error = described[0]["error"] if described else None
        malformed = is_malformed(turn) or (call is None and answer is None)
        steps.append(Step(number, call, error, answer, malformed, needed, known))
        if call is not None and error is None:
            results[key_of(call)] = turn.observation
        known += f"\n{turn.observation}"
    return Trace(plan, tuple(steps))


__all__ = ["Step", "Trace", "read_trace"]
