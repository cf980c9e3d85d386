"""From questions to passages: the protocol of a search engine, and the engines there are, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage found. Scores are comparable within one answer of one retriever only; higher is better."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """What a question-answering environment asks of its search engine."""

    @property
    def name(self) -> str:
        """As :func:`open_retriever` knows it."""
        ...

    def retrieve(self, queries: Sequence[str], k: int = 3) -> list[list[Hit]]:
        """The best ``k`` passages of each query, best first; fewer, or none, where no more are found.

        Raises:
            RetrievalError: the search could not be made. An error is never an answer.
        """
        ...


def open_retriever(spec: str, corpus: Passages, folder: str | Path | None = None) -> Retriever:
    """The retriever that a word names."""
    raise RetrievalError(f"{spec!r} is no retriever")


__all__ = ["Hit", "Passage", "Passages", "RetrievalError", "Retriever", "open_retriever"]
