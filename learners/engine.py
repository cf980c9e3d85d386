"""The learner: one policy under a DeepSpeed engine, updated a batch of segments at a time.

The same code runs on one CPU and on many GPUs. Every weight of an objective is known before the first forward pass
(:func:`roleagent.learners.loss.token_weights`), so a batch is a sum over micro-batches and ranks; the engine is told
by hand which micro-batch is the last of an update.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from roleagent.agents.hf import HFPolicy
from roleagent.config import Config
from roleagent.learners.deepspeed_settings import deepspeed_settings
from roleagent.learners.optimiser import build_optimiser
from roleagent.learners.ranks import Ranks
from roleagent.learners.scorer import Scored, TokenScorer, scored
from roleagent.learners.segments import ACTION, CONTEXT, collate, micro_batches
from roleagent.types import Segment

Columns = Mapping[str, Sequence[Sequence[float]]]
"""Numbers by name, per segment and token: as long as the segments."""

Objective = Callable[[Scored], torch.Tensor]
"""From the trained tokens of a micro-batch to a loss that is *summed* over micro-batches and ranks."""


class Engine:
    """A model that scores tokens, and its optimiser, under DeepSpeed.

    Args:
        module: called with a batch, a temperature and whether entropies are wanted, it gives one number per trained
            token, and the entropies (:class:`TokenScorer`, or a critic).
        config: the run's configuration (sections ``optim``, ``deepspeed``).
        lr: peak learning rate.
        pad_id: the token that fills up rows.
        optimiser: ``"adamw"`` or ``"muon"`` (see :mod:`roleagent.learners.optimiser`).
    """

    def __init__(self, module: torch.nn.Module, config: Config, lr: float, pad_id: int, optimiser: str = "adamw"):
        import deepspeed

        self.module, self.config, self.lr, self.pad_id = module, config, lr, pad_id
        self.ranks = Ranks.join()
        self.steps = 0
        self.engine: Any
        self.optimiser: Any
        self.engine, self.optimiser, _, _ = deepspeed.initialize(
            model=module,
            optimizer=build_optimiser(optimiser, module, lr, config.optim.weight_decay),
            config=deepspeed_settings(config),
            dist_init_required=False,
        )
        self.device = self.engine.device

    def update(
        self,
        segments: Sequence[Segment],
        columns: Columns,
        objective: Objective,
        temperature: float,
        entropy: bool = False,
    ) -> float:
        """Sums ``objective`` over all micro-batches and ranks and steps once; every rank must call it.

        Args:
            segments: those of this rank; may be none if another rank has some.
            columns: what ``objective`` needs to know of each token.
            objective: must weigh its tokens by the whole batch, of all ranks.
            temperature: of the distributions that tokens are scored under.
            entropy: whether ``objective`` looks at entropies.

        Returns:
            the gradient's norm before clipping.

        Raises:
            ValueError: no rank has a segment.
        """
        plan = micro_batches(segments, self.config.optim.micro_batch_tokens)
        rounds = self.ranks.max(len(plan))
        if not rounds:
            raise ValueError("an update needs at least one segment with trained tokens on some rank")
        # Every rank takes equally many micro-batches, or the collective operations of one would wait for ever; what
        # makes up the number weighs nothing.
        pad = self.pad_id
        idle = collate([Segment((pad, pad), (CONTEXT, ACTION), (0.0, 0.0), (0.0, 0.0))], pad, dict.fromkeys(columns))
        self.module.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * min(1.0, (self.steps + 1) / max(1, self.config.optim.warmup_steps))
        norm = 0.0
        for number in range(rounds):
            batch = self._collate(segments, columns, plan[number]) if number < len(plan) else idle
            batch = batch.to(self.device)
            self.engine.set_gradient_accumulation_boundary(number == rounds - 1)
            loss = objective(scored(batch, *self.engine(batch, temperature, entropy)))
            # DeepSpeed averages gradients over ranks; the objective is a sum over them.
            self.engine.backward(loss * self.ranks.size)
            if number == rounds - 1:
                norm = self._gradient_norm()
            self.engine.step()
        self.steps += 1
        return norm

    @torch.no_grad()
    def score(
        self, segments: Sequence[Segment], temperature: float, module: torch.nn.Module | None = None
    ) -> list[tuple[float, ...]]:
        """What the model, with its present weights, or another ``module`` gives for the trained tokens.

        Returns:
            per segment and token, 0 where nothing was sampled. (Of a policy: nats, at ``temperature``.)
        """
        module = module or self.module
        module.eval()
        found: list[tuple[float, ...]] = [()] * len(segments)
        for chosen in micro_batches(segments, self.config.optim.micro_batch_tokens):
            batch = self._collate(segments, {}, chosen).to(self.device)
            values = iter(module(batch, temperature)[0].tolist())
            for index in chosen:
                found[index] = tuple(next(values) if kind else 0.0 for kind in segments[index].action_mask)
        return found

    def _collate(self, segments: Sequence[Segment], columns: Columns, chosen: Sequence[int]):
        part = {name: [rows[i] for i in chosen] for name, rows in columns.items()}
        return collate([segments[i] for i in chosen], self.pad_id, part)

    def _gradient_norm(self) -> float:
        known = self.engine.get_global_grad_norm()
        if known is not None:
            return float(known)
        # Stage 0 in fp32 reports none; its gradients lie at the parameters, already averaged over ranks.
        norms = [p.grad.norm() for p in self.module.parameters() if p.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def save(self, folder: Path) -> None:
        """Writes weights and optimiser state in DeepSpeed's own format (its resume state is pickled: load only what
        you wrote yourself)."""
        self.engine.save_checkpoint(str(folder), tag="state", client_state={"steps": self.steps}, save_latest=False)

    def load(self, folder: Path) -> None:
        """The inverse of :meth:`save`, at the same world size."""
        _, client = self.engine.load_checkpoint(str(folder), tag="state")
        if client is None:
            raise OSError(f"no learner state in {folder}")
        self.steps = int(client["steps"])


class Learner(Engine):
    """Updates a policy in place.

    Args:
        policy: the policy whose model is trained; its ``version`` counts updates.
        config: the run's configuration (sections ``loss``, ``optim``, ``deepspeed``).
        lr: peak learning rate.
        reference: the model that the KL penalty pulls towards; None for no penalty.
        optimiser: ``"adamw"`` or ``"muon"``.
    """

    def __init__(
        self,
        policy: HFPolicy,
        config: Config,
        lr: float,
        reference: torch.nn.Module | None = None,
        optimiser: str = "adamw",
    ):
        pad = int(policy.tokenizer.pad_token_id or 0)  # type: ignore[arg-type]
        super().__init__(TokenScorer(policy.model), config, lr, pad, optimiser)
        self.policy = policy
        self.reference = TokenScorer(reference.to(self.device)) if reference is not None else None

    def update(
        self,
        segments: Sequence[Segment],
        columns: Columns,
        objective: Objective,
        temperature: float,
        entropy: bool = False,
    ) -> float:
        """As :meth:`Engine.update`; the policy has a new version then."""
        norm = super().update(segments, columns, objective, temperature, entropy)
        self.policy.version += 1
        self.policy.forget()
        return norm

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every weight of the policy's model by its name, whole, one after another; every rank must take them all."""
        yield from self.policy.model.state_dict().items()
