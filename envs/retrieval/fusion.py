"""Reciprocal rank fusion: combines the rankings of several retrievers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from roleagent.envs.retrieval.passages import Passage
from roleagent.envs.retrieval.retriever import Hit, Retriever, check_queries

CONSTANT = 60
DEPTH = 50  # places of each retriever that count


def fuse(rankings: Sequence[Sequence[str]], constant: float = CONSTANT) -> list[tuple[str, float]]:
    """Ids by the sum of 1 / (constant + place) over the rankings that hold them, places from 1, best first.

    What scores the same keeps the order of first mention, over the rankings in turn.

    >>> [name for name, _ in fuse([["a", "b", "c"], ["b", "d"]])]
    ['b', 'a', 'd', 'c']
    """
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for place, name in enumerate(ranking, 1):
            scores[name] += 1 / (constant + place)
    return sorted(scores.items(), key=lambda pair: -pair[1])


class FusedRetriever:
    """Several retrievers over one corpus, as one.

    Args:
        retrievers: whose passages have the same ids.
        depth: how many passages of each are looked at; at least as many as are asked for.
    """

    def __init__(self, retrievers: Sequence[Retriever], depth: int = DEPTH):
        if len(retrievers) < 2:
            raise ValueError("fusion takes two retrievers or more")
        self.name = "+".join(retriever.name for retriever in retrievers)
        self._retrievers, self._depth = tuple(retrievers), depth

    def retrieve(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """See :class:`~roleagent.envs.retrieval.retriever.Retriever`; fails where any of them does."""
        queries, depth = check_queries(queries, k), max(k, self._depth)
        answers = [retriever.retrieve(queries, depth) for retriever in self._retrievers]
        return [_fused(found, k) for found in zip(*answers, strict=True)]


def _fused(found: Sequence[Sequence[Hit]], k: int) -> list[Hit]:
    passages: dict[str, Passage] = {hit.passage.id: hit.passage for hits in found for hit in hits}
    order = fuse([[hit.passage.id for hit in hits] for hits in found])
    return [Hit(passages[name], score) for name, score in order[:k]]


__all__ = ["CONSTANT", "DEPTH", "FusedRetriever", "fuse"]
