"""The optimiser steps of an iteration: credit on every token, then passes over what was played, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from roleagent.learners.critic import fit
from roleagent.learners.engine import Engine, NotFinite
from roleagent.learners.experience import Experience, credit_by_critic, remember, whiten
from roleagent.learners.learner import Learner
from roleagent.learners.loss import token_weights
from roleagent.learners.objectives import improve


def update(learner: Learner, experience: Experience, orders: Sequence[np.random.Generator]) -> dict[str, float]:
    """Optimiser steps over whole groups: ``optim.updates`` of them per pass, of all ranks together.

    Args:
        experience: of this rank; what the method still has to make of its advantages is made here, for good.
        orders: one generator per pass over the groups; it deals them out to the updates.

    Returns:
        the updates' metrics, each in the mean over the updates that have it (:func:`improve`, and :func:`fit` with a
        critic).
    """
    config = learner.config
    groups = len(experience.lengths)
    plan = [
        [part.tolist() for part in np.array_split(order.permutation(groups), config.optim.updates)] for order in orders
    ]
    if learner.critic is not None:
        learner.critic.share = learner.share
        credit_by_critic(experience, learner.critic, config)
    if config.estimator.whiten:
        whiten(experience, config.estimator.action_mask, learner.ranks.sum)
    remember(experience, learner, plan)
    collected: list[dict[str, float]] = []
    fitted: list[dict[str, float]] = []
    try:
        for part in (part for parts in plan for part in parts):
            if (metrics := _improve(learner, experience, part, fresh=not collected)) is not None:
                collected.append(metrics)
            if learner.critic is not None and (metrics := _fit(learner.critic, experience, part)) is not None:
                fitted.append(metrics)
    except NotFinite as error:
        error.tasks = experience.tasks
        raise
    return (_means(collected) or {"entropy": 0.0, "logprob_gap": 0.0}) | _means(fitted)


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over the rows that have it.

    >>> _means([{"loss": 1.0, "mismatch": 0.5}, {"loss": 3.0}])
    {'loss': 2.0, 'mismatch': 0.5}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}


def _improve(learner: Learner, experience: Experience, part: Sequence[int], fresh: bool) -> dict[str, float] | None:
    """One optimiser step on some groups; None where nothing in them teaches anything."""
    options, ranks = learner.config.loss, learner.ranks
    chosen = experience.chosen(part)
    weights = token_weights(
        [experience.segments[i] for i in chosen],
        max(1, round(ranks.sum(float(experience.trajectories(part))))),
        options.prediction_weight,
        options.aggregation,
        options.divisor,
        options.action_mask,
        ranks.sum,
    )
    # Without a KL term a segment of advantage 0 has gradient 0, so it need not be computed; it was counted above.
    kept = [n for n, i in enumerate(chosen) if options.kl or any(experience.columns["advantages"][i])]
    columns = {name: [rows[chosen[n]] for n in kept] for name, rows in experience.columns.items()}
    columns["weights"] = [weights[n] for n in kept]
    segments = [experience.segments[chosen[n]] for n in kept]
    return improve(learner, segments, columns, learner.config.rollout.temperature, fresh)


def _fit(critic: Engine, experience: Experience, part: Sequence[int]) -> dict[str, float] | None:
    """One optimiser step of the critic on some groups, every token of theirs alike; None where there is none."""
    config, chosen = critic.config, experience.chosen(part)
    segments = [experience.segments[i] for i in chosen]
    if not critic.ranks.max(len(segments)):
        return None
    weights = token_weights(
        segments, 1, 0.0, "token", action_mask=config.estimator.action_mask, sum_over_ranks=critic.ranks.sum
    )
    columns = {name: [experience.columns[name][i] for i in chosen] for name in ("values", "returns")}
    return fit(critic, segments, {**columns, "weights": weights}, config.rollout.temperature)
