"""The protocol of a retriever, and the retrievers over a lexical and a dense index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from roleagent.envs.retrieval.lexical.bm25 import SearchIndex
from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError

if TYPE_CHECKING:  # FAISS takes a second to load, and not every retriever needs it
    from roleagent.envs.retrieval.dense.encoders import Encoder
    from roleagent.envs.retrieval.dense.index import DenseIndex


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found. Scores are comparable within one answer of one retriever only; higher is better."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """The protocol of a retriever."""

    @property
    def name(self) -> str:
        """The name, as in :func:`open_retriever`."""
        ...

    def retrieve(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """The best ``k`` passages of each query, best first; fewer, or none, where no more are found.

        Raises:
            RetrievalError: the search could not be made. An error is never an answer.
        """
        ...


class LexicalRetriever:
    """Passages that share words with the query: BM25, the project's own or Lucene's."""

    def __init__(self, name: str, index: SearchIndex, corpus: Passages):
        if len(index) != len(corpus):
            raise RetrievalError(f"an index of {len(index)} passages does not fit a corpus of {len(corpus)}")
        self.name, self.corpus, self._index = name, corpus, index

    def retrieve(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """See :class:`Retriever`."""
        found = (self._index.search_scores(query, k) for query in check_queries(queries, k))
        return [[Hit(self.corpus[row], score) for row, score in pairs] for pairs in found]


class DenseRetriever:
    """Passages whose vectors are nearest to the query's."""

    def __init__(self, encoder: Encoder, index: DenseIndex, corpus: Passages):
        if len(index) != len(corpus):
            raise RetrievalError(f"an index of {len(index)} passages does not fit a corpus of {len(corpus)}")
        if encoder.dimension != index.dimension:
            raise RetrievalError(f"{encoder.name} has {encoder.dimension} dimensions, the index {index.dimension}")
        self.name, self.corpus, self.encoder, self.index = encoder.name, corpus, encoder, index

    def retrieve(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """See :class:`Retriever`. A query without a word of the encoder's vocabulary finds nothing."""
        answers: list[list[Hit]] = [[] for _ in queries]
        asked = [number for number, query in enumerate(check_queries(queries, k)) if query.strip()]
        try:
            vectors = self.encoder.encode_queries([queries[number] for number in asked])
            scores, rows = self.index.search(vectors, min(k, len(self.corpus)))
        except RuntimeError as error:
            raise RetrievalError(f"{self.name} failed: {' '.join(str(error).split())}") from error
        for number, vector, near, best in zip(asked, vectors, scores.tolist(), rows.tolist(), strict=True):
            if vector.any():
                answers[number] = [
                    Hit(self.corpus[row], score) for score, row in zip(near, best, strict=True) if row >= 0
                ]
        return answers


def check_queries(queries: Sequence[str], k: int) -> Sequence[str]:
    """Checks that queries are a sequence of texts: a single text would be searched letter by letter."""
    if k < 1:
        raise ValueError(f"at least one passage must be asked for, not {k}")
    if isinstance(queries, str):
        raise TypeError("queries are a list of texts, not one text")
    return queries


__all__ = [
    "DenseRetriever",
    "Hit",
    "LexicalRetriever",
    "Passage",
    "Passages",
    "RetrievalError",
    "Retriever",
    "check_queries",
]
