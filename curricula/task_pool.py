"""The generated tasks that were accepted, and when they are played again (GenEnv)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

OLD = 8
"""Iterations since a task was first played, from which its success measures forgetting."""


@dataclass(slots=True)
class PooledTask:
    """What is known of an accepted task.

    Attributes:
        first_played: the iteration.
        first_success: p̂ of that iteration.
        last_played: the iteration.
        last_success: p̂ of that iteration.
    """

    first_played: int
    first_success: float
    last_played: int
    last_success: float


class TaskPool:
    """Every accepted task that was played; it only grows."""

    def __init__(self) -> None:
        self.tasks: dict[str, PooledTask] = {}

    def __len__(self) -> int:
        return len(self.tasks)

    def oldest(self, count: int, taken: Collection[str] = ()) -> list[str]:
        """Up to ``count`` tasks that were not solved in all attempts when last played, longest unplayed first."""
        open_tasks = [
            (task.last_played, task_id)
            for task_id, task in self.tasks.items()
            if task.last_success < 1 and task_id not in taken
        ]
        open_tasks.sort(key=lambda pair: pair[0])  # stable: in the order of acceptance
        return [task_id for _, task_id in open_tasks[:count]]

    def add(self, task_id: str, success: float, iteration: int) -> PooledTask:
        """Notes that a task was played; returns what was known of it before."""
        known = self.tasks.get(task_id) or PooledTask(iteration, success, iteration, success)
        self.tasks[task_id] = PooledTask(known.first_played, known.first_success, iteration, success)
        return known

    def state_dict(self) -> dict[str, Any]:
        """Every task's numbers."""
        return {task_id: list(astuple(task)) for task_id, task in self.tasks.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where :meth:`state_dict` was taken."""
        self.tasks = {task_id: PooledTask(*numbers) for task_id, numbers in state.items()}


def replay_metrics(replayed: Sequence[tuple[PooledTask, float]], iteration: int) -> dict[str, float]:
    """Whether tasks that are played again are solved more often, and whether old ones are forgotten.

    Args:
        replayed: of each task what was known before, and the new success rate.
        iteration: of the new one.

    Returns:
        ``replay_gain``: mean of the new success minus the first; ``old_success``: mean success on tasks that were first
        played at least :data:`OLD` iterations ago, and ``forgetting``: how much less that is than when they were last
        played. A mean of nothing is left out.
    """
    found = {}
    if replayed:
        found["replay_gain"] = float(np.mean([new - known.first_success for known, new in replayed]))
    old = [(known, new) for known, new in replayed if known.first_played <= iteration - OLD]
    if old:
        found["old_success"] = float(np.mean([new for _, new in old]))
        found["forgetting"] = float(np.mean([known.last_success - new for known, new in old]))
    return found


__all__ = ["OLD", "PooledTask", "TaskPool", "replay_metrics"]
