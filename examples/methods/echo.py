"""ECHO (arXiv 2605.24517): cross-entropy on what the world says, beside the objective of the actions.

The world's tokens pass through the model anyway. Predicting them teaches how the world answers, from lost episodes,
too: L = L_GRPO + λ · CE(observations), the cross-entropy as a mean over the tokens behind the first reply, and over the
episodes (Eq. 3). The paper has λ = 0.05, and 0.02 where the start has imitated an expert; 0.1 did harm there.

    python train.py --config configs/toy.yaml method=examples.methods.echo:ECHO
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from roleagent.learners.loss import SampledTokens
from roleagent.learners.method import Method


class ECHO(Method):
    """GRPO with a cross-entropy on observations."""

    @dataclass(frozen=True)
    class Options:
        weight: float = 0.05  # λ

    settings = {"wia": False, "aiw": False, "loss": {"kl": 0.0}}
    reads_world = True
    own_loss = False  # that of Eq. 9, and a term

    def loss(self, tokens: SampledTokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, metrics = super().loss(tokens)
        assert tokens.world is not None
        logprobs = torch.where(tokens.world != 0, tokens.logprobs, 0.0)
        return loss - self.options.weight * (tokens.world * logprobs).sum(), metrics
