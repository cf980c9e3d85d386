"""The methods of reinforcement. They differ in what they compare a turn with:

=========================  ====================================  ===========================================
method                     compared across the G rollouts        compared inside groups of the same state
=========================  ====================================  ===========================================
``grpo``, ``dapo``,        outcome R^E(τ)                        nothing
``gspo``
``rloo``                   outcome, with the mean of the others  nothing
``gigpo``                  outcome R^E(τ)                        discounted return
``role_agent``             outcome R^E(τ)                        modulated return R_task(a_t)·(1 + R_pre(a_t))
``reinforce_pp``           nothing: the discounted return, compared over the batch (``estimator.whiten``)
``ppo``                    nothing: the turn's reward, which a critic turns into advantages
``distill``                nothing: a teacher scores each token
=========================  ==================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from roleagent.config import ConfigError
from roleagent.learners.advantages import (
    Advantages,
    discounted_returns,
    joint_advantages,
    modulated_returns,
    outcome_advantages,
    state_advantages,
    states_of,
)
from roleagent.learners.method import Method
from roleagent.learners.rewards import Values
from roleagent.types import Group, is_flat


class GRPO(Method):
    """Every turn gets its trajectory's advantage A^E(τ) (Eq. 1)."""


class RLOO(Method):
    """Every turn gets its trajectory's outcome minus the mean of the other rollouts' outcomes (leave one out)."""

    def advantages(self, group: Group) -> Values:
        outcomes = [self.estimator.rewards.outcome(trajectory) for trajectory in group.trajectories]
        if len(outcomes) < 2 or is_flat(outcomes):
            return [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
        total, others = math.fsum(outcomes), len(outcomes) - 1
        values = [outcome - (total - outcome) / others for outcome in outcomes]
        return [[value] * len(t.turns) for value, t in zip(values, group.trajectories, strict=True)]


class ReinforcePlusPlus(Method):
    """Every turn gets its discounted return, which is whitened over the batch."""

    settings: ClassVar[Mapping[str, Any]] = {"estimator": {"gamma": 1.0, "whiten": True}}
    compares_outcomes = False

    def advantages(self, group: Group) -> Values:
        return discounted_returns(group, self.estimator)


class ReinforcePlusPlusBaseline(Method):
    """GRPO without the deviation of the group, whitened over the batch."""

    settings: ClassVar[Mapping[str, Any]] = {"estimator": {"norm": "mean", "whiten": True}}


class PPO(Method):
    """Every turn gets its own reward; the critic turns rewards into advantages, token by token."""

    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": {"gamma": 1.0, "whiten": True},
        "loss": {"clip_high": 0.2},
    }
    compares_outcomes = False
    critic = True

    def advantages(self, group: Group) -> Values:
        rewards = self.estimator.rewards
        return [[rewards.of(turn) for turn in trajectory.turns] for trajectory in group.trajectories]


class Distillation(Method):
    """No turn gets anything: a teacher's word for each token is all (:mod:`roleagent.learners.distillation`)."""

    settings: ClassVar[Mapping[str, Any]] = {"wia": False, "aiw": False, "loss": {"kl": 0.0}}
    compares_outcomes = False

    def check(self) -> None:
        super().check()
        if not self.config.distill.teacher:
            raise ConfigError("method=distill learns from a teacher alone: set distill.teacher")

    def advantages(self, group: Group) -> Values:
        return [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]


class DAPO(Method):
    """GRPO with a mean over all tokens, without KL penalty, with dynamic sampling and a price of overlong replies."""

    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": {"rewards": {"overlong": -0.1}},
        "loss": {"aggregation": "token", "clip_low": 0.2, "clip_high": 0.28, "kl": 0.0},
        "rollout": {"dynamic_sampling_rounds": 2},
    }


class GSPO(Method):
    """GRPO with the ratio of a sequence: the geometric mean of its tokens'."""

    settings: ClassVar[Mapping[str, Any]] = {
        "loss": {"importance_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
    }


class GiGPO(Method):
    """A^S over discounted returns, plus α·A^E (Eq. 8 without predictions)."""

    compares_states = True

    def returns(self, group: Group) -> Values:
        """The return of each turn, which is compared with those of other turns in the same state."""
        return discounted_returns(group, self.estimator)

    def advantages(self, group: Group) -> Advantages:
        outcomes, states = outcome_advantages(group, self.estimator), states_of(group, self.estimator)
        of_states = state_advantages(self.returns(group), states, self.estimator)
        values = joint_advantages(outcomes, of_states, self.estimator.options.alpha)
        return Advantages(values, states, of_states, outcomes)


class RoleAgent(GiGPO):
    """A^S over returns that each turn's own prediction modulates, plus α·A^E (Eq. 5-8)."""

    modulates = True

    def returns(self, group: Group) -> Values:
        return modulated_returns(group, self.estimator)


__all__ = [
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "Distillation",
    "GiGPO",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RoleAgent",
]
