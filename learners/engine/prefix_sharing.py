"""Prefix sharing: tokens of a micro-batch that are equal behind equal beginnings are computed once.

The rollouts of a group begin with the same prompt, and often with the same first turns. A causal model computes the
same state for such a token in every row, so all layers but attention see it once, and no layer sees padding. Attention
covers whole rows, a rectangle of rows of similar length at a time: rows are gathered from the distinct tokens, attend
causally, and each distinct token takes the result of the row in which it first stands.

The attention has a name of its own, which a model's configuration gets at its first such pass. Calls without prefixes
are transformers' ``sdpa``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from roleagent.agents.policies.sampling import SHARED_PREFIXES
from roleagent.types import Segment

ALIKE = 0.9
"""Rows share a rectangle if the shortest is at least this share of the longest."""

WHOLE_ROWS = 4
"""A token that is shared costs about a fourth of a distinct one in memory: attention's part."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rows whose attention is computed together.

    Attributes:
        rows: how many.
        width: of the longest, in tokens.
        skip: columns on the left, half of them or more, without any of the rectangle's own tokens: their attention is
            not needed. 0 for fewer columns.
        start: number of the first distinct token that first stands here; they are numbered on from there.
        own: how many of them there are.
        index: (rows · width,) which distinct token stands at each place, any behind a row's end; None where
            all places are the rectangle's own, in order.
        firsts: (own,) the places at which they stand, counted without the skipped columns; None likewise.
    """

    rows: int
    width: int
    skip: int
    start: int
    own: int
    index: Tensor | None
    firsts: Tensor | None

    def to(self, device: torch.device | str) -> Rectangle:
        """The same rectangle on another device."""
        moved = [None if tensor is None else tensor.to(device) for tensor in (self.index, self.firsts)]
        return Rectangle(self.rows, self.width, self.skip, self.start, self.own, *moved)


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The distinct tokens of a batch of B rows of at most T tokens, numbered from 0 to U - 1.

    Attributes:
        places: (U,) where each first stands, as row · T + column; ascending.
        numbers: (B, T) which one stands at each place; 0 in the padding.
        rectangles: the rows, in order.
    """

    places: Tensor
    numbers: Tensor
    rectangles: tuple[Rectangle, ...]

    def to(self, device: torch.device | str) -> Prefixes:
        """The same on another device."""
        rectangles = tuple(rectangle.to(device) for rectangle in self.rectangles)
        return Prefixes(self.places.to(device), self.numbers.to(device), rectangles)


def find_prefixes(rows: Sequence[Sequence[int] | np.ndarray]) -> Prefixes:
    """Finds the distinct tokens of some rows; rows of similar length should be neighbors.

    >>> found = find_prefixes([(7, 8, 5, 6), (7, 8, 9)])
    >>> found.numbers.tolist(), found.places.tolist()
    ([[0, 1, 2, 3], [0, 1, 4, 0]], [0, 1, 2, 3, 6])
    """
    lengths = np.array([len(row) for row in rows])
    width = int(lengths.max())
    named = np.zeros((len(rows), width), dtype=np.int64)
    before, known = -1, 0
    # In lexicographic order the row before shares the longest prefix that any earlier row shares, so comparing
    # neighbors finds all of it. The shared part takes the neighbor's numbers; the rest is new.
    for row, same in _common_prefixes(rows):
        named[row, :same] = named[before, :same]
        named[row, same : lengths[row]] = np.arange(known, known + lengths[row] - same)
        before, known = row, known + lengths[row] - same
    real = np.arange(width) < lengths[:, None]
    inside = np.flatnonzero(real)
    # Numbered anew in the order of first places, so that a rectangle's own tokens follow one another.
    first = inside[np.unique(named.ravel()[inside], return_index=True)[1]]
    order = first.argsort()
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    numbers = np.where(real, rank[named], 0)
    is_first = np.zeros(named.shape, dtype=bool)
    is_first.ravel()[first] = True
    # Rows are cut into rectangles of similar length, so that attention computes little padding. On the left of a
    # rectangle there may be columns that earlier rows own already: their keys and values are needed, their attention is
    # not, and `skip` leaves it out.
    rectangles, start, top = [], 0, 0
    while top < len(rows):
        end, longest, shortest = top, 0, width
        while end < len(rows):
            longest, shortest = max(longest, lengths[end]), min(shortest, lengths[end])
            if end > top and shortest < ALIKE * longest:
                break
            end += 1
        wide = int(lengths[top:end].max())
        here = is_first[top:end, :wide]
        skip = int(here.any(axis=0).argmax())  # 0 where nothing is its own
        skip = skip if 2 * skip >= wide else 0
        own = np.flatnonzero(here[:, skip:])
        simple = len(own) == (end - top) * wide
        rectangles.append(
            Rectangle(
                rows=end - top,
                width=wide,
                skip=skip,
                start=start,
                own=len(own),
                index=None if simple else torch.from_numpy(numbers[top:end, :wide].ravel()),
                firsts=None if simple else torch.from_numpy(own),
            )
        )
        start, top = start + len(own), end
    return Prefixes(torch.from_numpy(first[order]), torch.from_numpy(numbers), tuple(rectangles))


def plan_by_prefix(segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
    """Numbers of segments that begin alike, together at most ``max_tokens`` distinct tokens; the longest first.

    The largest batches come first, so a budget that does not fit into memory fails at once. A segment longer than the
    budget is a batch of its own.

    >>> of = lambda *ids: Segment(ids, (1,) * len(ids), (0.0,) * len(ids), (0.0,) * len(ids))
    >>> plan_by_prefix([of(1, 2, 3), of(5, 6), of(1, 2, 4, 4), of(5, 7)], max_tokens=5)
    [[2, 0], [1, 3]]

    Raises:
        ValueError: a budget of nothing.
    """
    if max_tokens < 1:
        raise ValueError(f"a micro-batch needs at least one token, not {max_tokens}")
    batches: list[tuple[float, list[int]]] = []
    chosen: list[int] = []
    distinct = whole = 0
    for index, same in _common_prefixes([segment.token_ids for segment in segments]):
        size = len(segments[index])
        if chosen and max(distinct + size - same, (whole + size) / WHOLE_ROWS) > max_tokens:
            batches.append((distinct, chosen))
            chosen, distinct, whole = [], 0, 0
        distinct += size - same if chosen else size
        whole += size
        chosen.append(index)
    batches.append((distinct, chosen))
    batches.sort(key=lambda batch: -batch[0])
    return [sorted(chosen, key=lambda index: (-len(segments[index]), index)) for _, chosen in batches if chosen]


def distinct_tokens(rows: Sequence[Sequence[int] | np.ndarray]) -> list[int]:
    """The number of distinct tokens that each row adds to those that come before it in lexicographic order.

    >>> distinct_tokens([(7, 8, 5, 6), (7, 8, 9)])
    [4, 1]
    """
    return [len(rows[index]) - same for index, same in sorted(_common_prefixes(rows))]


def _common_prefixes(rows: Sequence[Sequence[int] | np.ndarray]) -> list[tuple[int, int]]:
    """The numbers of the rows in lexicographic order, each with the length of the prefix shared with the row before.

    No earlier row shares more.

    >>> _common_prefixes([(5, 6), (1, 2, 3), (1, 2)])
    [(2, 0), (1, 2), (0, 0)]
    """
    arrays = [np.asarray(row, dtype=np.int64) for row in rows]
    keys = [array.astype(">u4").tobytes() for array in arrays]  # big-endian bytes sort as the numbers do
    found, before = [], np.empty(0, dtype=np.int64)
    for index in sorted(range(len(rows)), key=keys.__getitem__):
        row = arrays[index]
        most = min(len(row), len(before))
        differs = row[:most] != before[:most]
        found.append((index, int(differs.argmax()) if differs.any() else most))
        before = row
    return found


def can_share(model: PreTrainedModel) -> bool:
    """Whether a model's attention can share prefixes: it comes from transformers' interface and sees all tokens."""
    takes = inspect.signature(model.forward).parameters
    if "position_ids" not in takes or not any(one.kind == one.VAR_KEYWORD for one in takes.values()):
        return False
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    looks_everywhere = set(kinds) == {"full_attention"} if kinds else not getattr(config, "sliding_window", None)
    return (
        config._attn_implementation in ("sdpa", SHARED_PREFIXES)
        and bool(model._supports_attention_backend)
        and looks_everywhere
    )


def distinct_states(body: PreTrainedModel, token_ids: Tensor, shared: Prefixes) -> Tensor:
    """Final hidden states (U, D) of the distinct tokens of rows (B, T).

    Args:
        body: a model without its head, that :func:`can_share`.
        token_ids: (B, T).
        shared: their prefixes (:func:`find_prefixes`).

    Raises:
        TypeError: the model did not pass ``shared`` on to its attention, so its states would be wrong.
    """
    call = _SharedCall(shared)
    body.config.get_text_config()._attn_implementation = SHARED_PREFIXES
    made = body(
        input_ids=token_ids.reshape(-1)[shared.places][None],
        position_ids=(shared.places % token_ids.shape[1])[None],
        # transformers passes a mask of four dimensions on unchanged; our attention needs none.
        attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=token_ids.device),
        use_cache=False,
        shared=call,
    )
    if call.layers < getattr(body.config.get_text_config(), "num_hidden_layers", 1):
        raise TypeError(
            f"{type(body).__name__} does not pass options on to its attention: load it with eager attention"
        )
    return made.last_hidden_state[0]


@dataclass(slots=True)
class _SharedCall:
    """The prefixes of one forward pass, the layers that used them, and each rectangle's attention mask."""

    shared: Prefixes
    layers: int = 0
    masks: list[Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        device = self.shared.places.device
        self.masks = [_causal(rectangle, device) for rectangle in self.shared.rectangles]


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    shared: _SharedCall | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' interface: query (1, H, U, E), key and value (1, K, U, E); returns (1, U, H, E)."""
    if shared is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    flat = [tensor[0].transpose(0, 1).contiguous() for tensor in (query, key, value)]
    shared.layers += 1
    found = []
    for rectangle, mask in zip(shared.shared.rectangles, shared.masks, strict=True):
        asking = _rows(flat[0], rectangle, rectangle.skip).transpose(1, 2)
        parts = [asking, *(_rows(tensor, rectangle).transpose(1, 2) for tensor in flat[1:])]
        attended = sdpa_attention_forward(module, *parts, mask, **{**options, "is_causal": mask is None})[0].flatten(
            0, 1
        )
        found.append(attended if rectangle.firsts is None else select_rows(attended, rectangle.firsts))
    return torch.cat(found)[None], None


def _rows(tensor: Tensor, rectangle: Rectangle, skip: int = 0) -> Tensor:
    """(U, H, E) → (rows, width - skip, H, E)."""
    if rectangle.index is None:
        rows = tensor[rectangle.start : rectangle.start + rectangle.own]
    else:
        rows = select_rows(tensor, rectangle.index.view(rectangle.rows, -1)[:, skip:].flatten())
    return rows.view(rectangle.rows, rectangle.width - skip, *tensor.shape[1:])


def select_rows(values: Tensor, index: Tensor) -> Tensor:
    """``values[index]`` along the first axis, (U, …) → (N, …), with the same gradient in every run.

    Plain indexing adds up the gradients of a row that is selected several times in the order in which threads reach
    them. An embedding look-up has a fixed order.
    """
    rows = torch.nn.functional.embedding(index, values.reshape(len(values), -1))
    return rows.view(len(index), *values.shape[1:])


def _causal(rectangle: Rectangle, device: torch.device) -> Tensor | None:
    """(1, 1, width - skip, width): the mask of the tokens behind the skipped columns; None without such columns."""
    if not rectangle.skip:
        return None
    seen = torch.ones((rectangle.width - rectangle.skip, rectangle.width), dtype=torch.bool, device=device)
    return seen.tril(rectangle.skip)[None, None]


AttentionInterface.register(SHARED_PREFIXES, _attend)
AttentionMaskInterface.register(SHARED_PREFIXES, sdpa_mask)
