"""The terms of a group's advantages, and counters that show whether the mechanisms had an effect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from roleagent.agents.evaluation.behavior import failure_predicted
from roleagent.config import Config
from roleagent.learners.advantages import ESTIMATORS, has_zero_variance, outcome_advantages, prediction_advantages
from roleagent.learners.process_rewards import process_rewards
from roleagent.learners.returns import (
    EstimatorConfig,
    ReturnTerms,
    States,
    Values,
    by_state,
    predictive_returns,
    return_terms,
    states_of,
    task_returns,
)
from roleagent.learners.rewards import Rewards
from roleagent.types import Completion, Group, Prediction, PredictionScore, Task, Trajectory, Turn


def estimator_config(config: Config) -> EstimatorConfig:
    """The estimator's part of a run's configuration."""
    options = config.estimator
    inline = config.wia and config.prompt.predictions == "inline"
    limit = config.rollout.action_tokens + (config.rollout.prediction_tokens if inline else 0)
    rewards = Rewards(options.rewards, limit, options.overlong_buffer)
    return EstimatorConfig(
        options.gamma,
        options.alpha,
        options.norm,
        options.similarity_threshold or None,
        rewards,
        options.unscored,
        options.state_of_failure,
        options.modulation,
    )


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of a group, and their terms.

    Attributes:
        values: the advantage of each turn.
        states: the state of each turn, numbered within the group.
        of_states: A^S of each turn (Eq. 8); None if the estimator does not compare states.
        of_outcomes: A^E of each trajectory (Eq. 1), without α; None if it does not compare outcomes.
        of_predictions: the advantage of each turn's own prediction, whatever the estimator.
        of_process: the process reward of each turn, normalized and weighted; None if no process term weighs.
        rewards: the weighted terms of each turn's reward by name, process terms normalized.
        returns: the terms of each turn's return.
    """

    values: Values
    states: States
    of_states: Values | None = None
    of_outcomes: list[float] | None = None
    of_predictions: Values | None = None
    of_process: Values | None = None
    rewards: list[list[dict[str, float]]] = field(default_factory=list)
    returns: ReturnTerms = field(default_factory=lambda: ReturnTerms([], [], []))

    @classmethod
    def of(cls, group: Group, kind: str, config: EstimatorConfig) -> Credit:
        """The credit of a group with normalized process terms, by the estimator of that name."""
        estimator = ESTIMATORS[kind]
        values, states = estimator.fn(group, config), states_of(group, config)
        predicted = prediction_advantages(group, states, config)
        process = process_rewards(group, config.rewards.weights)
        rest = outcomes = None
        if estimator.compares_outcomes and not estimator.compares_states:
            outcomes = [row[0] if row else 0.0 for row in values]
        elif estimator.compares_outcomes:
            outcomes = outcome_advantages(group, config)
            rest = [[v - config.alpha * outcome for v in row] for row, outcome in zip(values, outcomes, strict=True)]
        return cls(values, states, rest, outcomes, predicted, process, *_terms(group, config))

    @classmethod
    def zero(cls, group: Group, config: EstimatorConfig) -> Credit:
        """Zero advantages, for a group that is not trained on."""
        values = [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
        rewards, terms = _terms(group, config)
        return cls(values, states_of(group, config), rewards=rewards, returns=terms)


def _terms(group: Group, config: EstimatorConfig) -> tuple[list[list[dict[str, float]]], ReturnTerms]:
    """The weighted terms of each turn's reward, and those of its return."""
    rewards = [[config.rewards.weighted(turn) for turn in trajectory.turns] for trajectory in group.trajectories]
    return rewards, return_terms(group, config)


def summary(
    groups: Sequence[Group], config: EstimatorConfig | None = None, states: Sequence[States] | None = None
) -> dict[str, float]:
    """Counters that show whether the mechanisms had an effect in this batch.

    Args:
        groups: the episodes.
        config: the estimator's configuration.
        states: of each group, if :func:`states_of` was computed already.

    Returns:
        ``zero_variance_groups``; ``returns_modulated`` (turns whose return their own prediction changed);
        ``state_group_size`` (mean number of turns per distinct state); ``state_group_share`` (turns that share their
        state with another turn, in [0, 1]); ``predictions_scored`` and ``predictions_absent`` (asked for and given,
        asked for and not given); ``prediction_score`` (mean over both, in [0, 1]: an absent prediction scores 0); and
        the counters of :func:`prediction_counters`.
    """
    config = config or EstimatorConfig()
    turns = modulated = comparable = 0
    sizes: list[int] = []
    for number, group in enumerate(groups):
        turns += sum(len(trajectory.turns) for trajectory in group.trajectories)
        for trajectory, factors in zip(group.trajectories, predictive_returns(group, config), strict=True):
            tasks = task_returns(trajectory, config.gamma, config.rewards)
            modulated += sum(bool(task and factor) for task, factor in zip(tasks, factors, strict=True))
        shared = [*map(len, by_state(states[number] if states else states_of(group, config)))]
        sizes += shared
        comparable += sum(size for size in shared if size > 1)
    scores = [
        score
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
        if turn.prediction is not None
        for score in turn.prediction.scores
    ]
    absent = sum(score.absent for score in scores)
    return {
        "zero_variance_groups": float(sum(map(has_zero_variance, groups))),
        "returns_modulated": float(modulated),
        "state_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
        "state_group_share": comparable / turns if turns else 0.0,
        "predictions_scored": float(len(scores) - absent),
        "predictions_absent": float(absent),
        "prediction_score": math.fsum(score.score for score in scores) / len(scores) if scores else 0.0,
        **prediction_counters([trajectory for group in groups for trajectory in group.trajectories]),
    }


def prediction_counters(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """How predictions correlate with success, and how well they predict failed commands.

    A turn's score is the mean over its scored horizons; its validity is ``info["valid_action"]``.

    Returns:
        ``prediction_correlation``: of the score and the episode's success over all scored turns, in [-1, 1].
        ``prediction_information``: the partial correlation of the two, given validity, in [-1, 1]. Scores that only
        separate valid commands from invalid ones have 0. Both are 0 if they are undefined: no spread in the scores or
        in success (among turns of equal validity).
        ``failure_recall``: of the turns with a prediction whose command failed (invalid, with a known state), the
        share whose prediction for the next state is exactly that state, in [0, 1]; 0 if no command failed.
    """
    rows, recalled = [], []
    for trajectory in episodes:
        for turn in trajectory.turns:
            if turn.prediction is None:
                continue
            valid = bool(turn.info.get("valid_action", True))
            if scores := turn.prediction.scores:
                rows.append((math.fsum(score.score for score in scores) / len(scores), trajectory.success, valid))
            if (known := failure_predicted(turn)) is not None:
                recalled.append(known)
    scores, success, valid = np.array(rows, float).reshape(-1, 3).T
    return {
        "prediction_correlation": partial_correlation(scores, success, np.zeros(len(rows))),
        "prediction_information": partial_correlation(scores, success, valid),
        "failure_recall": sum(recalled) / len(recalled) if recalled else 0.0,
    }


def partial_correlation(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Correlation of x and y after subtracting the mean of their class in ``given``, in [-1, 1].

    For two classes this is the partial correlation; for one class the plain one.

    Args:
        x: numbers, shape [n].
        y: numbers, shape [n].
        given: the class of each, shape [n].

    Returns:
        0 if it is undefined: x or y is constant within the classes.

    >>> x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])
    >>> round(partial_correlation(x, y, np.zeros(4)), 3), partial_correlation(x, y, y)
    (0.894, 0.0)
    """
    left = []
    for values in (x, y):
        rest = values.astype(float)
        for one in np.unique(given):
            rest[given == one] -= rest[given == one].mean()
        left.append(rest)
    lengths = [float(np.sqrt(rest @ rest)) for rest in left]
    if min(lengths) < 1e-9:
        return 0.0
    return float(np.clip(left[0] @ left[1] / (lengths[0] * lengths[1]), -1.0, 1.0))


def last_step_bias(config: EstimatorConfig | None = None, kind: str = "role_agent") -> float:
    """An estimator's reward for a detour: the mean advantage of the detour minus that of finishing, in one state.

    Four rollouts reach the same page. One buys there and wins; one leaves the page, comes back, buys and wins; two
    lose. Predictions look one step ahead and have the score 0.6, but for the last of an episode: the state after a
    purchase is None, as in WebShop. The result should be at most 0: leaving the page only delays the same win.

    Args:
        config: the estimator's configuration.
        kind: a name of :data:`~roleagent.learners.advantages.ESTIMATORS`.
    """
    config, task = config or EstimatorConfig(), Task("", "purchase")

    def rollout(states: Sequence[str], won: bool) -> Trajectory:
        turns = []
        for number, state in enumerate(states):
            last = number == len(states) - 1
            prediction = Prediction((), None, ("?",), () if last else (PredictionScore(number, 1, 0.6),))
            reward = {"task": float(won and last)}
            turns.append(Turn((), Completion((), (), "stop"), "", "", state, prediction, reward))
        return Trajectory(task, tuple(turns), True, False, "won" if won else "lost")

    direct, detour = ("results", "page"), ("results", "page", "description", "page")
    plays = ((direct, True), (detour, True), (direct, False), (direct, False))
    values = ESTIMATORS[kind].fn(Group(task, tuple(rollout(*play) for play in plays)), config)
    return values[1][1] - (values[0][1] + values[1][3]) / 2
