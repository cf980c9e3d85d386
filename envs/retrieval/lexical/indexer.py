"""Builds a full-text index in one pass over the texts, with bounded memory.

Occurrences are collected, sorted by term and document and stored as a run; on disk if the index is built in a folder.
At the end the runs are merged. Memory holds one run, the distinct terms and the ids.
"""

from __future__ import annotations

import shutil
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.retrieval.lexical.postings import HEADER, Postings, hash_terms

# Occurrences per run: some 100 MB of memory while one is sorted.
RUN = 1 << 21
# Documents between two calls of the progress callback.
STRIDE = 1000


def _lengths() -> NDArray[np.int64]:
    """The 256 document lengths (in terms) that Lucene's norm byte can say: all up to 40, then to four binary digits.

    A byte counts 24 lengths singly; the rest are 24 plus floats with a mantissa of three bits and a hidden one.
    """
    floats = [code if code < 8 else (8 | code & 7) << ((code >> 3) - 1) for code in range(256 - 24)]
    return np.array([*range(24), *(24 + value for value in floats)], dtype=np.int64)


LENGTHS = _lengths()


def build(
    ids: Sequence[str],
    texts: Iterable[str],
    *,
    k1: float = 0.9,
    b: float = 0.4,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Postings:
    """Indexes one text per id.

    Args:
        ids: distinct; their order by code points decides between documents that score the same.
        texts: as many; read once.
        k1: how slowly repetitions of a term saturate, above 0.
        b: how much long documents are discounted, 0 to 1.
        folder: where the index is to lie; None builds it in memory.
        progress: receives the number of documents read.

    Raises:
        ValueError: an id occurs twice, texts and ids differ in number, or k1 or b is out of range.
    """
    if not (k1 > 0 and 0 <= b <= 1):
        raise ValueError(f"BM25 needs k1 > 0 and b from 0 to 1, not k1 = {k1}, b = {b}")
    ranks = _ranks(ids)
    scratch = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HEADER).unlink(missing_ok=True)  # no index until it is complete again
        scratch = folder / "runs"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
    runs = _Runs(scratch)
    read = 0
    for text in texts:
        read += 1
        if read > len(ids):
            break
        runs.add(text)
        if progress and read % STRIDE == 0:
            progress(read)
    if read != len(ids):
        raise ValueError(f"{len(ids)} ids, but {'more' if read > len(ids) else f'only {read}'} texts")
    runs.close()
    if progress:
        progress(read)
    postings = _merge(runs, ranks, k1, b, folder)
    if folder is not None and scratch is not None:
        postings.save(folder)
        shutil.rmtree(scratch)
    return postings


class _Runs:
    """Sorted runs of (term, document) with what they weigh."""

    def __init__(self, scratch: Path | None) -> None:
        self.terms: defaultdict[str, int] = defaultdict()
        self.terms.default_factory = self.terms.__len__  # a new term gets the next number
        self.keys: list[NDArray[np.int64]] = []  # term << 32 | document, ascending
        self.pairs: list[NDArray[np.int64]] = []  # term frequency << 8 | norm byte of the document
        self.read = self.scored = self.occurrences = 0
        self._scratch = scratch
        self._found = array("i")
        self._counts = array("i")  # terms per document since the last run

    def add(self, text: str) -> None:
        terms = analyze(text)
        self._found.extend(map(self.terms.__getitem__, terms))
        self._counts.append(len(terms))
        if len(self._found) >= RUN:
            self.close()

    def close(self) -> None:
        """Ends a run."""
        counts = np.array(self._counts, dtype=np.int64)
        documents = np.repeat(np.arange(self.read, self.read + len(counts)), counts)
        found = np.array(self._found, dtype=np.int64) << 32
        keys, frequencies = np.unique(found | documents, return_counts=True)
        norms = np.searchsorted(LENGTHS, counts, side="right") - 1
        self._keep("keys", keys)
        self._keep("pairs", frequencies << 8 | norms[(keys & 0xFFFFFFFF) - self.read])
        self.occurrences += len(found)
        self.scored += int(np.count_nonzero(counts))
        self.read += len(counts)
        del self._found[:], self._counts[:]

    def _keep(self, kind: str, values: NDArray[np.int64]) -> None:
        runs = getattr(self, kind)
        if self._scratch is not None and len(values):
            path = self._scratch / f"{kind}-{len(runs)}.npy"
            np.save(path, values)
            values = np.load(path, mmap_mode="r")
        runs.append(values)


def _merge(runs: _Runs, ranks: NDArray[np.int32], k1: float, b: float, folder: Path | None) -> Postings:
    """Lays the postings of each term together, run by run: documents ascend within a term because they do over runs."""
    hashes = hash_terms(runs.terms)
    order = np.argsort(hashes)
    if len(order) and not np.diff(hashes[order]).all():
        raise ValueError("two terms have the same hash; this index cannot be built")
    row_of = np.empty_like(order)
    row_of[order] = np.arange(len(order))
    frequencies = np.zeros(len(order), dtype=np.int64)
    for keys in runs.keys:
        terms, _, counts = _terms_of(keys)
        frequencies[terms] += counts
    starts = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(frequencies[order], out=starts[1:])

    pairs = np.unique(np.concatenate([np.unique(pairs) for pairs in runs.pairs]))
    saturations = _saturations(pairs, runs, k1, b)
    total = int(starts[-1])
    documents = _array(folder, "documents", total, np.dtype(np.int32))
    codes = _array(folder, "codes", total, np.dtype(np.uint16 if len(pairs) <= 1 << 16 else np.uint32))
    peaks = np.ones(len(order), dtype=np.float32)
    free = starts[:-1].copy()  # by row: where the next posting goes
    for keys, weights in zip(runs.keys, runs.pairs, strict=True):
        terms, first, counts = _terms_of(keys)
        rows = row_of[terms]
        places = np.repeat(free[rows] - first, counts) + np.arange(len(keys))
        code = np.searchsorted(pairs, weights)
        documents[places] = keys & 0xFFFFFFFF
        codes[places] = code
        if len(keys):
            peaks[rows] = np.maximum(peaks[rows], np.maximum.reduceat(saturations[code], first))
        free[rows] += counts
    scored = np.array([runs.scored], dtype=np.int64)
    return Postings(hashes[order], starts, documents, codes, saturations, peaks, ranks, scored)


def _terms_of(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.intp]]:
    """The terms of a run, where the keys of each begin, and how many there are."""
    terms = keys >> 32
    first = np.flatnonzero(np.diff(terms, prepend=-1))
    return terms[first], first, np.diff(first, append=len(terms))


def _saturations(pairs: NDArray[np.int64], runs: _Runs, k1: float, b: float) -> NDArray[np.float32]:
    """1 + tf / (k1 (1 - b + b length / mean length)), operation by operation in single precision."""
    one, k1_, b_ = np.float32(1), np.float32(k1), np.float32(b)
    mean = np.float32(runs.occurrences / max(runs.scored, 1))
    with np.errstate(divide="ignore", invalid="ignore"):  # a length of 0, or no term at all
        inverse = one / (k1_ * ((one - b_) + b_ * LENGTHS.astype(np.float32) / mean))
    return one + (pairs >> 8).astype(np.float32) * inverse[pairs & 0xFF]


def _array(folder: Path | None, name: str, size: int, dtype: np.dtype) -> np.ndarray:
    if folder is None or size == 0:
        return np.empty(size, dtype)
    path = folder / f"{name}.npy"
    path.unlink(missing_ok=True)  # processes that mapped the old file keep it
    return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(size,))


def _ranks(ids: Sequence[str]) -> NDArray[np.int32]:
    """Each id's place among the sorted ids."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    for one, other in pairwise(order):
        if ids[one] == ids[other]:
            raise ValueError(f"the id {ids[one]!r} occurs twice")
    ranks = np.empty(len(ids), dtype=np.int32)
    ranks[order] = np.arange(len(ids), dtype=np.int32)
    return ranks


__all__ = ["LENGTHS", "build"]
