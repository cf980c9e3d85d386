"""The official data files: which ones belong together, and how changes are detected.

A data folder holds ``items_shuffle*.json`` (a list of products), ``items_ins_v2*.json`` (per asin: attributes and a
synthetic request) and, for human goals, ``items_human_ins*.json`` (per asin: requests that people wrote). A number in
the name, as in ``items_shuffle_1000.json``, means that the file holds only the first so many products.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roleagent.envs.webshop.data.json_stream import elements, members
from roleagent.envs.webshop.data.product import CatalogueError

ITEMS, NOTES, HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"
BLOCK = 1 << 16  # bytes
BLOCKS = 64  # of a file that its fingerprint reads: all of it up to 4 MiB


@dataclass(frozen=True)
class Files:
    """The files of one catalogue; ``human`` is None without human goals."""

    items: Path
    notes: Path
    human: Path | None

    def fingerprints(self) -> dict[str, list[Any]]:
        """Name, size and digest of every file."""
        return {
            kind: [path.name, *fingerprint(path)]
            for kind, path in (("items", self.items), ("notes", self.notes), ("human", self.human))
            if path is not None
        }


def find_files(data: Path, num_products: int | None = None) -> Files:
    """The files in a data folder, or those that go with a file of products.

    Args:
        data: a folder, or the file of products itself where a folder holds more than one.
        num_products: how many products are wanted: the smallest file that has them is chosen.

    Raises:
        CatalogueError: a file is missing, or it is unclear which one is meant.
    """
    if not data.exists():
        raise CatalogueError(f"{data} does not exist: point data_dir or WEBSHOP_DATA at the folder with {ITEMS}*.json")
    folder = data if data.is_dir() else data.parent
    items = data if data.is_file() else _choose_items(folder, num_products)
    notes = _companion(folder, NOTES, items)
    if notes is None:
        raise CatalogueError(
            f"no {NOTES}*.json in {folder}: it belongs to {items.name}; get the data set's other files"
        )
    return Files(items, notes, _companion(folder, HUMAN, items))


def _choose_items(folder: Path, num_products: int | None) -> Path:
    found = sorted(folder.glob(f"{ITEMS}*.json"))
    if not found:
        raise CatalogueError(f"no {ITEMS}*.json in {folder}: data_dir is the folder with the official product files")
    enough = [path for path in found if num_products is None or (_number(path) or num_products) >= num_products]
    if num_products is not None and enough:
        fewest = min(_number(path) or float("inf") for path in enough)
        enough = [path for path in enough if (_number(path) or float("inf")) == fewest]
    if len(enough) == 1:
        return enough[0]
    names = ", ".join(path.name for path in found)
    if not enough:
        raise CatalogueError(f"{folder}: {names} hold fewer than num_products={num_products} products; ask for fewer")
    raise CatalogueError(f"{folder} holds {names}: say which by num_products, or by the file's path as data_dir")


def _companion(folder: Path, kind: str, items: Path) -> Path | None:
    """The file of ``kind`` that goes with the file of products: that with its number, else that with none."""
    found = sorted(folder.glob(f"{kind}*.json"))
    for number in (_number(items), None):
        fitting = [path for path in found if _number(path) == number]
        if len(fitting) == 1:
            return fitting[0]
    if len(found) == 1:
        return found[0]
    if not found:
        return None
    names = ", ".join(path.name for path in found)
    raise CatalogueError(f"{folder} holds {names}, none clearly that of {items.name}: move the others elsewhere")


def _number(path: Path) -> int | None:
    """The number of products that a file's name promises.

    >>> [_number(Path(name)) for name in ("items_shuffle_1000.json", "items_ins_v2.json", "items_ins_v2_1000.x.json")]
    [1000, None, 1000]
    """
    match = re.search(r"_(\d+)\b", path.name)
    return int(match[1]) if match else None


def fingerprint(path: Path) -> tuple[int, str]:
    """Size in bytes, and SHA-256 (hex, first 16 digits) of blocks spread over the file: quick for any size.

    Raises:
        CatalogueError: the file cannot be read.
    """
    try:
        size = path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with path.open("rb") as file:
            for block in range(BLOCKS):
                file.seek(max(0, size - BLOCK) * block // (BLOCKS - 1) if size > BLOCK * BLOCKS else block * BLOCK)
                digest.update(file.read(BLOCK))
    except OSError as error:
        raise CatalogueError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error
    return size, digest.hexdigest()[:16]


def read_entries(files: Files, num_products: int | None = None) -> Iterator[Any]:
    """The first ``num_products`` raw entries of the file of products."""
    for number, (_, entry) in enumerate(elements(files.items)):
        if number == num_products:
            return
        yield entry


def read_members(path: Path | None, asins: set[str]) -> dict[str, Any]:
    """The data of these asins in a file; empty without a file."""
    return {} if path is None else {asin: value for _, asin, value in members(path) if asin in asins}


def data_place(data_dir: str | os.PathLike[str] | None) -> str:
    """The source of the products: a folder, a file, or ``"generated"``.

    Args:
        data_dir: any of these; ``"official"``: what ``WEBSHOP_DATA`` names, and nothing else will do; None: as
            ``"official"`` where it is set, else as ``"generated"``.

    Raises:
        CatalogueError: official files are required but not configured.
    """
    named = os.environ.get("WEBSHOP_DATA")
    if data_dir == "official" and not named:
        raise CatalogueError(
            "official WebShop files are demanded, but WEBSHOP_DATA does not say where they are: set it to their folder"
        )
    return os.fspath(data_dir) if data_dir and data_dir != "official" else named or "generated"


__all__ = ["Files", "data_place", "find_files", "fingerprint", "read_entries", "read_members"]
