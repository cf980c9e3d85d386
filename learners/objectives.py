"""What an update strives for: imitation of what was shown, or the clipped policy gradient (Eq. 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from roleagent.learners.engine import Learner
from roleagent.learners.loss import imitation_weights, mean_metrics, policy_loss, token_weights
from roleagent.learners.scorer import Scored
from roleagent.learners.segments import ACTION, CONTEXT, PREDICTION, TEXT
from roleagent.types import Segment


def imitate(learner: Learner, segments: Sequence[Segment]) -> dict[str, float]:
    """One update towards demonstrations: mean negative log-likelihood (nats per token).

    As in :func:`improve` the kinds of token are averaged apart: action tokens count 1 (0 for a step that is shown but
    not to be imitated), prediction tokens ``loss.prediction_weight``, and tokens of the world's own text
    ``warmstart.text_weight``: what the world says repeats itself, and a small model learns there to copy names long
    before its few actions teach it.
    """
    config, ranks = learner.config, learner.ranks
    worth = {ACTION: 1.0, PREDICTION: config.loss.prediction_weight, TEXT: config.warmstart.text_weight}
    segments = [
        replace(segment, action_mask=(CONTEXT, *(kind or TEXT for kind in segment.action_mask[1:])))
        for segment in segments
    ]
    weights = imitation_weights(segments, worth, ranks.sum)
    names = {ACTION: "action", PREDICTION: "prediction", TEXT: "text"}
    sums = dict.fromkeys(("loss", *names.values(), *(f"{name}_tokens" for name in names.values())), 0.0)

    def objective(said: Scored) -> torch.Tensor:
        shares = said.columns["weights"]
        loss = -(shares * said.logprobs).sum()
        sums["loss"] += float(loss.detach())
        for kind, name in names.items():
            chosen = (said.kinds == kind) & (shares > 0)
            sums[name] -= float(said.logprobs.detach()[chosen].sum())
            sums[f"{name}_tokens"] += float(chosen.sum())
        return loss

    norm = learner.update(segments, {"weights": weights}, objective, temperature=1.0)
    sums = {name: ranks.sum(value) for name, value in sums.items()}
    losses = {f"{name}_loss": sums[name] / max(1.0, sums[f"{name}_tokens"]) for name in names.values()}
    return {"loss": sums["loss"], **losses, "grad_norm": norm}


def improve(
    learner: Learner, segments: Sequence[Segment], trajectories: int, temperature: float
) -> dict[str, float] | None:
    """One update of the clipped policy-gradient objective (Eq. 9); None if no rank has anything to learn from.

    Args:
        segments: all segments of ``trajectories`` trajectories on this rank.
        trajectories: how many trajectories this rank averages over.
        temperature: that the tokens were sampled at.
    """
    ranks, options = learner.ranks, learner.config.loss
    if not ranks.max(len(segments)):
        return None
    n = max(1, round(ranks.sum(float(trajectories))))
    columns: dict[str, Sequence[Sequence[float]]] = {
        "weights": token_weights(segments, n, options.prediction_weight),
        "advantages": [segment.advantages for segment in segments],
        "sampler": [segment.sampler_logprobs for segment in segments],
    }
    if options.kl:
        columns["reference"] = learner.score(segments, temperature, learner.reference)
    sums: dict[str, float] = {"loss": 0.0, "entropy": 0.0}

    def objective(said: Scored) -> torch.Tensor:
        known = said.columns
        loss, metrics = policy_loss(
            said.logprobs,
            known["sampler"],
            known["advantages"],
            known["weights"],
            options.clip_low,
            options.clip_high,
            known.get("reference"),
            options.kl,
        )
        sums["loss"] += float(loss.detach())
        sums["entropy"] += float(said.entropies[known["weights"] != 0].sum())
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value)
        return loss

    norm = learner.update(segments, columns, objective, temperature, entropy=True)
    sums = {name: ranks.sum(value) for name, value in sorted(sums.items())}
    return {
        **mean_metrics(sums),
        "loss": sums["loss"],
        "entropy": sums["entropy"] / max(1.0, sums["tokens"]),
        "grad_norm": norm,
    }
