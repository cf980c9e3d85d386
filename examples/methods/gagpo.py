"""GAGPO (arXiv 2605.13217): generalized advantages without a critic: a state is worth the mean return of its visits.

V(s) is the mean discounted return of all turns of the group that were taken in s, 0 behind the end. The advantage of a
turn is A_t = δ_t + γ·λ·A_{t+1} with δ_t = r_t + γ·V(s_{t+1}) − V(s_t), standardized over all turns of the group; the
outcome of the episode is not added. All tokens of a turn share the geometric mean of their ratios. (Written after
descriptions of the paper, which name no λ; 0.8 is that of other implementations.)

    python train.py --config configs/toy.yaml method=examples.methods.gagpo:GAGPO
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from roleagent import Group
from roleagent.learners.advantages import Advantages, discounted_returns, standardize, state_values, states_of
from roleagent.learners.loss import SampledTokens
from roleagent.learners.method import Method


class GAGPO(Method):
    """Advantages by temporal differences of grouped values."""

    @dataclass(frozen=True)
    class Options:
        lam: float = 0.8  # λ: 0 trusts the values of states alone, 1 the returns

        def __post_init__(self) -> None:
            if not 0 <= self.lam <= 1:
                raise ValueError(f"options.lam must be in [0, 1], not {self.lam}")

    settings = {"wia": False, "aiw": False, "loss": {"importance_level": "sequence"}}
    compares_states = True
    own_loss = False  # that of Eq. 9, with turns for sequences

    def advantages(self, group: Group) -> Advantages:
        states, gamma = states_of(group, self.estimator), self.estimator.options.gamma
        values = state_values(discounted_returns(group, self.estimator), states)
        rows = []
        for trajectory, row in zip(group.trajectories, values, strict=True):
            found, advantage, after = [], 0.0, 0.0
            for turn, value in zip(reversed(trajectory.turns), reversed(row), strict=True):
                delta = self.estimator.rewards.of(turn) + gamma * after - value
                advantage, after = delta + gamma * self.options.lam * advantage, value
                found.append(advantage)
            rows.append(found[::-1])
        standard = iter(standardize([value for row in rows for value in row], self.estimator.options.norm))
        rows = [[next(standard) for _ in row] for row in rows]
        return Advantages(rows, states, rows)

    def loss(self, tokens: SampledTokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return super().loss(replace(tokens, segments=turns_of(tokens)))


def turns_of(tokens: SampledTokens) -> torch.Tensor:
    """The number of each token's turn, of its prediction apart, ascending."""
    assert tokens.turns is not None
    begins = torch.zeros_like(tokens.segments)
    for of_token in (tokens.segments, tokens.turns, tokens.kinds):
        begins[1:] |= (of_token[1:] != of_token[:-1]).to(begins.dtype)
    return begins.cumsum(0)
