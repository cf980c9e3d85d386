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

Each group is estimated alone, so statistics never leak between tasks. :mod:`roleagent.learners.returns` defines rewards
and returns. :class:`Advantages` has those of a group and their terms; :func:`summary` counts what had an effect.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roleagent.agents.evaluation.records import failure_predicted
from roleagent.config import Config
from roleagent.imports import load_object
from roleagent.learners.returns import (
    EstimatorConfig,
    ReturnTerms,
    Rewards,
    States,
    Values,
    by_state,
    discounted_returns,
    has_zero_variance,
    is_flat,
    modulated_returns,
    prediction_mean,
    process_rewards,
    return_terms,
    standardize,
    states_of,
)
from roleagent.options import ConfigError
from roleagent.types import Group, Trajectory


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
    return discounted_returns(group, config)


def gae(group: Group, config: EstimatorConfig) -> Values:
    """Every turn gets its own reward; the critic turns rewards into advantages, token by token (PPO)."""
    return [[config.rewards.of(turn) for turn in trajectory.turns] for trajectory in group.trajectories]


def gigpo(group: Group, config: EstimatorConfig) -> Values:
    """State advantage over discounted returns, plus α times the trajectory advantage."""
    return _joint(group, discounted_returns, config)


def role_agent(group: Group, config: EstimatorConfig) -> Values:
    """State advantage over returns modulated by each turn's own prediction, plus α·A^E (Eq. 5-8)."""
    return _joint(group, modulated_returns, config)


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator, and the properties that other parts of the trainer need to know.

    Attributes:
        fn: from a group to one advantage per trajectory and turn.
        compares_outcomes: whether it compares the outcomes of a group's trajectories (A^E).
        step_returns: the return of each turn that it compares with those of other turns in the same state (A^S); its
            values are then A^S + α·A^E. None if it does not compare states.
        modulates: whether predictions modulate its returns (Eq. 6).
        needs_critic: whether a critic turns its values into advantages.
    """

    fn: Callable[[Group, EstimatorConfig], Values]
    compares_outcomes: bool = False
    step_returns: Callable[[Group, EstimatorConfig], Values] | None = None
    modulates: bool = False
    needs_critic: bool = False


ESTIMATORS: dict[str, Estimator] = {
    "grpo": Estimator(grpo, compares_outcomes=True),
    "rloo": Estimator(rloo, compares_outcomes=True),
    "gigpo": Estimator(gigpo, compares_outcomes=True, step_returns=discounted_returns),
    "role_agent": Estimator(role_agent, compares_outcomes=True, step_returns=modulated_returns, modulates=True),
    "reinforce": Estimator(reinforce),
    "gae": Estimator(gae, needs_critic=True),
}


def estimator_of(kind: str) -> Estimator:
    """The estimator that ``estimator.kind`` names.

    Args:
        kind: a name of :data:`ESTIMATORS`, or ``module:NAME`` of an :class:`Estimator`, or of a function such as
            :func:`grpo`, which is taken to compare the outcomes of a group.

    Raises:
        ConfigError: there is no such estimator.
    """
    if kind in ESTIMATORS:
        return ESTIMATORS[kind]
    if ":" not in kind:
        near = difflib.get_close_matches(kind, ESTIMATORS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(
            f"estimator.kind must be one of {', '.join(ESTIMATORS)} or module:function, not {kind!r}{hint}"
        )
    found = load_object(kind)
    if not isinstance(found, Estimator) and (isinstance(found, type) or not callable(found)):
        raise ConfigError(f"estimator.kind={kind} is neither a function of (group, config) nor an Estimator")
    return found if isinstance(found, Estimator) else Estimator(found, compares_outcomes=True)


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


def state_advantages(step_returns: Values, states: States, config: EstimatorConfig) -> Values:
    """A^S of every turn (Eq. 7): its return, compared with the returns of all turns that were taken in the same state.

    The comparison crosses rollouts: a state that three of eight episodes passed is a group of three turns or more. A
    turn alone in its state has no peers, and gets 0.
    """
    values = [[0.0] * len(row) for row in step_returns]
    for positions in by_state(states):
        peers = standardize([step_returns[i][t] for i, t in positions], config.norm)
        for (i, t), value in zip(positions, peers, strict=True):
            values[i][t] = value
    return values


def _sum(outcomes: Sequence[float], of_states: Values, config: EstimatorConfig) -> Values:
    """A(a_t) = A^S(a_t) + α·A^E(τ) (Eq. 8)."""
    return [[config.alpha * outcome + value for value in row] for outcome, row in zip(outcomes, of_states, strict=True)]


def _joint(group: Group, step_returns: Callable[[Group, EstimatorConfig], Values], config: EstimatorConfig) -> Values:
    of_states = state_advantages(step_returns(group, config), states_of(group, config), config)
    return _sum(outcome_advantages(group, config), of_states, config)


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
    )


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of a group, and their terms.

    Attributes:
        values: the advantage of each turn.
        states: the state of each turn, numbered within the group.
        state: A^S of each turn (Eq. 7); None if the estimator does not compare states.
        outcome: A^E of each trajectory (Eq. 1), without α; None if it does not compare outcomes.
        prediction: the advantage of each turn's own prediction, whatever the estimator.
        process: the process reward of each turn, normalized and weighted; None if no process term weighs.
        rewards: the weighted terms of each turn's reward by name, process terms normalized.
        returns: the terms of each turn's return.
    """

    values: Values
    states: States
    state: Values | None = None
    outcome: list[float] | None = None
    prediction: Values | None = None
    process: Values | None = None
    rewards: list[list[dict[str, float]]] = field(default_factory=list)
    returns: ReturnTerms = field(default_factory=lambda: ReturnTerms([], [], []))

    @classmethod
    def of(cls, group: Group, kind: str, config: EstimatorConfig) -> Advantages:
        """The advantages of a group with normalized process terms, by the estimator of that name."""
        estimator = estimator_of(kind)
        states = states_of(group, config)
        of_states = outcomes = None
        if estimator.step_returns is not None:
            outcomes = outcome_advantages(group, config)
            of_states = state_advantages(estimator.step_returns(group, config), states, config)
            values = _sum(outcomes, of_states, config)
        else:
            values = estimator.fn(group, config)
            _check_values(values, group, kind)
            if estimator.compares_outcomes:
                outcomes = [row[0] if row else 0.0 for row in values]
        predicted = prediction_advantages(group, states, config)
        process = process_rewards(group, config.rewards.weights)
        return cls(values, states, of_states, outcomes, predicted, process, *_terms(group, config))

    @classmethod
    def zero(cls, group: Group, config: EstimatorConfig) -> Advantages:
        """Zero advantages, for a group that is not trained on."""
        values = [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
        rewards, terms = _terms(group, config)
        return cls(values, states_of(group, config), rewards=rewards, returns=terms)


def _check_values(values: Any, group: Group, kind: str) -> None:
    """Refuses what is no number per turn."""
    try:
        fits = [len(row) for row in values] == [len(trajectory.turns) for trajectory in group.trajectories]
        fits = fits and all(math.isfinite(value) for row in values for value in row)
    except TypeError:
        fits = False
    if not fits:
        raise ValueError(f"the estimator {kind} must return one list per trajectory, with one finite number per turn")


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
        terms = return_terms(group, config)
        for tasks, factors in zip(terms.task, terms.predictive, strict=True):
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

    A turn's score is the mean over its scored horizons.

    Returns:
        ``prediction_correlation``: of the score and the episode's success over all scored turns, in [-1, 1].
        ``prediction_information``: their correlation within each task and state, where A^S compares, in [-1, 1].
        ``prediction_information_action``: the same within each task, state and action: what is left is the sampling of
        the prediction. All three are 0 if they are undefined: no spread in the scores or in success.
        ``failure_recall``: of the turns with a prediction whose command failed (invalid, with a known state), the
        share whose prediction for the next state is exactly that state, in [0, 1]; 0 if no command failed.
    """
    rows, recalled = [], []
    states: dict[tuple[str, ...], int] = {}
    actions: dict[tuple[str, ...], int] = {}
    for trajectory in episodes:
        for turn in trajectory.turns:
            if turn.prediction is None:
                continue
            if scores := turn.prediction.scores:
                at = (trajectory.task.task_id, turn.grouping_state or "")
                classes = states.setdefault(at, len(states)), actions.setdefault((*at, turn.action), len(actions))
                rows.append((math.fsum(score.score for score in scores) / len(scores), trajectory.success, *classes))
            if (known := failure_predicted(turn)) is not None:
                recalled.append(known)
    scores, success, state, action = np.array(rows, float).reshape(-1, 4).T
    return {
        "prediction_correlation": partial_correlation(scores, success, np.zeros(len(rows))),
        "prediction_information": partial_correlation(scores, success, state),
        "prediction_information_action": partial_correlation(scores, success, action),
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
