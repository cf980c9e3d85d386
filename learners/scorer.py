"""What a model says of tokens that were sampled: their log-probabilities, and how undecided it was.

The vocabulary is only computed where something was sampled: nothing is spent on prompts and observations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from roleagent.learners.logprobs import head_logprobs
from roleagent.learners.segments import Batch


@dataclass(frozen=True, slots=True)
class Scored:
    """The trained tokens of a micro-batch, one after another: what an objective is computed from. All are ``(N,)``.

    Attributes:
        logprobs: under the model that learns, at the sampling temperature, in nats; they carry the gradient.
        entropies: of the distributions that the tokens were drawn from, in nats, without gradient; empty where
            nobody asked.
        kinds: ``Segment.action_mask`` of each token.
        segments: the number within the micro-batch of the segment that each token belongs to, ascending.
        columns: what the caller gave for each token (:meth:`Learner.update`), by name.
    """

    logprobs: Tensor
    entropies: Tensor
    kinds: Tensor
    segments: Tensor
    columns: Mapping[str, Tensor]


class TokenScorer(torch.nn.Module):
    """A causal language model that scores sampled tokens instead of giving logits."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, temperature: float, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """``(N,)`` log-probabilities of the batch's trained tokens, and ``(N,)`` entropies, or none of them."""
        rows, columns = batch.sampled()
        # Padding is on the right: no real token can see it, so plain causal attention is exact without a mask.
        hidden = self.model.base_model(input_ids=batch.token_ids, use_cache=False).last_hidden_state  # type: ignore[operator, union-attr]
        hidden = hidden[rows, columns - 1]
        head = self.model.get_output_embeddings()  # type: ignore[operator]
        return head_logprobs(hidden, head, batch.token_ids[rows, columns], temperature, entropy)


def scored(batch: Batch, logprobs: Tensor, entropies: Tensor) -> Scored:
    """Lays what the scorer found beside what is known of the same tokens."""
    rows, columns = batch.sampled()
    known = {name: values[rows, columns] for name, values in batch.columns.items()}
    return Scored(logprobs, entropies, batch.action_mask[rows, columns], rows, known)
