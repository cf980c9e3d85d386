"""G2PO (arXiv 2606.22995): an action is an edge between two states, and worth what it leads to.

The value of a state is the mean of γ^(turns to the end)·R over all visits of the group, that of the end the outcome of
a won episode, else 0. An edge is compared twice: the value that it leads to with those of all edges from the same
state, and its gain in value (a TD error) with those of all edges of the group. Both are standardized and added to A^E,
as in the authors' code. Other rewards of a turn, such as ``invalid_action``, count for the first comparison.

    python train.py --config configs/toy.yaml method=examples.methods.g2po:G2PO
"""

from __future__ import annotations

import math

from roleagent import Group
from roleagent.learners.advantages import (
    Advantages,
    joint_advantages,
    outcome_advantages,
    standardize,
    state_advantages,
    state_values,
    states_of,
    task_returns,
)
from roleagent.learners.method import Method


class G2PO(Method):
    """GiGPO with edges of the graph of states in place of discounted returns."""

    settings = {"wia": False, "aiw": False}
    compares_states = True

    def advantages(self, group: Group) -> Advantages:
        rewards, options = self.estimator.rewards, self.estimator.options
        outcomes, states = outcome_advantages(group, self.estimator), states_of(group, self.estimator)
        returns = [task_returns(trajectory, options.gamma, rewards) for trajectory in group.trajectories]
        values = state_values([[options.gamma * value for value in row] for row in returns], states)
        ends = [math.fsum(map(rewards.task, one.turns)) if one.success else 0.0 for one in group.trajectories]
        after = [[*row[1:], end] if row else [] for row, end in zip(values, ends, strict=True)]
        others = [[rewards.others(turn) for turn in trajectory.turns] for trajectory in group.trajectories]
        of_states = state_advantages(_sums(after, others), states, self.estimator)
        gains = [[then - now for then, now in zip(*rows, strict=True)] for rows in zip(after, values, strict=True)]
        of_edges = iter(standardize([gain for row in gains for gain in row], options.norm))
        both = _sums(of_states, [[next(of_edges) for _ in row] for row in gains])
        return Advantages(joint_advantages(outcomes, both, options.alpha), states, both, outcomes)


def _sums(some: list[list[float]], others: list[list[float]]) -> list[list[float]]:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(some, others, strict=True)]
