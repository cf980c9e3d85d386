"""A corpus of passages: a memory-mapped file with a line of JSON per passage.

A line is ``{"id": "7", "contents": "\\"Title\\"\\ntext"}`` or ``{"id": "7", "title": "Title", "text": "text"}``. Its
number, from 0, is the passage's *row* in every index over the corpus.

The first opening reads all of it once: each line must be a passage, each id must be unique, and the digest that ties
indexes to the corpus is taken. Of a large file the outcome is kept beside it, in the folder ``FILE.rows``.
"""

from __future__ import annotations

import json
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from roleagent.files import write_array, write_whole
from roleagent.options import user_path
from roleagent.sharing import Immutable

FORMAT = 1
HEADER, OFFSETS = "rows.json", "offsets.npy"
LONGEST = 1 << 24  # bytes of a line; beyond that the file is something else
SMALL = 1 << 25  # bytes of a file that is read again each time, in half a second, rather than kept notes about

# What packed files begin with, and what unpacks them.
_PACKED = {
    b"\xfd7zXZ\0": "xz -dc {0} > {1}",
    b"\x1f\x8b": "gzip -dc {0} > {1}",
    b"\x28\xb5\x2f\xfd": "zstd -dc {0} > {1}",
    b"BZh": "bzip2 -dc {0} > {1}",
    b"PK\x03\x04": "unzip -p {0} > {1}",
}


class RetrievalError(RuntimeError):
    """A search is not possible; the message is one line with the problem and the solution."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A titled piece of text.

    >>> Passage("7", "Lokma", "Fried dough.").contents
    '"Lokma"\\nFried dough.'
    """

    id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """Title and text as published corpora write them, and as encoders and indexes read them."""
        return f'"{self.title}"\n{self.text}'


class Passages(Immutable, Sequence[Passage]):
    """The passages of a file, in its order; pickles as its path.

    >>> corpus = Passages.of([Passage("7", "Lokma", "Fried dough."), Passage("8", "Sherbet", "A drink.")])
    >>> len(corpus), corpus[1].title
    (2, 'Sherbet')

    Attributes:
        path: the file; None where the passages are held in memory.
        digest: of the corpus' bytes.
    """

    def __init__(self, data: mmap.mmap | bytes, offsets: NDArray[np.int64], digest: str, path: Path | None = None):
        """Takes what :meth:`open` or :meth:`of` has checked.

        Args:
            data: the lines.
            offsets: (N + 1,), where each line begins, and where the last one ends.
        """
        self.path, self.digest = path, digest
        self._data, self._offsets = data, offsets

    @classmethod
    def open(cls, path: str | Path) -> Passages:
        """Maps a corpus.

        Raises:
            RetrievalError: the file cannot be read or is packed, a line is no passage (its number is named), or an id
                occurs twice.
        """
        path = user_path(path)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                _refuse_packed(file, path)
                seen = {"format": FORMAT, "size": status.st_size, "modified": status.st_mtime_ns}
                folder = path.with_name(f"{path.name}.rows")
                known = _kept(folder, seen)
                offsets, digest = known or _scan(file, str(path))
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise RetrievalError(f"{path}: cannot be read ({error.strerror}); check the path") from error
        if known is None and status.st_size > SMALL:
            with suppress(OSError):  # a folder that cannot be written to: the file is read again next time
                _keep(folder, seen, offsets, digest)
        return cls(data, offsets, digest, path)

    @classmethod
    def of(cls, passages: Iterable[Passage]) -> Passages:
        """A corpus in memory; its digest is that of the file that :meth:`write` would make of it.

        Raises:
            RetrievalError: there is no passage, or an id occurs twice.
        """
        data = b"".join(map(_line, passages))
        return cls(data, *_scan(BytesIO(data), "these passages"))

    def write(self, path: str | Path) -> None:
        """Writes the corpus as a file of JSON lines."""
        Path(path).write_bytes(self._data)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return type(self), (self._data, self._offsets, self.digest)
        return type(self).open, (self.path,)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Passage:  # type: ignore[override] - no slices
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} passages")
        return _parse(self._data[self._offsets[row] : self._offsets[row + 1]])

    def __iter__(self) -> Iterator[Passage]:
        return map(self.__getitem__, range(len(self)))

    @property
    def size(self) -> int:
        """Bytes of all lines."""
        return len(self._data)

    @property
    def ids(self) -> Sequence[str]:
        """The ids of all passages, read when asked for."""
        return _Ids(self)


class _Ids(Sequence[str]):
    def __init__(self, corpus: Passages):
        self._corpus = corpus

    def __len__(self) -> int:
        return len(self._corpus)

    def __getitem__(self, row: int) -> str:  # type: ignore[override] - no slices
        return self._corpus[row].id


def _parse(line: bytes) -> Passage:
    """The passage on a line.

    Raises:
        ValueError: there is none; explains why.
    """
    record = json.loads(line.decode("utf-8-sig"))  # with the mark that some editors put before a text
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    passage = passage_of(record)
    if b"\\u" in line:  # it may name half of a character, which no encoder takes
        passage = Passage(*map(_whole, (passage.id, passage.title, passage.text)))
    return passage


def passage_of(record: dict[str, Any]) -> Passage:
    """The passage in a line of a corpus or in a server's answer.

    >>> passage_of({"id": 7, "contents": '"Lokma"\\nFried dough.'})
    Passage(id='7', title='Lokma', text='Fried dough.')

    Raises:
        ValueError: it is none.
    """
    name = record.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError("no id" if name is None else f"an id that is neither text nor number: {name!r:.50}")
    if isinstance(contents := record.get("contents"), str):
        title, separator, text = contents.partition("\n")
        if not separator:
            title, text = "", contents
        elif len(title) > 1 and title[0] == title[-1] == '"':
            title = title[1:-1]
    elif isinstance(text := record.get("text"), str) and isinstance(title := record.get("title", ""), str):
        pass
    else:
        raise ValueError("neither contents nor title and text")
    return Passage(str(name), title, text)


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _line(passage: Passage) -> bytes:
    record = {"id": _whole(passage.id), "title": _whole(passage.title), "text": _whole(passage.text)}
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _scan(file: BinaryIO, name: str) -> tuple[NDArray[np.int64], str]:
    """Reads all lines; returns where they begin and the digest of the whole."""
    file.seek(0)
    offsets, ids, digest, end = array("q", [0]), array("Q"), blake2b(digest_size=16), 0
    while line := file.readline(LONGEST):
        number = len(offsets)
        if len(line) == LONGEST:
            raise RetrievalError(f"{name}, line {number}: longer than {LONGEST >> 20} MB; is it a file of JSON lines?")
        try:
            passage = _parse(line)
        except (ValueError, RecursionError) as error:
            why = "it is empty" if not line.strip() else str(error)
            raise RetrievalError(f"{name}, line {number}: no passage ({why}); correct or remove the line") from error
        digest.update(line)
        end += len(line)
        offsets.append(end)
        ids.append(int.from_bytes(blake2b(passage.id.encode(), digest_size=8).digest(), "little"))
    if not ids:
        raise RetrievalError(f"{name}: there is no passage in it")
    _refuse_twins(np.frombuffer(ids, dtype=np.uint64), name)
    return np.frombuffer(offsets, dtype=np.int64), digest.hexdigest()


def _refuse_twins(hashes: NDArray[np.uint64], name: str) -> None:
    """Eight bytes for an id: among a hundred million passages two differing ones meet once in 3,700 corpora."""
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    if len(twins):
        first = twins[np.argmin(order[twins + 1])]
        more = f", and so have {len(twins) - 1} more" if len(twins) > 1 else ""
        raise RetrievalError(
            f"{name}: lines {order[first] + 1} and {order[first + 1] + 1} have the same id{more}; ids must be unique"
        )


def _refuse_packed(file: BinaryIO, path: Path) -> None:
    head = file.read(8)
    for magic, form in _PACKED.items():
        if head.startswith(magic):
            target = path.stem if path.suffix and "." in path.stem else f"{path.stem}.jsonl"
            raise RetrievalError(f"{path} is packed; unpack it first: {form.format(quote(str(path)), quote(target))}")


def _kept(folder: Path, seen: dict[str, Any]) -> tuple[NDArray[np.int64], str] | None:
    """What was kept about this very file."""
    try:
        header = json.loads((folder / HEADER).read_text(encoding="utf-8"))
        if header["file"] == seen:
            offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)
            if offsets.dtype == np.int64 and len(offsets) == header["passages"] + 1 and offsets[-1] == seen["size"]:
                return np.asarray(offsets), header["digest"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        pass  # there are no notes, or half of them: the file is read again
    return None


def _keep(folder: Path, seen: dict[str, Any], offsets: NDArray[np.int64], digest: str) -> None:
    folder.mkdir(exist_ok=True)
    write_array(folder / OFFSETS, offsets)
    header = {"file": seen, "passages": len(offsets) - 1, "digest": digest}
    write_whole(folder / HEADER, json.dumps(header).encode() + b"\n")


__all__ = ["Passage", "Passages", "RetrievalError", "passage_of"]
