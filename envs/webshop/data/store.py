"""The store: a memory-mapped catalogue of any size.

A store is a folder, by default ``webshop.store`` beside the data files, written once by ``roleagent webshop
build`` (see :mod:`roleagent.envs.webshop.data.build`):

==================  ====================================================================================================
``store.json``      what it was made of, and how large the other files are; written last: without it there is no store
``products.jsonl``  one cleaned product per line
``products.rows``   a :data:`ROW` per product: where its line ends, its price, how many goals it gives
``asins.npy``       all asins in alphabetical order, and ``positions.npy`` where those products stand
``goal_order.npy``  the original's order of the synthetic goals
``attributes.json`` how many synthetic goals ask for an attribute
``bm25/``           the search index
==================  ====================================================================================================

All of it is mapped into memory read-only, so that processes share it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roleagent.envs.webshop.data.catalogue import Catalogue, Columns, digest_of
from roleagent.envs.webshop.data.official import find_files, fingerprint
from roleagent.envs.webshop.data.product import MAX_ASIN, CatalogueError, Product

FOLDER = "webshop.store"
MANIFEST = "store.json"
FORMAT = 1
LINES, ROWS = "products.jsonl", "products.rows"
ASINS, POSITIONS, ORDER, ATTRIBUTES, INDEX = "asins.npy", "positions.npy", "goal_order.npy", "attributes.json", "bm25"
ROW = np.dtype(
    [
        ("asin", f"S{MAX_ASIN}"),
        ("entry", "<u4"),  # how many entries of the data file had been read with this one
        ("end", "<u8"),  # of its line: bytes
        ("prices", "<f8", 2),
        ("asked", "?"),
        ("combinations", "<i8"),
        ("requests", "<i8"),
    ]
)
KEPT = 1024  # products that a process keeps, once read


class Asins(Sequence[str]):
    """The asins of all products in order."""

    def __init__(self, asins: npt.NDArray[np.bytes_]):
        self._asins = asins

    def __len__(self) -> int:
        return len(self._asins)

    def __getitem__(self, position: int) -> str:  # type: ignore[override] - no slices
        return self._asins[position].decode()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 1 << 16):
            for asin in self._asins[start : start + (1 << 16)].tolist():
                yield asin.decode()


class StoreShelf:
    """The first ``size`` products of a store; all of them where it is None."""

    def __init__(self, folder: Path, size: int | None = None):
        self._folder = folder
        self._lines = _map(folder / LINES)
        self._rows = np.memmap(folder / ROWS, dtype=ROW, mode="r")
        self._whole = size is None or size >= len(self._rows)
        self._rows = self._rows[:size]
        self._ends = self._rows["end"]
        self.asins: Sequence[str] = Asins(self._rows["asin"])
        self._sorted = np.load(folder / ASINS, mmap_mode="r")
        self._positions = np.load(folder / POSITIONS, mmap_mode="r")
        self.read = lru_cache(maxsize=KEPT)(self._read)

    def __len__(self) -> int:
        return len(self._rows)

    def _read(self, position: int) -> Product:
        start = int(self._ends[position - 1]) if position else 0
        return Product.from_row(json.loads(self._lines[start : int(self._ends[position])].decode()))

    def position(self, asin: str) -> int:
        if isinstance(asin, str) and asin.isascii() and asin.isprintable():
            place = int(np.searchsorted(self._sorted, asin.encode()))
            if place < len(self._sorted) and self._sorted[place] == asin.encode():
                position = int(self._positions[place])
                if position < len(self):
                    return position
        raise KeyError(asin)

    @property
    def columns(self) -> Columns:
        rows = self._rows
        return Columns(rows["prices"], rows["asked"], rows["combinations"], rows["requests"])

    @property
    def attribute_counts(self) -> Mapping[str, int] | None:
        """Counted while building, for all products together."""
        return json.loads((self._folder / ATTRIBUTES).read_text(encoding="utf-8")) if self._whole else None

    @property
    def goal_order(self) -> Sequence[int] | None:
        return np.load(self._folder / ORDER, mmap_mode="r") if self._whole else None  # type: ignore[return-value]


def find_store(data: Path, num_products: int | None = None) -> Path | None:
    """The store that serves a data folder or a file of products; None: there is none, or it serves another file."""
    if (data / MANIFEST).is_file():
        return data
    folder = (data if data.is_dir() else data.parent) / FOLDER
    if not (folder / MANIFEST).is_file():
        return None
    served = read_manifest(folder)["input"]["items"][0]
    if data.is_dir() and not (num_products and any(data.glob("items_shuffle*.json"))):
        return folder
    return folder if find_files(data, num_products).items.name == served else None


def open_store(folder: Path, num_products: int | None = None) -> Catalogue:
    """The catalogue of a store.

    Args:
        num_products: only the first so many entries of the file it was built from.

    Raises:
        CatalogueError: the store is damaged, or was built from other files than those beside it.
    """
    manifest = read_manifest(folder)
    check_input(folder, manifest)
    for name, size in (manifest["sizes"] | {INDEX: None}).items():
        path = folder / name
        if not path.exists() or size not in (None, path.stat().st_size):
            raise CatalogueError(f"{path} is damaged: delete {folder} and run `roleagent webshop build` again")
    entries = manifest["entries"]
    size = None
    if num_products is not None and num_products < entries:
        rows = np.memmap(folder / ROWS, dtype=ROW, mode="r")
        size = int(np.searchsorted(rows["entry"], num_products, "right"))
    return Catalogue(
        StoreShelf(folder, size),
        manifest["input"]["items"][0],
        digest_of(manifest["input"], num_products),
        manifest["skipped"] if size is None else {},
        folder if size is None else None,
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a store.

    Raises:
        CatalogueError: it cannot be read, or was written by another version of this program.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] == FORMAT and {"input", "source", "sizes", "entries", "skipped"} <= manifest.keys():
            return manifest
        newer = manifest["format"] > FORMAT
    except (OSError, ValueError, TypeError, KeyError):
        newer = False
    if newer:
        raise CatalogueError(f"{path} was written by a newer version of roleagent: use that version")
    raise CatalogueError(f"{path} is no manifest that this version reads: run `roleagent webshop build` again")


def check_input(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuses a store whose input has changed since. Files that are no longer there are not missed.

    Raises:
        CatalogueError: names the file that differs.
    """
    places = ([folder.parent] if folder.name == FOLDER else []) + [Path(manifest["source"])]
    for name, size, digest in manifest["input"].values():
        for path in (place / name for place in places):
            if path.is_file():
                if fingerprint(path) != (size, digest):
                    raise CatalogueError(
                        f"{folder} was built from another {name} than {path}: run `roleagent webshop build "
                        f"--data {path.parent}` again"
                    )
                break


def _map(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


__all__ = ["Asins", "StoreShelf", "check_input", "find_store", "open_store", "read_manifest"]
