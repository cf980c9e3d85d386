"""The objective (Eq. 9), in plain torch.

The average is taken within a trajectory over its own tokens, then over trajectories; ``loss.aggregation`` has others.
All divisors are known before the first forward pass, so :func:`token_weights` gives each token one weight. From then on
everything is a sum over micro-batches, accumulation steps and ranks, in any order, with the same gradient. (An engine
that averages gradients over R ranks must be given R times the loss.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roleagent.config.settings import LossConfig
from roleagent.learners.batch import Column, split_tokens
from roleagent.learners.engine.prefix_sharing import select_rows
from roleagent.learners.run.ranks import Ranks
from roleagent.types import ACTION, PREDICTION, TEXT, Segment

_KINDS = 4  # CONTEXT, ACTION, PREDICTION, TEXT
PREDICTION_WEIGHT = 0.5
"""Of prediction tokens, relative to action tokens; they are averaged apart."""


def token_weights(
    segments: Sequence[Segment],
    n_trajectories: int,
    prediction_weight: float = PREDICTION_WEIGHT,
    aggregation: str = "trajectory",
    divisor: int = 1024,
    action_mask: bool = True,
    sum_over_ranks: Callable[[float], float] = float,
) -> Column:
    """Each token's weight in the objective.

    Args:
        segments: this rank's segments of the batch; all segments of a trajectory (``Segment.trajectory``) are included.
        n_trajectories: the number of trajectories of all ranks, those without trained tokens included.
        prediction_weight: weight of the prediction part, ≥ 0.
        aggregation: ``"trajectory"``: a trajectory's action tokens weigh 1/n together, its prediction tokens
            ``prediction_weight``/n, whatever their number and segments (GRPO). ``"token"``: every action token of the
            batch weighs the same, all of them 1 together, and likewise all prediction tokens ``prediction_weight``
            (DAPO). ``"constant"``: a token weighs 1/(n·``divisor``), whatever the lengths (Dr. GRPO).
        divisor: tokens, for ``"constant"``.
        action_mask: off, TEXT tokens count as action tokens.
        sum_over_ranks: adds a number up over all ranks; ``"token"`` calls it on every rank.

    Returns:
        float64 column; 0 for untrained tokens.

    >>> segment = Segment((5, 6, 7, 8), (0, 1, 1, 2), (0.0,) * 4, (0.0,) * 4)
    >>> token_weights([segment], n_trajectories=2)[0].tolist()
    [0.0, 0.25, 0.25, 0.25]
    >>> token_weights([segment], n_trajectories=2, aggregation="token")[0].tolist()
    [0.0, 0.5, 0.5, 0.5]
    """
    if n_trajectories < 1:
        raise ValueError(f"a batch averages over at least one trajectory, not {n_trajectories}")
    weight_of = np.zeros(_KINDS)
    weight_of[[ACTION, PREDICTION, TEXT]] = 1.0, prediction_weight, 0.0 if action_mask else 1.0
    trained_kinds = (ACTION, PREDICTION) if action_mask else (ACTION, PREDICTION, TEXT)
    kinds = _kinds(segments)
    trained, is_prediction = np.isin(kinds, trained_kinds), (kinds == PREDICTION).astype(np.int64)
    divisors = np.ones(len(kinds))
    if aggregation == "constant":
        divisors[:] = divisor * n_trajectories
    elif aggregation == "token":
        counts = np.bincount(is_prediction[trained], minlength=2)
        divisors = np.array([max(1.0, sum_over_ranks(float(count))) for count in counts])[is_prediction]
    else:
        trajectories = np.repeat([segment.trajectory for segment in segments], list(map(len, segments)))
        parts = 2 * trajectories.astype(np.int64) + is_prediction
        counts = np.bincount(parts[trained], minlength=int(parts.max(initial=-1)) + 1)
        divisors = np.maximum(counts[parts], 1) * n_trajectories
    return split_tokens(np.where(trained, weight_of[kinds] / divisors, 0.0), segments)


def world_weights(segments: Sequence[Segment], sum_over_ranks: Callable[[float], float] = float) -> Column:
    """Each TEXT token's weight in a mean over those of its segment, and over segments that have any; others weigh 0.

    Args:
        segments: those of this rank in an optimizer step.
        sum_over_ranks: adds a number up over all ranks, which call it together.

    >>> some = [Segment((1, 2, 3), (0, 3, 3), (0.0,) * 3, (0.0,) * 3), Segment((1, 2), (0, 3), (0.0,) * 2, (0.0,) * 2)]
    >>> [row.tolist() for row in world_weights(some)]
    [[0.0, 0.25, 0.25], [0.0, 0.5]]
    """
    is_text = [(segment.token_kind == TEXT).astype(np.float64) for segment in segments]
    count = max(1.0, sum_over_ranks(float(sum(map(np.any, is_text)))))
    return [row / (max(1.0, row.sum()) * count) for row in is_text]


def imitation_weights(
    segments: Sequence[Segment], weight_of: Mapping[int, float], sum_over_ranks: Callable[[float], float] = float
) -> Column:
    """Each token's weight in a batch of demonstrations: each kind of token is averaged over the whole batch.

    An action token has its advantage as weight (0 for a step that is not imitated), any other once.

    Args:
        segments: those of this rank.
        weight_of: the weight of each kind's mean; other kinds are context.
        sum_over_ranks: adds a number up over all ranks.

    >>> shown = Segment((5, 6, 7, 8), (3, 1, 1, 2), (0.0,) * 4, (0.0, 1.0, 0.0, 0.0))
    >>> imitation_weights([shown], {1: 1.0, 2: 0.5, 3: 0.3})[0].tolist()
    [0.3, 1.0, 0.0, 0.5]
    """
    kinds = _kinds(segments)
    counts = np.concatenate([segment.advantages for segment in segments] or [np.zeros(0)])
    counts = np.where(kinds == ACTION, counts, 1.0)
    scale = np.zeros(_KINDS)
    for kind, weight in weight_of.items():
        scale[kind] = weight / max(sum_over_ranks(float(counts[kinds == kind].sum())), 1e-9)
    return split_tokens(counts * scale[kinds], segments)


def _kinds(segments: Sequence[Segment]) -> np.ndarray:
    return np.concatenate([segment.token_kind for segment in segments] or [np.zeros(0, np.int8)])


@dataclass(frozen=True)
class SampledTokens:
    """The tokens of a micro-batch that are scored: what a loss is a function of. All tensors are ``(N,)``.

    Attributes:
        logprobs: log π of the policy that learns, at the sampling temperature, in nats, with gradient.
        old_logprobs: of the policy before the update.
        advantages: of each token's turn.
        weights: of each token in the mean over the batch (``loss.aggregation``): a loss is a *sum* of weighted tokens,
            and micro-batches, minibatches and ranks are added up. Tokens of weight 0 are not to be trained: their other
            numbers mean nothing, and may be infinite, so select with ``torch.where`` before an ``exp``.
        kinds: ACTION, PREDICTION, or TEXT, the world's (:mod:`roleagent.types`).
        segments: the number of each token's segment within the micro-batch, ascending.
        entropies: of the distributions that the tokens were drawn from, in nats, without gradient.
        ref_logprobs: of the reference; None with ``loss.kl=0``.
        importance: a bounded weight for tokens that another engine sampled, without gradient; None: 1.
        world: with ``Method.reads_world`` the weight of each token of the world behind the first reply, 0 for all
            others. They are 1 together in each optimizer step.
        turns: the number of each token's turn within its episode, from 1; None if the caller has no turns.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    kinds: Tensor
    segments: Tensor
    entropies: Tensor
    ref_logprobs: Tensor | None = None
    importance: Tensor | None = None
    world: Tensor | None = None
    turns: Tensor | None = None


Loss = Callable[[SampledTokens], tuple[Tensor, dict[str, Tensor]]]


def checked_loss(returned: Any, tokens: SampledTokens) -> tuple[Tensor, dict[str, Tensor]]:
    """What a loss returned.

    Raises:
        ValueError: it is no pair of a scalar with gradient and a dictionary of scalars.
    """
    try:
        loss, sums = returned
        fits = isinstance(loss, torch.Tensor) and loss.dim() == 0
        fits = fits and (loss.requires_grad or not tokens.weights.any()) and isinstance(sums, dict)
        fits = fits and all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in sums.values())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            "a loss must return a scalar tensor with a gradient, and a dictionary of scalar tensors "
            "(docs/write_a_method.md)"
        )
    return loss, sums


def policy_loss(tokens: SampledTokens, options: LossConfig) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate against the old policy, plus a KL penalty towards the reference (Eq. 9).

    -Σ w·c·min(ρA, clip(ρ, 1 - clip_low, 1 + clip_high)·A) + β Σ w·KL, with ρ = π/π_old, c the importance weight and the
    k3 estimator KL ≈ q - log q - 1, q = π_ref/π (never negative, unbiased under π).

    Args:
        tokens: of a micro-batch.
        options: ``clip_low``, ``clip_high``, ``kl`` (β), and ``importance_level``: with ``token`` ρ is the token's own.
            Otherwise all tokens of a segment share one: ``sequence`` their geometric mean (GSPO), ``product`` their
            product, the true ratio of the sequence (RLOO).

    Returns:
        the loss (a scalar to be *summed* over micro-batches), and the sums ``clipped``, ``ratio`` and ``kl``.
    """
    trained, advantages = tokens.weights != 0, tokens.advantages
    low, high = 1.0 - options.clip_low, 1.0 + options.clip_high
    # Selected before exp: an infinity at a masked token would make the gradient NaN through 0·∞.
    log_ratio = torch.where(trained, tokens.logprobs - tokens.old_logprobs, 0.0)
    if options.importance_level != "token":
        log_ratio = _shared(log_ratio, trained, tokens.segments, options.importance_level)
    ratio = bounded_exp(log_ratio)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    weights = tokens.weights if tokens.importance is None else tokens.weights * tokens.importance
    loss, kl = -(weights * surrogate).sum(), torch.zeros_like(ratio)
    if tokens.ref_logprobs is not None:
        kl = k3(torch.where(trained, tokens.ref_logprobs - tokens.logprobs, 0.0))
        loss = loss + options.kl * (tokens.weights * kl).sum()
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    return loss, {
        "clipped": (clipped & trained).sum(),
        "ratio": (ratio * trained).sum().detach(),
        "kl": kl.sum().detach(),
    }


def token_metrics(tokens: SampledTokens) -> dict[str, Tensor]:
    """Sums over the trained tokens of a loss that says nothing about them: ``tokens``, ``ratio``, and ``logprob_gap``.

    The gap is |Δ log π| between learner and old policy, near 0 on the first step after a rollout if both have the same
    weights. ``clipped`` and ``kl`` are 0. See :func:`mean_metrics`.
    """
    trained = tokens.weights != 0
    log_ratio = torch.where(trained, tokens.logprobs.detach() - tokens.old_logprobs, 0.0)
    none = torch.zeros((), device=log_ratio.device)
    sums = {"ratio": (bounded_exp(log_ratio) * trained).sum(), "logprob_gap": log_ratio.abs().sum()}
    return {"tokens": trained.sum(), "clipped": none, "kl": none, **sums}


def bounded_exp(x: Tensor) -> Tensor:
    """e^x, above x = 20 its tangent there: finite in float32, and with a gradient, which a clamp has not.

    >>> [round(float(value)) for value in bounded_exp(torch.tensor([0.0, 20.0, 22.0]).double())]
    [1, 485165195, 1455495586]
    """
    return x.clamp(max=20.0).exp() * (1.0 + (x - 20.0).clamp(min=0.0))


def k3(log_q: Tensor) -> Tensor:
    """The estimator q - log q - 1 of a KL divergence, from log q = log π_ref - log π, with :func:`bounded_exp`."""
    return bounded_exp(log_q) - log_q - 1.0


def _shared(log_ratio: Tensor, trained: Tensor, segments: Tensor, level: str) -> Tensor:
    """Each segment's sum, or mean over its trained tokens, of ``log_ratio``, on all of its tokens."""
    sums = log_ratio.new_zeros(int(segments.max()) + 1 if segments.numel() else 0)
    totals = sums.index_add(0, segments, log_ratio)
    if level == "sequence":
        totals = totals / sums.index_add(0, segments, trained.to(sums.dtype)).clamp(min=1.0)
    return select_rows(totals, segments)


def mean_metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Means over the tokens of summed metrics, such as ``ratio``, ``kl`` and ``clip_fraction``; and ``tokens``.

    >>> mean_metrics({"tokens": 4, "clipped": 1, "ratio": 4.4})
    {'tokens': 4.0, 'clip_fraction': 0.25, 'ratio': 1.1}
    """
    tokens = max(1.0, float(sums["tokens"]))
    means = {name: float(value) / tokens for name, value in sums.items() if name != "tokens"}
    return {
        "tokens": float(sums["tokens"]),
        **{"clip_fraction" if name == "clipped" else name: mean for name, mean in means.items()},
    }


class MetricSums:
    """Sums of named scalars over the micro-batches of an update.

    They stay on the device until the end: on an accelerator reading a number waits for the device.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, values: Mapping[str, Tensor]) -> None:
        """Adds scalars."""
        for name, value in values.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def over_ranks(self, ranks: Ranks) -> dict[str, float]:
        """The sums over all ranks; every rank must call it, with the same names."""
        return {name: ranks.sum(float(value)) for name, value in sorted(self.sums.items())}


__all__ = [
    "Loss",
    "MetricSums",
    "SampledTokens",
    "bounded_exp",
    "checked_loss",
    "imitation_weights",
    "k3",
    "mean_metrics",
    "policy_loss",
    "token_metrics",
    "token_weights",
    "world_weights",
]
