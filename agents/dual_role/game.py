"""One game of the two roles: the episode of ``agent`` and its analysis by ``world``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from roleagent.failures.analyst_format import UNREADABLE
from roleagent.recorder import Recorder
from roleagent.types import Reflection, Selection, Task, Trajectory, Turn

Origin = Literal["given", "uniform", "selected"]


@dataclass
class Game:
    """The record of one game; the fields of ``world`` are None if it was not asked.

    Attributes:
        number: of the game within its episode, from 0.
        origin: how it came to be played: demanded by the caller, drawn uniformly, or selected by ``world``.
        record: of what ``agent`` does in it.
        trajectory: all of it, once the game is over.
        reflection: what ``world`` wrote about it; of source ``"fallback"`` where that could not be read.
        selection: what ``world`` selected after it.
        chosen: the tasks that it chose for training.
    """

    number: int
    origin: Origin
    record: Recorder = field(compare=False)  # its trajectory is compared
    trajectory: Trajectory | None = None
    reflection: Reflection | None = None
    selection: Selection | None = None
    chosen: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """What is played."""
        return self.record.task

    @property
    def turns(self) -> Sequence[Turn]:
        """What was done so far."""
        return self.record.turns

    @property
    def won(self) -> bool:
        """Whether the last step solved it."""
        return self.record.won

    def past(self, exchanges: int) -> Sequence[tuple[str, str]]:
        """The last observations, each with the action that followed, oldest first."""
        seen = [self.record.initial_observation, *(turn.observation for turn in self.turns)]
        done = [turn.action for turn in self.turns]
        return list(zip(seen, done, strict=False))[-exchanges:] if exchanges > 0 else []


def with_past(goal: str, past: Sequence[tuple[str, str]], observation: str) -> str:
    """An observation after the exchanges that led to it, for an agent without a memory.

    Args:
        goal: the task in words.
        past: the last exchanges, oldest first: an observation, and the command given on it.
        observation: the present one.

    >>> print(with_past("find a pen", [("A desk.", "open desk 1")], "A pen."))
    Your task is to: find a pen
    A desk.
    > open desk 1
    A pen.
    """
    lines = [f"Your task is to: {goal}"] if past else []
    for seen, done in past:
        lines += [seen, f"> {done or UNREADABLE}"]
    return "\n".join((*lines, observation))
