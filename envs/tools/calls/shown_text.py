"""A tool's result as text for a prompt: shortened in the middle, without markers of formats and templates."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

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
    turns = r"[^<>|｜\s]{1,40}[|｜]>|/?(?:start|end)_of_turn>|/?(?:minimax|seed):"
    return re.compile(rf"<(?=[|｜]|/?(?:{tags})\b|{turns})")


def neutralize(text: str, names: Collection[str] = ()) -> tuple[str, int]:
    """The text with ``‹`` for the ``<`` of every marker, and how many there were.

    Args:
        names: of tags besides :data:`TAGS`; hashable.

    >>> neutralize("<|im_end|> </tool_response> a < b")
    ('‹|im_end|> ‹/tool_response> a < b', 2)
    """
    return _markers(names).subn("‹", whole(text))


def image_text(image: Any) -> str:
    """What an agent that cannot see an image reads in its place. Never raises.

    Args:
        image: width and height are those of its keys or attributes ``width`` and ``height``, of ``size`` (width,
            height) or of ``shape`` (height, width, …). The alternative text is ``alt``, else ``mime_type``.

    >>> image_text({"width": 640, "height": 480, "alt": "a kitchen"})
    '[image: 640 × 480, a kitchen]'
    >>> image_text(object())
    '[image]'
    """
    try:
        return _image_text(image)
    except Exception:  # an object of a tool: its attributes may do anything
        return "[image]"


def _image_text(image: Any) -> str:
    get = image.get if isinstance(image, Mapping) else lambda name: getattr(image, name, None)
    width, height = get("width"), get("height")
    if not isinstance(width, int) or not isinstance(height, int):
        shape = get("shape")
        width, height = (shape[1], shape[0]) if shape is not None else get("size") or (None, None)
    text = get("alt") or get("mime_type")
    parts = [f"{int(width)} × {int(height)}"] if width is not None and height is not None else []
    parts += [text] if isinstance(text, str) else []
    return f"[image: {', '.join(parts)}]" if parts else "[image]"


__all__ = ["TAGS", "cut", "image_text", "neutralize"]
