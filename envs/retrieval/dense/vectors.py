"""The vectors of a corpus on disk, encoded in chunks by one process or several machines.

Every finished chunk is a file, which is renamed into place when it is complete. A killed build continues with the first
missing chunk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roleagent.envs.retrieval.dense.encoders import Encoder
from roleagent.envs.retrieval.passages import Passages, RetrievalError
from roleagent.files import write_array, write_whole

CHUNK = 2048  # passages
PIECE = 64  # passages that are encoded between two signs of progress: a few seconds on two cores
PLAN = "plan.json"


class Vectors:
    """A folder of chunks, for one corpus and one encoder.

    Args:
        folder: is made where there is none.
        corpus: the passages.
        encoder: how the encoder is named.

    Raises:
        RetrievalError: the folder holds vectors of another corpus or encoder.
    """

    def __init__(self, folder: Path, corpus: Passages, encoder: str):
        self.folder, self.corpus = folder, corpus
        self._begins = range(0, len(corpus), CHUNK)
        folder.mkdir(parents=True, exist_ok=True)
        self._settle(corpus=corpus.digest, chunk=CHUNK, encoder=encoder)

    def __len__(self) -> int:
        """Number of chunks, missing ones included."""
        return len(self._begins)

    def missing(self, shard: int = 0, shards: int = 1) -> list[int]:
        """The missing chunks, of every ``shards``-th from number ``shard`` on."""
        return [number for number in range(shard, len(self), shards) if not self._path(number).exists()]

    def encode(self, encoder: Encoder, numbers: Sequence[int], progress: Callable[[float], None]) -> None:
        """Makes some chunks.

        Args:
            progress: receives the share that is done.

        Raises:
            RetrievalError: the encoder has changed since the first chunk, or makes vectors that are none.
        """
        self._settle(digest=encoder.digest, dimension=encoder.dimension)
        for done, number in enumerate(numbers):
            rows, pieces = self._rows(number), []
            for begin in range(0, len(rows), PIECE):
                progress((done + begin / len(rows)) / len(numbers))
                texts = [self.corpus[row].contents for row in rows[begin : begin + PIECE]]
                pieces.append(encoder.encode_passages(texts))
            vectors = np.concatenate(pieces)
            if not np.isfinite(vectors).all():
                raise RetrievalError(f"{encoder.name} makes vectors that are not finite; check its weights")
            write_array(self._path(number), vectors)
        progress(1)

    def chunks(self) -> list[NDArray[np.float32]]:
        """All chunks, mapped.

        Raises:
            RetrievalError: one is missing or damaged.
        """
        dimension = self._plan()["dimension"]
        return [self._map(number, dimension) for number in range(len(self))]

    def _map(self, number: int, dimension: int) -> NDArray[np.float32]:
        path = self._path(number)
        try:
            vectors = np.load(path, mmap_mode="r", allow_pickle=False)
            if vectors.shape != (shape := (len(self._rows(number)), dimension)) or vectors.dtype != np.float32:
                raise ValueError(f"{vectors.dtype} {vectors.shape} instead of float32 {shape}")
        except (OSError, EOFError, ValueError) as error:
            raise RetrievalError(f"{path} is damaged ({error}): delete it and run the same command again") from error
        return vectors

    def _rows(self, number: int) -> range:
        begin = self._begins[number]
        return range(begin, min(begin + CHUNK, len(self.corpus)))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.npy"

    def _plan(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / PLAN).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise RetrievalError(f"{self.folder / PLAN} is damaged ({error}): delete {self.folder}") from error

    def _settle(self, **facts: Any) -> None:
        """Writes down what the vectors depend on, or holds it against what was written down."""
        plan = self._plan()
        for key, value in facts.items():
            if plan.setdefault(key, value) != value:
                raise RetrievalError(
                    f"{self.folder} holds vectors of another {key} ({plan[key]}, not {value}): delete it to begin anew"
                )
        write_whole(self.folder / PLAN, json.dumps(plan, indent=1).encode() + b"\n")


__all__ = ["CHUNK", "Vectors"]
