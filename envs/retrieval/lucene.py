"""A real Lucene index through pyserini. (Names first; the body follows.)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path


class LuceneIndex:
    @classmethod
    def build(cls, ids: Sequence[str], texts: Iterable[str], folder: str | Path) -> LuceneIndex:
        raise NotImplementedError

    @classmethod
    def open(cls, folder: str | Path) -> LuceneIndex:
        raise NotImplementedError

    def search(self, query: str, k: int = 50) -> list[int]:
        raise NotImplementedError

    def search_scores(self, query: str, k: int = 50) -> list[tuple[int, float]]:
        raise NotImplementedError
