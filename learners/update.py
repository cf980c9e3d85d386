"""The update of the policy: passes over a batch with the loss of the method (:func:`policy_step`), in minibatches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from roleagent.config import Config
from roleagent.learners.batch import Batch, Column, whiten
from roleagent.learners.critic import critic_advantages, fit
from roleagent.learners.dealing import Minibatch, Outline, deal_segments
from roleagent.learners.engine.engine import Columns, Engine, Learner, NotFinite
from roleagent.learners.engine.logprobs import TokenScores
from roleagent.learners.loss import (
    Loss,
    MetricSums,
    SampledTokens,
    checked_loss,
    mean_metrics,
    token_metrics,
    token_weights,
    world_weights,
)
from roleagent.learners.method import Method, loss_of, method_of
from roleagent.learners.run.ranks import Ranks
from roleagent.types import ACTION, CONTEXT, PREDICTION, TEXT, Segment


def prepared(learner: Learner, batch: Batch) -> Batch:
    """The batch with its final advantages: by GAE, if there is a critic, and whitened (``estimator.whiten``)."""
    options = learner.config.estimator
    if learner.critic is not None:
        batch = critic_advantages(batch, learner.critic, learner.config)
    if not options.whiten:
        return batch
    level = options.gae_level if learner.critic is not None else "token"
    return whiten(batch, options.action_mask, learner.ranks.sum, level)


def update(
    learner: Learner,
    batch: Batch,
    orders: Sequence[np.random.Generator],
    method: Method | None = None,
    *,
    critic_alone: bool = False,
) -> dict[str, float]:
    """Passes over the batch, each with as many optimizer steps as :func:`minibatches` returns.

    Args:
        learner: the policy, and its critic if the estimator needs one.
        batch: the groups of this rank, :func:`prepared`. The ranks exchange segments first, so that each trains nearly
            as many tokens.
        orders: one generator per pass, the same on every rank; it shuffles the minibatches.
        method: has the loss; by default that of the learner's configuration.
        critic_alone: whether the policy stays as it is (``critic.warmup``).

    Returns:
        the metrics of :func:`policy_step` and :func:`~roleagent.learners.critic.fit`, each in the mean over the steps
        that have it; and ``optimizer_steps`` of the policy.
    """
    method = method or method_of(learner.config)
    loss = loss_of(method)
    ranks, numbers = learner.ranks, range(len(batch.segments))
    trained = [learner.critic is not None or _is_trained(learner, batch, i, method) for i in numbers]
    outline = Outline.of(ranks, batch, trained)
    weights = _weights(learner, batch, numbers, len(outline.tasks))
    world = world_shares(batch, weights, ranks.sum)
    passes = [minibatches(learner.config, outline, order) for order in orders]
    batch = replace(batch, columns={**batch.columns, "weights": weights})
    batch, passes = deal_segments(ranks, batch, outline, passes)
    if learner.critic is not None:
        learner.critic.share = learner.share
    if not critic_alone:
        batch = with_logprobs(batch, learner, [[part.segments for part in parts] for parts in passes], method)
    policy_metrics: list[dict[str, float]] = []
    critic_metrics: list[dict[str, float]] = []
    try:
        for part, count in ((part, len(parts)) for parts in passes for part in parts):
            if not critic_alone:
                weights = _minibatch_weights(learner, batch, part, count)
                first = not policy_metrics
                metrics = _minibatch_step(learner, batch, part.segments, weights, method, loss, fresh=first)
                if metrics is not None:
                    policy_metrics.append(metrics)
            if learner.critic is not None and (metrics := _critic_step(learner.critic, batch, part.segments)):
                critic_metrics.append(metrics)
    except NotFinite as error:
        error.tasks = batch.tasks
        raise
    beside = {"optimizer_steps": float(len(policy_metrics))} | world | teacher_kl(batch, ranks.sum)
    return _means(policy_metrics) | _means(critic_metrics) | beside


def world_shares(batch: Batch, weights: Column, sum_over_ranks: Callable[[float], float] = float) -> dict[str, float]:
    """The share of the world's tokens after the first reply, relative to actions and without predictions.

    Args:
        weights: of each token in the loss (:func:`~roleagent.learners.loss.token_weights`).

    Returns:
        ``world_share``: of the tokens from the first reply on, in the mean over the trajectories, those of the
        world; in [0, 1]. ``world_loss_share``: their share of the loss's weight, exactly 0 with ``loss.action_mask``.
    """
    world, every = np.zeros(len(batch.tasks)), np.zeros(len(batch.tasks))
    trained = total = 0.0
    for segment, turns, row in zip(batch.segments, batch.turns, weights, strict=True):
        said = (turns > 0) & ((segment.token_kind == CONTEXT) | (segment.token_kind == TEXT))
        world[segment.trajectory] += said.sum()
        every[segment.trajectory] += said.sum() + (segment.token_kind == ACTION).sum()
        trained += math.fsum(row[said].tolist())
        total += math.fsum(row[said | (segment.token_kind == ACTION)].tolist())
    played = every > 0
    shares = sum_over_ranks(math.fsum((world[played] / every[played]).tolist()))
    trained, total = sum_over_ranks(trained), sum_over_ranks(total)
    return {
        "world_share": shares / max(1.0, sum_over_ranks(float(played.sum()))),
        "world_loss_share": trained / total if total else 0.0,
    }


def teacher_kl(batch: Batch, sum_over_ranks: Callable[[float], float]) -> dict[str, float]:
    """``teacher_share``: of the action tokens, those that the teacher scored; ``teacher_kl``: the reverse KL divergence
    from it, in nats per scored token, absent without any. Empty without a teacher."""
    if "teacher" not in batch.columns:
        return {}
    total = scored = count = 0.0
    columns = (batch.columns[name] for name in ("sampler", "teacher", "taught"))
    for segment, own, row, taught in zip(batch.segments, *columns, strict=True):
        total += float((own - row)[taught == 1].sum())  # others are action tokens of no score, or no action tokens
        scored, count = scored + float(taught.sum()), count + float((segment.token_kind == ACTION).sum())
    total, scored, count = map(sum_over_ranks, (total, scored, count))
    return {"teacher_share": scored / max(1.0, count), **({"teacher_kl": total / scored} if scored else {})}


def minibatches(config: Config, outline: Outline, order: np.random.Generator) -> list[Minibatch]:
    """The minibatches of one pass over the batches of all ranks: ``optim.minibatches`` of groups, or
    ``minibatch_turns``.

    Counted in turns, a pass has one step per ``minibatch_turns`` turns. Segments are dealt evenly, whatever their
    trajectory. A segment is one turn (style ``window``) or a whole episode.

    Args:
        config: the run's configuration (section ``optim``).
        outline: of the batches of all ranks.
        order: shuffles groups or segments; the same on every rank.
    """
    options = config.optim
    if not options.minibatch_turns:
        members: list[list[int]] = [[] for _ in outline.lengths]
        for number, group in enumerate(outline.groups):
            members[group].append(number)
        parts = np.array_split(order.permutation(len(members)), options.minibatches)
        numbers = [[number for group in part for number in members[group]] for part in parts]
        trajectories = [sum(len(outline.lengths[group]) for group in part) for part in parts]
        return list(map(Minibatch, numbers, trajectories))
    count = max(1, math.ceil(sum(map(sum, outline.lengths)) / options.minibatch_turns))
    parts = np.array_split(order.permutation(len(outline.groups)), count)
    return [Minibatch(part.tolist(), None) for part in parts]


def with_logprobs(batch: Batch, learner: Learner, passes: Sequence[Sequence[Sequence[int]]], method: Method) -> Batch:
    """The batch with the columns ``reference`` and ``old``, if needed, as they are before the first step.

    ``reference`` is scored with the reference policy of the KL penalty. ``old`` is scored with the learner's present
    weights, if the ratio starts from them and more than one step follows. Only what later minibatches train is scored:
    the first step computes its own part, and keeps it for later passes.

    Args:
        passes: per pass and minibatch the numbers of its segments.
        method: decides what is trained.
    """
    config = learner.config
    temperature, segments = config.rollout.temperature, batch.segments
    zeros = [np.zeros(len(segment)) for segment in segments]
    first_pass = passes[0] if passes else []
    columns = dict(batch.columns)
    if config.loss.kl:
        rows = columns["reference"] = list(zeros)
        for chosen in first_pass:  # minibatch by minibatch, so that the micro-batches are those of the update
            scores = learner.score([segments[i] for i in chosen], temperature, learner.reference)
            for i, row in zip(chosen, scores, strict=True):
                rows[i] = row
    if (starts_from_learner(config) or not config.loss.action_mask) and sum(map(len, passes)) > 1:
        rows = columns["old"] = list(zeros)
        chosen = sorted(i for i in chain(*first_pass[1:]) if _is_trained(learner, batch, i, method))
        for i, row in zip(chosen, learner.score([segments[i] for i in chosen], temperature), strict=True):
            rows[i] = row
    return replace(batch, columns=columns)


def policy_step(
    learner: Learner,
    segments: Sequence[Segment],
    columns: Columns,
    temperature: float,
    fresh: bool = False,
    loss: Loss | None = None,
    keep: Column | None = None,
) -> dict[str, float] | None:
    """One optimizer step of a loss of sampled tokens (Eq. 9); None if no rank has segments.

    With ``loss.prediction_credit=imitate`` prediction tokens are true states, which were not sampled. They are trained
    by likelihood: weight times -log p, at the same temperature. The clipped surrogate, the KL penalty and all
    statistics of sampled tokens leave them out.

    Args:
        learner: the policy.
        segments: those of this rank; may be none.
        columns: ``weights`` (:func:`~roleagent.learners.loss.token_weights`), ``advantages``, ``sampler`` and, if
            needed, ``reference``, ``old`` (:func:`with_logprobs`), ``world`` and ``turns``.
        temperature: of the sampling.
        fresh: whether the learner still has the weights that sampled. A ratio that starts from the learner then starts
            from this pass, and the pass measures the mismatch of learner and sampler.
        loss: of sampled tokens; by default that of the configuration's method.
        keep: an array per segment; receives the learner's log-probabilities from before the step.

    Returns:
        ``loss``, ``grad_norm`` and ``tokens`` (sampled and trained); of a mixture of experts ``router_loss``
        (:class:`~roleagent.learners.engine.routers.Routers`). With imitation ``imitated_tokens`` and, if there
        are any, ``prediction_loss`` (nats per imitated token). If there are sampled tokens, means over them:
        ``clip_fraction``, ``ratio``, ``kl``, ``entropy`` and ``logprob_gap``; and of a fresh step ``mismatch`` and
        ``mismatch_max`` (mean and maximum of |learner - sampler| log-probabilities, in nats) and ``importance`` (mean
        of exp(learner - sampler), truncated at ``loss.importance_cap``).
    """
    ranks, options = learner.ranks, learner.config.loss
    if not ranks.max(len(segments)):
        return None
    of_learner = starts_from_learner(learner.config)
    sums, mismatch = MetricSums(), Mismatch(options.importance_cap if of_learner else 0.0)
    imitates = options.prediction_credit == "imitate"
    loss = loss or loss_of(method_of(learner.config))

    def objective(tokens: TokenScores) -> torch.Tensor:
        known, now = tokens.columns, tokens.logprobs.detach()
        imitated = (tokens.token_kind == PREDICTION) & imitates
        weights = known["weights"].masked_fill(imitated, 0.0)
        old = _old_logprobs(tokens, now if fresh else known.get("old"), of_learner)
        sampled = SampledTokens(
            tokens.logprobs,
            old,
            known["advantages"],
            weights,
            tokens.token_kind,
            tokens.segments,
            tokens.entropies,
            known.get("reference"),
            importance(tokens, old, weights, options.importance_cap, options.importance_mode) if of_learner else None,
            known.get("world"),
            known.get("turns"),
        )
        value, metrics = checked_loss(loss(sampled), sampled)
        known_sums = token_metrics(sampled)
        metrics = {**known_sums, **metrics, "tokens": known_sums["tokens"]}
        if fresh:
            mismatch.add((now - known["sampler"])[(weights != 0) & (tokens.token_kind != TEXT)])
        entropy = torch.where(weights != 0, tokens.entropies, 0.0).sum()
        if imitates:
            shares = torch.where(imitated, known["weights"], 0.0)
            value = value - (shares * tokens.logprobs).sum()
            chosen = shares != 0
            surprise = torch.where(chosen, -now, 0.0).sum()
            metrics |= {"prediction_loss": surprise, "imitated_tokens": chosen.sum()}
        sums.add({**metrics, "loss": value, "entropy": entropy})
        return value

    with learner.module.routers as routers:
        norm = learner.update(segments, columns, objective, temperature, entropy=True, keep=keep)
    total = sums.over_ranks(ranks)
    metrics = {"tokens": total["tokens"], "loss": total["loss"], "grad_norm": norm}
    if routers.experts:
        metrics["router_loss"] = routers.loss(ranks.everywhere)
    if imitates:
        metrics["imitated_tokens"] = total["imitated_tokens"]
    if metrics.get("imitated_tokens"):
        metrics["prediction_loss"] = total["prediction_loss"] / total["imitated_tokens"]
    if total["tokens"]:  # a step of imitation alone has no statistics of sampled tokens
        of_imitation = ("loss", "prediction_loss", "imitated_tokens")
        metrics |= mean_metrics({name: value for name, value in total.items() if name not in of_imitation})
        metrics |= mismatch.over_ranks(ranks) if fresh else {}
    return metrics


class Mismatch:
    """The difference between the log-probabilities of learner and sampler at the same weights.

    Args:
        cap: largest importance weight of a token; 0 for no limit.
    """

    def __init__(self, cap: float):
        self.limit = math.log(cap) if cap else 20.0
        self.tokens, self.sums, self.largest = 0, MetricSums(), torch.zeros(())

    def add(self, difference: torch.Tensor) -> None:
        """Adds tokens: learner minus sampler, in nats; float32 (N,)."""
        if difference.numel():
            self.tokens += difference.numel()
            self.sums.add({"gap": difference.abs().sum(), "importance": difference.clamp(max=self.limit).exp().sum()})
            self.largest = torch.maximum(self.largest.to(difference.device), difference.abs().max())

    def over_ranks(self, ranks: Ranks) -> dict[str, float]:
        """Means over the tokens of all ranks; the maximum is over all ranks on the first, elsewhere the rank's own."""
        gap, importance = (float(self.sums.sums.get(name, 0.0)) for name in ("gap", "importance"))
        tokens, largest = max(1.0, ranks.sum(float(self.tokens))), float(self.largest)
        return {
            "mismatch": ranks.sum(gap) / tokens,
            "mismatch_max": max(ranks.gather(largest), default=largest),
            "importance": ranks.sum(importance) / tokens,
        }


def starts_from_learner(config: Config) -> bool:
    """Whether the ratio of an update starts from the learner's log-probabilities, and not from the sampler's.

    Another engine rounds otherwise. If the ratio started from its log-probabilities, the difference would use up the
    clip's range and stop tokens that no update has moved yet.
    """
    source = config.loss.old_logprobs
    return source == "learner" or (source == "auto" and config.rollout.backend != "local")


def _old_logprobs(tokens: TokenScores, learner: torch.Tensor | None, of_learner: bool) -> torch.Tensor:
    """The old policy's log-probabilities; those of TEXT tokens are always the learner's."""
    sampler = tokens.columns["sampler"]
    if learner is None:
        return sampler
    return learner if of_learner else torch.where(tokens.token_kind == TEXT, learner, sampler)


def importance(
    tokens: TokenScores, old: torch.Tensor, weights: torch.Tensor, cap: float, mode: str = "cap"
) -> torch.Tensor | None:
    """The weights (N,) that make tokens of an engine with other numerics count as the learner's own.

    Args:
        tokens: with the column ``sampler``.
        old: (N,) the learner's log-probabilities before the update.
        weights: (N,) in the objective. Tokens of weight 0, such as imitated ones, which nobody sampled, do not count.
        cap: largest weight; 0: None is returned.
        mode: ``"cap"`` weighs each token by min(exp(old - sampler), cap), ``"mask"`` by exp(old - sampler), and all
            tokens of a segment whose product is above the cap by 0 (the sequence mask of TRL).
    """
    if not cap:
        return None
    apart = torch.where((tokens.token_kind == TEXT) | (weights == 0), 0.0, old - tokens.columns["sampler"])
    if mode == "cap":
        return apart.clamp(max=math.log(cap)).exp()
    sums = apart.new_zeros(int(tokens.segments.max()) + 1).index_add_(0, tokens.segments, apart)
    return torch.where(sums[tokens.segments] > math.log(cap), 0.0, apart.exp())


def _minibatch_weights(learner: Learner, batch: Batch, part: Minibatch, count: int) -> Column:
    """Each token's weight within a minibatch.

    A trajectory that is spread over minibatches keeps its weights in the whole batch, times the number of minibatches:
    the mean over the minibatches is the objective, however the turns are dealt.
    """
    if part.trajectories is None:
        return [batch.columns["weights"][i] * count for i in part.segments]
    return _weights(learner, batch, part.segments, part.trajectories)


def _weights(learner: Learner, batch: Batch, chosen: Sequence[int], trajectories: int) -> Column:
    options = learner.config.loss
    return token_weights(
        [batch.segments[i] for i in chosen],
        max(1, trajectories),
        aggregation=options.aggregation,
        action_mask=options.action_mask,
        sum_over_ranks=learner.ranks.sum,
    )


def _is_taught(learner: Learner, batch: Batch, number: int, method: Method) -> bool:
    """Whether the sampled tokens of a segment have a gradient: those of advantage 0 have none in the clipped objective
    without a KL term. Of another loss nothing is known."""
    other = learner.config.loss.kl or learner.config.loss.function or method.own_loss
    return bool(other or batch.columns["advantages"][number].any())


def _is_trained(learner: Learner, batch: Batch, number: int, method: Method) -> bool:
    """Whether a segment has a gradient, be it for the states that it imitates, or for the world's text. Others are
    skipped, but weights count them.
    """
    kinds = batch.segments[number].token_kind
    states = learner.config.loss.prediction_credit == "imitate" and (kinds == PREDICTION).any()
    world = method.reads_world and (kinds == TEXT).any()
    return bool(_is_taught(learner, batch, number, method) or states or world)


def _minibatch_step(
    learner: Learner, batch: Batch, chosen: Sequence[int], weights: Column, method: Method, loss: Loss, fresh: bool
) -> dict[str, float] | None:
    """One optimizer step on some segments; None if nothing in them has a gradient."""
    kept = [place for place, number in enumerate(chosen) if _is_trained(learner, batch, number, method)]
    shares: Column = []
    for place in kept:
        # If it is kept for the states that it imitates, its sampled tokens enter no statistics.
        states = batch.segments[chosen[place]].token_kind == PREDICTION
        taught = _is_taught(learner, batch, chosen[place], method)
        shares.append(weights[place] if taught else np.where(states, weights[place], 0.0))
    kept = [chosen[place] for place in kept]
    columns = {name: [rows[number] for number in kept] for name, rows in batch.columns.items()}
    columns |= {"weights": shares, "turns": [batch.turns[number] for number in kept]}
    segments = [batch.segments[number] for number in kept]
    if method.reads_world:
        columns["world"] = world_weights(segments, learner.ranks.sum)
    before = [np.zeros(len(segment)) for segment in segments] if fresh and "old" in columns else None
    metrics = policy_step(learner, segments, columns, learner.config.rollout.temperature, fresh, loss, before)
    if before is not None:
        for number, row in zip(kept, before, strict=True):
            batch.columns["old"][number] = row
    return metrics


def _critic_step(critic: Engine, batch: Batch, chosen: Sequence[int]) -> dict[str, float] | None:
    """One optimizer step of the critic on some segments, with equal token weights; None if no rank has segments."""
    config = critic.config
    segments = [batch.segments[i] for i in chosen]
    if not critic.ranks.max(len(segments)):
        return None
    weights = token_weights(
        segments, 1, 0.0, "token", action_mask=config.estimator.action_mask, sum_over_ranks=critic.ranks.sum
    )
    if config.estimator.gae_level == "turn":  # the critic learns at one token per turn
        fitted = [row * batch.columns["fitted"][i] for i, row in zip(chosen, weights, strict=True)]
        total = critic.ranks.sum(math.fsum(value for row in fitted for value in row.tolist()))
        weights = [row / max(total, 1e-9) for row in fitted]
    columns = {name: [batch.columns[name][i] for i in chosen] for name in ("values", "returns")}
    return fit(critic, segments, {**columns, "weights": weights}, config.rollout.temperature, config.critic.clip)


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over the rows that have it.

    >>> _means([{"loss": 1.0, "mismatch": 0.5}, {"loss": 3.0}])
    {'loss': 2.0, 'mismatch': 0.5}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
