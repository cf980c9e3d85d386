"""FAISS indexes for the nearest vectors by inner product, in four kinds.

=============  =======================================  =====================  =========================================
kind           what it is                               bytes a vector, d=768  when
=============  =======================================  =====================  =========================================
flat           exact search                             3,072                  up to some 200,000 passages
hnsw           a graph over vectors of a byte a number  1,040                  more of them, all in memory
ivf-sq8        lists of vectors of a byte a number        784                  built fast, read from disk
ivf-rabitq     lists of vectors of a bit a number, the    892, 124 of them     tens of millions on little memory
               best ones scored again with bytes        resident
=============  =======================================  =====================  =========================================

Vectors have length 1, or are 0; those of an encoder for dot products have any length. Indexes are mapped from their
file: processes share it, and opening takes no time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.sharing import Immutable

try:
    import faiss
except ImportError as error:
    raise DependencyNotInstalled(f"dense indexes need FAISS ({error}): pip install 'roleagent[dense]'") from error

KINDS = ("flat", "hnsw", "ivf-rabitq", "ivf-sq8")
MOST_LISTS = 1 << 16
MANY_LISTS = 1 << 12  # from here on, a graph over the lists finds the nearest ones
SAMPLE = 40  # vectors a list to learn the lists from; FAISS warns below 39
REFINED = 30  # candidates of ivf-rabitq that are scored again


def lists_for(count: int) -> int:
    """The number of lists of an index over ``count`` vectors: a power of two; 128 to 255 vectors per list if possible.

    >>> [lists_for(count) for count in (1, 20_000, 400_000, 21_015_324)]
    [1, 128, 2048, 65536]
    """
    return min(1 << max(0, (count // 128).bit_length() - 1), MOST_LISTS)


def effort_for(kind: str, count: int) -> int:
    """The default effort of a search: candidates kept (hnsw) or lists read (ivf).

    Recall falls as an index grows; these hold it near 0.98 among the best three on vectors as encoders make them.

    >>> effort_for("hnsw", 100_000), effort_for("hnsw", 400_000), effort_for("ivf-sq8", 1000), effort_for("flat", 9)
    (64, 128, 4, 0)
    """
    if kind == "flat":
        return 0
    if kind == "hnsw":
        return 64 if count <= 200_000 else 128
    return min(64, lists_for(count))


def bytes_for(kind: str, dimension: int) -> int:
    """About how many bytes of a file a vector takes.

    >>> [bytes_for(kind, 768) for kind in KINDS]
    [3072, 1040, 892, 784]
    """
    return {"flat": 4 * dimension, "hnsw": dimension + 272, "ivf-rabitq": dimension + dimension // 8 + 28}.get(
        kind, dimension + 16
    )


class DenseIndex(Immutable):
    """An immutable index over vectors; threads may share it.

    Args:
        index: FAISS' own.
        kind: one of :data:`KINDS`.
        effort: see :func:`effort_for`; None: its result.
        threads: for one search; None: as many as the calling thread has been given.
    """

    def __init__(self, index: faiss.Index, kind: str, effort: int | None = None, threads: int | None = None):
        if kind not in KINDS:
            raise RetrievalError(f"{kind!r} is no kind of index; there are {', '.join(KINDS)}")
        if effort is not None and effort < 1:
            raise RetrievalError(f"the effort of a search must be at least 1, not {effort}")
        self.kind, self.threads = kind, threads
        self.effort = effort_for(kind, index.ntotal) if effort is None else effort
        self._index = index
        if kind == "flat":
            # FAISS would compare a handful of questions with all vectors one by one. The threshold is in numbers from
            # 1.13 on (it was in questions, and low, before).
            cvar = faiss.cvar
            cvar.distance_compute_blas_threshold = min(cvar.distance_compute_blas_threshold, 4 * index.d)

    @classmethod
    def build(
        cls,
        kind: str,
        chunks: Sequence[NDArray[np.float32]],
        *,
        progress: Callable[[str, float], None] = lambda what, share: None,
    ) -> DenseIndex:
        """Indexes the vectors of all chunks, in their order; the finished index is held in memory.

        With one thread the outcome depends on the vectors alone, and that of hnsw on the chunks, too; with more
        threads hnsw comes out a little different every time.

        Args:
            chunks: arrays (n, d), read twice at most.
            progress: receives the current step and its progress in [0, 1].
        """
        if kind not in KINDS:
            raise RetrievalError(f"{kind!r} is no kind of index; there are {', '.join(KINDS)}")
        count, dimension = sum(map(len, chunks)), chunks[0].shape[1]
        lists = lists_for(count)
        index = faiss.index_factory(dimension, _factory(kind, lists), faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            progress("learning lists", 0)
            index.train(_sample(chunks, count, max(lists * SAMPLE, 10_000)))
            progress("learning lists", 1)
        for chunk in chunks:
            index.add(np.ascontiguousarray(chunk))
            progress("indexing", index.ntotal / count)
        return cls(index, kind)

    def save(self, path: Path) -> None:
        """Writes the index atomically.

        Raises:
            RetrievalError: it could not be written.
        """
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            faiss.write_index(self._index, str(part))
            os.replace(part, path)
        except (RuntimeError, OSError) as error:
            part.unlink(missing_ok=True)
            reason = str(error).strip().splitlines()[-1]
            raise RetrievalError(f"{path} cannot be written ({reason}); is the disk full?") from error

    @classmethod
    def open(cls, path: Path, kind: str, effort: int | None = None, threads: int | None = None) -> DenseIndex:
        """Maps a saved index.

        Raises:
            RetrievalError: the file is none.
        """
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RetrievalError(f"{path} is no usable index ({reason}): build it again") from error
        return cls(index, kind, effort, threads)

    def __len__(self) -> int:
        return self._index.ntotal

    @property
    def dimension(self) -> int:
        """Of the vectors."""
        return self._index.d

    def search(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The best ``k`` rows for each vector, best first.

        Returns:
            Scores and rows, both (len(vectors), k); a row of -1 means that no more were found.
        """
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise RetrievalError(f"this index needs vectors of {self.dimension} numbers, not {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise RetrievalError("the encoder made vectors that are not finite; check its weights")
        if self.threads is not None:
            faiss.omp_set_num_threads(self.threads)  # a setting of the calling thread, not of the process
        if not len(vectors):
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return self._index.search(vectors, k, params=self._parameters(k))

    def _parameters(self, k: int) -> Any:
        engine: Any = faiss  # gets these classes' arguments as it is imported
        if self.kind == "flat":
            return None
        if self.kind == "hnsw":
            return engine.SearchParametersHNSW(efSearch=max(self.effort, k))
        among = engine.SearchParametersHNSW(efSearch=2 * self.effort) if lists_for(len(self)) > MANY_LISTS else None
        inverted = engine.SearchParametersIVF(nprobe=self.effort, quantizer_params=among)
        if self.kind == "ivf-sq8":
            return inverted
        return engine.IndexRefineSearchParameters(k_factor=max(REFINED / k, 2), base_index_params=inverted)


def read_published(path: Path) -> tuple[faiss.Index, str]:
    """Maps a FAISS file that another program wrote; its index, and the kind that it is.

    Raises:
        RetrievalError: it is no FAISS file, or neither flat nor HNSW with inner products.
    """
    try:
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise RetrievalError(f"{path} is no FAISS file ({str(error).strip().splitlines()[-1]})") from error
    kinds = ((faiss.IndexFlat, "flat"), (faiss.IndexHNSW, "hnsw"))
    kind = next((name for kind, name in kinds if isinstance(index, kind)), None)
    if kind is None or index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise RetrievalError(f"{path} is a {type(index).__name__}: only flat and HNSW with inner products open")
    return index, kind


def _factory(kind: str, lists: int) -> str:
    """FAISS' name of an index."""
    inverted = f"IVF{lists}_HNSW32" if lists > MANY_LISTS else f"IVF{lists}"
    return {
        "flat": "Flat",
        "hnsw": "HNSW32_SQ8",
        "ivf-sq8": f"{inverted},SQ8",
        "ivf-rabitq": f"{inverted},RaBitQfs,Refine(SQ8)",
    }[kind]


def _sample(chunks: Sequence[NDArray[np.float32]], count: int, size: int) -> NDArray[np.float32]:
    """Some of the vectors, the same ones every time."""
    rows = np.arange(count)
    if size < count:
        rows = np.sort(np.random.default_rng(0).choice(count, size, replace=False))
    begins = np.cumsum([0, *map(len, chunks)])
    places = np.searchsorted(rows, begins)
    parts = (
        chunk[rows[first:last] - begin]
        for chunk, begin, first, last in zip(chunks, begins, places[:-1], places[1:], strict=False)
    )
    return np.concatenate(list(parts))


__all__ = ["KINDS", "DenseIndex", "bytes_for", "effort_for", "lists_for", "read_published"]
