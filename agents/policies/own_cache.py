"""Sampling with a model's own forward, logits and cache: for any causal language model that transformers can play.

Every conversation has a cache of one row. Texts are read without padding, so layers that cannot skip it (recurrent
states, windows, compressed keys) never see any: rows that know as many tokens and get as many new ones are read
together. For sampling, rows are joined into one cache. Shorter rows are filled up on the left of their keys and values,
where the attention mask hides it; recurrent states have no place for padding and need none.

A model's cache may allow less than that. :func:`roleagent.agents.policies.model_check.find_sampling_path` compares, and
:class:`Means` says what has shown equal numbers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from roleagent.agents.policies.sampling import MIN_SHARED_PREFIX, Reply, cut, draw, uniforms
from roleagent.similarity import common_prefix
from roleagent.slow_notice import count, counting
from roleagent.types import Request

_CACHES = ("cache", "past_key_values", "cache_params", "state")
"""What models call their cache: the present name, earlier ones, and RWKV's."""
_BY_TOKEN = ("keys", "values", "indexer_keys")
"""Tensors of a layer's cache that have a place for each token, in their last dimension but one."""

_KEPT = 4  # slots per request of the largest call: those of a few calls, for not every conversation asks in each
ALIKE = 0.5
"""Rows are sampled together if the shortest is at least this share of the longest: the others would be padding."""


@dataclass(frozen=True)
class Means:
    """What a model's own cache can be used for.

    Attributes:
        caches: to read a reply token by token. Without it every token reads the whole text again.
        continues: to read several tokens at once behind a text. Without it every prompt is read as a whole.
        joins: to sample texts of equal length side by side. Without it they are sampled one after another.
        pads: likewise texts of different lengths.
    """

    caches: bool = True
    continues: bool = True
    joins: bool = True
    pads: bool = True


@dataclass
class Row:
    """A conversation: its tokens, and the model's cache of them (None without one)."""

    tokens: list[int]
    cache: Any


class OwnForward:
    """Calls a model's own ``forward`` on new tokens behind cached ones."""

    def __init__(self, model: PreTrainedModel):
        self.model = model
        takes = inspect.signature(model.forward).parameters
        self._cache = next((name for name in _CACHES if name in takes), _CACHES[0])
        self._takes = [name for name in ("position_ids", "attention_mask") if name in takes]
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def read(
        self, tokens: Tensor, cache: Any = None, known: Sequence[int] = (), keep: bool = True
    ) -> tuple[Tensor, Any]:
        """The next logits ``(rows, vocabulary)``, and the cache with the new tokens.

        Args:
            tokens: ``(rows, new)``.
            cache: of the rows; None at a text's beginning.
            known: tokens that it holds of each row. It has as many slots as its longest row has tokens.
            keep: whether a cache is wanted.
        """
        rows, new = tokens.shape
        known = known or [0] * rows
        width, held = max(known), torch.tensor(known, device=tokens.device)[:, None]
        given: dict[str, Any] = {"position_ids": held + torch.arange(new, device=tokens.device)}
        if min(known) < width and has_places(cache):
            given["attention_mask"] = (torch.arange(width + new, device=tokens.device) >= width - held).long()
        given = {name: value for name, value in given.items() if name in self._takes}
        if cache is not None:
            given[self._cache] = cache
        made = self.model(input_ids=tokens, use_cache=keep, **self._options, **given)
        return made.logits[:, -1], getattr(made, self._cache, None)


def has_places(cache: Any) -> bool:
    """Whether some layer has a place for each token. Recurrent states have none: rows of any length go together."""
    return any(getattr(layer, name, None) is not None for layer in cache.layers for name in _BY_TOKEN)


def _changed(caches: Sequence[Any], width: int, change: Callable[[bool, list[Tensor]], Tensor]) -> Any:
    """A cache of ``width`` slots, whose tensors are made of those of others, layer by layer.

    Args:
        change: called with whether the tensors have a place for each token, and the tensors.
    """

    def of(name: str, values: list[Any]) -> Any:
        first = values[0]
        if isinstance(first, dict):
            return {key: of(name, [value[key] for value in values]) for key in first}
        if isinstance(first, list):
            return [of(name, list(parts)) for parts in zip(*values, strict=True)]
        if isinstance(first, Tensor) and first.dim() > 1:
            return change(name in _BY_TOKEN, values)
        return width if name == "cumulative_length" else first

    new = copy.copy(caches[0])
    for name in vars(new).keys() - {"layers"}:  # MiniMax has its states beside its layers
        setattr(new, name, of(name, [vars(cache)[name] for cache in caches]))
    new.layers = [copy.copy(layer) for layer in new.layers]
    for layer, *others in zip(new.layers, *(cache.layers for cache in caches), strict=True):
        for name in vars(layer):
            setattr(layer, name, of(name, [vars(other)[name] for other in others]))
    return new


def join(caches: Sequence[Any], known: Sequence[int]) -> Any:
    """One cache for the rows of several; shorter rows are filled up on the left.

    Args:
        caches: of one row each.
        known: the tokens of each.

    Raises:
        RuntimeError: the rows differ where there is no place for each token.
    """

    def joined(by_token: bool, parts: list[Tensor]) -> Tensor:
        if by_token:
            most = max(part.shape[-2] for part in parts)
            parts = [torch.nn.functional.pad(part, (0, 0, most - part.shape[-2], 0)) for part in parts]
        return torch.cat(parts)

    return caches[0] if len(caches) == 1 else _changed(caches, max(known), joined)


def select(cache: Any, rows: Sequence[int], width: int) -> Any:
    """A cache of some rows, with the last ``width`` slots; a copy."""

    def chosen(by_token: bool, parts: list[Tensor]) -> Tensor:
        part = parts[0][:, ..., -width:, :] if by_token else parts[0]
        return part.index_select(0, torch.tensor(rows, device=part.device))

    if not hasattr(cache, "layers"):  # of one row
        return copy.deepcopy(cache)
    return _changed([cache], width, chosen)


def shortened(row: Row, length: int) -> Row | None:
    """The beginning of a row, if its cache holds every token by itself; a copy."""

    def beginning(by_token: bool, parts: list[Tensor]) -> Tensor:
        if not by_token or parts[0].shape[-2] != len(row.tokens):
            raise ValueError("a state of the whole text")
        return parts[0][..., :length, :].clone()

    if not hasattr(row.cache, "layers"):
        return None
    try:
        return Row(row.tokens[:length], _changed([row.cache], length, beginning))
    except ValueError:
        return None


@dataclass
class _Batch:
    """Requests that are sampled together: their numbers, what the cache holds of each, and the next logits."""

    numbers: list[int]
    rows: list[Row]
    logits: Tensor
    cache: Any
    live: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.live = [True] * len(self.numbers)

    @property
    def known(self) -> list[int]:
        return [len(row.tokens) for row in self.rows]


class OwnCacheSampler:
    """Samples replies; keeps the conversations' caches between calls.

    Args:
        model: the model.
        means: what its cache can be used for.
        known: tokens that may be sampled are below it.
        context_length: most tokens of a text.
    """

    def __init__(self, model: PreTrainedModel, means: Means, known: int, context_length: int):
        self.forward, self.means = OwnForward(model), means
        self.known, self.context_length = known, context_length
        self._rows: dict[int, Row] = {}  # by slot, the newest last
        self._most = 0  # requests at once

    def generate(
        self, requests: Sequence[Request], limits: Sequence[int], temperature: float, generator: torch.Generator
    ) -> list[Reply]:
        """Samples a reply to every request.

        What a reply draws does not depend on when others end: each has its own random numbers in every step.

        Args:
            requests: prompts. If several share a slot, what is known of it stays as it is.
            limits: most tokens of each reply, 1 or more.
            generator: of the random numbers; may be on another device than the model.

        Raises:
            FloatingPointError: the model gives no numbers.
        """
        device, n, longest = self.forward.model.device, len(requests), max(limits)
        stays = len({request.slot for request in requests}) < n
        batches = self._batches(self._read_prompts(requests, stays))
        sampled = torch.zeros(longest, n, dtype=torch.long, device=device)
        logprobs = torch.zeros(longest, n, device=device)
        for step, uniform in zip(range(longest), uniforms(n, temperature, generator, device), strict=False):
            for batch in batches:
                index = torch.tensor(batch.numbers, device=device)
                tokens, chosen = draw(batch.logits, temperature, uniform[index], self.known)
                sampled[step, index], logprobs[step, index] = tokens, chosen
                new = tokens.tolist()
                for place, number in enumerate(batch.numbers):
                    if batch.live[place] and (new[place] in requests[number].stop_ids or step + 1 >= limits[number]):
                        batch.live[place] = False
                        if not stays:  # a copy: further tokens of a finished row mean nothing
                            self._rows[requests[number].slot] = self._alone(batch, place)
                count("tokens sampled", sum(batch.live))
                self._advance(batch, new)
            batches = [batch for batch in batches if batch.numbers]
            if not batches:
                break
        self._most = max(self._most, n)
        for slot in [*self._rows][: -_KEPT * self._most]:  # conversations that ended: their slots are not asked again
            del self._rows[slot]
        return cut(requests, limits, sampled, logprobs)

    def _advance(self, batch: _Batch, new: list[int]) -> None:
        """Reads one more token of every row; drops finished rows as soon as they are a fourth, or one is full."""
        if 4 * sum(batch.live) <= 3 * len(batch.live) or max(batch.known) >= self.context_length:
            kept = [place for place, live in enumerate(batch.live) if live]
            known = [batch.known[place] for place in kept]
            if kept and self.means.caches:
                batch.cache = select(batch.cache, kept, max(known))
            batch.numbers, batch.rows, new = (
                [part[place] for place in kept] for part in (batch.numbers, batch.rows, new)
            )
            batch.live = [True] * len(kept)
        if not batch.numbers:
            return
        known = batch.known
        for row, token in zip(batch.rows, new, strict=True):
            row.tokens.append(token)
        device = self.forward.model.device
        if self.means.caches:
            tokens = torch.tensor(new, device=device)[:, None]
            batch.logits, batch.cache = self.forward.read(tokens, batch.cache, known)
        else:
            tokens = torch.tensor([row.tokens for row in batch.rows], device=device)
            batch.logits, _ = self.forward.read(tokens, keep=False)

    def _alone(self, batch: _Batch, place: int) -> Row:
        row = batch.rows[place]
        cache = select(batch.cache, [place], len(row.tokens)) if self.means.caches else None
        return Row(list(row.tokens), cache)

    def _batches(self, read: Sequence[tuple[Row, Tensor]]) -> list[_Batch]:
        """Requests that are sampled together: of like lengths, of equal lengths, or one by one."""
        batches: list[list[int]] = []
        for number in sorted(range(len(read)), key=lambda one: -len(read[one][0].tokens)):
            longest = len(read[batches[-1][0]][0].tokens) if batches else 0
            least = ALIKE * longest if self.means.pads else longest
            if batches and self.means.joins and len(read[number][0].tokens) >= least:
                batches[-1].append(number)
            else:
                batches.append([number])
        made = []
        for numbers in batches:
            rows, logits = zip(*(read[number] for number in numbers), strict=True)
            known = [len(row.tokens) for row in rows]
            cache = join([row.cache for row in rows], known) if self.means.caches else None
            made.append(_Batch(numbers, list(rows), torch.stack(logits), cache))
        return made

    def _read_prompts(self, requests: Sequence[Request], stays: bool) -> list[tuple[Row, Tensor]]:
        """Reads what is new of each prompt; equal prompts, and a beginning that all new ones share, are read once."""
        starts = [self._start(request, stays) for request in requests]
        if not stays:
            for request in requests:
                self._rows.pop(request.slot, None)
        fresh = sorted({request.prompt_ids for request, row in zip(requests, starts, strict=True) if row is None})
        if len(fresh) > 1 and self.means.continues:
            stem = min(common_prefix(fresh[0], fresh[-1]), *(len(prompt) - 1 for prompt in fresh))
            if stem >= MIN_SHARED_PREFIX:
                ((shared, _),) = self._read([(None, fresh[0][:stem])])
                starts = [row or shared for row in starts]
        places: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for number, (request, row) in enumerate(zip(requests, starts, strict=True)):
            places.setdefault((id(row), request.prompt_ids), []).append(number)
        jobs = [(starts[numbers[0]], requests[numbers[0]].prompt_ids) for numbers in places.values()]
        read: dict[int, tuple[Row, Tensor]] = {}
        for numbers, (row, logits) in zip(places.values(), self._read(jobs), strict=True):
            read[numbers[0]] = row, logits
            for number in numbers[1:]:
                cache = select(row.cache, [0], len(row.tokens)) if self.means.caches else None
                read[number] = Row(list(row.tokens), cache), logits
        return [read[number] for number in range(len(requests))]

    def _start(self, request: Request, stays: bool) -> Row | None:
        """What the slot's cache knows of a prompt, but for its last token."""
        row = self._rows.get(request.slot)
        if row is None or not self.means.continues:
            return None
        shared = min(common_prefix(row.tokens, request.prompt_ids), len(request.prompt_ids) - 1)
        if shared == len(row.tokens):
            return Row(list(row.tokens), select(row.cache, [0], shared)) if stays else row
        return shortened(row, shared) if shared else None

    def _read(self, jobs: Iterable[tuple[Row | None, Sequence[int]]]) -> list[tuple[Row, Tensor]]:
        """Reads texts behind their known beginnings, which stay as they are; texts of equal lengths together."""
        jobs, found = list(jobs), dict[int, tuple[Row, Tensor]]()
        alike: dict[Any, list[int]] = {}
        for number, (start, text) in enumerate(jobs):
            known = len(start.tokens) if start else 0
            alike.setdefault((known, len(text)) if self.means.joins else number, []).append(number)
        for numbers in alike.values():
            starts = [jobs[number][0] for number in numbers]
            texts = [list(jobs[number][1]) for number in numbers]
            known, cache = 0, None
            if starts[0] is not None:
                known = len(starts[0].tokens)
                held = [start.cache for start in starts if start is not None]
                cache = select(held[0], [0], known) if len(held) == 1 else join(held, [known] * len(held))
            tokens = torch.tensor([text[known:] for text in texts], device=self.forward.model.device)
            with counting("tokens read", tokens.numel()):
                logits, cache = self.forward.read(tokens, cache, [known] * len(texts), keep=self.means.caches)
            for place, number in enumerate(numbers):
                own = cache if len(numbers) == 1 else select(cache, [place], len(texts[place]))
                found[number] = Row(texts[place], own), logits[place]
        return [found[number] for number in range(len(jobs))]


__all__ = ["Means", "OwnCacheSampler", "OwnForward", "Row", "join", "select", "shortened"]
