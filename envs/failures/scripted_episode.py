"""Scripted episodes: an expert plays, until a script departs from it if there is one, and the episode is recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np

from roleagent.env_card import make_expert, step_limit
from roleagent.types import Recorder, Task, Trajectory, Turn

Item = TypeVar("Item")

# The Tags wrapper's answer to replies that it cannot read.
_UNREADABLE = ("no <action> block", "<action> is never closed", "the command is empty", "2 action blocks")


class EpisodeOver(Exception):
    """The environment has ended the episode."""


class Impossible(Exception):
    """The failure cannot happen in this task."""


class ScriptedEpisode:
    """Plays a base environment command by command and keeps the trajectory.

    Args:
        env: takes bare commands.
        task_id: the task to play.
        rng: draws everything that varies.

    Attributes:
        expert: the environment's scripted expert; it has seen everything that was played.
        step: the turn at which the failure happened, 0-based; None before it, or if it is no single step.
        marked: whether the failure has happened.
    """

    def __init__(self, env: gymnasium.Env, task_id: str, rng: np.random.Generator):
        self.env, self.rng = env, rng
        observation, info = env.reset(options={"task_id": task_id})
        base: Any = env.unwrapped
        self._record = Recorder(Task.of(base.task_split.env_id, info["task_id"], info), observation, info)
        self.expert = make_expert(env, rng)
        self.expert.reset(info["goal"], observation)
        self.step: int | None = None
        self.marked = False

    @property
    def observation(self) -> str:
        """The last observation."""
        return self._record.observation

    @property
    def info(self) -> Mapping[str, Any]:
        """The environment's last report."""
        return self._record.info

    @property
    def turns(self) -> list[Turn]:
        """What was played so far."""
        return self._record.turns

    @property
    def left(self) -> int:
        """Steps until the environment ends the episode."""
        return (step_limit(self.env) or 0) - len(self.turns)

    @property
    def over(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._record.over

    def do(self, command: str) -> None:
        """Plays one command.

        Raises:
            EpisodeOver: the episode has ended, with this command or before it.
        """
        self._play(command, None)

    def send_unreadable(self) -> None:
        """Plays a reply that holds no command: the environment gets ``""``, as from the Tags wrapper."""
        self._play("", self.pick(_UNREADABLE))

    def mark_failure(self, single: bool = True) -> None:
        """Marks the next command as the one that fails. ``single``: whether the failure is one step."""
        if not self.marked:
            self.marked, self.step = True, len(self.turns) if single else None

    def follow(self, until: Callable[[str], bool]) -> str:
        """Follows the expert until ``until`` accepts a command, which is returned and not played."""
        while not until(command := self.expert.act()):
            self.do(command)
        return command

    def finish(self) -> bool:
        """Follows the expert to the end of the episode; returns whether it was won."""
        with contextlib.suppress(EpisodeOver):
            self.follow(lambda _: False)
        return bool(self.info["won"])

    def chance(self, share: float) -> bool:
        """True in this share of calls."""
        return bool(self.rng.random() < share)

    def pick(self, choices: Sequence[Item]) -> Item:
        """One of them.

        Raises:
            Impossible: there is nothing to choose from.
        """
        if not choices:
            raise Impossible
        return choices[int(self.rng.integers(len(choices)))]

    def shuffled(self, choices: Sequence[Item]) -> list[Item]:
        """All of them, in any order."""
        return [choices[int(i)] for i in self.rng.permutation(len(choices))]

    def trajectory(self) -> Trajectory:
        """The record, as a rollout would have kept it."""
        return self._record.trajectory()

    def _play(self, command: str, error: str | None) -> None:
        if self.over:
            raise EpisodeOver
        text, reward, terminated, truncated, info = self.env.step(command)
        self._record.add(command, text, float(reward), terminated, truncated, {**info, "format_error": error})
        if self.over:
            raise EpisodeOver
        self.expert.observe(command, text)


def unreadable_reply(decisive: Callable[[str], bool], spare: int = 4) -> Callable[[ScriptedEpisode], None]:
    """The scripted failure ``action_format_error`` of an environment.

    Args:
        decisive: whether a command may be the one that wins; such a command is never readable.
        spare: least number of steps that are left when it begins.
    """

    def action_format_error(episode: ScriptedEpisode) -> None:
        """From some step on at least half of the replies, and all decisive ones, hold no readable action."""
        haste, share = episode.rng.uniform(0.2, 0.8), episode.rng.uniform(0.5, 1.0)
        episode.follow(lambda command: decisive(command) or episode.left <= spare or episode.chance(haste))
        episode.mark_failure()
        episode.send_unreadable()
        while True:
            command = episode.expert.act()
            if decisive(command) or episode.chance(share):
                episode.send_unreadable()
            else:
                episode.do(command)

    return action_format_error


__all__ = ["EpisodeOver", "Impossible", "ScriptedEpisode", "unreadable_reply"]
