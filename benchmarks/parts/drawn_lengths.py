"""A sampler beside the learner whose replies take drawn times: what asynchronous rollouts are compared on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.episode import Threads
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.rollout import Rollout
from roleagent.learners.rl import Episodes
from roleagent.learners.run.ranks import Ranks
from roleagent.timer import Timer
from roleagent.types import Completion, Request


class TurnByTurn(HFPolicy):
    """Each turn's batch takes as long as its longest reply. The reply is always ``look``.

    Args:
        policy: has the tokenizer.
        mean: seconds of a reply; they are drawn log-normally, as the lengths of thoughts are.
    """

    def __init__(self, policy: HFPolicy, mean: float, seed: int = 0):
        super().__init__(policy.model, policy.tokenizer, policy.generator)
        self.context_length = 2**20
        self._mean, self._seed = mean, seed
        self._rngs: dict[int, np.random.Generator] = {}
        self._reply = tuple(policy.encode("<action>look</action>"))

    def seconds(self, slot: int) -> float:
        """Of the next reply in a slot: the same for every sampler of this seed."""
        rng = self._rngs.setdefault(slot, np.random.default_rng([self._seed, slot]))
        return float(rng.lognormal(np.log(self._mean) - 0.5, 1.0))

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        time.sleep(max(self.seconds(request.slot) for request in requests))
        return [self._completion() for _ in requests]

    def _completion(self) -> Completion:
        return Completion(self._reply, (0.0,) * len(self._reply), "stop", self.version)


class AtOnce(TurnByTurn):
    """Each reply takes its own time, as a server's."""

    def backend(self, temperature: float) -> Threads:
        def answer(requests: Sequence[Request]) -> list[Completion]:
            time.sleep(sum(self.seconds(request.slot) for request in requests))
            return [self._completion() for _ in requests]

        return Threads(lambda: answer)


def seconds_of(rollout: Rollout, task_ids: Sequence[str], copies: int) -> float:
    """Of a batch of episodes."""
    begun = time.perf_counter()
    rollout.play(task_ids, copies, 1.0)
    return time.perf_counter() - begun


def iterations(world: EnvSplit, policy: HFPolicy, task_ids: Sequence[str], update: float, count: int) -> float:
    """Seconds of some iterations, whose update takes ``update`` seconds of another machine."""
    run = SimpleNamespace(
        config=world.config,
        timer=Timer(),
        iteration=0,
        own_stream=lambda *name: np.random.default_rng(0),
        inner=lambda *shown: None,
        ranks=Ranks(0, 1),
    )
    sampler = SimpleNamespace(sample=lambda count: task_ids)
    episodes = Episodes(run, world.rollout(policy), sampler, world)  # type: ignore[arg-type] - what it reads of a run
    begun = time.perf_counter()
    for run.iteration in range(1, count + 1):
        episodes.next()
        time.sleep(update)
        episodes.wait()
    return time.perf_counter() - begun
