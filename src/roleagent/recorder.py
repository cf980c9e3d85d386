"""The record of an episode while it is played; every kind of episode keeps one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roleagent.types import (
    Completion,
    Prediction,
    PredictionScore,
    Task,
    Trajectory,
    Turn,
    ending,
    grouping_state,
    reward_terms,
)

UNSAMPLED = Completion((), (), "stop")
"""Stands for a reply whose tokens are not known: that of an expert, or of a model behind a server."""


class Recorder:
    """Takes in the steps of an episode, and gives its trajectory.

    Args:
        task: what is played.
        observation: of ``reset``.
        info: of ``reset``.

    Attributes:
        observation: the newest observation.
        info: the newest ``info`` of the environment.
        turns: what was done so far.
        scores: of the predictions so far, as they arrived.
        stop_reason: see :class:`~roleagent.types.Trajectory`; ``""`` while the episode goes on.
    """

    def __init__(self, task: Task, observation: str, info: Mapping[str, Any]):
        self.task, self.initial_observation, self.initial_info = task, observation, info
        self.observation, self.info = observation, info
        self.turns: list[Turn] = []
        self.scores: list[PredictionScore] = []
        self.stop_reason = ""
        self._terminated = self._truncated = False
        self._state, self._grouping_state = info.get("state"), grouping_state(info)

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.stop_reason)

    @property
    def won(self) -> bool:
        """Whether the last step solved the task."""
        return self.stop_reason == "won"

    def add(
        self,
        action: str,
        observation: str,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        *,
        prompt_ids: tuple[int, ...] = (),
        completion: Completion = UNSAMPLED,
        prediction: Prediction | None = None,
    ) -> Turn:
        """Adds a step: the bare command, what ``step`` returned, and what was sampled."""
        rewards = reward_terms(info, reward)
        turn = Turn(
            *(prompt_ids, completion, action, observation, self._state),
            *(prediction, rewards, info, self._grouping_state),
        )
        self.turns.append(turn)
        self.scores += info.get("prediction_scores", ())
        self.observation, self.info = observation, info
        if not info.get("revision"):  # a note changes nothing
            self._state, self._grouping_state = info.get("state"), grouping_state(info)
        if terminated or truncated:
            self.end(ending(info, terminated, rewards), terminated, truncated)
        return turn

    def end(self, stop_reason: str, terminated: bool = False, truncated: bool = True) -> None:
        """Ends the episode."""
        self.stop_reason, self._terminated, self._truncated = stop_reason, terminated, truncated

    def trajectory(self) -> Trajectory:
        """The record; scores that arrived late are with the turns that made the predictions."""
        turns = []
        for number, turn in enumerate(self.turns):
            if turn.prediction is not None:
                scores = tuple(score for score in self.scores if score.turn == number)
                turn = replace(turn, prediction=replace(turn.prediction, scores=scores))
            turns.append(turn)
        ended = (self._terminated, self._truncated, self.stop_reason)
        return Trajectory(self.task, tuple(turns), *ended, self.initial_observation, self.initial_info)
