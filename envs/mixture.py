"""Several environments as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from roleagent.envs.tools.calls.broker import PreparedCall, prepared_calls
from roleagent.tasks.split import JointTaskSplit


class Mixture(gymnasium.Wrapper):
    """Plays each task in the environment that has it; the task ids are ``name/task``.

    It is a wrapper around the environment of the present task: whatever asks for an attribute, for the base environment
    or for its card finds those of that environment. ``task_id`` and ``task_type`` in ``info`` begin with the name.

    Args:
        makes: builds each environment, by name; the first one at once, others at their first task.
        task_split: the tasks of all of them.
    """

    def __init__(self, makes: Mapping[str, Callable[[], gymnasium.Env]], task_split: JointTaskSplit):
        self._makes, self.task_split = makes, task_split
        self._made: dict[str, gymnasium.Env] = {}
        self._name, self._rng = next(iter(makes)), np.random.default_rng()
        super().__init__(self._of(self._name))

    def _of(self, name: str) -> gymnasium.Env:
        if name not in self._made:
            self._made[name] = self._makes[name]()
        return self._made[name]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins a task: ``options["task_id"]``, or one drawn from all tasks alike.

        Raises:
            ValueError: there is no such task.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        task_id = self.task_split.require(self.task_split.requested(options, self._rng))
        self._name, own = self.task_split.member_of(task_id)
        self.env = self._of(self._name)
        observation, info = self.env.reset(seed=seed, options={**(options or {}), "task_id": own})
        return observation, self._named(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._named(info)

    def prepare(self, action: Any) -> list[PreparedCall] | None:
        """The tool calls of a step (:func:`~roleagent.envs.tools.calls.broker.prepared_calls`)."""
        return prepared_calls(self.env, action)

    @property
    def spec(self) -> Any:
        """That of the present environment."""
        return self.env.spec

    def commands(self) -> Mixture:
        """The same environments without their outermost wrapper, which reads replies."""
        return Mixture({name: lambda name=name: self._of(name).env for name in self._makes}, self.task_split)

    def task_type(self, task_id: str) -> str:
        """The type of a task; ``name`` alone where the environment does not say it."""
        name, own = self.task_split.member_of(task_id)
        return joined(name, getattr(self._of(name).unwrapped, "task_type", lambda own: "")(own))

    def close(self) -> None:
        for env in self._made.values():
            env.close()

    def _named(self, info: dict[str, Any]) -> dict[str, Any]:
        return {**info, **{key: joined(self._name, info[key]) for key in ("task_id", "task_type") if key in info}}


def parted(name: str, text: str) -> str:
    """What :func:`joined` put behind a name.

    >>> parted("toy", "toy/boil-egg-1"), parted("", "/data/a.tw")
    ('boil-egg-1', '/data/a.tw')
    """
    return text.removeprefix(f"{name}/") if name else text


def joined(name: str, text: str) -> str:
    """``name/text``, or what there is of both.

    >>> joined("toy", "boil-egg-1"), joined("", "boil-egg-1"), joined("toy", "")
    ('toy/boil-egg-1', 'boil-egg-1', 'toy')
    """
    return "/".join(part for part in (name, text) if part)
