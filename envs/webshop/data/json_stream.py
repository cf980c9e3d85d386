"""Reads a JSON file of any size one element at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from roleagent.envs.webshop.data.product import CatalogueError

CHUNK = 1 << 20  # bytes
LARGEST = 1 << 26  # characters of one element: beyond that a quotation mark is missing somewhere
_SPACE = re.compile(r"[\s\ufeff]*")  # and the mark that some editors put before a text
_NEAR = 16  # characters; an error so near to the end of what was read may be but the end


def elements(path: Path, start: int = 0) -> Iterator[tuple[int, Any]]:
    """The elements of a JSON list, each with the number of the byte after it.

    Args:
        start: 0, or such a number: then the elements after it are read.

    Raises:
        CatalogueError: the file cannot be read, is no complete JSON, or holds something else than a list.
    """
    with _open(path) as file:
        file.seek(start)
        reader = _Reader(file, path, start)
        if start == 0:
            reader.expect("[", "a JSON list")
        first = start == 0
        while reader.peek() != "]":
            if not first:
                reader.expect(",", "a comma")
            first = False
            value = reader.value()
            yield reader.offset, value
        reader.step()
        reader.end()


def members(path: Path) -> Iterator[tuple[int, str, Any]]:
    """The keys and values of a JSON object, each with the number of the byte after it.

    Raises:
        CatalogueError: the file cannot be read, is no complete JSON, or holds something else than an object.
    """
    with _open(path) as file:
        reader = _Reader(file, path, 0)
        reader.expect("{", "a JSON object")
        first = True
        while reader.peek() != "}":
            if not first:
                reader.expect(",", "a comma")
            first = False
            key = reader.value()
            reader.expect(":", "a colon")
            value = reader.value()
            yield reader.offset, str(key), value
        reader.step()
        reader.end()


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CatalogueError(
            f"{path}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


class _Reader:
    """A window on the text of a file, and the place in it."""

    def __init__(self, file: BinaryIO, path: Path, start: int):
        self._file, self._path = file, path
        self._bytes = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()
        self._text, self._at = "", 0
        self.offset = start
        """The number of the byte that comes next."""

    def peek(self) -> str:
        """The next character that is no white space; ``""`` at the end."""
        while True:
            space = _SPACE.match(self._text, self._at)
            self.step(space.end() - self._at if space else 0)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def step(self, characters: int = 1) -> None:
        passed = self._text[self._at : self._at + characters]
        self._at += characters
        self.offset += len(passed) if passed.isascii() else len(passed.encode())

    def expect(self, character: str, what: str) -> None:
        if self.peek() != character:
            raise self._broken(f"{what} is expected")
        self.step()

    def end(self) -> None:
        if self.peek():
            raise self._broken("the file goes on after its end")

    def value(self) -> Any:
        """Reads one value."""
        if not self.peek():
            raise self._broken("the file is cut short")
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _NEAR
                if not unfinished or len(self._text) - self._at > LARGEST or not self._more():
                    raise self._broken(error.msg) from error
            except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
                raise self._broken(str(error)) from error
            else:
                # A number at the end of the window may go on beyond it: "1." is read as 1.
                length = end - self._at
                if end + _NEAR <= len(self._text) or not self._more():
                    self.step(length)
                    return value

    def _more(self) -> bool:
        """Reads on; whether there was anything."""
        try:
            data = self._file.read(CHUNK)
            self._text = self._text[self._at :] + self._bytes.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise self._broken("not UTF-8") from error
        except OSError as error:
            raise CatalogueError(f"{self._path}: cannot be read ({error.strerror or error})") from error
        self._at = 0
        return bool(data)

    def _broken(self, why: str) -> CatalogueError:
        return CatalogueError(f"{self._path}: broken JSON at byte {self.offset} ({why}); get the file again")


__all__ = ["elements", "members"]
