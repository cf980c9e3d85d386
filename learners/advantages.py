"""Advantage estimators: how much better each turn was than its peers.

An estimator is a function from one :class:`~roleagent.types.Group` to one list per trajectory with one value per turn,
and one record in :data:`ESTIMATORS`. They differ only in the returns that they compare:

=============  ====================================  ===========================================
estimator      compared across the G rollouts        compared inside groups of the same state
=============  ====================================  ===========================================
``grpo``       outcome R^E(τ)                        nothing
``rloo``       outcome, with the mean of the others  nothing
``gigpo``      outcome R^E(τ)                        discounted return
``role_agent`` outcome R^E(τ)                        modulated return R_task(a_t)·(1 + R_pre(a_t))
``reinforce``  nothing: the discounted return, which ``estimator.whiten`` compares over the batch
``gae``        nothing: the turn's reward, which :mod:`roleagent.learners.critic` turns into advantages
=============  ==================================================================================

Each group is estimated alone, so statistics never leak between tasks. :mod:`roleagent.learners.rewards` defines the
reward of a turn, :mod:`roleagent.learners.returns` the returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from roleagent.learners.returns import (
    EstimatorConfig,
    States,
    Values,
    by_state,
    discounted,
    is_flat,
    modulated_returns,
    prediction_mean,
    standardize,
    states_of,
)
from roleagent.types import Group


def grpo(group: Group, config: EstimatorConfig) -> Values:
    """Every turn gets its trajectory's advantage A^E(τ) (Eq. 1)."""
    return [
        [value] * len(t.turns) for value, t in zip(outcome_advantages(group, config), group.trajectories, strict=True)
    ]


def rloo(group: Group, config: EstimatorConfig) -> Values:
    """Every turn gets its trajectory's outcome minus the mean of the other rollouts' outcomes (leave one out)."""
    outcomes = [config.rewards.outcome(trajectory) for trajectory in group.trajectories]
    if len(outcomes) < 2 or is_flat(outcomes):
        return [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
    total, others = math.fsum(outcomes), len(outcomes) - 1
    values = [outcome - (total - outcome) / others for outcome in outcomes]
    return [[value] * len(t.turns) for value, t in zip(values, group.trajectories, strict=True)]


def reinforce(group: Group, config: EstimatorConfig) -> Values:
    """Every turn gets its discounted return (REINFORCE++ whitens it over the batch)."""
    return [discounted(trajectory, config) for trajectory in group.trajectories]


def gae(group: Group, config: EstimatorConfig) -> Values:
    """Every turn gets its own reward; the critic turns rewards into advantages, token by token (PPO)."""
    return [[config.rewards.of(turn) for turn in trajectory.turns] for trajectory in group.trajectories]


def gigpo(group: Group, config: EstimatorConfig) -> Values:
    """State advantage over discounted returns, plus α times the trajectory advantage."""
    return _joint(group, [discounted(trajectory, config) for trajectory in group.trajectories], config)


def role_agent(group: Group, config: EstimatorConfig) -> Values:
    """State advantage over returns modulated by each turn's own prediction, plus α·A^E (Eq. 5-8)."""
    return _joint(group, modulated_returns(group, config), config)


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator, and the properties that other parts of the trainer need to know.

    Attributes:
        fn: from a group to one advantage per trajectory and turn.
        compares_outcomes: whether it compares the outcomes of a group's trajectories (A^E).
        compares_states: whether it compares turns taken in the same state (A^S); its values are then A^S + α·A^E.
        modulates: whether predictions modulate its returns (Eq. 6).
        needs_critic: whether a critic turns its values into advantages.
    """

    fn: Callable[[Group, EstimatorConfig], Values]
    compares_outcomes: bool = False
    compares_states: bool = False
    modulates: bool = False
    needs_critic: bool = False


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(grpo, compares_outcomes=True),
    "rloo": Estimator(rloo, compares_outcomes=True),
    "gigpo": Estimator(gigpo, compares_outcomes=True, compares_states=True),
    "role_agent": Estimator(role_agent, compares_outcomes=True, compares_states=True, modulates=True),
    "reinforce": Estimator(reinforce),
    "gae": Estimator(gae, needs_critic=True),
}


def has_zero_variance(group: Group) -> bool:
    """Whether all rollouts have the same task reward, so that comparing them teaches nothing.

    The trajectory advantage of a zero-variance group is 0. If all failed, every advantage of every estimator is 0; if
    all succeeded, the state advantages may still prefer short solutions (Eq. 8).
    """
    return is_flat([trajectory.outcome for trajectory in group.trajectories])


def outcome_advantages(group: Group, config: EstimatorConfig) -> list[float]:
    """A^E(τ): one value per *trajectory* enters the statistics, so long ones do not count more."""
    return standardize([config.rewards.outcome(trajectory) for trajectory in group.trajectories], config.norm)


def prediction_advantages(group: Group, states: States, config: EstimatorConfig) -> Values:
    """The advantage of each turn's prediction over the others of the same state; an addition to the paper.

    A turn's score is :func:`prediction_mean`. A turn without one, or alone in its state, has the advantage 0.

    Args:
        group: rollouts of a task.
        states: which turns were taken in the same state (:func:`states_of`).
        config: γ and the norm.
    """
    values = [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
    scores = [[prediction_mean(turn, config.gamma) for turn in trajectory.turns] for trajectory in group.trajectories]
    for positions in by_state(states):
        scored = [(i, t, score) for i, t in positions if (score := scores[i][t]) is not None]
        peers = standardize([score for _, _, score in scored], config.norm)
        for (i, t, _), value in zip(scored, peers, strict=True):
            values[i][t] = value
    return values


def _joint(group: Group, step_returns: Values, config: EstimatorConfig) -> Values:
    """A(a_t) = A^S(a_t) + α·A^E(τ) (Eq. 7 and 8)."""
    advantages = [[config.alpha * value for value in row] for row in grpo(group, config)]
    for positions in by_state(states_of(group, config)):
        peers = standardize([step_returns[i][t] for i, t in positions], config.norm)
        for (i, t), value in zip(positions, peers, strict=True):
            advantages[i][t] += value
    return advantages


__all__ = [
    "ESTIMATORS",
    "Estimator",
    "gae",
    "gigpo",
    "grpo",
    "has_zero_variance",
    "outcome_advantages",
    "prediction_advantages",
    "reinforce",
    "rloo",
    "role_agent",
]
