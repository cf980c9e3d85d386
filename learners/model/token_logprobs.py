"""Log-probabilities and entropies of sampled tokens.

The vocabulary is only computed for sampled tokens: prompts and observations cost nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from roleagent.agents.policies.model_check import evaluating, plain_logits, text_for, tolerance
from roleagent.agents.policies.protocol import PolicyError
from roleagent.learners.batch import ACTION, CONTEXT
from roleagent.learners.model.logprobs import head_logprobs
from roleagent.learners.model.micro_batch import MicroBatch, collate, plan_by_length
from roleagent.learners.model.prefix_sharing import can_share, distinct_states, plan_by_prefix
from roleagent.types import Segment


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The trained tokens of a micro-batch, one after another: the input of an objective. All tensors are ``(N,)``.

    Attributes:
        logprobs: under the model that learns, at the sampling temperature, in nats, with gradient.
        entropies: of the distributions that the tokens were drawn from, in nats, without gradient; empty unless asked
            for.
        token_kind: ``Segment.token_kind`` of each token.
        segments: the number of each token's segment within the micro-batch, ascending.
        columns: the caller's columns (:meth:`Engine.update`), by name.
    """

    logprobs: Tensor
    entropies: Tensor
    token_kind: Tensor
    segments: Tensor
    columns: Mapping[str, Tensor]


class TokenScorer(torch.nn.Module):
    """A causal language model that scores sampled tokens instead of returning logits."""

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def plan(self, segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
        """Numbers of segments, micro-batch by micro-batch, that are cheap together (:func:`plan_for`)."""
        return plan_for(self.model, segments, max_tokens)

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """``(N,)`` log-probabilities of the trained tokens, and ``(N,)`` entropies or an empty tensor."""
        # A token that several rows sampled behind the same beginning is scored once.
        distinct = batch.prefixes.numbers[batch.rows, batch.positions]
        numbers, places = distinct.unique(return_inverse=True)
        at = batch.prefixes.places[numbers]
        before = batch.prefixes.numbers.reshape(-1)[at - 1]
        body: Any = self.model.base_model
        head: Any = self.model.get_output_embeddings()
        hidden = hidden_states(body, batch)[before]
        values, entropies = head_logprobs(hidden, head, batch.token_ids.reshape(-1)[at], temperature, entropy)
        return values[places], entropies[places] if entropy else entropies


def hidden_states(body: PreTrainedModel, batch: MicroBatch) -> Tensor:
    """(U, D) final hidden states of the distinct tokens."""
    if can_share(body):
        return distinct_states(body, batch.token_ids, batch.prefixes)
    # Padding is on the right: no real token can see it, so plain causal attention is exact without a mask.
    hidden = body(input_ids=batch.token_ids, use_cache=False).last_hidden_state
    return hidden.flatten(0, 1)[batch.prefixes.places]


def plan_for(model: PreTrainedModel, segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
    """Numbers of segments, micro-batch by micro-batch: by common prefix, or by length if the model cannot share."""
    return (plan_by_prefix if can_share(model) else plan_by_length)(segments, max_tokens)


def check_scorer(model: PreTrainedModel, context_length: int) -> None:
    """Refuses a model whose tokens the learner would score differently from its own ``forward``.

    Args:
        model: whole, and where it computes.
        context_length: most tokens of a text.

    Raises:
        PolicyError: it names the model.
    """
    text, count = text_for(model, context_length), 8
    ids = np.array(text.tolist())
    kinds = np.where(np.arange(len(ids)) >= len(ids) - count, ACTION, CONTEXT)
    # The second row ends earlier, and shares its tokens with the first.
    segments = [Segment(ids[:end], kinds[:end], np.zeros(end), np.zeros(end)) for end in (len(ids), len(ids) - 2)]
    with evaluating(model), torch.no_grad():
        found, _ = TokenScorer(model)(collate(segments, 0).to(model.device), 1.0)
        logits = plain_logits(model, text, count + 1)[:-1]
    known = logits.log_softmax(-1).gather(1, text[-count:, None])[:, 0]
    apart = float(((found - torch.cat([known, known[:-2]])).abs() / logits.std().clamp(min=1e-6)).max())
    if apart > tolerance(model):
        raise PolicyError(
            f"the learner cannot train {type(model).__name__}: it gives tokens other probabilities than the model's "
            f"own forward (they are {apart:.2g} of the logits' spread apart); choose a model with full attention"
        )


def token_scores(batch: MicroBatch, logprobs: Tensor, entropies: Tensor) -> TokenScores:
    """A scorer's results beside the columns of the same tokens."""
    return TokenScores(logprobs, entropies, batch.token_kind, batch.rows, batch.columns)
