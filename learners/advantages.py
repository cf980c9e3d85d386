"""Advantages: how much better each turn was than its peers (Eq. 5-8).

A group's episodes are compared in two ways: their outcomes across the group (A^E), and the returns of turns that were
taken in the same state (A^S). :mod:`roleagent.learners.method` says which method compares what. Each group is
estimated alone, so statistics never leak between tasks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from roleagent.config import Config
from roleagent.config.settings import EstimatorOptions
from roleagent.learners.rewards import (
    EPSILON,
    Rewards,
    Values,
    has_zero_variance,
    process_rewards,
    returns,
)
from roleagent.similarity import Similarity, group_states, similarity_of
from roleagent.types import Group, Trajectory, Turn, is_flat

States = list[list[int]]
"""One list per trajectory, per turn the number of its state within the group: 0, 1, …; -1: unknown."""


@dataclass(frozen=True)
class Estimator:
    """What a method's advantages are computed with.

    Attributes:
        options: section ``estimator`` of the configuration.
        reply_limit: most tokens of a reply, for the reward ``overlong``; 0 for none.
    """

    options: EstimatorOptions = field(default_factory=EstimatorOptions)
    reply_limit: int = 0

    @classmethod
    def of(cls, config: Config) -> Estimator:
        """That of a run."""
        inline = config.wia and config.prompt.predictions == "inline"
        limit = config.rollout.action_tokens + (config.rollout.prediction_tokens if inline else 0)
        return cls(config.estimator, limit)

    @cached_property
    def similarity(self) -> Similarity:
        """How alike two states are."""
        return similarity_of(self.options.similarity)

    @cached_property
    def rewards(self) -> Rewards:
        """The weighted rewards of turns and episodes."""
        return Rewards(self.options.rewards, self.reply_limit, self.options.overlong_buffer)


def standardize(values: Sequence[float], norm: str = "std", counts: Sequence[int] | None = None) -> list[float]:
    """Distance from the mean, in population standard deviations (``norm="std"``) or absolute (``norm="mean"``).

    Fewer than two values, or values equal up to rounding, carry no comparison and give 0.

    Args:
        counts: how often each value counts in the mean and the deviation; None: once.

    >>> [round(value, 3) for value in standardize([1.0, 0.0, 0.0, 1.0])]
    [1.0, -1.0, -1.0, 1.0]
    >>> standardize([3.0, 1.0], norm="mean"), standardize([7.0]), standardize([3.0, 1.0], "mean", counts=[3, 1])
    ([1.0, -1.0], [0.0], [0.5, -1.5])
    """
    if len(values) < 2 or is_flat(values):
        return [0.0] * len(values)
    often = counts or [1] * len(values)
    mean = _weighted(values, often)
    centered = [value - mean for value in values]
    if norm == "mean":
        return centered
    deviation = math.sqrt(_weighted([value * value for value in centered], often))
    return [value / (deviation + EPSILON) for value in centered]


def _weighted(values: Sequence[float], counts: Sequence[int]) -> float:
    """The mean of values that count several times; fsum: the same in whatever order the rollouts arrive."""
    return math.fsum(value * count for value, count in zip(values, counts, strict=True)) / sum(counts)


def discounted_returns(group: Group, estimator: Estimator) -> Values:
    """The discounted return of every turn, over all reward terms."""
    rewards, gamma = estimator.rewards, estimator.options.gamma
    return [returns([rewards.of(turn) for turn in trajectory.turns], gamma) for trajectory in group.trajectories]


def task_returns(trajectory: Trajectory, gamma: float, rewards: Rewards | None = None) -> list[float]:
    """R_task(a_t) of every turn (Eq. 5, left)."""
    return returns([(rewards or Rewards()).task(turn) for turn in trajectory.turns], gamma)


def predictive_return(turn: Turn, gamma: float) -> float:
    """R_pre(a_t) = Σ_h γ^{h-1} r̃_{t,h} over the scored horizons (Eq. 5, right, as published)."""
    if turn.prediction is None:
        return 0.0
    return math.fsum(gamma ** (score.horizon - 1) * score.score for score in turn.prediction.scores)


def predictive_returns(group: Group, estimator: Estimator) -> Values:
    """R_pre(a_t) of every turn (Eq. 5, right), in [0, Σ_{h=1..H} γ^{h-1}].

    A horizon has no score if the episode ends before it or its state is None. Eq. 5 counts 0 there
    (``unscored_predictions="zero"``), so a winning last step is worth less than the same win later. With ``"mean"`` (an
    addition to the paper) R_pre is the mean score, weighted by γ^{h-1}, over the scored horizons, times
    Σ_{h=1..H} γ^{h-1}. This is Eq. 5 if all horizons are scored. A turn without scores takes the mean R_pre of its
    trajectory's scored turns, else the mean of the group's, else 0. An absent prediction is scored 0; a turn that was
    not asked for predictions has R_pre = 0.
    """
    if estimator.options.unscored_predictions == "zero":
        return [[predictive_return(turn, estimator.options.gamma) for turn in t.turns] for t in group.trajectories]
    # The last H steps of an episode have fewer horizons to score. Counting 0 there (Eq. 5) makes R_pre fall towards the
    # end whatever was predicted, and a short win worth less than a long one; so a missing horizon is taken as average.
    rows = [[_mean_return(turn, estimator.options.gamma) for turn in t.turns] for t in group.trajectories]
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
        predictive: the R_pre(a_t) that modulates it (Eq. 5, right); 0 where R_task is below 0.
        others: the discounted return of all other terms: penalties and process rewards.
    """

    task: Values
    predictive: Values
    others: Values


def return_terms(group: Group, estimator: Estimator) -> ReturnTerms:
    """The terms of every turn's return; :func:`modulated_returns` is their sum."""
    rewards = estimator.rewards
    tasks = [task_returns(trajectory, estimator.options.gamma, rewards) for trajectory in group.trajectories]
    rows = zip(tasks, predictive_returns(group, estimator), strict=True)
    return ReturnTerms(
        tasks,
        [[0.0 if task < 0 else pre for task, pre in zip(*row, strict=True)] for row in rows],
        [returns([rewards.others(turn) for turn in t.turns], estimator.options.gamma) for t in group.trajectories],
    )


def modulated_returns(group: Group, estimator: Estimator) -> Values:
    """R_t = R_task(a_t)·(1 + R_pre(a_t)) of every turn (Eq. 6), plus the unmodulated return of all other terms.

    The factor multiplies the return of *each* step, not the last reward: otherwise only the last prediction would
    count. A failed trajectory stays at 0. Penalties, and returns below 0, are not multiplied: that would punish good
    predictions.
    """
    rows = zip(*return_terms(group, estimator), strict=True)
    return [[task * (1.0 + pre) + other for task, pre, other in zip(*row, strict=True)] for row in rows]


def _most(turn: Turn, gamma: float) -> float:
    """The largest R_pre of a turn, Σ_{h=1..H} γ^{h-1}; 0 if it was not asked for predictions."""
    return math.fsum(gamma**ahead for ahead in range(len(turn.prediction.texts))) if turn.prediction else 0.0


def prediction_mean(turn: Turn, gamma: float) -> float | None:
    """The mean score of a turn's prediction, weighted by γ^{h-1}, in [0, 1]; None without scores."""
    scores = turn.prediction.scores if turn.prediction is not None else ()
    weight = math.fsum(gamma ** (score.horizon - 1) for score in scores)
    return predictive_return(turn, gamma) / weight if weight else None


def compared_turns(group: Group, estimator: Estimator) -> list[list[int]]:
    """Of each trajectory the turns whose predictions change an advantage of :func:`modulated_returns`.

    A prediction multiplies the task's return of its turn (Eq. 6), which A^S compares with those of other turns of the
    same state (Eq. 7). So its score has no effect where that return is not positive, or where no other turn shares the
    state. In a group whose episodes all have the same outcome it would be the only difference, and teach to prefer
    what is easy to predict: there no turn is compared.
    """
    chosen: list[list[int]] = [[] for _ in group.trajectories]
    if has_zero_variance(group):
        return chosen
    tasks = [task_returns(trajectory, estimator.options.gamma, estimator.rewards) for trajectory in group.trajectories]
    for positions in by_state(states_of(group, estimator)):
        for i, t in positions if len(positions) > 1 else ():
            if tasks[i][t] > 0:
                chosen[i].append(t)
    return [sorted(turns) for turns in chosen]


def states_of(group: Group, estimator: Estimator) -> States:
    """The state of every turn, numbered over all rollouts of the task (Eq. 7)."""
    states = tuple(state_of(turn, estimator) for trajectory in group.trajectories for turn in trajectory.turns)
    labels = iter(group_states(states, estimator.options.similarity_threshold or None, estimator.similarity))
    return [[next(labels) for _ in trajectory.turns] for trajectory in group.trajectories]


def state_of(turn: Turn, estimator: Estimator) -> str | None:
    """The state that a turn is compared by (``estimator.failed_command_state``); None if it is unknown."""
    return turn.grouping_state if estimator.options.failed_command_state == "previous" else turn.state


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


def outcome_advantages(group: Group, estimator: Estimator) -> list[float]:
    """A^E(τ) of each trajectory (Eq. 1). It counts once in the statistics, so long ones do not count more, or once per
    turn (``estimator.outcome_level``)."""
    outcomes = [estimator.rewards.outcome(trajectory) for trajectory in group.trajectories]
    return standardize(outcomes, estimator.options.norm, outcome_counts(group, estimator))


def outcome_counts(group: Group, estimator: Estimator) -> list[int]:
    """How often each trajectory counts in the statistics of the outcomes; at least once."""
    by_turn = estimator.options.outcome_level == "turn"
    return [max(1, len(trajectory.turns)) if by_turn else 1 for trajectory in group.trajectories]


def prediction_advantages(group: Group, states: States, estimator: Estimator) -> Values:
    """The advantage of each turn's prediction over the others of the same state; an addition to the paper.

    A turn's score is :func:`prediction_mean`. A turn without one, or alone in its state, has the advantage 0.

    Args:
        group: rollouts of a task.
        states: which turns were taken in the same state (:func:`states_of`).
        estimator: γ and the norm.
    """
    values = [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
    gamma = estimator.options.gamma
    scores = [[prediction_mean(turn, gamma) for turn in trajectory.turns] for trajectory in group.trajectories]
    for positions in by_state(states):
        scored = [(i, t, score) for i, t in positions if (score := scores[i][t]) is not None]
        peers = standardize([score for _, _, score in scored], estimator.options.norm)
        for (i, t, _), value in zip(scored, peers, strict=True):
            values[i][t] = value
    return values


def state_advantages(step_returns: Values, states: States, estimator: Estimator) -> Values:
    """A^S of every turn (Eq. 7): its return, compared with the returns of all turns that were taken in the same state.

    The comparison crosses rollouts: a state that three of eight episodes passed is a group of three turns or more. A
    turn alone in its state has no peers, and gets 0.
    """
    values = [[0.0] * len(row) for row in step_returns]
    for positions in by_state(states):
        peers = standardize([step_returns[i][t] for i, t in positions], estimator.options.norm)
        for (i, t), value in zip(positions, peers, strict=True):
            values[i][t] = value
    return values


def state_values(step_returns: Values, states: States) -> Values:
    """Of every turn the value of its state: the mean return of all turns that were taken in it, its own included.

    >>> state_values([[1.0, 4.0], [0.0, 2.0]], [[0, -1], [0, -1]])
    [[0.5, 4.0], [0.5, 2.0]]
    """
    values = [list(row) for row in step_returns]
    for positions in by_state(states):
        mean = _mean([step_returns[i][t] for i, t in positions])
        for i, t in positions:
            values[i][t] = mean
    return values


def joint_advantages(outcomes: Sequence[float], of_states: Values, alpha: float) -> Values:
    """A(a_t) = A^S(a_t) + α·A^E(τ) (Eq. 8).

    >>> joint_advantages([1.0, -1.0], [[0.5, 0.0], [-0.5]], alpha=2.0)
    [[2.5, 2.0], [-2.5]]
    """
    return [[alpha * outcome + value for value in row] for outcome, row in zip(outcomes, of_states, strict=True)]


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of a group, and their terms.

    Attributes:
        values: the advantage of each turn.
        states: the state of each turn, numbered within the group.
        state: A^S of each turn (Eq. 7); None if the method does not compare states.
        outcome: A^E of each trajectory (Eq. 1), without α; None if it does not compare outcomes.
        prediction: the advantage of each turn's own prediction, whatever the method.
        process: the process reward of each turn, normalized and weighted; None if no process term weighs.
        rewards: the weighted terms of each turn's reward by name, process terms normalized.
        returns: the terms of each turn's return.
    """

    values: Values
    states: States | None = None
    state: Values | None = None
    outcome: list[float] | None = None
    prediction: Values | None = None
    process: Values | None = None
    rewards: list[list[dict[str, float]]] = field(default_factory=list)
    returns: ReturnTerms = field(default_factory=lambda: ReturnTerms([], [], []))

    @classmethod
    def zero(cls, group: Group, estimator: Estimator) -> Advantages:
        """Zero advantages, for a group that is not trained on."""
        values = [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
        rewards, terms = _terms(group, estimator)
        return cls(values, states_of(group, estimator), rewards=rewards, returns=terms)


def with_terms(advantages: Advantages, group: Group, estimator: Estimator) -> Advantages:
    """The advantages with all terms that do not depend on the method."""
    states = states_of(group, estimator) if advantages.states is None else advantages.states
    rewards, terms = _terms(group, estimator)
    return replace(
        advantages,
        states=states,
        prediction=prediction_advantages(group, states, estimator),
        process=process_rewards(group, estimator.rewards.weights),
        rewards=rewards,
        returns=terms,
    )


def _terms(group: Group, estimator: Estimator) -> tuple[list[list[dict[str, float]]], ReturnTerms]:
    """The weighted terms of each turn's reward, and those of its return."""
    rewards = [[estimator.rewards.weighted(turn) for turn in trajectory.turns] for trajectory in group.trajectories]
    return rewards, return_terms(group, estimator)
