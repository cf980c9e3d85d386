"""GMPO (arXiv 2507.20673): the geometric mean of a reply's ratios, each clipped, in place of their arithmetic mean.

One token with a large ratio moves an arithmetic mean, and hardly a geometric one, so the clip can be wide:
−Σ w · exp(mean over the segment of clip(log ρ)) · A. A segment is an episode (style transcript) or a turn (window).

    python train.py --config configs/toy.yaml method=examples.methods.gmpo:GMPO
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roleagent.config import ConfigError
from roleagent.learners.loss import SampledTokens
from roleagent.learners.method import Method


class GMPO(Method):
    """GRPO with GMPO's loss."""

    @dataclass(frozen=True)
    class Options:
        clip: float = 0.4  # |log ρ| of a token counts up to this where it goes with the advantage

    settings = {"wia": False, "aiw": False, "loss": {"kl": 0.0}}

    def check(self) -> None:
        super().check()
        if self.config.loss.kl:
            raise ConfigError("GMPO has no KL penalty: set loss.kl=0")

    def loss(self, tokens: SampledTokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        trained, clip = tokens.weights != 0, self.options.clip
        log_ratio = torch.where(trained, tokens.logprobs - tokens.old_logprobs, 0.0).clamp(-20.0, 20.0)
        # A token of a good reply counts up to +clip, one of a bad reply down to −clip, as PPO's minimum has it.
        good = tokens.advantages > 0
        clipped = torch.where(good, log_ratio.clamp(max=clip), log_ratio.clamp(min=-clip))
        count = int(tokens.segments.max()) + 1 if len(tokens.segments) else 0
        sums = clipped.new_zeros(count).index_add(0, tokens.segments, clipped)
        sizes = clipped.new_zeros(count).index_add(0, tokens.segments, trained.to(clipped.dtype))
        ratio = (sums / sizes.clamp(min=1.0)).exp()[tokens.segments]
        weights = tokens.weights if tokens.importance is None else tokens.weights * tokens.importance
        beyond = trained & (clipped != log_ratio)
        return -(weights * ratio * tokens.advantages).sum(), {"clipped": beyond.sum().float()}
