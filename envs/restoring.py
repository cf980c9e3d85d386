"""Puts an environment back into an earlier state of an episode: by snapshot, else by checked replay.

A restored state is correct if the replayed steps give the recorded rewards, ends and observations. An environment with
``observations_repeat = False`` does not repeat its wording; there only rewards and ends are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium


class RecordedStep(NamedTuple):
    """A step of an episode: the action, and what the environment returned."""

    action: Any
    observation: str
    reward: float
    ended: bool


class ReplayMismatch(RuntimeError):
    """A replayed episode differs from the recorded one; the message is one line."""


@dataclass
class Restorer:
    """Restores one environment.

    Args:
        env: with its wrappers. A wrapper with state of its own has ``snapshot`` and ``restore``, too.
        replay: never takes snapshots.

    Attributes:
        snapshots: restored snapshots.
        replays: replayed episodes.
        mismatches: of these, those that differed.
    """

    env: gymnasium.Env
    replay: bool = False
    snapshots: int = 0
    replays: int = 0
    mismatches: int = 0

    def save(self) -> Any:
        """A snapshot; None if the environment has none."""
        if self.replay or not self.env.has_wrapper_attr("snapshot"):
            return None
        try:
            own = self.env.get_wrapper_attr("snapshot")()
        except NotImplementedError:  # of several environments the next one may have them
            return None
        return own, [limit._elapsed_steps for limit in self._limits()]

    def _limits(self) -> Iterator[gymnasium.wrappers.TimeLimit]:
        """Gymnasium's limits of steps, whose count no snapshot of the environment has."""
        env = self.env
        while isinstance(env, gymnasium.Wrapper):
            if isinstance(env, gymnasium.wrappers.TimeLimit):
                yield env
            env = env.env

    def restore(self, snapshot: Any, task_id: str, steps: Sequence[RecordedStep]) -> None:
        """Restores a state.

        Args:
            snapshot: of :meth:`save`; None: ``steps`` are replayed.
            task_id: the task.
            steps: from the start of the episode to the state.

        Raises:
            ReplayMismatch: the replayed steps gave something else.
        """
        if snapshot is not None:
            self.snapshots += 1
            own, elapsed = snapshot
            self.env.get_wrapper_attr("restore")(own)
            for limit, count in zip(self._limits(), elapsed, strict=True):
                limit._elapsed_steps = count
            return
        self.replays += 1
        self.env.reset(options={"task_id": task_id})
        exact = getattr(self.env.unwrapped, "observations_repeat", True)
        for number, step in enumerate(steps):
            observation, reward, terminated, truncated, _ = self.env.step(step.action)
            same = (float(reward), bool(terminated or truncated)) == (step.reward, step.ended)
            if not same or (exact and observation != step.observation):
                self.mismatches += 1
                raise ReplayMismatch(f"step {number + 1} of {task_id} gave another result when it was replayed")


__all__ = ["RecordedStep", "ReplayMismatch", "Restorer"]
