"""The scripted expert of tool environments: the calls that a task brings as its solution."""

from __future__ import annotations

from typing import Any

import gymnasium
from numpy.random import Generator

from roleagent.envs.tools.calls.command import answer_command

GIVEN_UP = "I do not know."


class WalkthroughExpert:
    """Makes a task's ``calls`` one after another, then answers.

    A command that something else was played for is made again. A task without ``calls`` is given up at once.

    Args:
        env: an environment with ``walkthrough()``, which this expert plays.
    """

    def __init__(self, env: Any):
        self._env = env
        self._left: list[str] = []
        self.given_up = False

    def reset(self, goal: str, observation: str) -> None:
        """Begins the environment's current task."""
        self._left = list(self._env.walkthrough())
        self.given_up = not self._left

    def act(self) -> str:
        """The next command."""
        return self._left[0] if self._left else answer_command(GIVEN_UP)

    def observe(self, command: str, observation: str) -> None:
        """Learns which command was played, its own or another."""
        if self._left and command == self._left[0]:
            self._left.pop(0)


def make_expert(env: gymnasium.Env, rng: Generator) -> WalkthroughExpert:
    """The expert of an environment.

    Raises:
        ValueError: no task of its split brings calls.
    """
    base: Any = env.unwrapped
    if not any(base.task(task_id).calls for task_id in base.task_split.task_ids):
        raise ValueError(
            f"no task of the split {base.task_split.split!r} brings calls, which demonstrate its solution: add "
            '"calls" to the tasks, or set policy.path and warmstart.episodes=0'
        )
    return WalkthroughExpert(base)


__all__ = ["GIVEN_UP", "WalkthroughExpert", "make_expert"]
