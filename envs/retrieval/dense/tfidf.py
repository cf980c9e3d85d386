"""tf-idf vectors of the corpus, projected at random. They need no download and no training.

A text with term frequencies tf becomes the vector sum over terms of (1 + ln tf) ln(1 + N / n) s, scaled to length 1. N
is the number of passages, n how many of them have the term, and s one of the 2^768 vectors of -1 and 1, drawn by
hashing the term: inner products of such vectors approach, as the dimension grows, those of the tf-idf vectors
themselves. What is kept is n for every term; the projection is computed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b, shake_128
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.retrieval.lexical.postings import hash_terms
from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.files import write_array, write_whole

FORMAT = 1
DIMENSION = 768
HEADER, TERMS, COUNTS = "tfidf.json", "terms.npy", "counts.npy"
# Distinct terms that are counted one by one before they are merged into the sorted ones.
MOST = 1 << 20
KEPT = 1 << 17  # terms whose projections are held in memory
STRIDE = 1000  # texts between two calls of the progress callback


class TfidfEncoder:
    """An encoder fitted to a corpus; deterministic.

    >>> encoder = TfidfEncoder.fit(["Red shoes", "A red hat", "Blue hats"])
    >>> scores = encoder.encode_queries(["blue shoe"]) @ encoder.encode_passages(["Red shoes", "A red hat"]).T
    >>> bool(scores[0, 0] > scores[0, 1])
    True

    Attributes:
        name: ``tfidf``.
        dimension: of the vectors.
        digest: of all that decides what the vectors are.
        settings: what :meth:`fit` was given besides the texts.
    """

    name = "tfidf"

    def __init__(self, terms: NDArray[np.uint64], counts: NDArray[np.int32], texts: int, dimension: int, seed: int):
        """Takes what :meth:`fit` has counted.

        Args:
            terms: (T,) hashes of the terms, ascending.
            counts: (T,) in how many texts each is.
        """
        self.dimension, self.settings = dimension, {"dimension": dimension, "seed": seed}
        self._terms, self._counts, self._texts, self._seed = terms, counts, texts, seed
        digest = blake2b(json.dumps([FORMAT, texts, dimension, seed]).encode(), digest_size=16)
        for values in (terms, counts):
            digest.update(np.ascontiguousarray(values).data)
        self.digest = digest.hexdigest()
        self._rarity, self._signs = lru_cache(KEPT)(self._look_up), lru_cache(KEPT)(self._draw)

    @classmethod
    def fit(
        cls,
        texts: Iterable[str],
        *,
        dimension: int = DIMENSION,
        seed: int = 0,
        progress: Callable[[int], None] | None = None,
    ) -> TfidfEncoder:
        """Counts the terms of a corpus; holds only the distinct ones in memory.

        Args:
            texts: read once.
            dimension: a multiple of 8.
            seed: of the projection.
            progress: receives the number of texts read.
        """
        if dimension < 8 or dimension % 8:
            raise ValueError(f"the dimension must be a multiple of 8, not {dimension}")
        terms, counts = np.empty(0, np.uint64), np.empty(0, np.int32)
        found: Counter[str] = Counter()
        read = 0
        for read, text in enumerate(texts, 1):
            found.update(set(analyze(text)))
            if len(found) >= MOST:
                terms, counts = _merge(terms, counts, found)
                found.clear()
            if progress and read % STRIDE == 0:
                progress(read)
        if progress:
            progress(read)
        return cls(*_merge(terms, counts, found), read, dimension, seed)

    def save(self, folder: Path) -> None:
        """Writes the counts, and the header last."""
        folder.mkdir(parents=True, exist_ok=True)
        write_array(folder / TERMS, self._terms)
        write_array(folder / COUNTS, self._counts)
        header = {"format": FORMAT, "texts": self._texts, "dimension": self.dimension, "seed": self._seed}
        write_whole(folder / HEADER, json.dumps(header | {"digest": self.digest}).encode() + b"\n")

    @classmethod
    def open(cls, folder: Path) -> TfidfEncoder:
        """Opens what :meth:`save` wrote.

        Raises:
            RetrievalError: the folder holds none, or it is damaged.
        """
        try:
            header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, not {FORMAT}")
            terms, counts = (np.load(folder / name, allow_pickle=False) for name in (TERMS, COUNTS))
            encoder = cls(terms, counts, header["texts"], header["dimension"], header["seed"])
            if encoder.digest != header["digest"]:
                raise ValueError("its files do not fit each other")
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise RetrievalError(f"{folder} holds no usable tf-idf encoder ({error}): build the index again") from error
        return encoder

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (len(texts), dimension); 0 for a text without a term of the corpus."""
        return self.encode_passages(texts)

    def encode_passages(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The same: questions and passages are read alike."""
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            counts = {term: count for term, count in Counter(analyze(text)).items() if self._rarity(term)}
            if not counts:
                continue
            weights = np.array([self._rarity(term) * (1 + math.log(count)) for term, count in counts.items()])
            bits = np.frombuffer(b"".join(map(self._signs, counts)), np.uint8).reshape(len(counts), -1)
            # A set bit is a 1, the others are -1: twice the sum over the set bits, less the whole sum.
            sums = 2 * (weights.astype(np.float32) @ np.unpackbits(bits, axis=1).astype(np.float32)) - weights.sum()
            vector[:] = sums / (np.linalg.norm(sums) or 1)
        return vectors

    def _look_up(self, term: str) -> float:
        """ln(1 + N / n); 0 for a term that no text has."""
        code = hash_terms([term])[0]
        row = int(np.searchsorted(self._terms, code))
        known = row < len(self._terms) and self._terms[row] == code
        return math.log(1 + self._texts / int(self._counts[row])) if known else 0.0

    def _draw(self, term: str) -> bytes:
        """The packed signs of a term."""
        return shake_128(f"{self._seed} {term}".encode("utf-8", "surrogatepass")).digest(self.dimension // 8)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._terms, self._counts, self._texts, self.dimension, self._seed)


def _merge(
    terms: NDArray[np.uint64], counts: NDArray[np.int32], found: Counter[str]
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """The sorted terms with those found since."""
    hashes = np.concatenate([terms, hash_terms(found)])
    merged, places = np.unique(hashes, return_inverse=True)
    weights = np.concatenate([counts, np.fromiter(found.values(), np.int32, len(found))])
    return merged, np.bincount(places, weights, minlength=len(merged)).astype(np.int32)


__all__ = ["DIMENSION", "TfidfEncoder"]
