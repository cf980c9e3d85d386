"""HGPO (arXiv 2602.22817): turns are compared in groups that share ever more of their history.

GiGPO compares all turns of the same state, whatever came before; but the policy has read what came before. HGPO forms,
for k = 0 … K, the groups of turns whose last k + 1 states are the same, and takes the mean of a turn's advantages A_k
with weights that grow with k: A = Σ_k (k + 1)^κ A_k / Σ_k (k + 1)^κ. A sum has only the k where the turn has an
advantage, as in the authors' code: none where it has no peers, or fewer than k turns before it. A^E is not added.

    python train.py --config configs/toy.yaml method=examples.methods.hgpo:HGPO
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roleagent import Group
from roleagent.learners.advantages import (
    Advantages,
    States,
    discounted_returns,
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
        states, returns = states_of(group, self.estimator), discounted_returns(group, self.estimator)
        depths = range(self.options.history + 1)
        levels = [state_advantages(returns, with_history(states, k), self.estimator) for k in depths]
        values = [[self._mean(of_turn) for of_turn in zip(*rows, strict=True)] for rows in zip(*levels, strict=True)]
        return Advantages(values, states, values)

    def _mean(self, advantages: Sequence[float]) -> float:
        """The weighted mean of a turn's advantages, one per k."""
        found = [((k + 1) ** self.options.sharpness, value) for k, value in enumerate(advantages) if value]
        return sum(weight * value for weight, value in found) / sum(weight for weight, _ in found) if found else 0.0


def with_history(states: States, length: int) -> States:
    """Numbers of the states with the ``length`` states before them; -1 where one of them is unknown, or missing.

    >>> with_history([[0, 1, 2], [3, 1, 2]], 1)
    [[-1, 0, 1], [-1, 2, 1]]
    """
    numbers: dict[tuple[int, ...], int] = {}
    found = []
    for row in states:
        pasts = [(-1,) * (length - turn) + tuple(row[max(0, turn - length) : turn + 1]) for turn in range(len(row))]
        found.append([-1 if min(past) < 0 else numbers.setdefault(past, len(numbers)) for past in pasts])
    return found
