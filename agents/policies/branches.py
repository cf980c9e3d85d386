"""Sampling several replies to one conversation at once: questions about different places of the same text.

The prompts of a conversation share their beginning, the trunk, which is computed once. What a prompt has beyond it, and
its reply, is a branch. Each token of a branch attends to its part of the trunk and to its own branch alone, so
it is sampled as if the other branches were not there. A pass over the model takes one token of each branch: it reads
the trunk once for all of them.

In the cache the trunk's slots come first. Behind them each column holds one token of every branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor

from roleagent.agents.policies.kv_cache import SlotCache
from roleagent.agents.policies.sampling import (
    Decoder,
    Reply,
    cut,
    draw,
    prefill_rows,
    steps_per_check,
    stop_table,
    uniforms,
)
from roleagent.similarity import common_prefix
from roleagent.slow_notice import count, counting
from roleagent.types import Request

ALIKE = 0.6
"""Conversations are computed together if the fewest branches are at least this share of the most."""

MEMORY = 0.25
"""Memory of the branches that are computed together, as a share of that of all conversations."""


def generate_branches(
    decoder: Decoder,
    cache: SlotCache,
    requests: Sequence[Request],
    limits: Sequence[int],
    temperature: float,
    generator: torch.Generator,
) -> list[Reply]:
    """Samples a reply to every request; requests of the same slot are branches of one conversation.

    Args:
        decoder: reads tokens with the model.
        cache: what is known of the conversations; it stays as it is.
        requests: prompts, several to a slot.
        limits: most tokens of each reply.
        generator: of the random numbers; may be on another device than the model.

    Raises:
        FloatingPointError: the model gives no numbers.
    """
    of_slot: dict[int, list[int]] = {}
    for number, request in enumerate(requests):
        of_slot.setdefault(request.slot, []).append(number)
    conversations = sorted(of_slot.values(), key=len, reverse=True)
    # Beside the conversations themselves: a fourth of their memory, or one conversation.
    budget = MEMORY * max(cache.stored * cache.capacity, len(of_slot) * max(len(r.prompt_ids) for r in requests))
    starts, room = [0], 0
    for place, numbers in enumerate(conversations):
        most = conversations[starts[-1]]
        needed = max(len(requests[n].prompt_ids) for n in numbers) + len(most) * max(limits[n] for n in numbers)
        room = max(room, needed)
        if place > starts[-1] and (len(numbers) < ALIKE * len(most) or (place + 1 - starts[-1]) * room > budget):
            starts, room = [*starts, place], needed
    replies: dict[int, Reply] = {}
    fork = None
    with counting("replies sampled", len(requests)) as finished:
        for start, end in pairwise([*starts, len(conversations)]):
            chosen = conversations[start:end]
            numbers = [number for conversation in chosen for number in conversation]
            table = Branches([[requests[n] for n in conversation] for conversation in chosen], cache.device)
            longest = max(max(limits[n] for n in numbers), 1)
            # One slot more than they need: the last is written to and never read.
            fork = cache.fork(table.slots, table.base + table.count * (table.columns + longest - 1) + 1, fork)
            table.open(decoder, fork)
            sampled, logprobs = table.sample(decoder, [limits[n] for n in numbers], temperature, generator)
            found = cut([requests[n] for n in numbers], [limits[n] for n in numbers], sampled, logprobs)
            replies |= dict(zip(numbers, found, strict=True))
            finished(len(numbers))
    return [replies[number] for number in range(len(requests))]


class Branches:
    """Conversations with up to B branches each: where their tokens stand, and what they attend to.

    Args:
        prompts: of each conversation, in the order of its branches.
        device: of the model.
    """

    def __init__(self, prompts: Sequence[Sequence[Request]], device: torch.device):
        self.device, self.requests = device, [request for one in prompts for request in one]
        self.slots = [one[0].slot for one in prompts]
        self.count = max(map(len, prompts))
        # The longest prompt of a conversation is its trunk. Each prompt leaves it, at its last token or before.
        longest = [max((request.prompt_ids for request in one), key=len) for one in prompts]
        self.shared = [
            [min(common_prefix(request.prompt_ids, whole), len(request.prompt_ids) - 1) for request in one]
            for one, whole in zip(prompts, longest, strict=True)
        ]
        self.trunks = [whole[: max(1, *parts)] for whole, parts in zip(longest, self.shared, strict=True)]
        self.own = [
            [request.prompt_ids[part:] for request, part in zip(one, parts, strict=True)]
            for one, parts in zip(prompts, self.shared, strict=True)
        ]
        self.base = max(map(len, self.trunks))
        self.columns = max(len(ids) for row in self.own for ids in row)
        where = [(row, branch) for row, one in enumerate(prompts) for branch in range(len(one))]
        self.row_of, self.branch_of = torch.tensor(where, device=self.device).unbind(1)

    def open(self, decoder: Decoder, cache: SlotCache) -> None:
        """Reads the trunks and what each prompt has beyond them.

        Args:
            cache: a row for each conversation, with what is known of its trunk and room for the branches.
        """
        rows, branches, width = len(self.slots), self.count, self.columns
        self.cache = cache
        known = [common_prefix(held, trunk) for held, trunk in zip(self.cache.tokens, self.trunks, strict=True)]
        if any(held < len(trunk) for held, trunk in zip(known, self.trunks, strict=True)):
            prefill_rows(decoder, self.cache, self.trunks, known)

        # Shorter ones are filled up on the left. A place without a token attends to itself alone, and nothing to it.
        tokens = torch.zeros(rows, width, branches, dtype=torch.long)
        shared, first = torch.zeros(rows, branches, dtype=torch.long), torch.full((rows, branches), width - 1)
        for row, (parts, own) in enumerate(zip(self.shared, self.own, strict=True)):
            shared[row, : len(parts)] = torch.tensor(parts)
            for branch, ids in enumerate(own):
                first[row, branch] = width - len(ids)
                tokens[row, width - len(ids) :, branch] = torch.tensor(ids)
        tokens, shared, first = (tensor.to(self.device) for tensor in (tokens, shared, first))
        # Where every slot of the cache stands: in which column, of which branch.
        slots = torch.arange(self.cache.capacity, device=self.device)
        self.column_at = torch.where(slots < self.base, -1, (slots - self.base) // branches)
        branch_at = torch.where(slots < self.base, -1, (slots - self.base) % branches)
        self.in_trunk = (slots < shared[:, :, None]) & (slots < self.base)  # (rows, branches, capacity)
        self.in_branch = branch_at == torch.arange(branches, device=self.device)[:, None]  # (branches, capacity)
        self.start = first
        self.position = shared + width - 1 - first  # of each branch's last token

        columns = torch.arange(width, device=self.device)[:, None].expand(width, branches)
        branch = torch.arange(branches, device=self.device).expand(width, branches)
        used = self.base + width * branches
        seen = self._mask(slice(None), branch.reshape(-1)[None], columns.reshape(-1)[None], used)
        positions = (shared[:, None] + columns - first[:, None]).clamp(min=0).view(rows, -1)
        places = (self.base + columns * branches + branch).reshape(1, -1).expand(rows, -1)
        with counting("tokens read", sum(map(len, chain(*self.own)))):
            states = decoder.states(self.cache, tokens.view(rows, -1), positions, places, seen)
        last = states.view(rows, width, branches, -1)[:, -1]
        self.logits = decoder.logits(last[self.row_of, self.branch_of])

    def _mask(self, rows: slice | Tensor, branch: Tensor, column: Tensor, used: int) -> Tensor:
        """What tokens attend to, ``(rows, 1, n, used)``; their branches and columns are ``(rows or 1, n)``."""
        branch = branch.expand(len(self.start[rows]), -1)
        index = branch[:, :, None].expand(-1, -1, used)
        trunk = self.in_trunk[rows, :, :used].gather(1, index)
        begins = self.start[rows].gather(1, branch)[:, :, None]
        column, at = column[:, :, None], self.column_at[:used]
        own = self.in_branch[branch, :used] & (at <= column) & ((at >= begins) | (at == column))
        return ((trunk & (column >= begins)) | own)[:, None]

    def sample(
        self, decoder: Decoder, limits: Sequence[int], temperature: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Samples all replies: tokens and log-probabilities, ``(steps, requests)``."""
        n, longest, device = len(limits), max(*limits, 1), self.device
        sampled = torch.zeros(longest, n, dtype=torch.long, device=device)
        logprobs = torch.zeros(longest, n, device=device)
        left, stops = torch.tensor(limits, device=device), stop_table(self.requests, device)
        number = torch.arange(n, device=device)  # of the requests that go on
        row, branch = self.row_of, self.branch_of
        rows = torch.arange(len(self.slots), device=device)  # the old number of each row of the cache
        live, every, logits = left > 0, steps_per_check(device), self.logits
        source, place = places_of(row, len(rows))
        for step, uniform in zip(range(longest), uniforms(n, temperature, generator, device), strict=False):
            tokens, chosen = draw(logits, temperature, uniform[number], decoder.known)
            sampled[step, number], logprobs[step, number] = tokens, chosen
            left = left - 1
            live = live & (left > 0) & (tokens[:, None] != stops).all(1)
            if step + 1 == longest:
                break
            if (step + 1) % every == 0:
                count("tokens sampled", len(live) * every)
                going = live.nonzero()[:, 0]
                if not len(going):
                    break
                if 4 * len(going) <= 3 * len(live):
                    number, row, branch, left, live, tokens, stops = (
                        state[going] for state in (number, row, branch, left, live, tokens, stops)
                    )
                    row, rows = self._drop_rows(row, rows)
                    source, place = places_of(row, len(rows))
            states = self._read(decoder, tokens, branch, source, rows, step)
            logits = decoder.logits(states[row, place])
        return sampled, logprobs

    def _drop_rows(self, row: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Moves the rows that have tokens to the front if that saves a fourth; returns ``row`` and ``rows`` anew."""
        needed = row.unique()
        if 4 * len(needed) > 3 * len(rows):
            return row, rows
        old = needed.tolist()
        late = [one for one in old if one >= len(old)]
        vacant = sorted(set(range(len(old))) - set(old))
        self.cache.exchange(vacant, late, self.cache.used)
        moved = torch.arange(len(rows), device=self.device)
        order = moved.clone()
        for to, one in zip(vacant, late, strict=True):
            moved[one], order[to] = to, one
        return moved[row], rows[order[: len(old)]]

    def _read(
        self, decoder: Decoder, tokens: Tensor, branches: Tensor, source: Tensor, rows: Tensor, step: int
    ) -> Tensor:
        """Reads one more token of some branches; returns their final hidden states, ``(rows, n, size)``.

        Args:
            tokens, branches: of each entry.
            source: ``(rows, n)``, the entries of each row (:func:`places_of`).
            rows: the conversation of each row of the cache.
            step: how many tokens of the replies have been read.
        """
        tokens, branches, column = tokens[source], branches[source], self.columns + step
        positions = self.position[rows].gather(1, branches) + step + 1
        places = self.base + column * self.count + branches
        # Copies that fill up a row write to the last slot: their bits may differ, and of two threads that write to one
        # place either may be the last.
        places[:, 1:].masked_fill_(source[:, 1:] == source[:, :1], self.cache.capacity - 1)
        used = self.base + (column + 1) * self.count
        mask = self._mask(rows, branches, torch.full_like(branches, column), used)
        return decoder.states(self.cache, tokens, positions, places, mask)


def places_of(row: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The entries of each row side by side: their numbers ``(rows, n)``, and the place of each entry in its row.

    Entries of a row are neighbors. A shorter row is filled up with its first entry.

    >>> [found.tolist() for found in places_of(torch.tensor([2, 2, 0, 1, 1, 1]), 3)]
    [[[2, 2, 2], [3, 4, 5], [0, 1, 0]], [0, 1, 0, 0, 1, 2]]
    """
    index = torch.arange(len(row), device=row.device)
    begins = torch.ones_like(row, dtype=torch.bool)
    begins[1:] = row[1:] != row[:-1]
    place = index - torch.where(begins, index, 0).cummax(0).values
    source = torch.zeros(rows, int(place.max()) + 1, dtype=torch.long, device=row.device)
    source[row[begins]] = index[begins, None]
    source[row, place] = index
    return source, place
