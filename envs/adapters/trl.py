"""RoleAgent's environments for TRL: ``GRPOTrainer(environment_factory=…)``.

TRL plays an episode as a conversation with tool calls. The tools of an environment are the public methods of the
classes here; the dataset says which task a row plays, so that the G rollouts of a group play the same one; the reward
of an episode is the sum of its ``task`` terms. Nothing of TRL is imported.

    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        train_dataset=tasks_dataset("RoleAgent/ALFWorld-v0"),
        environment_factory=environment_factory("RoleAgent/ALFWorld-v0"),
        args=GRPOConfig(max_completion_length=4096, max_tool_calling_iterations=50, …),
    )
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled

from roleagent.env_spec import spec_of
from roleagent.envs.adapters.splits import Splits
from roleagent.markers import escape_markers

OVER = "The episode is over."


class Episodes:
    """One environment of TRL's, and what its reward functions may look at.

    Every public method of a subclass is a tool, except those that TRL knows: ``reset`` and ``get_reward``.

    Args:
        env_id: a Gymnasium id.
        arguments: of the environment.
        hints: whether observations end with what can be done now, where the environment lists it.

    Attributes:
        info: what the environment last reported (see :mod:`roleagent.types`).
        commands: what was done in this episode so far.
        rewards: the sum of each named reward term.
        over: whether the episode has ended.
        failure: what the environment raised, if it has failed; None otherwise.
        prompt: the instruction that a row of the dataset begins with.
    """

    prompt = "Solve the task that you are given. Act one command at a time, and look at what happens."

    def __init__(self, env_id: str, arguments: dict[str, Any], hints: bool = True):
        self._splits, self._hints = Splits(env_id, arguments), hints
        self._env: gymnasium.Env | None = None
        self.info: dict[str, Any] = {}
        self.commands: list[str] = []
        self.rewards: dict[str, float] = {}
        self.over = True
        self.failure: str | None = None

    def reset(self, task_id: str | None = None, split: str | None = None, **row: Any) -> str:
        """Begins the episode of a row of the dataset; the text is what the prompt goes on with.

        Raises:
            ValueError: there is no such task.
        """
        self.over = True  # until reset: no steps after an error
        self._env = env = self._splits(split)
        text, self.info = env.reset(options={} if task_id is None else {"task_id": task_id})
        self.commands, self.rewards, self.over, self.failure = [], {}, False, None
        return self._shown(text)

    def get_reward(self) -> float | None:
        """The sum of the task terms; None if the environment has failed.

        TRL warns of a None and then counts it as a 0, for it has no way to leave a rollout out.
        """
        return None if self.failure is not None else float(self.rewards.get("task", 0.0))

    def _do(self, command: str) -> str:
        if self.over or self._env is None:
            return OVER
        self.commands.append(command)
        try:
            text, reward, terminated, truncated, self.info = self._env.step(command)
        except Exception as error:
            self.over, self.failure = True, f"{type(error).__name__}: {error}"
            gymnasium.logger.warn(f"{self.info.get('task_id')} has failed: {self.failure}")
            raise
        for name, value in self.info.get("rewards", {"task": float(reward)}).items():
            self.rewards[name] = self.rewards.get(name, 0.0) + value
        self.over = bool(terminated or truncated)
        return self._shown(text)

    def _shown(self, text: str) -> str:
        """What the model reads. Its markers are replaced: TRL recognizes special tokens in it."""
        commands = self._possible() if self._hints and not self.over else []
        hints = f"\nPossible now: {', '.join(commands)}" if commands else ""
        return escape_markers(text + hints, "tool_call", "think") + (f"\n{OVER}" if self.over else "")

    def _possible(self) -> list[str]:
        return list(self.info.get("admissible_actions", ()))


class CommandEpisodes(Episodes):
    """One tool for every command."""

    def act(self, command: str) -> str:
        """Carry out one command in the world, and see what happens.

        Args:
            command: The command, for instance "go to desk 1" or "take mug 1 from desk 1".

        Returns:
            What you see then.
        """
        return self._do(command)


def environment_factory(env_id: str, *, hints: bool = True, **arguments: Any) -> Callable[[], Episodes]:
    """What ``GRPOTrainer`` takes as ``environment_factory``; it can be pickled, as its asynchronous kind demands.

    Args:
        env_id: a Gymnasium id of an environment that has a split.
        hints: whether observations end with what can be done now.
        arguments: of the environment.

    >>> episodes = environment_factory("RoleAgent/Toy-v0")()
    >>> print(episodes.reset("bring-egg-tray-1")[:20], "|", episodes.act("look")[:34])
    You are in a kitchen | You are in the middle of the kitch
    """
    return partial(_tools(env_id), env_id, arguments, hints)


def tasks_dataset(env_id: str, *, split: str | None = None, limit: int | None = None, **arguments: Any) -> Any:
    """The tasks of a split as TRL's dataset, a row each: the instruction as ``prompt``, ``task_id`` and ``split``.

    What the environment says at the beginning is added to the prompt when the row is played.

    Args:
        env_id: a Gymnasium id.
        split: of the split; None: the environment's own.
        limit: at most so many tasks, from the split's start.
        arguments: of the environment.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package ``datasets``, which comes with TRL, is missing.
    """
    try:
        from datasets import Dataset
    except ImportError as error:
        raise DependencyNotInstalled(
            f"TRL's datasets are not installed ({error}): pip install 'roleagent[trl]'"
        ) from error
    splits = Splits(env_id, arguments)
    task_split = splits.task_split(split)
    splits.close()
    prompt = [{"role": "user", "content": _tools(env_id).prompt + "\n\n"}]
    rows = [
        {"prompt": prompt, "task_id": task_id, "split": task_split.split} for task_id in task_split.task_ids[:limit]
    ]
    return Dataset.from_list(rows)


def _tools(env_id: str) -> type[Episodes]:
    return spec_of(env_id).load("trl_tools") or CommandEpisodes


__all__ = ["CommandEpisodes", "Episodes", "environment_factory", "tasks_dataset"]
