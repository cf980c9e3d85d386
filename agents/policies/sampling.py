"""Sampling replies to many prompts at once: prefill, then one token per step until every reply has ended.

Tokens are read into the cache with a model as transformers runs it: any decoder-only architecture.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from roleagent.agents.policies.kv_cache import SlotCache
from roleagent.similarity import common_prefix
from roleagent.slow_notice import count, counting
from roleagent.types import Request

SHARED_PREFIXES = "sdpa_shared_prefixes"
"""The attention of a model that the learner has trained; others have sdpa (learners/engine/prefix_sharing.py)."""


NO_NUMBERS = "the policy's logits are no numbers: its weights have become NaN or infinite"

_GROUPED = "TRANSFORMERS_SDPA_FORCE_GQA"


@contextlib.contextmanager
def _grouped_heads() -> Iterator[None]:
    """Lets sdpa read the keys and values of grouped heads where they are.

    Where there is a mask, transformers copies all of the cache once per head and pass instead, for CUDA's kernels. The
    CPU's kernel gives the same bits without.
    """
    before = os.environ.get(_GROUPED)
    os.environ[_GROUPED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_GROUPED]
        else:
            os.environ[_GROUPED] = before


def body_of(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a causal language model that makes the final hidden states of a text."""
    body: Any = model.get_decoder() if model.config.get_text_config() is not model.config else model.base_model
    while body.get_output_embeddings() is not None:  # a causal language model within another model
        body = body.base_model if body.base_model is not body else body.model
    return body


class _States(BaseModelOutputWithPast):
    """What a body returns: its final states, and None for all else that a model may ask for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)


class OwnHead:
    """The logits of a model's own ``forward`` behind given states of its body: capped, scaled or plain.

    The model is called with its body replaced by one that has the states already.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, self.body = model, body_of(model)

    def __call__(self, states: Tensor) -> Tensor:
        """Final hidden states ``(n, size)`` to logits ``(n, vocabulary)``."""
        self.body.forward = lambda *_, **__: _States(last_hidden_state=states[None])
        try:
            return self.model(input_ids=torch.zeros(1, len(states), dtype=torch.long, device=states.device)).logits[0]
        finally:
            del self.body.forward  # the class has its own


class Decoder:
    """Reads new tokens of many conversations in one batch.

    Args:
        model: the model.
        known: tokens that may be sampled are below it; None: all. A padded vocabulary has more than its tokenizer.
        own_head: whether its own ``forward`` makes the logits, and not the matrix of its head alone.
    """

    def __init__(self, model: PreTrainedModel, known: int | None = None, own_head: bool = False):
        self.model, self.body, self.known = model, body_of(model), known
        self._head: Any = OwnHead(model) if own_head else model.get_output_embeddings()
        takes = inspect.signature(self.body.forward).parameters
        self._cache = "cache" if "cache" in takes else "past_key_values"  # the name in earlier versions of transformers

    def read(
        self,
        cache: SlotCache,
        tokens: Tensor,
        starts: Tensor,
        counts: Tensor | None,
        reach: int,
        which: Tensor | None = None,
    ) -> Tensor:
        """Adds tokens to rows of the cache; returns the next logits ``(rows, vocabulary)``.

        Args:
            tokens: ``(rows, width)``, filled up on the right.
            starts: position of each row's first new token, ``(rows,)``.
            counts: new tokens of each row, 1 or more, ``(rows,)``; None: one each.
            reach: slots that the fullest row comes to have, or more, at most the cache's capacity: what can be said
                of ``starts + counts`` without asking the device.
            which: the rows of the cache, ``(rows,)``; None: the first ones.
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
        cache.write_at(positions, used, which)
        hidden = self._pass(cache, tokens, positions, mask)
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
        return self._pass(cache, tokens, positions, mask)

    def _pass(self, cache: SlotCache, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        if self.model.config.get_text_config()._attn_implementation == "eager":  # adds the mask to what it compares
            dtype = self.model.dtype
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)
        # Of a single token per row, transformers packs the heads, which is faster still.
        grouped = tokens.shape[1] > 1 and tokens.device.type == "cpu"
        with _grouped_heads() if grouped else contextlib.nullcontext():
            return self.body(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self._cache: cache},
            ).last_hidden_state

    def logits(self, states: Tensor) -> Tensor:
        """The logits ``(n, vocabulary)`` behind final hidden states ``(n, size)``."""
        return self._head(states)


Reply = tuple[list[int], list[float], str]
"""Token ids, their log-probabilities, and the finish reason."""

BLOCK = 64
"""Vocabulary entries per block of the two-level inverse-CDF sampling."""
STEPS_AHEAD = 8
"""Steps whose random numbers are drawn at once, and between two checks for finished rows on an accelerator."""
PASS_COST = {"cpu": 64, "accelerator": 1024}
"""How many tokens take as long to read as a pass takes to begin: to fetch the weights, or to launch its kernels."""
MIN_SHARED_PREFIX = 8
"""Fewest tokens of a common prefix that is computed once for all prompts."""


def steps_per_check(device: torch.device) -> int:
    """Steps between two checks for finished rows: on an accelerator each check synchronizes the device."""
    return 1 if device.type == "cpu" else STEPS_AHEAD


def draw(logits: Tensor, temperature: float, uniform: Tensor, known: int | None = None) -> tuple[Tensor, Tensor]:
    """One token per row, and its log-probability.

    Args:
        logits: ``(rows, vocabulary)``.
        temperature: > 0 draws from softmax(logits / temperature), 0 takes the most probable token and reports its
            log-probability at temperature 1.
        uniform: what decides, in [0, 1), ``(rows,)`` of doubles.
        known: only tokens below it are drawn; log-probabilities are those of the whole vocabulary, as the learner's.

    >>> logits = torch.tensor([[1.0, 3.0]]).log().expand(3, 2)
    >>> tokens, logprobs = draw(logits, 1.0, torch.tensor([0.0, 0.24, 0.26], dtype=torch.float64))
    >>> tokens.tolist(), [round(value, 3) for value in logprobs.exp().tolist()]
    ([0, 0, 1], [0.25, 0.25, 0.75])
    """
    scores = logits.float()
    if temperature <= 0:
        tokens = scores[:, :known].argmax(-1, keepdim=True)
        return tokens[:, 0], (scores.gather(1, tokens) - scores.logsumexp(-1, keepdim=True))[:, 0]
    odds = torch.softmax(scores if temperature == 1.0 else scores / temperature, -1)
    rows, vocabulary = odds[:, :known].shape
    blocks = torch.nn.functional.pad(odds[:, :known], (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    # The inverse of the distribution function, first among blocks, then within one. In doubles, for a single sum over a
    # large vocabulary would lose its rare tokens.
    ends = blocks.sum(-1).double().cumsum(-1)
    aim = uniform[:, None] * ends[:, -1:]
    block = torch.searchsorted(ends, aim, right=True).clamp_(max=ends.shape[1] - 1)
    chosen = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double()
    inner = chosen.cumsum(-1)
    size = inner[:, -1:]
    # Sums in other orders differ in their last digits: the aim stays within the block, and below its end.
    rest = (aim - (ends.gather(1, block) - size)).clamp_(min=0.0)
    rest = torch.minimum(rest, torch.nextafter(size, torch.zeros_like(size)))
    tokens = (block * BLOCK + torch.searchsorted(inner, rest, right=True)).clamp_(max=vocabulary - 1)  # of NaN as well
    return tokens[:, 0], odds.gather(1, tokens).log()[:, 0]


def uniforms(n: int, temperature: float, generator: torch.Generator, device: torch.device) -> Iterator[Tensor]:
    """The random numbers of each step, ``(n,)`` of doubles in [0, 1); zeros at temperature 0."""
    numbers = torch.zeros(STEPS_AHEAD, n, dtype=torch.float64, device=device)
    while True:
        if temperature > 0:  # drawn where the generator is: torch has none for two devices
            drawn = torch.rand(STEPS_AHEAD, n, dtype=torch.float64, generator=generator, device=generator.device)
            numbers = drawn.to(device)
        yield from numbers


def generate_replies(
    decoder: Decoder,
    cache: SlotCache,
    requests: Sequence[Request],
    limits: Sequence[int],
    temperature: float,
    generator: torch.Generator,
) -> list[Reply]:
    """Samples a reply to every request.

    What a reply draws does not depend on when others end: each has its own random numbers in every step.

    Args:
        decoder: reads tokens with the model.
        cache: what is known of the conversations; afterwards everything but each reply's last token.
        requests: prompts with distinct slots.
        limits: most tokens of each reply.
        generator: of the random numbers; may be on another device than the model.

    Raises:
        FloatingPointError: the model gives no numbers.
    """
    logits = prefill(decoder, cache, requests, limits)
    device, n, longest = logits.device, len(requests), max(*limits, 1)
    number = {request.slot: index for index, request in enumerate(requests)}
    order = [number[slot] for slot in cache.slots[:n]]
    asked = [requests[index] for index in order]
    lengths = [len(request.prompt_ids) for request in asked]

    request_of = torch.tensor(order, device=device)
    position = torch.tensor(lengths, device=device) - 1  # of the last token
    left = torch.tensor([limits[index] for index in order], device=device)
    stops = stop_table(asked, device)
    live, running = left > 0, n
    sampled = torch.zeros(longest, n, dtype=torch.long, device=device)
    logprobs = torch.zeros(longest, n, device=device)
    every = steps_per_check(device)
    for step, uniform in zip(range(longest), uniforms(n, temperature, generator, device), strict=False):
        tokens, chosen = draw(logits, temperature, uniform[request_of], decoder.known)
        sampled[step, request_of], logprobs[step, request_of] = tokens, chosen
        # A finished row stays where it is: its further tokens overwrite its last one, which is not needed.
        position = position + live
        left = left - 1
        live = live & (left > 0) & (tokens[:, None] != stops).all(1)
        if (step + 1) % every == 0:
            still_live = live.tolist()
            count("tokens sampled", running * every)  # those of rows that ended since the last check are few
            running = sum(still_live)
            if not running:
                break
            if 4 * running <= 3 * len(still_live):
                kept = _compact(cache, still_live, max(lengths) + step)
                lengths = [lengths[row] for row in kept]
                index = torch.tensor(kept, device=device)
                request_of, position, left, live, tokens, stops = (
                    state[index] for state in (request_of, position, left, live, tokens, stops)
                )
        if step + 1 < longest:
            reach = min(max(lengths) + step + 1, cache.capacity)
            logits = decoder.read(cache, tokens[:, None], position, None, reach)

    row_of = {slot: row for row, slot in enumerate(cache.slots)}
    replies = cut(requests, limits, sampled, logprobs)
    for request, (ids, _, _) in zip(requests, replies, strict=True):
        cache.tokens[row_of[request.slot]] = [*request.prompt_ids, *ids][:-1]  # the last one was never read
    return replies


def stop_table(requests: Sequence[Request], device: torch.device) -> Tensor:
    """The stop tokens of each request, ``(requests, most)``, filled up with -1."""
    most = max(len(request.stop_ids) for request in requests)
    return torch.tensor([[*r.stop_ids, *[-1] * (most - len(r.stop_ids))] for r in requests], device=device)


def cut(requests: Sequence[Request], limits: Sequence[int], sampled: Tensor, logprobs: Tensor) -> list[Reply]:
    """What was sampled up to the end of each reply.

    Args:
        sampled, logprobs: ``(steps, requests)``; behind the end of a reply they mean nothing.

    Raises:
        FloatingPointError: the model gives no numbers.
    """
    replies = []
    for request, limit, ids, scores in zip(requests, limits, sampled.T.tolist(), logprobs.T.tolist(), strict=True):
        end = next((i + 1 for i, token in enumerate(ids[:limit]) if token in request.stop_ids), 0)
        length = end or limit
        if any(map(math.isnan, scores[:length])):
            raise FloatingPointError(NO_NUMBERS)
        replies.append((ids[:length], scores[:length], "stop" if end else "length"))
    return replies


def _compact(cache: SlotCache, still_live: Sequence[bool], filled: int) -> list[int]:
    """Moves the live rows to the front; returns the old index of each of them."""
    count = sum(still_live)
    kept = list(range(count))
    vacant = [row for row in kept if not still_live[row]]
    late = [row for row in range(count, len(still_live)) if still_live[row]]
    for row, other in zip(vacant, late, strict=True):
        kept[row] = other
    cache.exchange(vacant, late, filled)
    return kept


def prefill(decoder: Decoder, cache: SlotCache, requests: Sequence[Request], limits: Sequence[int]) -> Tensor:
    """Computes the tokens of the prompts that the cache lacks; returns the logits ``(rows, vocabulary)``
    after each row.

    If no prompt is cached, equal prompts and the prefix that all share are computed once.
    """
    prompts = {request.slot: request.prompt_ids for request in requests}
    capacity = max(len(request.prompt_ids) + max(limit, 1) for request, limit in zip(requests, limits, strict=True))
    cache.arrange(list(prompts), capacity)
    order = cache.slots[: len(prompts)]
    known = [common_prefix(held, prompts[slot]) for slot, held in zip(order, cache.tokens, strict=False)]
    if len(prompts) == 1 or any(known):
        return prefill_rows(decoder, cache, [prompts[slot] for slot in order], known)
    distinct = sorted(set(prompts.values()), key=lambda prompt: (-len(prompt), prompt))
    stem = common_prefix(min(distinct), max(distinct))
    stem = min(stem, len(distinct[-1]) - 1)
    if stem < MIN_SHARED_PREFIX or len(distinct) == 1:
        stem = 0
        cache.open(range(len(distinct)), capacity)
    else:
        cache.open([0], capacity)
        prefill_rows(decoder, cache, [distinct[0][:stem]], [0])
        cache.copy([0] * len(distinct), range(len(distinct)), capacity)
    logits = prefill_rows(decoder, cache, distinct, [stem] * len(distinct))
    place = {prompt: row for row, prompt in enumerate(distinct)}
    slots = sorted(prompts, key=lambda slot: place[prompts[slot]])
    source = [place[prompts[slot]] for slot in slots]
    if len(slots) == len(distinct):
        cache.slots = slots
        return logits
    cache.copy(source, slots, capacity)
    return logits[torch.tensor(source, device=logits.device)]


def prefill_rows(decoder: Decoder, cache: SlotCache, prompts: Sequence[Sequence[int]], known: Sequence[int]) -> Tensor:
    """Computes the uncached tokens of each prompt, at least the last one; returns the logits after it."""
    starts = [min(start, len(prompt) - 1) for start, prompt in zip(known, prompts, strict=True)]
    fresh = [prompt[start:] for start, prompt in zip(starts, prompts, strict=True)]
    groups = passes([len(ids) for ids in fresh], PASS_COST["cpu" if cache.device.type == "cpu" else "accelerator"])
    logits = []
    for rows in groups:
        ids = [fresh[row] for row in rows]
        width = max(map(len, ids))
        tokens, begins, counts, which = (
            torch.tensor(numbers, device=cache.device)
            for numbers in (
                [[*some, *[0] * (width - len(some))] for some in ids],
                [starts[row] for row in rows],
                [len(some) for some in ids],
                rows,
            )
        )
        reach = max(len(prompts[row]) for row in rows)
        with counting("tokens read", sum(map(len, ids))):
            logits.append(decoder.read(cache, tokens, begins, counts, reach, which if len(groups) > 1 else None))
    cache.tokens[: len(prompts)] = [list(prompt) for prompt in prompts]
    if len(groups) == 1:
        return logits[0]
    place = {row: index for index, row in enumerate(chain(*groups))}
    return torch.cat(logits)[torch.tensor([place[row] for row in range(len(prompts))], device=cache.device)]


def passes(lengths: Sequence[int], cost: int) -> list[list[int]]:
    """Rows that are read in one pass each: a row is filled up to the longest of its pass.

    Args:
        lengths: new tokens of each row.
        cost: of a pass, in tokens.

    Returns:
        the indices of each pass's rows, ascending, with the fewest tokens and costs in sum.

    >>> passes([9, 100, 8, 7], cost=64)
    [[0, 2, 3], [1]]
    >>> passes([9, 20, 8, 7], cost=64)
    [[0, 1, 2, 3]]
    """
    if max(lengths) * len(lengths) - sum(lengths) <= cost:  # no further pass can pay
        return [list(range(len(lengths)))]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    best: list[tuple[int, int]] = [(0, 0)]  # of the shortest rows: their least sum, and where their last pass begins
    for end, row in enumerate(order, 1):
        best.append(min((best[first][0] + lengths[row] * (end - first) + cost, first) for first in range(end)))
    found, end = [], len(order)
    while end:
        first = best[end][1]
        found.append(sorted(order[first:end]))
        end = first
    return found[::-1]
