"""A tool's result as text for a prompt: shortened in the middle, without markers of formats and templates."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from roleagent.spaces import whole

TAGS = ("tool_call", "tool_response", "tool_calls", "tools", "answer", "action", "think", "prediction")
"""Names of tags that have a meaning in replies or prompts."""
WORD = 16
"""Characters of a word at most: a text of one endless word is cut as well."""


def cut(text: str, max_words: int) -> str:
    """The beginning and the end of a text that is longer than ``max_words`` words.

    >>> cut("one two three four five six", 4)
    'one two [… 12 characters left out …] five six'
    """
    most = max_words * WORD
    if len(text) <= most and len(text.split(None, max_words)) <= max_words:
        return text
    first, last = -(-max_words // 2), max_words // 2
    head = _words(text[: first * WORD], first)
    tail = _words(text[max(0, len(text) - last * WORD) :][::-1], last)[::-1] if last else ""
    left = len(text) - len(head) - len(tail)
    return " ".join(part for part in (head, f"[… {left:,} characters left out …]", tail) if part)


def _words(text: str, count: int) -> str:
    """A text up to the end of its ``count``-th word."""
    ends = [found.end() for found, _ in zip(re.finditer(r"\S+", text), range(count), strict=False)]
    return text[: ends[-1]] if ends else ""


@lru_cache(maxsize=256)
def _markers(names: Collection[str]) -> re.Pattern[str]:
    tags = "|".join(map(re.escape, sorted({*TAGS, *names})))
    return re.compile(rf"<(?=[|｜]|/?(?:{tags})\b)")


def neutralize(text: str, names: Collection[str] = ()) -> tuple[str, int]:
    """The text with ``‹`` for the ``<`` of every marker, and how many there were.

    Args:
        names: of tags besides :data:`TAGS`; hashable.

    >>> neutralize("<|im_end|> </tool_response> a < b")
    ('‹|im_end|> ‹/tool_response> a < b', 2)
    """
    return _markers(names).subn("‹", whole(text))


__all__ = ["TAGS", "cut", "neutralize"]
