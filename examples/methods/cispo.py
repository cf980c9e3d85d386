"""CISPO (MiniMax-M1, arXiv 2506.13585): the importance weight is clipped, and not the objective.

PPO's clip takes the gradient from tokens whose ratio has left the range, often those that change most. CISPO keeps
every token's gradient and bounds its weight: −Σ w · sg(min(ρ, 1 + clip)) · A · log π.

    python train.py --config configs/toy.yaml method=examples.methods.cispo:CISPO
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roleagent.config import ConfigError
from roleagent.learners.loss import SampledTokens
from roleagent.learners.method import Method


class CISPO(Method):
    """GRPO with CISPO's loss."""

    @dataclass(frozen=True)
    class Options:
        clip: float = 4.0  # the weight counts up to 1 + clip; as published, there is no lower bound

    settings = {"wia": False, "aiw": False, "loss": {"kl": 0.0, "aggregation": "token"}}

    def check(self) -> None:
        super().check()
        if self.config.loss.kl:
            raise ConfigError("CISPO has no KL penalty: set loss.kl=0")

    def loss(self, tokens: SampledTokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        trained = tokens.weights != 0
        moved = torch.where(trained, tokens.logprobs.detach() - tokens.old_logprobs, 0.0)
        weight = moved.exp().clamp(max=1.0 + self.options.clip)
        if tokens.importance is not None:
            weight = weight * tokens.importance
        score = torch.where(trained, tokens.logprobs, 0.0)
        loss = -(tokens.weights * weight * tokens.advantages * score).sum()
        return loss, {"clipped": (trained & (moved.exp() > 1.0 + self.options.clip)).sum().float()}
