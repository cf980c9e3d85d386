"""Task sampling without failures; :mod:`roleagent.curricula.failure_sampler` samples failed tasks more often."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from roleagent.tasks.split import TaskSplit
from roleagent.types import Group, Reflection


class UniformSampler:
    """Every task alike.

    A batch names no task twice as long as the split has others: playing one task in two groups of the same batch
    teaches less than playing two.

    Args:
        task_split: the tasks.
        rng: the generator that draws.
    """

    def __init__(self, task_split: TaskSplit, rng: Generator):
        self.task_split = task_split
        self.rng = rng

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """``n`` task ids; with ``rng`` they are drawn from that generator instead."""
        batch: list[str] = []
        taken: set[str] = set()
        for _ in range(n):
            if len(taken) == len(self.task_split):
                taken = set()
            task_id = self._draw(self.rng if rng is None else rng, taken)
            batch.append(task_id)
            taken.add(task_id)
        return batch

    def _draw(self, rng: Generator, taken: set[str]) -> str:
        """One task that is not taken, every one alike."""
        if 2 * len(taken) < len(self.task_split):  # try until one is free: two throws on average at the worst
            while (task_id := self.task_split.task_ids[int(rng.integers(len(self.task_split)))]) in taken:
                pass
            return task_id
        free = [task_id for task_id in self.task_split.task_ids if task_id not in taken]
        return free[int(rng.integers(len(free)))]

    def probabilities(self) -> np.ndarray:
        """The probability of each task of the split to be drawn first, shape ``(len(task_split),)``, sum 1."""
        return np.full(len(self.task_split), 1 / len(self.task_split))

    def choices(self) -> Mapping[str, tuple[str, str]]:
        """No task is chosen for a reason."""
        return {}

    def observe(self, groups: Sequence[Group]) -> Mapping[tuple[int, int], Reflection]:
        """Learns nothing."""
        return {}

    def metrics(self) -> dict[str, float]:
        """``entropy``: of :meth:`probabilities`, in nats."""
        p = self.probabilities()
        return {"entropy": float(-(p[p > 0] * np.log(p[p > 0])).sum())}

    def state_dict(self) -> dict[str, Any]:
        """The split's digest and the generator's state."""
        return {"task_split": self.task_split.digest, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`.

        Raises:
            ValueError: the state belongs to another split.
        """
        if state["task_split"] != self.task_split.digest:
            raise ValueError(
                f"the sampler's state was saved for the split {state['task_split']}, but {self.task_split.env_id}:"
                f"{self.task_split.split} is {self.task_split.digest}: resume with the tasks that the run began with"
            )
        self.rng.bit_generator.state = state["rng"]


class TypeSampler(UniformSampler):
    """A share of the tasks is drawn over their types alike, the rest uniformly.

    It is the control of a curriculum that finds rare types: what it gains without reading failures.

    Args:
        task_split: the tasks.
        rng: the generator that draws.
        epsilon: that share, in [0, 1).
        task_type: the type of a task id.
    """

    def __init__(self, task_split: TaskSplit, rng: Generator, epsilon: float, task_type: Callable[[str], str]):
        super().__init__(task_split, rng)
        self.epsilon = epsilon
        of_type: dict[str, list[str]] = {}
        for task_id in task_split.task_ids:
            of_type.setdefault(task_type(task_id), []).append(task_id)
        self._types = list(of_type.values())

    def _draw(self, rng: Generator, taken: set[str]) -> str:
        if rng.random() < self.epsilon:
            alike = self._types[int(rng.integers(len(self._types)))]
            if free := [task_id for task_id in alike if task_id not in taken]:
                return free[int(rng.integers(len(free)))]
        return super()._draw(rng, taken)

    def probabilities(self) -> np.ndarray:
        mixed = (1 - self.epsilon) * super().probabilities()
        for alike in self._types:
            places = [self.task_split.position(task_id) for task_id in alike]
            mixed[places] += self.epsilon / (len(self._types) * len(alike))
        return mixed
