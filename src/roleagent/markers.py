"""Markers of chat templates in text from outside: they are replaced, so that no text opens a turn of a conversation.

Where RoleAgent encodes a text itself, special tokens in it are not recognized
(:meth:`roleagent.agents.policies.protocol.Policy.literal`). A server or another trainer encodes by its own rules, and
recognizes them. Text that goes there has its markers replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

_NAMES = ("s", "bos", "eos", "(?:start|end)_of_turn", "tool_response", r"(?:minimax|seed):\w{1,30}")
_BRACKETED = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_RESULTS|TOOL_CALLS|TOOL_CONTENT|ARGS|CALL_ID|THINK"  # Mistral's
_BAR = "|｜"


@lru_cache
def _pattern(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join((*_NAMES, *map(re.escape, tags)))
    return re.compile(
        rf"<(/?\s{{0,4}}(?:{names})\s{{0,4}}|/?[{_BAR}][^<>‹›\n]{{0,80}}|[^<>‹›{_BAR}\s]{{1,40}}[{_BAR}])>"
        rf"|\[(/?(?:{_BRACKETED}))\]|<(</?SYS>)>|\[(e~)\[|\](~!?b)[\[\]]",  # the last two are MiniMax's
        re.IGNORECASE,
    )


def escape_markers(text: str, *tags: str) -> str:
    """A text whose chat markers are replaced; its lines are unchanged.

    Args:
        text: from outside.
        tags: names of further tags to replace, opening and closing.

    >>> escape_markers("<b>Hi</b> <<|end|>|end|> [INST] </answer>", "answer")
    '<b>Hi</b> <‹|end|›|end|> ‹INST› ‹/answer›'
    >>> escape_markers("<turn|> <|turn>user <｜DSML｜invoke> ]~b] 1 < 2 | 3 > 2")
    '‹turn|› ‹|turn›user ‹｜DSML｜invoke› ‹~b› 1 < 2 | 3 > 2'
    """
    return _pattern(tags).sub(lambda found: f"‹{found[found.lastindex or 0]}›", text)  # removed, it may leave one


def map_texts(change: Callable[[str], str], value: Any) -> Any:
    """A JSON value with changed texts, its keys included.

    >>> map_texts(str.upper, {"a": ["b", 1]})
    {'A': ['B', 1]}
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_texts(change, name): map_texts(change, one) for name, one in value.items()}
    return [map_texts(change, one) for one in value] if isinstance(value, list | tuple) else value


__all__ = ["escape_markers", "map_texts"]
