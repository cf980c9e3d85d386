"""BM25 in numpy, in exactly Lucene's order. (Names first; the body follows.)"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol


class SearchIndex(Protocol):
    """What a shop or a library asks of its search engine."""

    def search(self, query: str, k: int = 50) -> list[int]:
        """Positions (in the order the documents were given) of the best ``k`` documents, best first."""
        ...

    def search_scores(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        """The same with their scores."""
        ...


class BM25:
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
        raise NotImplementedError

    def save(self, folder: str | Path) -> None:
        raise NotImplementedError

    @classmethod
    def open(cls, folder: str | Path) -> BM25:
        raise NotImplementedError

    def search(self, query: str, k: int = 50) -> list[int]:
        raise NotImplementedError

    def search_scores(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        raise NotImplementedError
