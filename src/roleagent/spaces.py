"""Text spaces for Gymnasium, and the check of render modes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory


class Unicode(gymnasium.spaces.Text):
    """Any text of up to ``max_length`` characters.

    :class:`gymnasium.spaces.Text` checks every character against a fixed alphabet; the texts of language models
    and web pages keep to none. ``sample`` draws printable ASCII, which is enough to try an environment with.

    >>> Unicode(10).contains("päivää ☀")
    True
    >>> Unicode(3).contains("four")
    False
    """

    def __init__(self, max_length: int = 1_000_000, seed: int | None = None):
        super().__init__(max_length, min_length=0, charset="".join(map(chr, range(32, 127))), seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random text of at most 64 characters (long random texts test nothing and cost time)."""
        length = int(self.np_random.integers(0, min(self.max_length, 64) + 1))
        return super().sample(mask=(length, None)) if length else ""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def __repr__(self) -> str:
        return f"Unicode({self.max_length})"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length


def check_render_mode(mode: str | None, metadata: Mapping[str, Any]) -> str | None:
    """The mode itself.

    Raises:
        ValueError: the environment's metadata lists no such mode.

    >>> check_render_mode("ansi", {"render_modes": ["ansi"]})
    'ansi'
    """
    modes = metadata["render_modes"]
    if mode is not None and mode not in modes:
        raise ValueError(f"unknown render_mode {mode!r}; choose {', '.join(map(repr, modes))} or None")
    return mode


def whole(text: str) -> str:
    """The text without halves of surrogate pairs: JSON can write them down, no encoder takes them.

    >>> whole("a \\ud800 mug"), whole("\\ud83d\\ude42") == "\\U0001f642"
    ('a \ufffd mug', True)
    """
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


LENGTH = 4  # bytes that hold the length of a text in shared memory


class _SharedTexts(Sequence[str]):
    """The texts of n environments in memory that processes share; a deep copy is a tuple of what they are now.

    Each has a place of its own: its length in bytes (four bytes, the lowest first), then the text in UTF-8.
    """

    def __init__(self, memory: Any, n: int):
        self._bytes = memoryview(memory).cast("B")
        self._n, self._place = n, len(self._bytes) // n

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        begin = range(0, self._n * self._place, self._place)[index] + LENGTH
        size = int.from_bytes(self._bytes[begin - LENGTH : begin], "little")
        return bytes(self._bytes[begin : begin + size]).decode("utf-8", "surrogatepass")

    def write(self, index: int, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        begin = index * self._place + LENGTH
        self._bytes[begin - LENGTH : begin] = len(data).to_bytes(LENGTH, "little")
        self._bytes[begin : begin + len(data)] = data

    def __deepcopy__(self, memo: Any) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


# What gymnasium.vector.AsyncVectorEnv does with its shared memory. For Gymnasium's own Text it reads the memory once,
# when it is still empty, and knows the characters of an alphabet only.
@create_shared_memory.register(Unicode)
def _create_shared_memory(space: Unicode, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.RawArray("B", n * (LENGTH + 4 * space.max_length))  # a character has at most four bytes


@read_from_shared_memory.register(Unicode)
def _read_from_shared_memory(space: Unicode, shared_memory: Any, n: int = 1) -> Any:
    return _SharedTexts(shared_memory, n)


@write_to_shared_memory.register(Unicode)
def _write_to_shared_memory(space: Unicode, index: int, value: str, shared_memory: Any) -> None:
    if not space.contains(value):
        raise ValueError(f"an observation of {len(value):,} characters where {space.max_length:,} are the most")
    place = LENGTH + 4 * space.max_length
    _SharedTexts(shared_memory, len(shared_memory) // place).write(index, value)
