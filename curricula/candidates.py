"""The candidates that an analyst selects from (Agent-In-World, step 4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from numpy.random import Generator

from roleagent.curricula.library import Entry, FailureLibrary
from roleagent.similarity import lms_tokens
from roleagent.tasks.split import TaskSplit
from roleagent.types import Failure, Reflection

Asked = Sequence[tuple[str, Reflection]]
"""The tasks that failed in the present iteration, each with its analysis; the library has them already."""

_SEARCHED = 4  # entries that take the place of a selection that cannot be used


class Offer(NamedTuple):
    """The candidates for one failure, and a search by words that takes the place of an unusable selection."""

    shown: list[Failure]
    search: Callable[[], list[Failure]]


def from_library(
    library: FailureLibrary,
    task_split: TaskSplit,
    asked: Asked,
    most: int,
    type_of: Callable[[str], str],
    rng: Generator,
) -> list[Offer]:
    """Candidates from the whole library: a third each by full-text search, from the same mode, and at random.

    The random third draws a failure mode and task type first and then one of its entries, so that rare ones are seen.
    A part that runs out leaves its places to the others. The parts take turns in the list, so that a list that is cut
    short holds all three. No task stands in a list twice.

    The failing task itself is never a candidate. Tasks that failed in the present iteration are candidates only where
    no other task ever failed, and then entries that the iteration did not file come before those that it did.

    Args:
        most: candidates per failure.
        type_of: the type of a task id, ``""`` where it is unknown.
        rng: draws.
    """
    pools = _pools(library, task_split, asked, type_of)
    words = [_words(reflection) for _, reflection in asked]
    hits = library.search_among(zip(words, (pool.by_key for pool in pools), strict=True), most)
    drawn: list[tuple[list[Entry], list[Entry]]] = []
    for (_, reflection), pool, keys in zip(asked, pools, hits, strict=True):
        _, mode = library.names("", reflection.mode)
        found = [pool.by_key[key] for key in keys]
        parts = (iter(found), pool.of_mode(mode, most, rng), pool.at_random(most, rng))
        drawn.append((_in_turn(parts, most), found[:_SEARCHED]))
    failures = library.failures({entry.key for pair in drawn for part in pair for entry in part})

    def known(entries: Sequence[Entry]) -> list[Failure]:
        return [failures[entry.key] for entry in entries if entry.key in failures]

    return [Offer(known(shown), partial(known, found)) for shown, found in drawn]


def unread(library: FailureLibrary, task_split: TaskSplit, asked: Asked, by_text: bool, rng: Generator) -> list[Offer]:
    """What a control retrieves, from the tasks of which :func:`from_library` offers some: as many as a rule selects.

    Args:
        by_text: the tasks whose text is most like that of the failing one, which is the query of its analysis; else
            tasks that failed, at random.
        rng: draws, and decides between texts that are equally alike.
    """
    pools = _pools(library, task_split, asked, lambda task_id: "")
    known = library.failures({key for pool in pools for key in pool.by_key})
    offers = []
    for (_, reflection), pool in zip(asked, pools, strict=True):
        tasks = [*{entry.task_id: entry for entry in pool.entries}.values()]  # one may have failed in several modes
        drawn = [known[tasks[place].key] for place in rng.permutation(len(tasks)).tolist()]
        if by_text:
            drawn.sort(key=lambda failure: -lms_tokens(failure.task.goal, reflection.query))
        offers.append(Offer(drawn[:_SEARCHED], list))
    return offers


def _pools(library: FailureLibrary, task_split: TaskSplit, asked: Asked, type_of: Callable[[str], str]) -> list[_Pool]:
    """The entries that may be offered for each failure."""
    entries = [entry for entry in library.entries(task_split.env_id) if entry.task_id in task_split]
    failing = {task_id for task_id, _ in asked}
    filed = {library.names(task_id, reflection.mode) for task_id, reflection in asked}
    rested = [entry for entry in entries if entry.task_id not in failing]
    shared = _Pool(rested, type_of) if rested else None

    def pool_of(task_id: str) -> _Pool:
        if shared is not None:
            return shared
        others = [entry for entry in entries if entry.task_id != task_id]
        return _Pool([entry for entry in others if (entry.task_id, entry.mode) not in filed] or others, type_of)

    return [pool_of(task_id) for task_id, _ in asked]


class _Pool:
    """Entries that may be offered, by what they are drawn by."""

    def __init__(self, entries: Sequence[Entry], type_of: Callable[[str], str]):
        self.entries = entries
        self.by_key = {entry.key: entry for entry in entries}
        self._modes: dict[str, list[Entry]] = defaultdict(list)
        strata: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in entries:
            self._modes[entry.mode].append(entry)
            strata[entry.mode, type_of(entry.task_id)].append(entry)
        self._strata = list(strata.values())

    def of_mode(self, mode: str, most: int, rng: Generator) -> Iterator[Entry]:
        """Entries of one mode in random order."""
        alike = self._modes.get(mode, [])
        for place in rng.choice(len(alike), min(most, len(alike)), replace=False).tolist():
            yield alike[place]

    def at_random(self, most: int, rng: Generator) -> Iterator[Entry]:
        """Entries of all modes and task types, each pair of these equally often; some may come twice."""
        if len(self.entries) <= most:
            yield from (self.entries[place] for place in rng.permutation(len(self.entries)).tolist())
            return
        for stratum, place in rng.random((2 * most, 2)).tolist():
            entries = self._strata[int(stratum * len(self._strata))]
            yield entries[int(place * len(entries))]


def _in_turn(parts: Sequence[Iterator[Entry]], most: int) -> list[Entry]:
    """The next new task of each part in turn, until there are enough or all parts have run out."""
    chosen: dict[str, Entry] = {}
    running = list(parts)
    while running and len(chosen) < most:
        for part in [*running]:
            entry = next((entry for entry in part if entry.task_id not in chosen), None)
            if entry is None:
                running.remove(part)
            elif len(chosen) < most:
                chosen[entry.task_id] = entry
    return list(chosen.values())


def _words(reflection: Reflection) -> str:
    return f"{reflection.mode} {reflection.lesson} {reflection.query}"
