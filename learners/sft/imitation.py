"""Supervised fine-tuning: updates towards demonstrations, for some epochs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from math import ceil

import numpy as np
import torch

from roleagent.agents.policies.hf import HFPolicy
from roleagent.learners.batch import Column, trained_tokens
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.logprobs import TokenScores
from roleagent.learners.loss import PREDICTION_WEIGHT, MetricSums, imitation_weights
from roleagent.learners.run.run import Run
from roleagent.learners.run.time_plan import MEASURED, time_plan
from roleagent.learners.sft.demonstrations import REPLAY_SHARE, Corrections
from roleagent.types import ACTION, CONTEXT, PREDICTION, TEXT, Segment

CHUNK = 50
"""Updates between checkpoints."""


def imitate(
    run: Run,
    policy: HFPolicy,
    segments: Sequence[Segment],
    epochs: float,
    corrections: Corrections | None = None,
    evaluated: int = 0,
) -> Learner:
    """Supervised updates for some epochs; continues a resumed stage.

    The ranks go through the same batches and share the segments of each: the updates are those of a single rank.

    Args:
        run: in the stage of the updates. It is checkpointed every :data:`CHUNK` updates.
        policy: is trained.
        segments: the demonstrations.
        epochs: passes over the segments.
        corrections: rounds that follow, each played with the weights of that moment.
        evaluated: held-out tasks of the run, whose time the display plans before reinforcement, if the policy itself
            samples; 0: it plans nothing.

    Returns:
        the learner; close it before another one trains the policy.
    """
    config = run.config.warmstart
    if not segments:
        return Learner(policy, run.config, run.config.optim.lr)
    learner = Learner(policy, run.config, config.lr, optimizer=config.optimizer)
    run.restore(learner)

    def epoch(number: int) -> Iterator[list[Segment]]:
        return batches(segments, config.batch_tokens, run.stream("imitation", number))

    first = max(1, round(sum(1 for _ in epoch(0)) * epochs))
    rounds = corrections.rounds if corrections else 0
    each = ceil(first / epochs * (1 + REPLAY_SHARE) * config.round_episodes / config.episodes) if rounds else 0
    total = first + rounds * each  # an estimate: the rounds are not played yet
    measured: list[float] = []
    timed = run.config.rollout.backend == "local" and run.method.reinforces  # how fast others sample is not known yet
    plans = min(MEASURED, total - run.progress.step) if evaluated and timed else 0
    run.begin(total)
    pool, before = [*segments], 0
    for part in range(rounds + 1):  # the demonstrations, then the rounds
        # Endless epochs of the demonstrations, and one epoch of each round.
        order = chain.from_iterable(map(epoch, count()))
        updates, start, end = first, 0.0, first / total
        if part and corrections:
            if part > len(corrections.started):
                corrections.play(part, learner, policy.version)
            before = corrections.started[part - 1]
            new = corrections.segments(policy, part)
            again = run.stream("replayed", part).integers(len(pool), size=round(REPLAY_SHARE * len(new)))
            chosen = [*new, *(pool[int(place)] for place in again)]
            pool += new
            of_round = [*batches(chosen, config.batch_tokens, run.stream("round", part))]
            order, updates = iter(of_round), len(of_round)
            start, end = end + (part - 1) * each / total, end + part * each / total
        if corrections and part < len(corrections.started):  # a resumed run is beyond it
            continue
        for number, batch in enumerate(islice(order, updates), start=1):
            if before + number <= run.progress.step:  # a resumed run has done it
                continue
            if run.progress.stage != "warmstart" and run.stops(run.progress.step, total):  # that comes to its end
                return learner
            learner.share = start + (end - start) * (number - 1) / updates
            started = time.perf_counter()
            metrics = imitation_step(learner, run.ranks.share(batch))
            run.progress.step = before + number
            measured.append(time.perf_counter() - started)
            if len(measured) == plans:
                left, played = total - run.progress.step, len(corrections.started) if corrections else 0
                run.display.plan(time_plan(run.config, policy, segments, evaluated, measured, left, rounds - played))
            if run.progress.step % 10 == 0:
                run.log(metrics, **{"imitation loss": metrics["loss"]})
            if run.progress.step % CHUNK == 0:
                run.save(learner)
    return learner


def passes(segments: Sequence[Segment], tokens: int) -> float:
    """The passes over some segments that train so many tokens of the expert's commands."""
    return tokens / max(1, trained_tokens(segments))


def batches(segments: Sequence[Segment], tokens: int, rng: np.random.Generator) -> Iterator[list[Segment]]:
    """One epoch in random order, in batches of about ``tokens`` tokens."""
    batch: list[Segment] = []
    size = 0
    for index in rng.permutation(len(segments)):
        batch.append(segments[index])
        size += len(segments[index])
        if size >= tokens:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def imitation_step(learner: Learner, segments: Sequence[Segment]) -> dict[str, float]:
    """One update towards demonstrations: mean negative log-likelihood, in nats per token.

    As in :func:`~roleagent.learners.update.policy_step` each kind of token has its own average. Action tokens
    weigh 1 (0 for a step that is not imitated), prediction tokens ``PREDICTION_WEIGHT``, and the environment's
    text ``warmstart.text_weight``. Observations repeat names, so a small model learns there to copy them.
    """
    config = learner.config
    weight_of = {ACTION: 1.0, PREDICTION: PREDICTION_WEIGHT, TEXT: config.warmstart.text_weight}
    if config.warmstart.text_weight:
        segments = [with_text(segment) for segment in segments]
    weights = imitation_weights(segments, weight_of, learner.ranks.sum)
    kinds, names = [one.token_kind for one in segments], {ACTION: "action", PREDICTION: "prediction", TEXT: "text"}
    return likelihood_step(learner, segments, weights, kinds, names)


def likelihood_step(
    learner: Learner, segments: Sequence[Segment], weights: Column, parts: Column, names: Mapping[int, str]
) -> dict[str, float]:
    """One update of weighted negative log-likelihood, in nats.

    Args:
        segments: those of this rank.
        weights: each token's weight in the loss.
        parts: the part of the loss that each token belongs to.
        names: of the parts.

    Returns:
        ``loss``, ``grad_norm`` and, per part, its tokens with a weight and their mean negative log-likelihood.
    """
    sums = MetricSums()

    def objective(tokens: TokenScores) -> torch.Tensor:
        shares = tokens.columns["weights"]
        loss = -(shares * tokens.logprobs).sum()
        found = {"loss": loss}
        for part, name in names.items():
            chosen = (tokens.columns["part"] == part) & (shares > 0)
            found |= {name: torch.where(chosen, -tokens.logprobs, 0.0).sum(), f"{name}_tokens": chosen.sum()}
        sums.add(found)
        return loss

    norm = learner.update(segments, {"weights": weights, "part": parts}, objective, temperature=1.0)
    total = sums.over_ranks(learner.ranks)
    losses = {f"{name}_loss": total[name] / max(1.0, total[f"{name}_tokens"]) for name in names.values()}
    tokens = {f"{name}_tokens": total[f"{name}_tokens"] for name in names.values()}
    return {"loss": total["loss"], **losses, **tokens, "grad_norm": norm}


def with_text(segment: Segment) -> Segment:
    """Marks the environment's text. A detached prediction stays: its beginning is another segment's."""
    if not (segment.token_kind == ACTION).any():
        return segment
    kinds = np.where(segment.token_kind == CONTEXT, TEXT, segment.token_kind)
    kinds[0] = CONTEXT  # the first token has no probability
    return replace(segment, token_kind=kinds)


__all__ = ["CHUNK", "batches", "imitate", "imitation_step", "likelihood_step", "passes", "with_text"]
