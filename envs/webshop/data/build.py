"""Builds a store (:mod:`roleagent.envs.webshop.data.store`) from official files of any size.

Nothing is held in memory but the entry at hand: requests go into an SQLite file first, to be joined by asin; products
are read, cleaned and written one by one; the search index comes last. Every few thousand entries the place reached is
noted down in one transaction, so that a build that was killed goes on from there.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.envs.retrieval.lexical.bm25 import BM25
from roleagent.envs.webshop.data.catalogue import Catalogue, column_row, count_attributes, digest_of
from roleagent.envs.webshop.data.json_stream import elements, members
from roleagent.envs.webshop.data.official import Files, find_files
from roleagent.envs.webshop.data.product import CatalogueError, NotAProduct, asin_of, clean
from roleagent.envs.webshop.data.store import (
    ASINS,
    ATTRIBUTES,
    FOLDER,
    FORMAT,
    INDEX,
    LINES,
    MANIFEST,
    ORDER,
    POSITIONS,
    ROW,
    ROWS,
    StoreShelf,
    open_store,
)
from roleagent.envs.webshop.engine.goals import shuffled
from roleagent.files import write_array, write_whole

WORK = "build.sqlite"
CHECKPOINT = 5000  # entries

Progress = Callable[[str, float], None]
"""Receives the current step and its progress in [0, 1]."""

_OPENING = (
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",  # from the first transaction until it is closed: one build at a time
    "BEGIN EXCLUSIVE",
    "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE IF NOT EXISTS said (asin TEXT, kind TEXT, value TEXT, PRIMARY KEY (asin, kind)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS seen (asin TEXT PRIMARY KEY) WITHOUT ROWID",
    "COMMIT",
)


def build_store(data: Path, out: Path | None = None, progress: Progress = lambda what, share: None) -> Catalogue:
    """Builds the store of a data folder or continues an interrupted build; does nothing if the store exists.

    Args:
        data: a folder with official files, or the file of products itself where there are several.
        out: the store's folder; None: ``webshop.store`` beside the data.
        progress: receives the progress.

    Returns:
        The finished catalogue.

    Raises:
        CatalogueError: the input is missing or broken, or another build is at work on the same store.
    """
    files = find_files(data)
    folder = out or files.items.parent / FOLDER
    fingerprints = files.fingerprints()
    if (folder / MANIFEST).is_file():
        try:
            catalogue = open_store(folder)
            if catalogue.digest == digest_of(fingerprints, None):
                return catalogue
        except CatalogueError:
            pass  # of other files, or damaged: built anew
        (folder / MANIFEST).unlink()
    folder.mkdir(parents=True, exist_ok=True)
    with closing(_Work(folder, fingerprints)) as work:
        work.read_requests(files, progress)
        work.read_products(files, progress)
        _finish(folder, progress)
        _write_manifest(folder, work, fingerprints, files.items.parent)
    (folder / WORK).unlink()
    return open_store(folder)


class _Work:
    """What a build knows while it is under way; survives being killed."""

    def __init__(self, folder: Path, fingerprints: dict[str, Any]):
        self._folder = folder
        self._db = sqlite3.connect(folder / WORK, isolation_level=None, timeout=1)
        try:
            # A kill loses nothing this way, a power cut may: the check of input or sizes detects it.
            for statement in _OPENING:
                self._db.execute(statement)
        except sqlite3.OperationalError as error:
            raise CatalogueError(f"another build is at work in {folder} ({error}); wait for it") from error
        except sqlite3.DatabaseError as error:
            raise CatalogueError(f"{folder / WORK} is damaged ({error}): delete it and build again") from error
        if self.get("input") != fingerprints:
            self._begin()
            for table in ("state", "said", "seen"):
                self._db.execute(f"DELETE FROM {table}")
            self._set(input=fingerprints, place=_START)
            self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()

    def get(self, key: str) -> Any:
        row = self._db.execute("SELECT value FROM state WHERE key = ?", (key,)).fetchone()
        return row and json.loads(row[0])

    def _set(self, **values: Any) -> None:
        pairs = ((key, json.dumps(value)) for key, value in values.items())
        self._db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", pairs)

    def _begin(self) -> None:
        self._db.execute("BEGIN")

    def read_requests(self, files: Files, progress: Progress) -> None:
        """Stores the requests of every asin."""
        paths = {kind: path for kind, path in (("notes", files.notes), ("human", files.human)) if path is not None}
        total, before = sum(path.stat().st_size for path in paths.values()), 0
        for kind, path in paths.items():
            if not self.get(kind):
                self._begin()
                for number, (offset, asin, value) in enumerate(members(path)):
                    if asin.isascii():  # no product has another
                        said = (asin, kind, json.dumps(value))
                        self._db.execute("INSERT OR REPLACE INTO said VALUES (?, ?, ?)", said)
                    if number % CHECKPOINT == 0:
                        progress("reading requests", (before + offset) / total)
                self._set(**{kind: True})
                self._db.execute("COMMIT")
            before += path.stat().st_size
        progress("reading requests", 1)

    def read_products(self, files: Files, progress: Progress) -> None:
        """Writes cleaned products and their rows, from the place where the last checkpoint was."""
        place = self.get("place")
        skipped = Counter(place["skipped"])
        size = files.items.stat().st_size
        with (
            _continued(self._folder / LINES, place["bytes"]) as lines,
            _continued(self._folder / ROWS, place["products"] * ROW.itemsize) as rows,
        ):

            def checkpoint(offset: int) -> None:
                lines.flush()
                rows.flush()
                place.update(offset=offset, bytes=lines.tell(), products=rows.tell() // ROW.itemsize, skipped=skipped)
                self._set(place=place)
                self._db.execute("COMMIT")

            self._begin()
            if not place["done"]:
                for offset, entry in elements(files.items, place["offset"]):
                    place["entries"] += 1
                    try:
                        self._write(entry, place["entries"], lines, rows)
                    except NotAProduct as reason:
                        skipped[str(reason)] += 1
                    if place["entries"] % CHECKPOINT == 0:
                        checkpoint(offset)
                        progress("reading products", offset / size)
                        self._begin()
            place["done"] = True
            checkpoint(place["offset"])
            progress("reading products", 1)
        if not place["products"]:
            raise CatalogueError(f"{files.items} holds no product that can be sold; check the data ({dict(skipped)})")

    def _write(self, entry: Any, number: int, lines: Any, rows: Any) -> None:
        asin = asin_of(entry)
        if not self._db.execute("INSERT OR IGNORE INTO seen VALUES (?)", (asin,)).rowcount:
            raise NotAProduct("asin seen before")
        said = dict(self._db.execute("SELECT kind, value FROM said WHERE asin = ?", (asin,)))
        notes, human = (json.loads(said.get(kind, "null")) for kind in ("notes", "human"))
        product = clean(entry, notes, human)
        lines.write(json.dumps(product.row(), separators=(",", ":")).encode() + b"\n")
        low, high, asked, combinations, requests = column_row(product)
        row = (asin.encode(), number, lines.tell(), (low, high), asked, combinations, requests)
        rows.write(np.array(row, dtype=ROW).tobytes())


_START = {"offset": 0, "entries": 0, "products": 0, "bytes": 0, "skipped": {}, "done": False}


def _continued(path: Path, size: int) -> Any:
    """The file, cut to what the last checkpoint knows of, open at its end."""
    if not size:
        path.unlink(missing_ok=True)  # processes that mapped the old file keep it
    with path.open("ab") as file:
        file.truncate(size)
    return path.open("ab")


def _finish(folder: Path, progress: Progress) -> None:
    """Writes all that is read off the finished products."""
    rows = np.memmap(folder / ROWS, dtype=ROW, mode="r")
    progress("putting in order", 0)
    positions = np.argsort(rows["asin"], kind="stable").astype(np.int32)
    write_array(folder / POSITIONS, positions)
    write_array(folder / ASINS, np.ascontiguousarray(rows["asin"][positions]))
    progress("putting in order", 0.3)
    write_array(folder / ORDER, np.asarray(shuffled(int(rows["combinations"].sum())), dtype=np.int32))
    progress("putting in order", 0.7)
    shelf = StoreShelf(folder)
    asked = (shelf.read(position) for position in np.flatnonzero(rows["asked"]).tolist())
    write_whole(folder / ATTRIBUTES, json.dumps(count_attributes(asked)))
    progress("putting in order", 1)

    def documents() -> Iterator[str]:
        for position in range(len(shelf)):
            if position % CHECKPOINT == 0:
                progress("indexing", position / len(shelf))
            yield shelf.read(position).document

    BM25.build(shelf.asins, documents(), folder=folder / INDEX)
    progress("indexing", 1)


def _write_manifest(folder: Path, work: _Work, fingerprints: dict[str, Any], source: Path) -> None:
    place = work.get("place")
    names = (LINES, ROWS, ASINS, POSITIONS, ORDER, ATTRIBUTES)
    manifest = {
        "format": FORMAT,
        "input": fingerprints,
        "source": str(source.absolute()),
        "entries": place["entries"],
        "products": place["products"],
        "skipped": place["skipped"],
        "sizes": {name: (folder / name).stat().st_size for name in names},
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


__all__ = ["build_store"]
