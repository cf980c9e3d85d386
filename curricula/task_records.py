"""Records of every task: its type, the iteration of its last episodes, and the estimated success rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from roleagent.tasks.split import TaskSplit

PRIOR = 1.0
"""Episodes that a task type's rate counts as in the estimate for a task, and the overall rate in that for a type."""


class TaskRecords:
    """Types, last plays and outcomes of a split's tasks.

    The chance p to solve a task is estimated as the mean of a Beta posterior: the episodes of the task, discounted by
    ``decay`` per iteration since it was last played, and a prior of :data:`PRIOR` episodes at the rate of the task
    type. That rate shrinks in the same way towards the rate over all tasks, and this one towards 1/2. So a task that
    was never played has the rate of its type, and a task that was played long ago returns to it, because the policy has
    changed since.

    Args:
        task_split: the tasks.
        decay: in [0, 1].
        task_type: the type of a task id. Without it a type is known once the task was played or retrieved.
    """

    def __init__(self, task_split: TaskSplit, decay: float, task_type: Callable[[str], str] | None = None):
        self.task_split, self.decay = task_split, decay
        self.types = [""]  # by number; tasks of unknown type share the first
        self._numbers = {"": 0}
        self.type_of = np.zeros(len(task_split), dtype=np.int64)
        self.last = np.zeros(len(task_split), dtype=np.int64)  # the iteration of the newest play; 0: never played
        self._won = np.zeros(len(task_split))  # episodes, as of that iteration
        self._played = np.zeros(len(task_split))
        if task_type is not None:
            for task_id in task_split.task_ids:
                self.learn_type(task_id, task_type(task_id))

    def learn_type(self, task_id: str, task_type: str) -> None:
        """Stores the type of a task; an empty type is ignored."""
        if task_type:
            if task_type not in self._numbers:
                self._numbers[task_type] = len(self.types)
                self.types.append(task_type)
            self.type_of[self.task_split.position(task_id)] = self._numbers[task_type]

    def name_of_type(self, task_id: str) -> str:
        """The type of a task, ``""`` where it is unknown."""
        return self.types[self.type_of[self.task_split.position(task_id)]]

    def add(self, task_id: str, won: int, played: int, iteration: int) -> None:
        """Takes in the episodes of a task in the present iteration."""
        place = self.task_split.position(task_id)
        left = self.decay ** (iteration - self.last[place])
        self._won[place] = self._won[place] * left + won
        self._played[place] = self._played[place] * left + played
        self.last[place] = iteration

    def chances(self, iteration: int) -> np.ndarray:
        """The estimate of p for every task of the split, in (0, 1), shape ``(len(task_split),)``."""
        left = self.decay ** (iteration - self.last)
        won, played = self._won * left, self._played * left
        overall = (won.sum() + PRIOR / 2) / (played.sum() + PRIOR)
        of_type = [np.bincount(self.type_of, counts, len(self.types)) for counts in (won, played)]
        rates = (of_type[0] + PRIOR * overall) / (of_type[1] + PRIOR)
        return (won + PRIOR * rates[self.type_of]) / (played + PRIOR)

    def waited(self, iteration: int) -> np.ndarray:
        """Iterations since each task was last played, or since the start; shape ``(len(task_split),)``."""
        return iteration - self.last

    def state_dict(self) -> dict[str, Any]:
        """Per task that has a type or was played: type, last play, episodes won and played."""
        return {
            self.task_split.task_ids[place]: [
                self.types[self.type_of[place]],
                int(self.last[place]),
                float(self._won[place]),
                float(self._played[place]),
            ]
            for place in np.flatnonzero(self.last + self.type_of)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where :meth:`state_dict` was taken."""
        self.last[:], self._won[:], self._played[:] = 0, 0.0, 0.0
        for task_id, (name, last, won, played) in state.items():
            self.learn_type(task_id, name)
            place = self.task_split.position(task_id)
            self.last[place], self._won[place], self._played[place] = last, won, played
