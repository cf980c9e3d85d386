"""The objective (Eq. 9), in plain torch.

The average is taken within a trajectory over its own tokens, then over trajectories, or as ``loss.aggregation`` says.
All divisors are known before the first forward pass, so :func:`token_weights` folds them into one weight per token.
From then on everything is a sum: over micro-batches, over accumulation steps, over ranks, in any order, with the same
gradient. (An engine that averages gradients over R ranks must be given R times the loss.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from roleagent.learners.segments import ACTION, PREDICTION, TEXT
from roleagent.types import Segment


def token_weights(
    segments: Sequence[Segment],
    n_trajectories: int,
    prediction_weight: float = 0.5,
    aggregation: str = "trajectory",
    divisor: int = 1024,
    action_mask: bool = True,
    sum_over_ranks: Callable[[float], float] = float,
) -> list[list[float]]:
    """Each token's share of the objective.

    Args:
        segments: this rank's segments of the batch; a trajectory is whole, ``Segment.trajectory`` says which it is.
        n_trajectories: how many trajectories the batch of all ranks averages over, those without trained tokens
            included.
        prediction_weight: weight of the prediction part, ≥ 0.
        aggregation: ``"trajectory"``: a trajectory's action tokens weigh 1/n together, its prediction tokens
            ``prediction_weight``/n, however many there are and over however many segments they are spread (GRPO).
            ``"token"``: every action token of the batch weighs the same, all of them 1 together, and likewise all
            prediction tokens ``prediction_weight`` (DAPO). ``"constant"``: a token weighs 1/(n·``divisor``), so that
            nothing depends on lengths (Dr. GRPO).
        divisor: tokens; only ``"constant"`` looks at it.
        action_mask: off, tokens of the world that are marked TEXT count as action tokens do.
        sum_over_ranks: adds a number up over all ranks; ``"token"`` asks it, on every rank.

    Returns:
        one list per segment, as long as the segment; 0 for what is not trained.

    >>> said = Segment((5, 6, 7, 8), (0, 1, 1, 2), (0.0,) * 4, (0.0,) * 4)
    >>> token_weights([said], n_trajectories=2)
    [[0.0, 0.25, 0.25, 0.25]]
    >>> token_weights([said], n_trajectories=2, aggregation="token")
    [[0.0, 0.5, 0.5, 0.5]]
    """
    if n_trajectories < 1:
        raise ValueError(f"a batch averages over at least one trajectory, not {n_trajectories}")
    worth = {ACTION: 1.0, PREDICTION: prediction_weight} | ({} if action_mask else {TEXT: 1.0})
    part_of = {kind: PREDICTION if kind == PREDICTION else ACTION for kind in worth}
    masks = [segment.action_mask for segment in segments]
    parts: list[dict[int, float]]
    if aggregation == "constant":
        parts = [dict.fromkeys(worth, float(divisor * n_trajectories))] * len(masks)
    elif aggregation == "token":
        counts = Counter(part_of[kind] for mask in masks for kind in mask if kind in worth)
        totals = {part: max(1.0, sum_over_ranks(float(counts[part]))) for part in (ACTION, PREDICTION)}
        parts = [{kind: totals[part_of[kind]] for kind in worth}] * len(masks)
    else:
        counts = Counter((s.trajectory, part_of[kind]) for s in segments for kind in s.action_mask if kind in worth)
        parts = [{kind: counts[s.trajectory, part_of[kind]] * n_trajectories for kind in worth} for s in segments]
    return _means([[1.0] * len(mask) for mask in masks], masks, worth, parts)


def imitation_weights(
    segments: Sequence[Segment], worth: Mapping[int, float], sum_over_ranks: Callable[[float], float] = float
) -> list[list[float]]:
    """Each token's share of a demonstration batch: every kind of token is averaged apart, over the whole batch.

    An action token counts as often as its advantage says (0 for a step that is shown but not to be imitated), any
    other once.

    Args:
        segments: those of this rank.
        worth: weight of each kind's mean; kinds that are missing are context.
        sum_over_ranks: adds a number up over all ranks.

    >>> shown = Segment((5, 6, 7, 8), (3, 1, 1, 2), (0.0,) * 4, (0.0, 1.0, 0.0, 0.0))
    >>> imitation_weights([shown], {1: 1.0, 2: 0.5, 3: 0.3})
    [[0.3, 1.0, 0.0, 0.5]]
    """
    masks = [segment.action_mask for segment in segments]
    counted = [
        [advantage if kind == ACTION else 1.0 for kind, advantage in zip(mask, segment.advantages, strict=True)]
        for mask, segment in zip(masks, segments, strict=True)
    ]
    totals = dict.fromkeys(worth, 0.0)
    for mask, row in zip(masks, counted, strict=True):
        for kind, count in zip(mask, row, strict=True):
            if kind in totals:
                totals[kind] += count
    parts = {kind: max(sum_over_ranks(total), 1e-9) for kind, total in totals.items()}
    return _means(counted, masks, worth, [parts] * len(masks))


def _means(
    counted: Sequence[Sequence[float]],
    masks: Sequence[Sequence[int]],
    worth: Mapping[int, float],
    parts: Sequence[Mapping[int, float]],
) -> list[list[float]]:
    """How often each token counts, times what its kind is worth, over how much its kind counts together."""
    return [
        [count * (worth[kind] / part[kind]) if kind in worth else 0.0 for count, kind in zip(row, mask, strict=True)]
        for row, mask, part in zip(counted, masks, parts, strict=True)
    ]


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    ref_logprobs: Tensor | None = None,
    kl_coefficient: float = 1e-3,
    level: str = "token",
    segments: Tensor | None = None,
    importance: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate against an old policy, the one that sampled, plus a penalty for leaving the reference.

    -Σ w·c·min(ρA, clip(ρ, 1 - clip_low, 1 + clip_high)·A) + β Σ w·KL, with ρ = π/π_old, c = 1 and the k3 estimator
    KL ≈ q - log q - 1, q = π_ref/π (never negative, unbiased under π).

    Args:
        logprobs: of the sampled tokens under the policy that learns, at the sampling temperature; any shape.
        old_logprobs: the same under the old policy; same shape, as are all below.
        advantages: the turn's advantage on each of its tokens.
        weights: from :func:`token_weights`; tokens of weight 0 have no influence, whatever stands there.
        ref_logprobs: under the reference policy; None leaves the penalty out.
        level: ``"token"``: ρ is the token's own. Otherwise all tokens of a segment share one: ``"sequence"`` the
            geometric mean of theirs (GSPO), ``"product"`` their product, which is the sequence's true ratio (RLOO).
        segments: int64, which segment each token belongs to; for a level other than ``"token"``.
        importance: c, a truncated weight for tokens that another engine sampled; no gradient flows through it.

    Returns:
        the loss (a scalar to be *summed* over micro-batches), and sums over tokens: ``tokens``, ``clipped``,
        ``ratio``, ``kl`` and ``logprob_gap`` (|Δ log π| between learner and old policy: near 0 on the first step after
        a rollout, or the two do not run the same weights). See :func:`mean_metrics`.
    """
    trained = weights != 0
    # Selected before exp: an infinity at a masked token would poison the gradient through 0·∞. Beyond e^±20 two
    # policies have nothing to do with each other; there the ratio stays finite and has no gradient.
    log_ratio = torch.where(trained, logprobs - old_logprobs, 0.0).clamp(-20.0, 20.0)
    ratio = (log_ratio if level == "token" else _shared(log_ratio, trained, segments, level)).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    loss = -((weights if importance is None else weights * importance) * surrogate).sum()
    kl = torch.zeros_like(ratio)
    if ref_logprobs is not None:
        log_q = torch.where(trained, ref_logprobs - logprobs, 0.0).clamp(-20.0, 20.0)
        kl = log_q.exp() - log_q - 1.0
        loss = loss + kl_coefficient * (weights * kl).sum()
    with torch.no_grad():
        clipped = ((advantages > 0) & (ratio > 1.0 + clip_high)) | ((advantages < 0) & (ratio < 1.0 - clip_low))
        metrics = {
            "tokens": trained.sum(),
            "clipped": (clipped & trained).sum(),
            "ratio": (ratio * trained).sum(),
            "kl": kl.sum(),
            "logprob_gap": log_ratio.abs().sum(),
        }
    return loss, {name: value.detach().float() for name, value in metrics.items()}


def _shared(log_ratio: Tensor, trained: Tensor, segments: Tensor | None, level: str) -> Tensor:
    """Each segment's sum, or mean over its trained tokens, of ``log_ratio``, on all of its tokens."""
    if segments is None:
        raise ValueError(f"a ratio of level {level!r} needs to know which segment each token belongs to")
    sums = log_ratio.new_zeros(int(segments.max()) + 1 if segments.numel() else 0)
    totals = sums.index_add(0, segments, log_ratio)
    if level == "sequence":
        totals = totals / sums.index_add(0, segments, trained.to(sums.dtype)).clamp(min=1.0)
    return totals.clamp(-20.0, 20.0)[segments]


def mean_metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Per-token means of added-up metrics: ``clip_fraction``, ``ratio``, ``kl``, ``logprob_gap``, and ``tokens``.

    >>> mean_metrics({"tokens": 4, "clipped": 1, "ratio": 4.4, "kl": 0.0, "logprob_gap": 2.0})["clip_fraction"]
    0.25
    """
    tokens = max(1.0, float(sums["tokens"]))
    return {
        "tokens": float(sums["tokens"]),
        "clip_fraction": float(sums["clipped"]) / tokens,
        "ratio": float(sums["ratio"]) / tokens,
        "kl": float(sums["kl"]) / tokens,
        "logprob_gap": float(sums["logprob_gap"]) / tokens,
    }


__all__ = [
    "imitation_weights",
    "mean_metrics",
    "policy_loss",
    "token_weights",
]
