"""Returns and state groups: the quantities that advantage estimators compare (Eq. 5-7).

Returns and outcomes are sums of a turn's rewards, which :mod:`roleagent.learners.rewards` defines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from roleagent.learners.rewards import Rewards
from roleagent.similarity import group_states
from roleagent.types import Group, Trajectory, Turn

Values = list[list[float]]
"""One list per trajectory, one value per turn."""

States = list[list[int]]
"""One list per trajectory, per turn the number of its state within the group: 0, 1, …; -1: unknown."""

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


@dataclass(frozen=True, slots=True)
class EstimatorConfig:
    """The options of the estimators.

    Attributes:
        gamma: discount per turn, in [0, 1].
        alpha: weight of the trajectory advantage (Eq. 8), ≥ 0.
        norm: ``"std"`` divides by the population standard deviation, ``"mean"`` only subtracts the mean.
        similarity_threshold: states this similar (in (0, 1]) share a group; None groups equal states only.
        rewards: the reward of a turn; by default its ``task`` term.
        unscored: R_pre of a horizon without a state to score: ``"neutral"`` takes the mean of the scored ones,
            ``"zero"`` counts 0 (Eq. 5 as published); see :func:`predictive_returns`.
        state_of_failure: the state after a failed command, which changed nothing: ``"previous"`` is the state before
            it, ``"text"`` the text of the failure (as published).
        modulation: ``"absolute"`` multiplies by 1 + R_pre (Eq. 6), ``"relative"`` compares R_pre with the other turns
            of the same state first; see :func:`modulated_returns`.

    Raises:
        ValueError: a value out of range.
    """

    gamma: float = 0.95
    alpha: float = 1.0
    norm: str = "std"
    similarity_threshold: float | None = None
    rewards: Rewards = field(default_factory=Rewards)
    unscored: str = "neutral"
    state_of_failure: str = "previous"
    modulation: str = "absolute"

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], not {self.gamma}")
        if self.alpha < 0.0:
            raise ValueError(f"alpha must not be negative, but is {self.alpha}")
        if self.norm not in ("std", "mean"):
            raise ValueError(f"norm must be 'std' or 'mean', not {self.norm!r}")
        if self.similarity_threshold is not None and not 0.0 < self.similarity_threshold <= 1.0:
            raise ValueError(f"similarity_threshold must be in (0, 1] or None, not {self.similarity_threshold}")
        if self.unscored not in ("neutral", "zero"):
            raise ValueError(f"unscored must be 'neutral' or 'zero', not {self.unscored!r}")
        if self.state_of_failure not in ("previous", "text"):
            raise ValueError(f"state_of_failure must be 'previous' or 'text', not {self.state_of_failure!r}")
        if self.modulation not in ("absolute", "relative"):
            raise ValueError(f"modulation must be 'absolute' or 'relative', not {self.modulation!r}")


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Discounted returns-to-go, Σ_{k≥t} γ^{k-t} r_k.

    >>> returns([0.0, 0.0, 1.0], gamma=0.5)
    [0.25, 0.5, 1.0]
    """
    values: list[float] = []
    value = 0.0
    for reward in reversed(rewards):
        value = reward + gamma * value
        values.append(value)
    return values[::-1]


def standardize(values: Sequence[float], norm: str = "std") -> list[float]:
    """Distance from the mean, in population standard deviations (``norm="std"``) or absolute (``norm="mean"``).

    Fewer than two values, or values without spread, carry no comparison and give 0.

    >>> [round(value, 3) for value in standardize([1.0, 0.0, 0.0, 1.0])]
    [1.0, -1.0, -1.0, 1.0]
    >>> standardize([3.0, 1.0], norm="mean"), standardize([7.0])
    ([1.0, -1.0], [0.0])
    """
    if len(values) < 2 or is_flat(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)  # fsum: the same result in whatever order the rollouts arrive
    centered = [value - mean for value in values]
    if norm == "mean":
        return centered
    deviation = math.sqrt(math.fsum(value * value for value in centered) / len(values))
    return [value / (deviation + EPSILON) for value in centered]


def discounted(trajectory: Trajectory, config: EstimatorConfig) -> list[float]:
    """The discounted return of every turn, over all reward terms."""
    return returns([config.rewards.of(turn) for turn in trajectory.turns], config.gamma)


def task_returns(trajectory: Trajectory, gamma: float, rewards: Rewards | None = None) -> list[float]:
    """R_task(a_t) of every turn (Eq. 5, left)."""
    return returns([(rewards or Rewards()).task(turn) for turn in trajectory.turns], gamma)


def predictive_return(turn: Turn, gamma: float) -> float:
    """R_pre(a_t) = Σ_h γ^{h-1} r̃_{t,h} over the scored horizons (Eq. 5, right, as published)."""
    if turn.prediction is None:
        return 0.0
    return math.fsum(gamma ** (score.horizon - 1) * score.score for score in turn.prediction.scores)


def predictive_returns(group: Group, config: EstimatorConfig) -> Values:
    """R_pre(a_t) of every turn (Eq. 5, right), in [0, Σ_{h=1..H} γ^{h-1}].

    A horizon has no score if the episode ends before it or its state is None. Eq. 5 counts 0 there
    (``unscored="zero"``), so a winning last step is worth less than the same win later. With ``"neutral"`` (an addition
    to the paper) R_pre is the mean score, weighted by γ^{h-1}, over the scored horizons, times Σ_{h=1..H} γ^{h-1}. This
    is Eq. 5 if all horizons are scored. A turn without scores takes the mean R_pre of its trajectory's scored turns,
    else the mean of the group's, else 0. An absent prediction is scored 0; a turn that was not asked for predictions
    has R_pre = 0.
    """
    if config.unscored == "zero":
        return [[predictive_return(turn, config.gamma) for turn in t.turns] for t in group.trajectories]
    rows = [[_mean_return(turn, config.gamma) for turn in t.turns] for t in group.trajectories]
    scored = [[value for value in row if value is not None] for row in rows]
    typical = _mean([value for values in scored for value in values])
    filled: Values = []
    for row, values, trajectory in zip(rows, scored, group.trajectories, strict=True):
        usual = _mean(values) if values else typical
        silent = (0.0 if turn.prediction is None else usual for turn in trajectory.turns)
        filled.append([other if value is None else value for value, other in zip(row, silent, strict=True)])
    return filled


def _mean_return(turn: Turn, gamma: float) -> float | None:
    """The weighted mean of a turn's scores times Σ_{h=1..H} γ^{h-1}; None without scores."""
    mean = prediction_mean(turn, gamma)
    return None if mean is None else mean * _most(turn, gamma)


class ReturnTerms(NamedTuple):
    """The terms of every turn's return, R_task·(1 + R_pre) + R_others.

    Attributes:
        task: R_task(a_t), the discounted return of the ``task`` term (Eq. 5, left).
        predictive: the R_pre(a_t) that modulates it (Eq. 5, right; compared within the state if
            ``modulation="relative"``).
        others: the discounted return of all other terms: penalties and process rewards.
    """

    task: Values
    predictive: Values
    others: Values


def return_terms(group: Group, config: EstimatorConfig) -> ReturnTerms:
    """The terms of every turn's return; :func:`modulated_returns` is their sum."""
    factors = predictive_returns(group, config)
    if config.modulation == "relative":
        factors = _relative(factors, group, config)
    rewards = config.rewards
    return ReturnTerms(
        [task_returns(trajectory, config.gamma, rewards) for trajectory in group.trajectories],
        factors,
        [returns([rewards.others(turn) for turn in t.turns], config.gamma) for t in group.trajectories],
    )


def modulated_returns(group: Group, config: EstimatorConfig) -> Values:
    """R_t = R_task(a_t)·(1 + R_pre(a_t)) of every turn (Eq. 6), plus the unmodulated return of all other terms.

    The factor multiplies the return of *each* step, not the last reward: otherwise only the last prediction would
    count. A failed trajectory stays at 0. Penalties are not multiplied: that would punish good predictions.

    ``modulation="relative"`` (an addition to the paper) compares R_pre with the other turns of the same state. With z,
    its distance from their mean in standard deviations, the factor is 1 + Σγ^{h-1}·clip(1/2 + z/4, 0, 1). It has the
    same range, but does not depend on how predictable a state is.
    """
    rows = zip(*return_terms(group, config), strict=True)
    return [[task * (1.0 + pre) + other for task, pre, other in zip(*row, strict=True)] for row in rows]


def _relative(values: Values, group: Group, config: EstimatorConfig) -> Values:
    """R_pre compared within each state; turns that were not asked for predictions keep 0."""
    compared = [list(row) for row in values]
    for positions in by_state(states_of(group, config)):
        asked = [(i, t) for i, t in positions if group.trajectories[i].turns[t].prediction is not None]
        for (i, t), z in zip(asked, standardize([values[i][t] for i, t in asked]), strict=True):
            compared[i][t] = _most(group.trajectories[i].turns[t], config.gamma) * min(1.0, max(0.0, 0.5 + z / 4))
    return compared


def _most(turn: Turn, gamma: float) -> float:
    """The largest R_pre of a turn, Σ_{h=1..H} γ^{h-1}; 0 if it was not asked for predictions."""
    return math.fsum(gamma**ahead for ahead in range(len(turn.prediction.texts))) if turn.prediction else 0.0


def prediction_mean(turn: Turn, gamma: float) -> float | None:
    """The mean score of a turn's prediction, weighted by γ^{h-1}, in [0, 1]; None without scores."""
    scores = turn.prediction.scores if turn.prediction is not None else ()
    weight = math.fsum(gamma ** (score.horizon - 1) for score in scores)
    return predictive_return(turn, gamma) / weight if weight else None


def states_of(group: Group, config: EstimatorConfig) -> States:
    """The state of every turn, numbered over all rollouts of the task (Eq. 7)."""
    states = tuple(state_of(turn, config) for trajectory in group.trajectories for turn in trajectory.turns)
    labels = iter(_labels(states, config.similarity_threshold))
    return [[next(labels) for _ in trajectory.turns] for trajectory in group.trajectories]


def state_of(turn: Turn, config: EstimatorConfig) -> str | None:
    """The state that a turn is compared by (``config.state_of_failure``); None if it is unknown."""
    return turn.grouping_state if config.state_of_failure == "previous" else turn.state


@lru_cache(maxsize=1)  # the estimator and Credit.of ask for the same, one after the other
def _labels(states: tuple[str | None, ...], threshold: float | None) -> list[int]:
    return group_states(states, threshold)


def by_state(states: States) -> list[list[tuple[int, int]]]:
    """Positions (trajectory, turn) by state, without turns of unknown state."""
    members: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(states):
        for t, label in enumerate(row):
            if label >= 0:
                members[label].append((i, t))
    return list(members.values())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def is_flat(values: Sequence[float]) -> bool:
    return not values or max(values) - min(values) < 1e-9


__all__ = [
    "EPSILON",
    "EstimatorConfig",
    "ReturnTerms",
    "States",
    "Values",
    "by_state",
    "discounted",
    "is_flat",
    "modulated_returns",
    "prediction_mean",
    "predictive_return",
    "predictive_returns",
    "return_terms",
    "returns",
    "standardize",
    "state_of",
    "states_of",
    "task_returns",
]
