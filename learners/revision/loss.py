"""The loss of Agent-R (arXiv 2501.11425, Eq. 6): means over good and revision trajectories and over other data.

    L = −(1 − ρ)·{ η·[(1 − s)·E_good log π + s·E_revision log π] + (1 − η)·E_general log π } − ρ·E_replay log π

Every expectation is a mean over the trained tokens of a batch, so that its share does not depend on the number of its
examples; ρ is ``revision.replay``, s ``revision.share`` and η ``revision.eta``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from roleagent.config.revision import RevisionConfig
from roleagent.learners.batch import ACTION, PREDICTION, TEXT, Column
from roleagent.learners.loss import imitation_weights
from roleagent.types import Segment

AGENT = ("good", "revision")
Parts = Mapping[str, Sequence[Segment]]
"""Segments by the part of the loss that they belong to: good, revision, general, replay."""


class Member(NamedTuple):
    """A segment of a batch and the part of the loss that it belongs to."""

    part: str
    segment: Segment


def part_shares(parts: Parts, options: RevisionConfig) -> dict[str, float]:
    """Each part's share of the loss, sum 1. A part without segments has none, and the others share what is left.

    >>> shares = part_shares({"good": [1], "revision": [1], "replay": [1]}, RevisionConfig())
    >>> {name: round(share, 2) for name, share in shares.items()}
    {'good': 0.4, 'revision': 0.4, 'replay': 0.2}
    """
    eta = options.eta if parts.get("general") else 1.0
    of_agent = (1 - options.replay) * eta
    wanted = {
        "good": of_agent * (1 - options.share),
        "revision": of_agent * options.share,
        "general": (1 - options.replay) * (1 - eta),
        "replay": options.replay,
    }
    found = {name: share for name, share in wanted.items() if parts.get(name) and share}
    total = sum(found.values())
    return {name: share / total for name, share in found.items()}


def weights_of(
    batch: Sequence[Member],
    shares: Mapping[str, float],
    balance: str = "parts",
    prediction_weight: float = 0.0,
    text_weight: float = 0.0,
    sum_over_ranks: Callable[[float], float] = float,
) -> Column:
    """Each token's weight in the loss.

    Args:
        batch: this rank's segments.
        shares: of :func:`part_shares`.
        balance: ``"parts"``, or ``"tokens"``: all tokens of good and revision trajectories have one mean.
        prediction_weight: of prediction tokens, relative to action tokens.
        text_weight: of the world's text, where a segment marks it.
        sum_over_ranks: adds a number up over all ranks; every rank calls it equally often.

    >>> shown = Segment((5, 6, 7, 8), (0, 1, 0, 1), (0.0,) * 4, (0.0, 0.0, 0.0, 1.0))
    >>> good = Segment((5, 6, 7), (0, 1, 1), (0.0,) * 3, (0.0, 1.0, 1.0))
    >>> [row.tolist() for row in weights_of([("revision", shown), ("good", good)], {"good": 0.5, "revision": 0.5})]
    [[0.0, 0.0, 0.0, 0.5], [0.0, 0.25, 0.25]]
    """
    together = [("agent", AGENT)] if balance == "tokens" else [(name, (name,)) for name in AGENT]
    column: list[np.ndarray] = [np.zeros(len(segment)) for _, segment in batch]
    for _, names in (*together, *((name, (name,)) for name in shares if name not in AGENT)):
        share = sum(shares.get(name, 0.0) for name in names)
        places = [place for place, (part, _) in enumerate(batch) if part in names]
        weight_of = {ACTION: share, PREDICTION: share * prediction_weight, TEXT: share * text_weight}
        rows = imitation_weights([batch[place][1] for place in places], weight_of, sum_over_ranks)
        for place, row in zip(places, rows, strict=True):
            column[place] = row
    return column


def batches(parts: Parts, shares: Mapping[str, float], tokens: int, rng: np.random.Generator) -> Iterator[list[Member]]:
    """One pass over the agent's data, in batches of about ``tokens`` tokens that hold every part.

    A part of few segments takes turns in the batches; general and replayed data are drawn, by their share of the loss.
    """
    agent = {name: parts[name] for name in AGENT if name in shares}
    of_agent = sum(shares[name] for name in agent)
    size = sum(len(segment) for segments in agent.values() for segment in segments)
    number = max(1, ceil(size / (of_agent * tokens)))
    chunks: dict[str, list[np.ndarray]] = {}
    for name, segments in agent.items():
        order = rng.permutation(len(segments))
        few = len(order) < number
        chunks[name] = [order[[k % len(order)]] for k in range(number)] if few else np.array_split(order, number)
    for k in range(number):
        batch = [Member(name, parts[name][place]) for name in agent for place in chunks[name][k]]
        for name in (name for name in shares if name not in AGENT):
            left = shares[name] * tokens
            while left > 0:
                segment = parts[name][int(rng.integers(len(parts[name])))]
                batch.append(Member(name, segment))
                left -= len(segment)
        yield batch


__all__ = ["AGENT", "Member", "Parts", "batches", "part_shares", "weights_of"]
