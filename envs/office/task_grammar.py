"""The tasks that can be written for the office (GenEnv): a kind of task, and how many calls depend on each other."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
from numpy.random import Generator

from roleagent.envs.office.goals import KINDS
from roleagent.envs.office.tasks import MOST_CALLS, WRITTEN, build_task, is_generated, task_ids
from roleagent.envs.office.world import SPLITS
from roleagent.tasks.grammar import TaskGrammar, TaskSpec


class OfficeGrammar(TaskGrammar):
    """Tasks such as ``kind=book calls=5``, of more calls than the listed tasks have; the seed draws office and goal.

    Args:
        plan_share: has no effect: a plan may have all steps, since every call follows from the goal and the results.
    """

    seed_draws_goal = True

    def __init__(self, env: gymnasium.Env, plan_share: float = 1.0):
        super().__init__(env, plan_share=1.0)
        most = max(1, min(MOST_CALLS, self.env.max_steps - 1))  # the last command is the answer
        self.fields = {"kind": KINDS, "calls": tuple(str(calls) for calls in range(1, most + 1))}

    def task_id(self, spec: TaskSpec) -> str:
        kind, calls = spec.values
        return f"{kind}-{calls}-{spec.seed}"

    def spec(self, task_id: str) -> TaskSpec:
        if not isinstance(task_id, str) or not is_generated(task_id):
            raise ValueError(f"{str(task_id)[:200]!r} is no task that was written for {self.env.task_split.env_id}")
        kind, calls, number = task_id.split("-")
        return TaskSpec((kind, calls), int(number))

    def base(self, rng: Generator) -> TaskSpec:
        listed = self.env.task_split.task_ids
        kind, calls, _ = listed[int(rng.integers(len(listed)))].split("-")
        return self.complete((kind, calls), rng)

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        return TaskSpec(tuple(values), int(rng.integers(WRITTEN.start, WRITTEN.stop)))

    def content(self, spec: TaskSpec) -> str:
        return self.env.task(self.task_id(spec)).prompt

    def held_out_contents(self) -> frozenset[str]:
        held_out = ((split, task_id) for split in SPLITS if split != "train" for task_id in task_ids(split))
        return frozenset(build_task(task_id, split, self.env.seed).prompt for split, task_id in held_out)


__all__ = ["OfficeGrammar"]
