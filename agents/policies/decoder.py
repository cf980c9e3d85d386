"""Reading tokens into the cache with a model as transformers runs it: any decoder-only architecture."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roleagent.agents.policies.kv_cache import SlotCache

SHARED_PREFIXES = "sdpa_shared_prefixes"
"""The attention of a model that the learner has trained; sdpa for everybody else (learners/model/prefix_sharing.py)."""


class Decoder:
    """Reads new tokens of many conversations in one batch."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        known = inspect.signature(model.base_model.forward).parameters
        self._cache = "cache" if "cache" in known else "past_key_values"  # the name in earlier versions of transformers

    def read(self, cache: SlotCache, tokens: Tensor, starts: Tensor, counts: Tensor | None, reach: int) -> Tensor:
        """Adds tokens to the first rows of the cache; returns the next logits ``(rows, vocabulary)``.

        Args:
            tokens: ``(rows, width)``, filled up on the right.
            starts: position of each row's first new token, ``(rows,)``.
            counts: new tokens of each row, 1 or more, ``(rows,)``; None: one each.
            reach: slots that the fullest row comes to have, or more, at most the cache's capacity: what can be said
                of ``starts + counts`` without asking the device.
        """
        rows, width = tokens.shape
        at = torch.arange(width, device=tokens.device)
        positions = starts[:, None] + at
        used = reach
        if counts is not None:
            # What fills up a shorter row lands behind its last token or at the last slot of all, is masked, and will
            # be overwritten.
            used = min(used + 1, cache.capacity)
            positions = torch.where(at < counts[:, None], positions, used - 1)
        mask = torch.arange(used, device=tokens.device) <= positions[:, None, :, None]
        hidden = self.states(cache, tokens, positions, positions, mask)
        last = hidden[:, 0] if counts is None else hidden[torch.arange(rows, device=tokens.device), counts - 1]
        return self.logits(last)

    def states(self, cache: SlotCache, tokens: Tensor, positions: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Adds tokens to the first rows of the cache; returns their final hidden states ``(rows, width, size)``.

        Args:
            tokens: ``(rows, width)``.
            positions: of each token in its text, ``(rows, width)``.
            places: the slot that each token takes, ``(rows, width)``.
            mask: the slots that each token attends to, its own included, bool ``(rows, 1, width, used)``.
        """
        cache.write_at(places, mask.shape[-1])
        if self.model.config._attn_implementation == "eager":  # adds the mask to what it compares
            dtype = self.model.dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
        return self.model.base_model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache: cache},
        ).last_hidden_state

    def logits(self, states: Tensor) -> Tensor:
        """The logits ``(…, vocabulary)`` behind final hidden states ``(…, size)``."""
        return self.model.get_output_embeddings()(states)  # type: ignore[misc]
