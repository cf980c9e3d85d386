"""Spaces that Gymnasium lacks."""

from __future__ import annotations

from typing import Any

import gymnasium


class Unicode(gymnasium.spaces.Text):
    """Any text of up to ``max_length`` characters.

    :class:`gymnasium.spaces.Text` checks every character against a fixed alphabet; what a language model or a web
    page says keeps to none. ``sample`` draws printable ASCII, which is enough to try an environment with.

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
