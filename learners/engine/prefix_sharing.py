"""Prefix sharing: tokens of a micro-batch that are equal behind equal beginnings are computed once.

The rollouts of a group begin with the same prompt, and often with the same first turns. A causal model computes the
same state for such a token in every row, so all layers but attention see it once, and no layer sees padding. Attention
covers whole rows, a rectangle of rows of similar length at a time: the rows of all rectangles are gathered from the
distinct tokens, attend causally, and each distinct token takes the result of the row in which it first stands.

The attention has a name of its own, which a model's configuration gets at its first such pass. Calls without prefixes
are transformers' ``sdpa``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer

from roleagent.agents.policies.protocol import PolicyError
from roleagent.agents.policies.sampling import SHARED_PREFIXES
from roleagent.learners.engine.routers import Routers
from roleagent.types import Segment

ALIKE = 0.9
"""Rows share a rectangle if the shortest is at least this share of the longest."""

WHOLE_ROWS = 4
"""A token that is shared costs about a fourth of a distinct one in memory: attention's part."""


class Rectangle(NamedTuple):
    """Rows whose attention is computed together.

    Attributes:
        rows: how many.
        width: of the longest, in tokens.
        skip: columns on the left, half of them or more, without any token that first stands in the rectangle: their
            attention is not needed. 0 for fewer columns.
    """

    rows: int
    width: int
    skip: int


class Selection(NamedTuple):
    """Rows (N, …) selected from values (U, …), and the way back for their gradients.

    Attributes:
        index: (N,) which value each row is, any in the padding.
        order: (M,) the rows that are no padding, those of each value together; M ≤ N.
        offsets: (U,) where in ``order`` the rows of each value begin.
    """

    index: Tensor
    order: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, index: np.ndarray, values: int, real: np.ndarray | None = None) -> Selection:
        """A selection from so many values.

        Args:
            index: (N,).
            values: U.
            real: (N,) which rows are no padding; None: all. The padding gets no gradient.
        """
        rows = np.arange(len(index)) if real is None else np.flatnonzero(real)
        order = rows[index[rows].argsort(kind="stable")]
        counts = np.bincount(index[rows], minlength=values)
        return cls(*map(torch.from_numpy, (index, order, counts.cumsum() - counts)))

    def to(self, device: torch.device | str) -> Selection:
        """The same selection on another device."""
        return Selection(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The distinct tokens of a batch of B rows of at most T tokens, numbered from 0 to U - 1.

    Attributes:
        places: (U,) where each first stands, as row · T + column; ascending.
        numbers: (B, T) which one stands at each place; 0 in the padding.
        rectangles: the rows, in order.
        whole: the tokens of all rectangles, row after row; None where they are the distinct tokens in order.
        asking: ``whole`` without the skipped columns; None likewise.
        firsts: of the places of ``asking`` those at which the distinct tokens first stand; None likewise.
    """

    places: Tensor
    numbers: Tensor
    rectangles: tuple[Rectangle, ...]
    whole: Selection | None
    asking: Selection | None
    firsts: Selection | None

    def to(self, device: torch.device | str) -> Prefixes:
        """The same on another device."""
        selections = (None if one is None else one.to(device) for one in (self.whole, self.asking, self.firsts))
        return Prefixes(self.places.to(device), self.numbers.to(device), self.rectangles, *selections)


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
    rectangles, top = [], 0
    cut: dict[str, list[np.ndarray]] = {"number": [], "real": [], "asks": [], "first": []}  # by place
    while top < len(rows):
        end, longest, shortest = top, 0, width
        while end < len(rows):
            longest, shortest = max(longest, lengths[end]), min(shortest, lengths[end])
            if end > top and shortest < ALIKE * longest:
                break
            end += 1
        wide = int(lengths[top:end].max())
        here = is_first[top:end, :wide]
        skip = int(here.any(axis=0).argmax())  # 0 where nothing first stands here
        skip = skip if 2 * skip >= wide else 0
        rectangles.append(Rectangle(end - top, wide, skip))
        asks = np.broadcast_to(np.arange(wide) >= skip, here.shape)
        for name, values in zip(cut, (numbers[top:end, :wide], real[top:end, :wide], asks, here), strict=True):
            cut[name].append(values.ravel())
        top = end
    index, inside, asked, begins = (np.concatenate(parts) for parts in cut.values())
    found = torch.from_numpy(first[order]), torch.from_numpy(numbers), tuple(rectangles)
    if len(index) == len(first):  # nothing is shared, padded or skipped
        return Prefixes(*found, None, None, None)
    whole = Selection.of(index, len(first), inside)
    asking = Selection.of(index[asked], len(first), inside[asked])
    return Prefixes(*found, whole, asking, Selection.of(np.flatnonzero(begins[asked]), int(asked.sum())))


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
    shared.layers += 1
    found, prefixes = [], shared.shared
    of_all = [(one.rows, one.width) for one in prefixes.rectangles]
    gathered = (
        _rows(query, prefixes.asking, [(one.rows, one.width - one.skip) for one in prefixes.rectangles]),
        _rows(key, prefixes.whole, of_all),
        _rows(value, prefixes.whole, of_all),
    )
    for mask, *rows in zip(shared.masks, *gathered, strict=True):
        attended = sdpa_attention_forward(module, *rows, mask, **{**options, "is_causal": mask is None})[0]
        found.append(attended.flatten(0, 1))
    made = torch.cat(found)
    return (made if prefixes.firsts is None else _Selected.apply(made, prefixes.firsts))[None], None


def _rows(tensor: Tensor, selection: Selection | None, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """(1, H, U, E) → (rows, H, width, E) of each rectangle."""
    flat = tensor[0].transpose(0, 1)
    rows = flat if selection is None else _Selected.apply(flat, selection)
    parts = rows.split([math.prod(size) for size in sizes])
    return [part.unflatten(0, size).transpose(1, 2) for part, size in zip(parts, sizes, strict=True)]


class _Selected(torch.autograd.Function):
    """The rows of a selection. Rows of one value add their gradients in a fixed order, without a sort at each call."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, selection: Selection) -> Tensor:
        ctx.selection = selection
        return values.flatten(1).index_select(0, selection.index).view(-1, *values.shape[1:])

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        _, order, offsets = ctx.selection
        summed = torch.nn.functional.embedding_bag(order, upstream[0].flatten(1), offsets, mode="sum")
        return summed.view(len(offsets), *upstream[0].shape[1:]), None


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


def compile_layers(model: PreTrainedModel) -> None:
    """``torch.compile`` of every layer, but for the attention over shared prefixes, whose rows differ in each call.

    Raises:
        PolicyError: see :func:`layers_to_compile`.
    """
    layers = layers_to_compile(model)
    AttentionInterface.register(SHARED_PREFIXES, torch.compiler.disable(_attend))
    for layer in layers:
        layer.compile(dynamic=True)


def layers_to_compile(model: PreTrainedModel) -> list[GradientCheckpointingLayer]:
    """The layers of a model that can be compiled.

    Raises:
        PolicyError: no layer is of transformers' kind; or the routers of its experts are counted by hooks, which
            compiled code would pass over.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers or Routers(model).experts:
        raise PolicyError(f"optim.compile does not know the layers of {type(model).__name__}: set optim.compile=off")
    return layers


AttentionInterface.register(SHARED_PREFIXES, _attend)
AttentionMaskInterface.register(SHARED_PREFIXES, sdpa_mask)
