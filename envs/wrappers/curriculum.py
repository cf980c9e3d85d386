"""Agent-In-World as a wrapper: it chooses the task of the next episode."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from roleagent.types import Sampler


class FailureCurriculum(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
    """A thin view of a sampler: ``reset`` without a ``task_id`` plays a task that the sampler chooses.

    A trainer that plays one task several times asks the sampler itself and passes the ``task_id``; this wrapper then
    does nothing. It gives the same curriculum to any other loop, which reports how episodes went with
    ``sampler.observe``. With a ``seed`` the task is drawn with a generator of that seed, so that the same seed gives
    the same episode until the sampler observes new episodes. Which failures the sampler retrieves from, and
    whether it draws by what there is to learn, are options of
    :class:`~roleagent.curricula.failure_sampler.CurriculumSampler`.

    Args:
        env: an environment whose ``reset`` understands ``options["task_id"]``.
        sampler: chooses from the tasks of that environment's split.
    """

    def __init__(self, env: gymnasium.Env, sampler: Sampler):
        gymnasium.utils.RecordConstructorArgs.__init__(self, _disable_deepcopy=True, sampler=sampler)
        gymnasium.Wrapper.__init__(self, env)
        self.sampler = sampler

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        options = dict(options or {})
        if options.get("task_id") is None:
            rng = None if seed is None else np.random.default_rng(seed)
            [options["task_id"]] = self.sampler.sample(1, rng)
        return self.env.reset(seed=seed, options=options)
