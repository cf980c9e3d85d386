"""A key/value cache with one slot per conversation.

Slot index equals token position: a token at position p of conversation r is stored at ``keys[r, :, p]``. Rows may
therefore differ in length without padding, a new turn only computes its new tokens, and going back to a shorter
prefix is nothing but forgetting a length: whatever lies behind it is masked, then overwritten.
"""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class _SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, ``(rows, kv_heads, capacity, head_dim)``."""

    def __init__(self, cache: SlotCache):
        super().__init__()
        self._cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        rows, heads, _, width = key_states.shape
        self.keys = key_states.new_zeros(rows, heads, self._cache.capacity, width)
        self.values = value_states.new_zeros(rows, value_states.shape[1], self._cache.capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        rows, positions, used = self._cache.rows, self._cache.positions, self._cache.used
        # (rows, new, heads, width) on the left: advanced indices separated by a slice move to the front.
        self.keys[rows, :, positions] = key_states.transpose(1, 2)
        self.values[rows, :, positions] = value_states.transpose(1, 2)
        keys, values = self.keys[:, :, :used], self.values[:, :, :used]
        if len(rows) < len(keys):
            keys, values = keys.index_select(0, rows[:, 0]), values.index_select(0, rows[:, 0])
        return keys, values

    def keep_rows(self, rows: torch.Tensor, capacity: int) -> None:
        """Row i becomes the old row ``rows[i]``; -1 is a fresh one. Capacity grows to ``capacity`` where needed."""
        if not self.is_initialized:
            return
        assert self.keys is not None and self.values is not None
        source = rows.clamp(min=0)
        grown = []
        for old in (self.keys, self.values):
            if capacity > old.shape[2]:
                new = old.new_zeros(len(rows), old.shape[1], capacity, old.shape[3])
                new[:, :, : old.shape[2]] = old[source]
            else:
                new = old[source]
            grown.append(new)
        self.keys, self.values = grown

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.used, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self._cache.capacity


class SlotCache(Cache):
    """The cache of all conversations that a policy has open.

    Args:
        layers: of the model.
        device: where the model is.

    Attributes:
        tokens: what each row holds, token by token.
        capacity: tokens that a row can hold at present.
    """

    def __init__(self, layers: int, device: torch.device):
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])
        self.device = device
        self.capacity = 0
        self.slots: list[int] = []
        self.tokens: list[list[int]] = []
        self.rows = self.positions = torch.zeros(0, dtype=torch.long, device=device)
        self.used = 0

    def arrange(self, slots: list[int], longest: int) -> None:
        """Makes row i the conversation ``slots[i]``, and room for ``longest`` tokens in each row."""
        capacity = self.capacity
        if longest > capacity:
            capacity = max(longest, min(2 * capacity, longest + 512))
        if slots == self.slots and capacity == self.capacity:
            return
        row_of = {slot: row for row, slot in enumerate(self.slots)}
        source = [row_of.get(slot, -1) for slot in slots]
        if any(row >= 0 for row in source):
            index = torch.tensor(source, device=self.device)
            for layer in self.layers:
                layer.keep_rows(index, capacity)  # type: ignore[attr-defined]
        else:
            for layer in self.layers:
                layer.is_initialized = False  # type: ignore[misc]
        self.tokens = [self.tokens[row] if row >= 0 else [] for row in source]
        self.slots, self.capacity = list(slots), capacity

    def write_at(self, positions: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Announces the positions ``(n, new)`` of the next forward pass; returns its attention mask.

        Args:
            positions: where each new token stands in its conversation.
            rows: which ``n`` of the cache's rows take part, ascending; None: all.

        Returns:
            boolean, ``(n, 1, new, used)``: a token sees the slots up to its own.
        """
        self.positions = positions
        rows = torch.arange(positions.shape[0], device=self.device) if rows is None else rows
        self.rows = rows[:, None].expand_as(positions)
        self.used = int(positions.max()) + 1
        return (torch.arange(self.used, device=self.device)[None, None, :] <= positions[:, :, None])[:, None]
