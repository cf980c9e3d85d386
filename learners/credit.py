"""What an estimator made of a group, told apart into its terms; and counters that show whether it did anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from roleagent.learners.advantages import (
    ESTIMATORS,
    EstimatorConfig,
    States,
    Values,
    by_state,
    is_dead,
    modulated_returns,
    outcome_advantages,
    states_of,
    task_returns,
)
from roleagent.types import Group


@dataclass(frozen=True, slots=True)
class Credit:
    """What an estimator said of a group, and what it is made of.

    Attributes:
        values: the advantage of each turn.
        states: which turns were taken in the same state.
        of_states: A^S of each turn (Eq. 8); None where the estimator does not compare inside states.
        of_outcomes: A^E of each trajectory (Eq. 1), without α; None where it does not compare outcomes.
    """

    values: Values
    states: States
    of_states: Values | None = None
    of_outcomes: list[float] | None = None

    @classmethod
    def of(cls, group: Group, kind: str, config: EstimatorConfig) -> Credit:
        """The credit of a group by the estimator of that name."""
        values, states = ESTIMATORS[kind](group, config), states_of(group, config)
        if kind in ("grpo", "rloo"):
            return cls(values, states, of_outcomes=[row[0] if row else 0.0 for row in values])
        if kind not in ("gigpo", "role_agent"):
            return cls(values, states)
        outcomes = outcome_advantages(group, config)
        rest = [[v - config.alpha * outcome for v in row] for row, outcome in zip(values, outcomes, strict=True)]
        return cls(values, states, rest, outcomes)

    @classmethod
    def nothing(cls, group: Group, config: EstimatorConfig) -> Credit:
        """The credit of a group that nothing is learnt from."""
        return cls([[0.0] * len(trajectory.turns) for trajectory in group.trajectories], states_of(group, config))


def summary(
    groups: Sequence[Group], config: EstimatorConfig | None = None, states: Sequence[States] | None = None
) -> dict[str, float]:
    """Counters that show whether the mechanism did anything in this batch.

    Args:
        groups: what was played.
        config: the estimator's configuration.
        states: of each group, where :func:`states_of` has been asked already.

    Returns:
        ``dead_groups``; ``returns_modulated`` (turns whose return their own prediction changed); ``state_group_size``
        (mean number of turns per distinct state); ``state_group_share`` (turns that share their state with another
        turn, in [0, 1]); ``predictions_scored`` and ``predictions_absent`` (asked for and given, asked for and not
        given); ``prediction_score`` (mean over both, in [0, 1]: an absent prediction scores 0).
    """
    config = config or EstimatorConfig()
    turns = modulated = comparable = 0
    sizes: list[int] = []
    for number, group in enumerate(groups):
        turns += sum(len(trajectory.turns) for trajectory in group.trajectories)
        for trajectory in group.trajectories:
            plain = task_returns(trajectory, config.gamma)
            changed = modulated_returns(trajectory, config.gamma)
            modulated += sum(a != b for a, b in zip(plain, changed, strict=True))
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
        "dead_groups": float(sum(map(is_dead, groups))),
        "returns_modulated": float(modulated),
        "state_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
        "state_group_share": comparable / turns if turns else 0.0,
        "predictions_scored": float(len(scores) - absent),
        "predictions_absent": float(absent),
        "prediction_score": math.fsum(score.score for score in scores) / len(scores) if scores else 0.0,
    }
