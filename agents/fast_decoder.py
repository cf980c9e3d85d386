"""Llama, Qwen and their like, run without transformers around them.

At sizes of a few million parameters most of a decoding step is not arithmetic: a layer of transformers makes some
sixty small calls. This is the same model in a dozen, on the same weights (read anew in every step, so that the learner
may change them at any time), with three more savings: rows are not padded to the longest prompt, keys that several
query heads share are read once, and rows attend to little beyond their own length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    SeedOssForCausalLM,
)

from roleagent.agents.slot_cache import SlotCache

FAMILY = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, SeedOssForCausalLM)
"""Pre-norm layers of rotary attention and a gated SiLU, with RMS norms; with biases or not, and with norms of queries
and keys or not."""

NEIGHBOURS = 16
"""Rows that attend together on a CPU, to as much as the longest of them holds. On an accelerator all do: there a call
costs more than what it reads in vain."""


def is_fast(model: nn.Module) -> bool:
    """Whether :class:`FastDecoder` computes what the model computes.

    Not where a layer is no plain one (adapters, quantisation), does something besides (hooks), or keeps its weights
    elsewhere (ZeRO stage 3).
    """
    if type(model) not in FAMILY:
        return False
    config: Any = model.config
    ropes = getattr(config, "rope_parameters", None) or {}
    if config.hidden_act != "silu" or ropes.get("rope_type", "default") not in {"default", "linear", "llama3"}:
        return False
    # Layers of the model's own file, as they were made, and plain matrices in them: an adapter, a quantised layer and
    # a parametrised one are of other types.
    own = {type(model).__module__, "transformers.activations", "torch.nn.modules.activation"}
    modules: list[Any] = [*model.model.modules(), model.lm_head]  # type: ignore[union-attr, operator]
    for module in modules:
        kind = type(module)
        if kind not in {nn.Linear, nn.Embedding, nn.ModuleList} and kind.__module__ not in own:
            return False
        if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
            return False
    return not any(hasattr(p, "ds_id") for p in model.parameters())


class FastDecoder:
    """See :class:`roleagent.agents.decoders.Decoder`.

    Args:
        model: one that :func:`is_fast`.
        length: most tokens of a conversation.
    """

    def __init__(self, model: PreTrainedModel, length: int):
        self.model: Any = model.base_model
        self.head: Any = model.get_output_embeddings()
        attention = self.model.layers[0].self_attn
        self.width, self.scale = attention.head_dim, attention.scaling
        places = torch.arange(length, device=model.device)
        cos, sin = self.model.rotary_emb(self.model.embed_tokens.weight[:1], places[None])
        half = self.width // 2
        # Rotating exchanges the halves, one of them with its sign changed: the sign goes to the sine.
        self.cos, self.sin = cos[0, :, None], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)[:, None]

    def read(
        self, cache: SlotCache, tokens: Tensor, starts: Tensor, counts: Tensor | None, reach: Sequence[int]
    ) -> Tensor:
        rows, width = tokens.shape
        owners, positions, real, last = torch.arange(rows, device=tokens.device), starts, None, None
        ids = tokens[:, 0]
        if counts is not None:  # of prompts of several lengths: only what is no filling is computed
            at = torch.arange(width, device=tokens.device)
            real = (at < counts[:, None]).flatten().nonzero()[:, 0]
            owners, positions = real // width, (starts[:, None] + at).flatten()[real]
            ids, last = tokens.flatten()[real], counts.cumsum(0) - 1
        cache.write_at(owners, positions, max(reach))
        turn = self.cos[positions], self.sin[positions]
        spans = self._spans(starts, width, reach)
        hidden = self.model.embed_tokens.weight[ids]
        for layer, store in zip(self.model.layers, cache.stores, strict=True):
            attention = layer.self_attn
            normed = _norm(hidden, layer.input_layernorm)
            keys, values = store.write(
                self._rotated(self._heads(normed, attention, "k"), turn), self._heads(normed, attention, "v")
            )
            if counts is not None and layer is self.model.layers[-1]:
                # Of the last layer nothing matters any more but what follows each row.
                hidden, normed, turn = hidden[last], normed[last], (turn[0][last], turn[1][last])
                spans, real, width = self._spans(starts + counts - 1, 1, reach), None, 1
            queries = self._rotated(self._heads(normed, attention, "q"), turn)
            seen = self._attend(queries, keys, values, spans, rows, width, real)
            hidden = hidden + _linear(seen, attention.o_proj)
            normed = _norm(hidden, layer.post_attention_layernorm)
            gated = F.silu(_linear(normed, layer.mlp.gate_proj)).mul_(_linear(normed, layer.mlp.up_proj))
            hidden = hidden + _linear(gated, layer.mlp.down_proj)
        return _linear(_norm(hidden, self.model.norm), self.head)

    def _heads(self, normed: Tensor, attention: Any, kind: str) -> Tensor:
        """Queries, keys or values, ``(tokens, heads, head_dim)``."""
        heads = _linear(normed, getattr(attention, f"{kind}_proj")).unflatten(-1, (-1, self.width))
        norm = getattr(attention, f"{kind}_norm", None)
        return heads if norm is None else _norm(heads, norm)

    def _rotated(self, heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return torch.addcmul(heads * turn[0], heads.roll(self.width // 2, -1), turn[1])

    @staticmethod
    def _spans(starts: Tensor, width: int, reach: Sequence[int]) -> list[tuple[slice, int, Tensor]]:
        """Neighbouring rows: which, how far they look, and what each new token sees, ``(rows, 1, width, used)``."""
        rows = len(reach)
        size = NEIGHBOURS if starts.device.type == "cpu" else rows
        places = torch.arange(max(reach), device=starts.device)
        sees = starts[:, None, None, None] + torch.arange(width, device=starts.device)[:, None]
        found = []
        for first in range(0, rows, size):
            part, used = slice(first, first + size), max(reach[first : first + size])
            found.append((part, used, places[:used] <= sees[part]))
        return found

    @staticmethod
    def _shared(mask: Tensor, share: int) -> Tensor:
        return mask if mask.shape[2] == 1 or share == 1 else mask.repeat(1, 1, share, 1)

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        spans: list[tuple[slice, int, Tensor]],
        rows: int,
        width: int,
        real: Tensor | None,
    ) -> Tensor:
        """``(tokens, heads * head_dim)``: what queries ``(tokens, heads, head_dim)`` find."""
        shape = rows, width, keys.shape[1], queries.shape[1] // keys.shape[1], self.width
        if real is not None:
            padded = queries.new_zeros(rows * width, *queries.shape[1:])
            padded[real] = queries
            queries = padded
        # Query heads that share a key head stand one behind the other, as if they were further tokens.
        asked = queries.view(shape).permute(0, 2, 3, 1, 4).flatten(2, 3)
        found = [
            F.scaled_dot_product_attention(
                asked[part],
                keys[part][: len(mask), :, :used],
                values[part][: len(mask), :, :used],
                attn_mask=self._shared(mask, shape[3]),
                scale=self.scale,
            )
            for part, used, mask in spans
        ]
        whole = found[0] if len(found) == 1 else torch.cat(found)
        seen = whole.unflatten(2, (shape[3], width)).permute(0, 3, 1, 2, 4).reshape(rows * width, -1)
        return seen if real is None else seen[real]


def _linear(values: Tensor, module: Any) -> Tensor:
    return F.linear(values, module.weight, module.bias)


def _norm(values: Tensor, module: Any) -> Tensor:
    return F.rms_norm(values, module.weight.shape, module.weight, module.variance_epsilon)
