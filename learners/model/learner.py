"""The learner: a policy under an engine, with a critic, a task simulator and the reference of the KL penalty.

At ZeRO stage 3 no process holds a whole weight between two calls, and reading one is a collective operation. Rollouts
must not wait for other ranks, so a :class:`Learner` trains a copy there. It gathers the copy's weights into the
policy's own model, parameter after parameter, when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import Config
from roleagent.learners.model.deepspeed_settings import zero_stage
from roleagent.learners.model.engine import Engine
from roleagent.learners.model.lora import Adapter, AdapterSwap, plain_weights
from roleagent.learners.model.token_logprobs import TokenScorer, check_scorer
from roleagent.learners.model.zero3 import copy_on_cpu, enable_activation_checkpointing, gather_into


class Learner(Engine):
    """Updates a policy.

    Up to ZeRO stage 2 the policy's own model is trained in place. At stage 3 a copy is, and the policy has the new
    weights from :meth:`weights` on.

    Args:
        policy: the policy whose model is trained; its ``version`` counts updates.
        config: the run's configuration (sections ``loss``, ``optim``, ``deepspeed``).
        lr: peak learning rate.
        reference: of the KL penalty: a model, or an adapter of the policy's model; None for no penalty.
        optimizer: ``"adamw"`` or ``"muon"``.

    Raises:
        PolicyError: the learner would not score the model's tokens as the model does.
    """

    def __init__(
        self,
        policy: HFPolicy,
        config: Config,
        lr: float,
        reference: PreTrainedModel | Adapter | None = None,
        optimizer: str = "adamw",
    ):
        pad = int(policy.tokenizer.pad_token_id or 0)  # type: ignore[arg-type]
        check_scorer(policy.model, policy.context_length)
        trained = copy_on_cpu(policy.model) if zero_stage(config) == 3 else policy.model
        if config.deepspeed.activation_checkpointing:
            enable_activation_checkpointing(trained)
        super().__init__(TokenScorer(trained), config, lr, pad, optimizer)
        self.policy, self._trained, self._synced_steps = policy, trained, 0
        self.critic: Engine | None = None  # is saved and loaded with its learner
        self.simulator: Learner | None = None  # likewise: a task simulator with weights of its own
        self.reference: torch.nn.Module | None = None
        if isinstance(reference, Adapter):
            self.reference = AdapterSwap(TokenScorer(policy.model), reference)
        elif reference is not None:
            self.reference = TokenScorer(reference).to(self.device)

    def updated(self) -> None:
        """Counts the policy's version and clears its cache."""
        self.policy.version += 1
        self.policy.clear_cache()

    def weights(self, adapted: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Every whole weight of the policy by its name in the plain model, one after another.

        Every rank must take them all. The policy's own model has them too, from the first on.

        Args:
            adapted: whether to merge the adapters, if there are any.
        """
        self.sync_policy()
        yield from plain_weights(self.policy.model, adapted)

    def adapter(self) -> Adapter:
        """The trained adapter without its model; every rank must call it."""
        self.sync_policy()
        return Adapter.of(self.policy.model)

    def sync_policy(self) -> None:
        """Copies the trained weights into the policy's own model; every rank must call it."""
        if self._trained is not self.policy.model and self._synced_steps != self.steps:
            gather_into(self.policy.model, self._trained)
            self.policy.clear_cache()
        self._synced_steps = self.steps

    def save(self, folder: Path) -> None:
        """As :meth:`Engine.save`, and critic and simulator beside it, if there are any."""
        super().save(folder)
        for name, other in self._beside():
            other.save(folder / name)

    def load(self, folder: Path) -> None:
        """As :meth:`Engine.load`, for policy, critic and simulator."""
        super().load(folder)
        for name, other in self._beside():
            other.load(folder / name)
        self._synced_steps = -1
        self.sync_policy()

    def _beside(self) -> Iterator[tuple[str, Engine]]:
        for name, other in (("critic", self.critic), ("simulator", self.simulator)):
            if other is not None:
                yield name, other

    def close(self) -> None:
        super().close()
        self._trained = self.policy.model


__all__ = ["Learner"]
