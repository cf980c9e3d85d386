"""A policy whose replies vLLM samples: its engine has a copy of the learner's weights, which is replaced after
every update.

The engine is within this process (:class:`~roleagent.agents.policies.vllm.engine.LocalEngine`), in processes of its own
(:class:`~roleagent.agents.policies.vllm.processes.ProcessPool`) or behind URLs
(:class:`~roleagent.agents.policies.vllm.client.ServerPool`). Token ids go in and token ids come out. Each has the
log-probability under the distribution that it was drawn from, as with :class:`~roleagent.agents.policies.hf.HFPolicy`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from torch import Tensor

from roleagent.agents.episode import Ask
from roleagent.agents.policies.hf import HFPolicy, PolicyError
from roleagent.agents.policies.protocol import Weights
from roleagent.agents.policies.vllm.client import ServerPool
from roleagent.agents.policies.vllm.engine import open_local, require_vllm
from roleagent.agents.policies.vllm.processes import ProcessPool
from roleagent.agents.policies.vllm.requests import SampleRequest
from roleagent.config import Config, ConfigError
from roleagent.slow_notice import count
from roleagent.types import Completion, Request


class Engine(Protocol):
    """The vLLM engine: in this process, in others, or servers."""

    def submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        """Begins to sample one answer per request."""
        ...

    def wait(self) -> list[tuple[int, list[Completion]]]:
        """Waits until requests are answered that were submitted together; returns them with their key."""
        ...

    def cancel(self) -> None:
        """Forgets what was submitted and not answered."""
        ...

    def prepare(self) -> bool:
        """Makes ready for new weights; returns whether those beside an adapter are needed, too."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Overwrites the weights and clears caches that the old ones filled."""
        ...

    def load_adapter(self, adapter: Iterable[tuple[str, Tensor]], rank: int, alpha: float) -> None:
        """Overwrites the adapter that is added to the weights; by peft's names."""
        ...

    def offload(self) -> None:
        """Gives back what memory it can."""
        ...


class VLLMPolicy:
    """An :class:`~roleagent.agents.policies.protocol.Policy` that samples with vLLM.

    Args:
        engine: computes the policy's model, once it has weights.
        policy: the local one, for its tokenizer and its limits.
        rank: of the learner's adapter; 0 if it trains every weight.
        alpha: the adapter counts alpha / rank times.
    """

    def __init__(self, engine: Engine, policy: HFPolicy, rank: int = 0, alpha: float = 1.0):
        self.tokenizer, self.context_length = policy.tokenizer, policy.context_length
        self.end_ids, self.eos_id = policy.end_ids, policy.eos_id
        self.encode, self.decode = policy.encode, policy.decode
        self.literal, self.single_token = policy.literal, policy.single_token
        self._known = policy.known
        self.version = -1  # of weights that it does not have
        self._engine, self._rank, self._alpha = engine, rank, alpha
        self.reseed(policy.generator.initial_seed())

    def reseed(self, seed: int) -> None:
        """Seeds the random stream of all sampling."""
        self._generator = np.random.default_rng(seed % 2**64)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """Continues every prompt; as :meth:`HFPolicy.generate`, but that slots mean nothing.

        Raises:
            ValueError: a prompt does not fit the context.
            PolicyError: there are no weights yet, or the server does not answer.
        """
        if not requests:
            return []
        asked = [self._with_seed(request, self._generator) for request in requests]
        replies: list[Completion] = []
        if to_sample := [one for one in asked if one.max_tokens]:
            self._submit(0, to_sample, temperature)
            [(_, replies)] = self._wait()
        sampled = iter(replies)
        return [next(sampled) if one.max_tokens else Completion((), (), "length") for one in asked]

    def backend(self, temperature: float) -> Continuous:
        """Samples for episodes that do not wait for each other."""
        return Continuous(self, temperature, int(self._generator.integers(2**62)))

    def _submit(self, key: int, requests: Sequence[SampleRequest], temperature: float) -> None:
        if self.version < 0:
            raise PolicyError("vLLM has no weights yet: sync comes before generate")
        self._engine.submit(key, requests, temperature)

    def _wait(self) -> list[tuple[int, list[Completion]]]:
        answered = self._engine.wait()
        count("tokens sampled", sum(len(reply.token_ids) for _, replies in answered for reply in replies))
        return [(key, [replace(one, policy_version=self.version) for one in replies]) for key, replies in answered]

    def _with_seed(self, request: Request, generator: np.random.Generator) -> SampleRequest:
        length = len(request.prompt_ids)
        if not length or length >= self.context_length:
            raise ValueError(f"a prompt of {length} tokens does not fit a context of {self.context_length}")
        limit = min(request.max_tokens, self.context_length - length)
        seed = int(generator.integers(2**62))
        return SampleRequest(tuple(request.prompt_ids), limit, tuple(sorted(request.stop_ids)), seed, self._known)

    def sync(self, weights: Weights, version: int) -> None:
        """Copies the learner's weights; with an adapter all of them once, then only the adapter."""
        self.version = -1  # half of them are no model
        bare = self._engine.prepare()
        if not self._rank:
            self._engine.load_weights(weights.weights())
        else:
            if bare:
                self._engine.load_weights(weights.weights(adapted=False))
            self._engine.load_adapter(weights.adapter().weights.items(), self._rank, self._alpha)
        self.version = version

    def offload(self) -> None:
        """Gives back what memory it can until the next call of ``generate`` or ``sync``."""
        self._engine.offload()

    def clear_cache(self) -> None:
        """Nothing: vLLM keeps what prompts have in common by itself, and :meth:`sync` drops it."""


class Continuous:
    """A backend of :class:`~roleagent.agents.episode.Scheduler`: each request goes to vLLM at once, which batches
    whatever is under way. A slot's seeds are its own, so that what it samples does not depend on the others.

    Args:
        seed: of all slots.
    """

    def __init__(self, policy: VLLMPolicy, temperature: float, seed: int):
        self._policy, self._temperature, self._seed = policy, temperature, seed
        self._generators: dict[int, np.random.Generator] = {}

    def submit(self, slot: int, ask: Ask) -> None:
        if slot not in self._generators:
            self._generators[slot] = np.random.default_rng([self._seed, slot])
        requests = [self._policy._with_seed(request, self._generators[slot]) for request in ask.content]
        self._policy._submit(slot, requests, self._temperature)

    def wait(self) -> list[tuple[int, list[Completion]]]:
        return self._policy._wait()

    def close(self) -> None:
        self._policy._engine.cancel()


def check(config: Config) -> None:
    """Refuses what could not work.

    Raises:
        ConfigError: options that contradict each other.
        PolicyError: vLLM is not installed.
    """
    options = config.vllm
    if options.url:
        return
    if options.extra.get("tensor_parallel_size", 1) != 1:
        raise ConfigError("several GPUs for one engine (tensor_parallel_size) need a server: name it by vllm.url")
    require_vllm()


def open_vllm(config: Config, policy: HFPolicy) -> VLLMPolicy:
    """vLLM as configured, still without weights.

    Raises:
        ConfigError, PolicyError: one line with what to change.
    """
    check(config)
    kind = ServerPool if config.vllm.url else ProcessPool if config.vllm.engines else open_local
    return VLLMPolicy(kind(config, policy), policy, config.lora.rank, config.lora.alpha)
