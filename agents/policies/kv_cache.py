"""A key/value cache with one slot per conversation.

Slot index equals token position: a token at position p of conversation r is stored at ``keys[r, :, p]``. Rows may
therefore differ in length without padding, a new turn only computes its new tokens, and going back to a shorter
prefix is nothing but forgetting a length: whatever lies behind it is masked, then overwritten.

Which row a conversation has is the cache's own business (``slots`` holds it): a pass over the model takes the first so
many rows, and a row that leaves changes places with one of the last. It stays there until another conversation needs
its row: questions about it may follow (:mod:`roleagent.agents.policies.branches`).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

SPARE = 256
"""Tokens that rows get beyond what they need, when they grow."""


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, ``(rows, kv_heads, capacity, head_dim)``."""

    def __init__(self, cache: SlotCache):
        super().__init__()
        self._cache: SlotCache = weakref.proxy(cache)  # a cycle would keep the memory until Python looks for cycles
        self._memory: list[Tensor] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocates the rows; the arguments, ``(rows, kv_heads, new, head_dim)``, give their shape."""
        rows, capacity = self._cache.stored, self._cache.capacity
        # Zeros, for what lies behind a row's end is masked, but even so must be a number.
        self.keys = key_states.new_zeros(rows, key_states.shape[1], capacity, key_states.shape[-1])
        self.values = value_states.new_zeros(rows, value_states.shape[1], capacity, value_states.shape[-1])
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs):
        """Called by transformers: takes ``(rows, kv_heads, new, head_dim)``, returns the rows up to the last token."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        rows, positions, used = self._cache.rows, self._cache.positions, self._cache.used
        # (rows, new, heads, width) on the left: advanced indices separated by a slice move to the front.
        self.keys[rows[:, None], :, positions] = key_states.transpose(1, 2)
        self.values[rows[:, None], :, positions] = value_states.transpose(1, 2)
        read = slice(len(rows)) if self._cache.first_rows else rows  # a slice copies nothing
        return self.keys[read, :, :used], self.values[read, :, :used]

    def copy_rows(self, source: SlotLayer, rows: Tensor, capacity: int, filled: int) -> None:
        """Row i becomes a copy of the first ``filled`` tokens of the row ``rows[i]`` of ``source``.

        Copies of another layer take the memory of the last ones, if it is enough.
        """
        self.is_initialized = source.is_initialized
        if not source.is_initialized:
            return
        reused, copies = [] if self is source else self._memory, []
        for number, old in enumerate((source.keys, source.values)):
            assert old is not None
            shape = (len(rows), old.shape[1], capacity, old.shape[3])
            size = math.prod(shape)
            if number == len(reused):
                reused.append(old.new_zeros(size))
            elif reused[number].numel() < size:
                reused[number] = old.new_zeros(size)
            new = reused[number][:size].view(shape)
            new[:, :, :filled] = old[:, :, :filled].index_select(0, rows)
            copies.append(new)
        self.keys, self.values = copies

    def exchange(self, some: Tensor, others: Tensor, filled: int) -> None:
        """Rows change places, as far as their first ``filled`` tokens."""
        if not self.is_initialized:
            return
        for whole in (self.keys, self.values):
            assert whole is not None
            part = whole[:, :, :filled]
            moved = part.index_select(0, some)
            part.index_copy_(0, some, part.index_select(0, others)).index_copy_(0, others, moved)

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
        stores: the layers' keys and values.
        slots: whose conversation each row is; first those that are read, then those that rest.
        tokens: what each row holds, token by token.
        stored: rows that there is room for.
        capacity: tokens that a row can hold at present.
    """

    def __init__(self, layers: int, device: torch.device):
        self.stores = [SlotLayer(self) for _ in range(layers)]
        super().__init__(layers=[*self.stores])
        self.device = device
        self.slots: list[int] = []
        self.tokens: list[list[int]] = []
        self.stored = self.capacity = self.used = 0
        self.rows = self.positions = torch.zeros(0, dtype=torch.long, device=device)
        self.first_rows = True

    def arrange(self, slots: Sequence[int], longest: int) -> None:
        """Makes the first rows the conversations ``slots``, in any order. New ones take the rows of those that rest.

        Args:
            longest: most tokens that any of the conversations may come to hold.
        """
        if set(slots).isdisjoint(self.slots):
            self.open(slots, longest)
            return
        row_of = {slot: row for row, slot in enumerate(self.slots)}
        wanted = set(slots)
        if longest > self.capacity or len(slots) > self.stored:
            resting = [slot for slot in self.slots if slot not in wanted][: max(0, self.stored - len(slots))]
            kept = [*slots, *resting]
            capacity = self.capacity if longest <= self.capacity else longest + SPARE
            self.copy([row_of.get(slot, -1) for slot in kept], kept, capacity)
            return
        # A pass reads the first len(slots) rows. Wanted conversations behind them change places with unwanted ones
        # among them: a move copies one row of every layer, and rows that are right already stay.
        vacant = [row for row in range(len(slots)) if row >= len(self.slots) or self.slots[row] not in wanted]
        late = [row for row in range(len(slots), len(self.slots)) if self.slots[row] in wanted]
        missing = len(slots) - len(self.slots)
        self.slots += [-1] * missing
        self.tokens += [[] for _ in range(missing)]
        self.exchange(vacant[: len(late)], late)
        joining = [slot for slot in slots if slot not in row_of]
        for row, slot in zip(vacant[len(late) :], joining, strict=True):
            self.slots[row], self.tokens[row] = slot, []

    def open(self, slots: Sequence[int], capacity: int) -> None:
        """Forgets everything and has one empty row for each of ``slots``."""
        self.slots, self.tokens = list(slots), [[] for _ in slots]
        self.stored, self.capacity = len(slots), capacity
        for store in self.stores:
            store.is_initialized = False
            store.keys = store.values = None  # given back before the next are made

    def copy(self, source: Sequence[int], slots: Sequence[int], capacity: int) -> None:
        """Row i, now of ``slots[i]``, becomes a copy of the old row ``source[i]``; -1 stands for an empty one."""
        self._copy(self, source, slots, capacity)

    def fork(self, slots: Sequence[int], capacity: int, other: SlotCache | None = None) -> SlotCache:
        """A second cache with one row for each of ``slots``, which begins as a copy of what is known of them.

        Args:
            other: an earlier fork that is no longer used; its memory is.
        """
        row_of = {slot: row for row, slot in enumerate(self.slots)}
        other = other or SlotCache(len(self.stores), self.device)
        other._copy(self, [row_of.get(slot, -1) for slot in slots], slots, capacity)
        return other

    def _copy(self, whole: SlotCache, source: Sequence[int], slots: Sequence[int], capacity: int) -> None:
        tokens = [list(whole.tokens[row][:capacity]) if row >= 0 else [] for row in source]
        index = torch.tensor(source, device=self.device).clamp(min=0)
        filled = max(map(len, tokens))
        for store, old in zip(self.stores, whole.stores, strict=True):
            store.copy_rows(old, index, capacity, filled)
        self.slots, self.tokens = list(slots), tokens
        self.stored, self.capacity = len(slots), capacity

    def exchange(self, some: Sequence[int], others: Sequence[int], filled: int | None = None) -> None:
        """Rows change places: ``some[i]`` with ``others[i]``.

        Args:
            filled: how much of them is worth moving; by default as much as their ``tokens`` say.
        """
        if not some:
            return
        if filled is None:
            filled = max(len(self.tokens[row]) for row in (*some, *others))
        left, right = (torch.tensor(rows, device=self.device) for rows in (some, others))
        for store in self.stores:
            store.exchange(left, right, filled)
        for one, other in zip(some, others, strict=True):
            self.slots[one], self.slots[other] = self.slots[other], self.slots[one]
            self.tokens[one], self.tokens[other] = self.tokens[other], self.tokens[one]

    def write_at(self, positions: Tensor, used: int, rows: Tensor | None = None) -> None:
        """Announces the next pass over the model.

        Args:
            positions: the place of each new token in its conversation, ``(n, new)``.
            used: slots that the pass may have to look at; more than any of the positions.
            rows: that the pass takes, ``(n,)``; None: the first ``n``.
        """
        self.first_rows = rows is None
        self.rows = torch.arange(len(positions), device=self.device) if rows is None else rows
        self.positions, self.used = positions, used
