"""HGPO (arXiv 2602.22817): turns are compared in groups that share ever more of their history.

GiGPO compares all turns of the same state, whatever came before; but the policy has read what came before. HGPO forms,
for k = 0 … K, the groups of turns whose last k + 1 states are the same, and adds up their advantages with weights that
grow with k: A^S = Σ_k (k + 1)^κ A_k / Σ_k (k + 1)^κ. The trajectory's advantage is added as in Eq. 8.

    python train.py --config configs/toy.yaml method=examples.methods.hgpo:HGPO
"""

from __future__ import annotations

from dataclasses import dataclass

from roleagent import Group
from roleagent.learners.advantages import (
    Advantages,
    States,
    discounted_returns,
    joint_advantages,
    outcome_advantages,
    state_advantages,
    states_of,
)
from roleagent.learners.method import Method


class HGPO(Method):
    """GiGPO with a hierarchy of state groups."""

    @dataclass(frozen=True)
    class Options:
        history: int = 2  # K: earlier states of the narrowest groups
        sharpness: float = 1.0  # κ: how much more the narrow groups weigh

    settings = {"wia": False, "aiw": False}
    compares_states = True

    def advantages(self, group: Group) -> Advantages:
        outcomes, states = outcome_advantages(group, self.estimator), states_of(group, self.estimator)
        returns = discounted_returns(group, self.estimator)
        of_states = [[0.0] * len(row) for row in states]
        weights = [(k + 1) ** self.options.sharpness for k in range(self.options.history + 1)]
        for k, weight in enumerate(weights):
            level = state_advantages(returns, with_history(states, k), self.estimator)
            for row, values in zip(of_states, level, strict=True):
                row[:] = [sum_ + weight / sum(weights) * value for sum_, value in zip(row, values, strict=True)]
        values = joint_advantages(outcomes, of_states, self.estimator.options.alpha)
        return Advantages(values, states, of_states, outcomes)


def with_history(states: States, length: int) -> States:
    """Numbers of the states with the ``length`` states before them; -1 where one of them is unknown.

    >>> with_history([[0, 1, 2], [3, 1, 2]], 1)
    [[0, 1, 2], [3, 4, 2]]
    """
    numbers: dict[tuple[int, ...], int] = {}
    found = []
    for row in states:
        pasts = [tuple(row[max(0, turn - length) : turn + 1]) for turn in range(len(row))]
        found.append([-1 if min(past) < 0 else numbers.setdefault(past, len(numbers)) for past in pasts])
    return found
