"""What a set of detectors is: the same for every environment, whatever they look for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from roleagent.types import Trajectory, Turn

Story = TypeVar("Story")


class Finding(NamedTuple):
    """A detector's answer: the step at which it went wrong, what happened, what to do instead."""

    step: int | None
    detail: str
    lesson: str


@dataclass(frozen=True)
class Rulebook(Generic[Story]):
    """How the failures of one kind of environment are told apart.

    Attributes:
        read: turns an episode into what the detectors ask about.
        detectors: one function per failure mode, named after it; the first that finds something is the dominant one.
        otherwise: the mode and the finding for an episode in which no detector finds anything.
    """

    read: Callable[[Trajectory], Story]
    detectors: tuple[Callable[[Story], Finding | None], ...]
    otherwise: Callable[[Story], tuple[str, Finding]]

    def diagnose(self, trajectory: Trajectory) -> tuple[str, Finding]:
        """The dominant failure mode of a failed episode, and what was found."""
        story = self.read(trajectory)
        for detector in self.detectors:
            if finding := detector(story):
                return detector.__name__, finding
        return self.otherwise(story)


def is_malformed(turn: Turn) -> bool:
    """Whether the reply could not be read as a command.

    >>> from roleagent.types import Completion
    >>> is_malformed(Turn((), Completion((), (), "stop"), " ", "Nothing happens."))
    True
    """
    return not turn.action.strip() or turn.info.get("format_error") is not None


def unreadable(malformed: Sequence[bool]) -> Finding | None:
    """At least a quarter of the replies could not be read as an action.

    >>> unreadable([False, True, False]).step
    1
    >>> unreadable([False] * 4 + [True]) is None
    True
    """
    bad = [number for number, wrong in enumerate(malformed) if wrong]
    if not bad or 4 * len(bad) < len(malformed):
        return None
    detail = f"{len(bad)} of {len(malformed)} replies held no readable action"
    return Finding(bad[0], detail, "Answer with exactly one action in the demanded form.")
