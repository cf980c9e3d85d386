"""One game of the two roles: the episode of ``agent`` and its analysis by ``world``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from roleagent.envs.wrappers.tags import Parsed
from roleagent.failures.analyst_format import UNREADABLE
from roleagent.types import (
    Completion,
    Prediction,
    PredictionScore,
    Reflection,
    Selection,
    Task,
    Trajectory,
    Turn,
    grouping_state,
)

Origin = Literal["given", "uniform", "selected"]
_UNSAMPLED = Completion((), (), "stop")  # replies arrive as text; what tokens they were sampled as is the caller's


@dataclass
class Game:
    """The record of one game; the fields of ``world`` are None if it was not asked.

    Attributes:
        number: of the game within its episode, from 0.
        task: what is played.
        origin: how it came to be played: demanded by the caller, drawn uniformly, or selected by ``world``.
        text: the present observation, first of all that of ``reset``.
        info: what the environment reported with it.
        turns: what was done so far.
        trajectory: all of it, once the game is over.
        reflection: what ``world`` wrote about it; of source ``"fallback"`` where that could not be read.
        selection: what ``world`` selected after it.
        chosen: the tasks that it chose for training.
    """

    number: int
    task: Task
    origin: Origin
    text: str
    info: Mapping[str, Any] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    trajectory: Trajectory | None = None
    reflection: Reflection | None = None
    selection: Selection | None = None
    chosen: tuple[str, ...] = ()
    _first: str = ""
    _scores: list[PredictionScore] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._first = self.text

    @property
    def won(self) -> bool:
        """Whether the last step solved it."""
        return bool(self.turns) and bool(self.turns[-1].info.get("won"))

    def add(self, reply: Parsed, text: str, info: Mapping[str, Any]) -> None:
        """Takes in a reply and what came back."""
        predicted = Prediction((), None, reply.predictions)
        rewards = dict(info.get("rewards", {}))
        state, compared = self.info.get("state"), grouping_state(self.info)
        self.turns.append(Turn((), _UNSAMPLED, reply.command, text, state, predicted, rewards, info, compared))
        self._scores += info.get("prediction_scores", ())
        self.text, self.info = text, info

    def end(self, terminated: bool, truncated: bool) -> Trajectory:
        """Closes the record; scores that arrived late go to the turns that made the predictions."""
        turns = []
        for number, turn in enumerate(self.turns):
            assert turn.prediction is not None
            scores = tuple(score for score in self._scores if score.turn == number)
            turns.append(replace(turn, prediction=replace(turn.prediction, scores=scores)))
        stop_reason = "won" if self.won else ("lost" if terminated else "max_steps")
        self.trajectory = Trajectory(self.task, tuple(turns), terminated, truncated, stop_reason, self._first)
        return self.trajectory

    def past(self, exchanges: int) -> Sequence[tuple[str, str]]:
        """The last observations, each with the action that followed, oldest first."""
        seen = [self._first, *(turn.observation for turn in self.turns)]
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
