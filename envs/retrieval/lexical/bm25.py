"""BM25 in numpy, in exactly Lucene's order.

A document's score is the sum over the terms of the query, w - w / (1 + tf / (k1 (1 - b + b length / mean length))),
where w = count in the query * ln(1 + (N - n + 1/2) / (n + 1/2)), N documents, n of them with the term. To rank as
Lucene does, this is computed as Lucene computes it: lengths are rounded down to what a byte can say, each summand is a
float32, the sum is taken in double precision and rounded once, and equal scores go in the order of the ids.

An index is immutable: environments and threads share one, and processes share the folder that it is mapped from.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from roleagent.envs.retrieval.lexical import indexer
from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.retrieval.lexical.postings import Postings, hash_terms
from roleagent.sharing import Immutable

# Lists of postings longer than this are read only while they can still bring a new document among the best.
LONG = 1 << 14
# Bounds and partial sums are taken in another order and precision than scores; they may differ by this share.
SLACK = 1e-5
SMALLEST = sys.float_info.min


class _List(NamedTuple):
    """The postings of one term of a query: where they lie, what the term weighs, the most it adds to a document."""

    size: int
    begin: int
    end: int
    weight: float
    bound: float


class SearchIndex(Protocol):
    """The protocol of a full-text index."""

    def __len__(self) -> int:
        """Number of documents."""
        ...

    def search(self, query: str, k: int = 50) -> list[int]:
        """Positions, in the order the documents were given, of the best ``k`` documents, best first."""
        ...

    def search_scores(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """The same with their scores."""
        ...


class BM25(Immutable):
    """An immutable full-text index.

    >>> index = BM25.build(["b", "a", "c"], ["Red shoes", "A red shoe", "Blue hat"])
    >>> index.search("shoes in red"), index.search("the")
    ([1, 0], [])
    """

    def __init__(self, postings: Postings) -> None:
        self._postings = postings
        # Plain arrays over the mapped ones: slicing a memmap costs several times as much.
        self._terms, self._starts = np.asarray(postings.terms), np.asarray(postings.starts)
        self._documents, self._codes = np.asarray(postings.documents), np.asarray(postings.codes)
        self._saturations, self._peaks = np.asarray(postings.saturations), np.asarray(postings.peaks)
        self._ranks = np.asarray(postings.ranks)
        self._scored = int(postings.scored[0])

    @classmethod
    def build(
        cls,
        ids: Sequence[str],
        texts: Iterable[str],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        folder: str | Path | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> BM25:
        """Indexes one text per id; see :func:`roleagent.envs.retrieval.lexical.indexer.build`."""
        place = None if folder is None else Path(folder)
        return cls(indexer.build(ids, texts, k1=k1, b=b, folder=place, progress=progress))

    def save(self, folder: str | Path) -> None:
        """Writes the index, to be opened by any process."""
        self._postings.save(Path(folder))

    @classmethod
    def open(cls, folder: str | Path) -> BM25:
        """Maps a saved index.

        Raises:
            ValueError: the folder holds none.
        """
        return cls(Postings.open(Path(folder)))

    def __len__(self) -> int:
        return len(self._ranks)

    def search(self, query: str, k: int = 50) -> list[int]:
        """Positions of the best ``k`` documents that share a term with the query, best first."""
        return self._best(query, k)[0].tolist()

    def search_scores(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """The same with their scores."""
        documents, scores = self._best(query, k)
        return list(zip(documents.tolist(), scores.tolist(), strict=True))

    def _best(self, query: str, k: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
        lists = self._lists(query) if k > 0 else []
        if not lists:
            return np.empty(0, np.intp), np.empty(0, np.float32)
        documents, scores = self._candidates(lists, k)
        rounded = scores.astype(np.float32)
        # Lucene ranks by scores in float32, and equal ones by id. So scores are rounded before anything is compared,
        # and all documents equal to the k-th stay until ids decide: a cut at k would keep those that came first.
        if len(rounded) > k:
            kept = rounded >= np.partition(rounded, len(rounded) - k)[len(rounded) - k]
            documents, rounded = documents[kept], rounded[kept]
        order = np.lexsort((self._ranks[documents], -rounded))[:k]
        return documents[order], rounded[order]

    def _lists(self, query: str) -> list[_List]:
        """The lists of the query's terms, the shortest first."""
        counts = Counter(analyze(query))
        if not counts or not len(self._terms):
            return []
        hashes = hash_terms(counts)
        rows = np.minimum(np.searchsorted(self._terms, hashes), len(self._terms) - 1)
        known = self._terms[rows] == hashes
        rows = rows[known]
        begins, ends = self._starts[rows], self._starts[rows + 1]
        sizes = ends - begins
        inverse = np.log(1 + (self._scored - sizes + 0.5) / (sizes + 0.5)).astype(np.float32)
        weights = np.fromiter(counts.values(), np.float32)[known] * inverse
        bounds = weights - weights / self._peaks[rows]
        lists = map(_List, sizes.tolist(), begins.tolist(), ends.tolist(), weights.tolist(), bounds.tolist())
        return sorted(lists)

    def _candidates(self, lists: list[_List], k: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Documents with their scores, the best ``k`` among them."""
        short = bisect_right(lists, LONG, key=lambda item: item.size)
        scores = self._sum(lists[:short])
        for number in range(short, len(lists)):
            # A document that stands in none of the lists so far scores at most what the others can add. Where k
            # documents have more than that already, the others are looked up for those that can still get there.
            rest = sum(item.bound for item in lists[number:]) * (1 + SLACK)
            floor = self._floor(lists[:number], scores, k)
            if floor > rest:
                documents = np.flatnonzero(scores >= floor - rest)
                return documents, self._look_up(lists[number:], documents, scores[documents])
            item = lists[number]
            scores[self._documents[item.begin : item.end]] += self._weigh(item)
        documents = np.flatnonzero(scores >= self._floor(lists, scores, k))
        return documents, scores[documents]

    def _sum(self, lists: list[_List]) -> NDArray[np.float64]:
        """What the lists add to each document."""
        if not lists:
            return np.zeros(len(self))
        documents = np.concatenate([self._documents[item.begin : item.end] for item in lists])
        codes = np.concatenate([self._codes[item.begin : item.end] for item in lists])
        weights = np.repeat(np.array([item.weight for item in lists], np.float32), [item.size for item in lists])
        added = weights - weights / self._saturations[codes]
        return np.bincount(documents, added, minlength=len(self)).astype(np.float64, copy=False)

    def _weigh(self, item: _List, places: NDArray[np.intp] | None = None) -> NDArray[np.float32]:
        """What a list's postings add, all or those at some places."""
        codes = self._codes[item.begin : item.end]
        weight = np.float32(item.weight)
        return weight - weight / self._saturations[codes if places is None else codes[places]]

    def _floor(self, lists: list[_List], scores: NDArray[np.float64], k: int) -> float:
        """A score that ``k`` documents reach already, above 0; the smallest number above 0 if none is known."""
        for item in lists:
            if item.size >= k:
                reached = scores[self._documents[item.begin : item.end]]
                return float(np.partition(reached, item.size - k)[item.size - k]) * (1 - SLACK)
        return SMALLEST

    def _look_up(
        self, lists: list[_List], documents: NDArray[np.intp], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """The scores with what the lists add to these documents."""
        for item in lists:
            held = self._documents[item.begin : item.end]
            places = np.minimum(np.searchsorted(held, documents), item.size - 1)
            found = np.flatnonzero(held[places] == documents)
            scores[found] += self._weigh(item, places[found])
        return scores


__all__ = ["BM25", "SearchIndex"]
