"""The arrays of a full-text index: the documents of each term, and the weight of each occurrence.

They are in memory, or in a folder as memory-mapped ``.npy`` files: queries read only the pages they need, and processes
share them. The words are not stored: a term is found by its hash.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from roleagent.files import write_whole

FORMAT = 1
HEADER = "index.json"


@dataclass(frozen=True, eq=False)
class Postings:
    """T terms, P postings (a term in a document), N documents, C pairs of a term frequency and a length that occur.

    Attributes:
        terms: uint64 (T,), hashes of the terms, ascending.
        starts: int64 (T + 1,), where the postings of each term begin.
        documents: int32 (P,), positions of documents, ascending within a term.
        codes: uint16 or uint32 (P,), which of ``saturations`` belongs to a posting.
        saturations: float32 (C,), 1 + tf / (k1 (1 - b + b length / mean length)), above 1.
        peaks: float32 (T,), the largest saturation among the postings of a term.
        ranks: int32 (N,), each document's place in the order of the ids.
        scored: int64 (1,), number of documents that hold any term.
    """

    terms: NDArray[np.uint64]
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    codes: NDArray[np.uint16] | NDArray[np.uint32]
    saturations: NDArray[np.float32]
    peaks: NDArray[np.float32]
    ranks: NDArray[np.int32]
    scored: NDArray[np.int64]

    def save(self, folder: Path) -> None:
        """Writes the arrays, the header last: a folder without it is no index."""
        folder.mkdir(parents=True, exist_ok=True)
        header = folder / HEADER
        header.unlink(missing_ok=True)
        for name, values in self._arrays().items():
            path = folder / f"{name}.npy"
            if isinstance(values, np.memmap) and values.filename and Path(values.filename).resolve() == path.resolve():
                values.flush()  # it was built, or opened, there
                continue
            path.unlink(missing_ok=True)  # processes that mapped the old file keep it
            np.save(path, values, allow_pickle=False)
        shapes = {name: [values.dtype.str, *values.shape] for name, values in self._arrays().items()}
        write_whole(header, json.dumps({"format": FORMAT, "arrays": shapes}, indent=1).encode() + b"\n")

    @classmethod
    def open(cls, folder: Path) -> Postings:
        """Maps the arrays of a folder.

        Raises:
            ValueError: the folder holds no complete index of this format.
        """
        try:
            header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, not {FORMAT}")
            arrays = {item.name: _open(folder, item.name, header["arrays"][item.name]) for item in fields(cls)}
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{folder} holds no usable BM25 index ({error}): build it again") from error
        return cls(**arrays)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {item.name: getattr(self, item.name) for item in fields(self)}


def _open(folder: Path, name: str, shape: list) -> np.ndarray:
    path = folder / f"{name}.npy"
    empty = 0 in shape[1:]  # nothing to map
    values = np.load(path, mmap_mode=None if empty else "r", allow_pickle=False)
    if [values.dtype.str, *values.shape] != shape:
        raise ValueError(f"{path.name} is not the file that was written")
    return values


def hash_terms(terms: Iterable[str]) -> NDArray[np.uint64]:
    """One 64-bit number per term, the same in every process.

    >>> hash_terms(["shoe"]).tolist()
    [2333105135857528250]
    """
    digests = b"".join(blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest() for term in terms)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


__all__ = ["FORMAT", "HEADER", "Postings", "hash_terms"]
