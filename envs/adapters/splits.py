"""The environments behind an adapter, by split: training and evaluation play different splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

import gymnasium

from roleagent.envs.registry import make_env
from roleagent.tasks.split import TaskSplit, first_tasks

Wrapper = Callable[[gymnasium.Env], gymnasium.Env]


class Splits:
    """An environment for each split, made when it is first asked for.

    Args:
        env_id: a Gymnasium id.
        arguments: of the environment; a ``split`` among them is the default split.
        wrappers: put around each environment, the first one innermost: functions, or their names as
            ``module:function``.

    >>> splits = Splits("RoleAgent/Toy-v0", {})
    >>> splits().unwrapped.task_split.split, splits("valid").unwrapped.task_split.split
    ('train', 'valid')
    >>> splits("valid") is splits("valid")
    True
    """

    def __init__(self, env_id: str, arguments: Mapping[str, Any], wrappers: Sequence[Wrapper | str] = ()):
        self.env_id, self.arguments, self.wrappers = env_id, dict(arguments), tuple(map(load_function, wrappers))
        self._envs: dict[str | None, gymnasium.Env] = {}

    def __call__(self, split: str | None = None) -> gymnasium.Env:
        if split not in self._envs:
            named = self.arguments if split is None else {**self.arguments, "split": split}
            env = make_env(self.env_id, named)
            for wrapper in self.wrappers:
                env = wrapper(env)
            self._envs[split] = env
        return self._envs[split]

    def task_split(self, split: str | None = None) -> TaskSplit:
        """The tasks of a split.

        Raises:
            ValueError: the environment has no task_split, and is none of RoleAgent's kind.
        """
        task_split = getattr(self(split).unwrapped, "task_split", None)
        if not isinstance(task_split, TaskSplit):
            raise ValueError(f"{self.env_id} has no task_split: it is no environment of RoleAgent's kind")
        return task_split

    def rows(
        self, split: str | None = None, limit: int | None = None, draws: int | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a dataset: arguments of ``reset``, one row per group of episodes.

        Args:
            split: of the environment; None: its default split.
            limit: at most so many tasks, of all types; None: all.
            draws: instead of the tasks, so many rows with a ``seed``, for a sampler that chooses the task
                (:class:`~roleagent.envs.wrappers.FailureCurriculum`). All episodes of a row have the same task.

        Raises:
            ValueError: a number is not positive, or the environment has no task_split.

        >>> Splits("RoleAgent/Toy-v0", {}).rows(limit=1)
        [{'task_id': 'bring-apple-counter-1', 'split': 'train'}]
        >>> Splits("RoleAgent/Toy-v0", {}).rows(draws=2)
        [{'seed': 0, 'split': 'train'}, {'seed': 1, 'split': 'train'}]
        """
        if any(number is not None and number < 1 for number in (limit, draws)):
            raise ValueError(f"limit and draws must be at least 1, not {limit} and {draws}")
        task_split = self.task_split(split)
        if draws is not None:
            return [{"seed": seed, "split": task_split.split} for seed in range(draws)]
        if limit is not None:
            task_split = first_tasks(self(split), limit)
        return [{"task_id": task_id, "split": task_split.split} for task_id in task_split.task_ids]

    def close(self) -> None:
        while self._envs:
            self._envs.popitem()[1].close()


def chosen(row: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``reset`` in a trainer's row, which may have other columns and empty ones.

    >>> chosen({"task_id": None, "seed": 3, "split": "train", "data_source": "toy"})
    {'split': 'train', 'seed': 3}
    """
    return {key: row[key] for key in ("task_id", "split", "seed") if row.get(key) is not None}


def load_function(named: Callable[..., Any] | str) -> Callable[..., Any]:
    """A function, or the one that ``module:function`` names.

    Raises:
        ValueError: there is no such function.
    """
    try:
        loaded = resolve_name(named) if isinstance(named, str) else named
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot load {named!r} ({error}): name a function as module:function") from error
    if not callable(loaded):
        raise ValueError(f"{named!r} is not a function but {type(loaded).__name__}")
    return loaded


__all__ = ["Splits", "Wrapper", "chosen", "load_function"]
