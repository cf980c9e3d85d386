"""An episode of ScienceWorld, read from its text: each command and what it was for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from roleagent.envs.failures.detectors import is_malformed
from roleagent.envs.scienceworld.text import LOST, UNKNOWN, read_choices
from roleagent.types import Trajectory

_LOOKS = ("look", "examine", "inventory", "task", "help", "objects", "wait")
_WALKS = ("go ", "open door", "close door", "teleport ")


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        number: the turn, 0-based.
        text: the command as given; of a number the choice that it stands for.
        kind: ``"malformed"``: no command; ``"unknown"``: the world did not understand it; ``"question"``: it was
            ambiguous; ``"lost"``: another text than a number came after a question; ``"focus"``, ``"look"`` (also for
            waiting), ``"walk"``; or ``"act"``: anything else.
        progress: whether the score rose.
    """

    number: int
    text: str
    kind: str
    progress: bool


@dataclass(frozen=True)
class Trace:
    """A whole episode.

    Attributes:
        steps: in order.
        failed: whether the world ended the episode before it was won.
    """

    steps: tuple[Step, ...]
    failed: bool

    @property
    def later(self) -> tuple[Step, ...]:
        """The second half of the episode, where what went wrong is not made up for."""
        return self.steps[len(self.steps) // 2 :]

    def share(self, *kinds: str) -> float:
        """The share of the later steps that are of these kinds; 0 without any step."""
        return sum(step.kind in kinds for step in self.later) / max(1, len(self.later))

    def start(self, kinds: Collection[str], neutral: Collection[str] = ()) -> Step:
        """Where the agent began to give commands of these kinds and hardly any other to the end.

        Of all ends of the episode it is the one with the most of them, less twice the others.

        Args:
            neutral: kinds that count neither way.
        """
        best, total, found = 0, 0, self.steps[-1]
        for step in reversed(self.steps):
            total += 1 if step.kind in kinds else 0 if step.kind in neutral else -2
            if step.kind in kinds and total > best:
                best, found = total, step
        return found


def read_trace(trajectory: Trajectory) -> Trace:
    """Sorts the commands of an episode."""
    steps: list[Step] = []
    choices: tuple[str, ...] = ()
    for number, turn in enumerate(trajectory.turns):
        text = turn.action.strip()
        if choices and text.isdecimal() and int(text) < len(choices):
            text = choices[int(text)]
        choices = read_choices(turn.observation)
        if is_malformed(turn):
            kind = "malformed"
        elif choices:
            kind = "question"
        elif turn.observation.startswith(LOST):
            kind = "lost"
        elif turn.observation.startswith(UNKNOWN):
            kind = "unknown"
        elif text.startswith("focus on "):
            kind = "focus"
        else:
            kind = "look" if text.startswith(_LOOKS) else "walk" if text.startswith(_WALKS) else "act"
        steps.append(Step(number, text, kind, turn.rewards.get("task", 0.0) > 0))
    return Trace(tuple(steps), trajectory.terminated and not trajectory.success)


__all__ = ["Step", "Trace", "read_trace"]
