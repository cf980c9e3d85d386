"""Examples of an iteration: good and revision trajectories as text and as segments, their file, and filters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np

from roleagent.config.revision import RevisionConfig
from roleagent.learners.batch import trained_tokens
from roleagent.types import Segment

Part = Literal["good", "revision", "pair"]


@dataclass(frozen=True, eq=False)
class Example:
    """One trajectory to imitate.

    Attributes:
        part: a good trajectory is trained whole; of a revision trajectory the revision signal and the good steps; a
            pair is a preference (:mod:`roleagent.learners.preference`).
        task_id: its task.
        edge: the tree's edge to which the path is cut; -1 for a good trajectory.
        text: what a reader of the run sees: commands, observations, what is imitated, and how the cut was found.
        segments: token columns. ``advantages`` is 1 on trained tokens and 0 on bad ones.
    """

    part: Part
    task_id: str
    edge: int
    text: Mapping[str, Any]
    segments: tuple[Segment, ...]

    @property
    def trained_tokens(self) -> int:
        """The number of tokens with weight."""
        return trained_tokens(self.segments)

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for examples with the same tokens and weights."""
        return tuple(part for one in self.segments for part in (one.token_ids.tobytes(), one.advantages.tobytes()))

    def to_json(self) -> dict[str, Any]:
        """The example for a file; columns as runs of equal values."""
        rows = [
            {
                "ids": one.token_ids.tolist(),
                "runs": [
                    [int(kind), float(weight), len(list(run))]
                    for (kind, weight), run in groupby(zip(one.token_kind, one.advantages, strict=True))
                ],
            }
            for one in self.segments
        ]
        return {"part": self.part, "task_id": self.task_id, "edge": self.edge, **self.text, "segments": rows}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Example:
        """The inverse of :meth:`to_json`."""
        own = {"part", "task_id", "edge", "segments"}
        text = {name: value for name, value in found.items() if name not in own}
        segments = tuple(_segment(row["ids"], row["runs"]) for row in found["segments"])
        return cls(found["part"], found["task_id"], int(found["edge"]), text, segments)


def _segment(ids: Sequence[int], runs: Iterable[tuple[int, float, int]]) -> Segment:
    kinds, weights, lengths = (np.array(column) for column in zip(*runs, strict=True))
    return Segment(
        np.array(ids), np.repeat(kinds, lengths), np.zeros(len(ids)), np.repeat(weights, lengths).astype(np.float64)
    )


def select(
    examples: Sequence[Example], options: RevisionConfig, rng: np.random.Generator
) -> tuple[list[Example], Counter[str]]:
    """The examples that are imitated, and how many each filter drops.

    ``duplicate``: the same tokens and weights as another. ``per_task``: more than ``revision.per_task`` of a task and
    part, drawn evenly over the cuts. ``tokens``: beyond ``revision.tokens`` trained tokens, in random order.
    """
    dropped: Counter[str] = Counter()
    unique = list({example.key: example for example in reversed(examples)}.values())[::-1]
    dropped["duplicate"] += len(examples) - len(unique)
    by_task: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for place, example in enumerate(unique):
        by_task[example.part, example.task_id].append(place)
    kept = sorted(
        place
        for places in by_task.values()
        for place in even([unique[place].edge for place in places], places, options.per_task, rng)
    )
    dropped["per_task"] += len(unique) - len(kept)
    if options.tokens:
        order = [kept[place] for place in rng.permutation(len(kept))]
        totals = np.cumsum([unique[place].trained_tokens for place in order])
        kept, all_kept = sorted(order[: int(np.searchsorted(totals, options.tokens)) + 1]), len(kept)
        dropped["tokens"] += all_kept - len(kept)
    return [unique[place] for place in kept], dropped


def even(groups: Sequence[int], items: Sequence[int], most: int, rng: np.random.Generator) -> list[int]:
    """At most ``most`` items, drawn evenly over their groups.

    >>> drawn = even([1, 1, 1, 1, 2, 3], [10, 11, 12, 13, 20, 30], 4, np.random.default_rng(0))
    >>> sorted(item // 10 for item in drawn)
    [1, 1, 2, 3]
    """
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for place in rng.permutation(len(items)):
        waiting[groups[place]].append(items[place])
    found: list[int] = []
    while waiting and len(found) < most:
        for group in list(waiting):
            if len(found) < most:
                found.append(waiting[group].pop())
            if not waiting[group]:
                del waiting[group]
    return found


__all__ = ["Example", "Part", "even", "select"]
