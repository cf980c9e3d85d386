"""The learner: one policy under a DeepSpeed engine, updated a batch of segments at a time.

The same code runs on one CPU and on many GPUs. Every weight of the objective is known before the first forward pass
(:func:`roleagent.learners.loss.token_weights`), so a batch is a sum over micro-batches and ranks; the engine is told
by hand which micro-batch is the last of an update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from roleagent.agents.hf import HFPolicy
from roleagent.config import Config, LossConfig
from roleagent.learners.loss import (
    entropies,
    head_logprobs,
    imitation_weights,
    mean_metrics,
    policy_loss,
    token_weights,
)
from roleagent.learners.optimiser import build_optimiser
from roleagent.learners.ranks import Ranks
from roleagent.learners.segments import ACTION, CONTEXT, PREDICTION, TEXT, Batch, collate, micro_batches
from roleagent.types import Segment


class TokenScorer(torch.nn.Module):
    """Log-probabilities of sampled tokens: the vocabulary is only computed where something was sampled."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        """``(N,)`` log-probabilities of the batch's trained tokens, and the hidden states ``(N, D)`` behind them."""
        rows, columns = batch.sampled()
        # Padding is on the right: no real token can see it, so plain causal attention is exact without a mask.
        hidden = self.model.base_model(input_ids=batch.token_ids, use_cache=False).last_hidden_state  # type: ignore[operator, union-attr]
        hidden = hidden[rows, columns - 1]
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        return head_logprobs(hidden, head, batch.token_ids[rows, columns], temperature), hidden


class Learner:
    """Updates a policy in place.

    Args:
        policy: the policy whose model is trained; its ``version`` counts updates.
        config: the run's configuration (sections ``loss``, ``optim``, ``deepspeed``).
        lr: peak learning rate.
        reference: the model that the KL penalty pulls towards; None for no penalty.
        optimiser: ``"adamw"`` or ``"muon"`` (see :mod:`roleagent.learners.optimiser`).
    """

    def __init__(
        self,
        policy: HFPolicy,
        config: Config,
        lr: float,
        reference: torch.nn.Module | None = None,
        optimiser: str = "adamw",
    ):
        import deepspeed

        self.policy, self.config, self.lr = policy, config, lr
        self.ranks = Ranks.join()
        self.steps = 0
        self.scorer = TokenScorer(policy.model)
        self.reference = TokenScorer(reference).eval() if reference is not None else None
        chosen = build_optimiser(optimiser, policy.model, lr, config.optim.weight_decay)
        stage = config.deepspeed.zero_stage
        settings: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": config.optim.max_grad_norm,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": stage},
            "wall_clock_breakdown": False,
        }
        if config.policy.dtype == "bfloat16":
            # Without partitioned optimiser states DeepSpeed's bf16 follows another rounding; stage 1 does not.
            settings["zero_optimization"]["stage"] = max(1, stage)
            settings["bf16"] = {"enabled": True}
        if config.deepspeed.offload:
            settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
        self.engine: Any
        self.optimiser: Any
        self.engine, self.optimiser, _, _ = deepspeed.initialize(
            model=self.scorer, optimizer=chosen, config=settings, dist_init_required=False
        )
        self.device = self.engine.device
        if self.reference is not None:
            self.reference.to(self.device)

    def imitate(self, segments: Sequence[Segment]) -> dict[str, float]:
        """One update towards demonstrations: mean negative log-likelihood (nats per token).

        As in :meth:`improve` the kinds of token are averaged apart: action tokens count 1 (0 for a step that is shown
        but not to be imitated), prediction tokens ``loss.prediction_weight``, and tokens of the world's own text
        ``warmstart.text_weight``: what the world says repeats itself, and a small model learns there to copy names
        long before its few actions teach it.
        """
        worth = {
            ACTION: 1.0,
            PREDICTION: self.config.loss.prediction_weight,
            TEXT: self.config.warmstart.text_weight,
        }
        segments = [
            replace(segment, action_mask=(CONTEXT, *(kind or TEXT for kind in segment.action_mask[1:])))
            for segment in segments
        ]
        weights = imitation_weights(segments, worth, self._sum_over_ranks)
        names = {ACTION: "action", PREDICTION: "prediction", TEXT: "text"}
        sums = dict.fromkeys(("loss", *names.values(), *(f"{name}_tokens" for name in names.values())), 0.0)

        def objective(batch: Batch, logprobs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            rows, columns = batch.sampled()
            shares, kinds = batch.weights[rows, columns], batch.action_mask[rows, columns]
            loss = -(shares * logprobs).sum()
            sums["loss"] += float(loss.detach())
            for kind, name in names.items():
                chosen = (kinds == kind) & (shares > 0)
                sums[name] -= float(logprobs.detach()[chosen].sum())
                sums[f"{name}_tokens"] += float(chosen.sum())
            return loss

        norm = self._update(segments, weights, objective, temperature=1.0)
        self.policy.version += 1
        sums = {name: self._sum_over_ranks(value) for name, value in sums.items()}
        losses = {f"{name}_loss": sums[name] / max(1.0, sums[f"{name}_tokens"]) for name in names.values()}
        return {"loss": sums["loss"], **losses, "grad_norm": norm}

    def improve(self, segments: Sequence[Segment], trajectories: int, temperature: float) -> dict[str, float] | None:
        """One update of the clipped policy-gradient objective (Eq. 9); None if no rank has anything to learn from.

        Args:
            segments: all segments of ``trajectories`` trajectories on this rank.
            trajectories: how many trajectories this rank averages over.
            temperature: that the tokens were sampled at.
        """
        if not self._max_over_ranks(len(segments)):
            return None
        options: LossConfig = self.config.loss
        n = max(1, round(self._sum_over_ranks(float(trajectories))))
        weights = token_weights(segments, n, options.prediction_weight)
        sums: dict[str, float] = {"loss": 0.0, "entropy": 0.0}

        def objective(batch: Batch, logprobs: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
            rows, columns = batch.sampled()
            with torch.no_grad():
                references = self.reference(batch, temperature)[0] if self.reference is not None else None
                head: Any = self.policy.model.get_output_embeddings()
                trained = batch.weights[rows, columns] != 0
                sums["entropy"] += float(entropies(head(hidden.detach()), temperature)[trained].sum())
            loss, metrics = policy_loss(
                logprobs,
                batch.sampler_logprobs[rows, columns],
                batch.advantages[rows, columns],
                batch.weights[rows, columns],
                options.clip_low,
                options.clip_high,
                references,
                options.kl,
            )
            sums["loss"] += float(loss.detach())
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            return loss

        norm = self._update(segments, weights, objective, temperature)
        sums = {name: self._sum_over_ranks(value) for name, value in sorted(sums.items())}
        self.policy.version += 1
        return {
            **mean_metrics(sums),
            "loss": sums["loss"],
            "entropy": sums["entropy"] / max(1.0, sums["tokens"]),
            "grad_norm": norm,
        }

    def _update(self, segments, weights, objective, temperature: float) -> float:
        """Sums ``objective`` over all micro-batches, steps once, returns the gradient's norm before clipping."""
        plan = micro_batches(segments, self.config.optim.micro_batch_tokens)
        rounds = self._max_over_ranks(len(plan))
        if not rounds:
            raise ValueError("an update needs at least one segment with trained tokens on some rank")
        pad = int(self.policy.tokenizer.pad_token_id or 0)  # type: ignore[arg-type]
        # Every rank takes equally many micro-batches, or the collective operations of one would wait for ever; what
        # makes up the number weighs nothing.
        idle = collate([Segment((pad, pad), (CONTEXT, ACTION), (0.0, 0.0), (0.0, 0.0))], pad, [[0.0, 0.0]])
        self.scorer.train()
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * min(1.0, (self.steps + 1) / max(1, self.config.optim.warmup_steps))
        norm = 0.0
        for number in range(rounds):
            chosen = plan[number] if number < len(plan) else []
            batch = collate([segments[i] for i in chosen], pad, [weights[i] for i in chosen]) if chosen else idle
            batch = batch.to(self.device)
            self.engine.set_gradient_accumulation_boundary(number == rounds - 1)
            logprobs, hidden = self.engine(batch, temperature)
            # DeepSpeed averages gradients over ranks; the objective is a sum over them.
            self.engine.backward(objective(batch, logprobs, hidden) * self.ranks.size)
            if number == rounds - 1:
                norm = self._gradient_norm()
            self.engine.step()
        self.steps += 1
        self.policy.forget()
        return norm

    def _gradient_norm(self) -> float:
        known = self.engine.get_global_grad_norm()
        if known is not None:
            return float(known)
        # Stage 0 in fp32 reports none; its gradients lie at the parameters, already averaged over ranks.
        norms = [p.grad.norm() for p in self.scorer.parameters() if p.grad is not None]
        return float(torch.stack(norms).norm()) if norms else 0.0

    def _sum_over_ranks(self, value: float) -> float:
        return self._reduce(value, dist.ReduceOp.SUM)

    def _max_over_ranks(self, value: int) -> int:
        return round(self._reduce(float(value), dist.ReduceOp.MAX))

    def _reduce(self, value: float, operation: Any) -> float:
        if self.ranks.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, operation)
        return float(tensor)

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
