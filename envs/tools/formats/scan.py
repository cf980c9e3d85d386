"""A reply as blocks: thoughts are taken out, and only tags outside of other blocks have a meaning."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache

THINK, PREDICTION, ANSWER = "think", "prediction", "answer"


@dataclass(slots=True)
class Scanned:
    """A reply, taken apart.

    Attributes:
        blocks: (tag, content) in order, thoughts and predictions left out.
        predictions: texts by horizon; the first for each counts.
        outside: what stands outside of all blocks.
        thoughts: number of thoughts.
        error: what is wrong with the tags; None if nothing is.
    """

    blocks: list[tuple[str, str]] = field(default_factory=list)
    predictions: dict[int, str] = field(default_factory=dict)
    outside: str = ""
    thoughts: int = 0
    error: str | None = None


@lru_cache(maxsize=64)
def _pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    tags = "|".join(map(re.escape, (*names, THINK, PREDICTION)))
    return re.compile(rf"<(/?)({tags})(?:\s{{1,4}}h\s?=\s?[\"']?(\d{{1,3}})[\"']?)?\s{{0,4}}>")


def scan(text: str, names: tuple[str, ...]) -> Scanned:
    """Takes a reply apart in one pass over its tags.

    Inside a block everything up to its closing tag is its content. A text up to a ``</think>`` that was never opened is
    a thought, too: chat templates often open it in the prompt. An unfinished prediction is an absent one.

    Args:
        names: of the tags that matter besides ``think`` and ``prediction``.

    >>> found = scan("<think>a <answer>no</answer></think>So: <answer>yes</answer>", ("answer",))
    >>> found.blocks, found.outside
    ([('answer', 'yes')], 'So: ')
    """
    found, outside = Scanned(), []
    name, ahead, start, rest = "", 1, 0, 0
    opened = text.find("</think>") if text.find("<think>") < 0 else -1  # a thought that the prompt has opened
    for tag in _pattern(names).finditer(text):
        if tag.start() < opened:
            continue
        closing, tag_name = bool(tag[1]), tag[2]
        if name:
            if not (closing and tag_name == name):
                continue
            content = text[start : tag.start()]
            if name == PREDICTION:
                found.predictions.setdefault(ahead, content.strip())
            elif name == THINK:
                found.thoughts += 1
            else:
                found.blocks.append((name, content))
            name, rest = "", tag.end()
        elif closing and tag_name == THINK:  # everything so far was thought aloud
            found, outside = Scanned(thoughts=found.thoughts + 1), []
            rest = tag.end()
        elif closing:
            if tag_name != PREDICTION:
                found.error = found.error or f"</{tag_name}> without <{tag_name}>"
        else:
            if tag_name == THINK and found.blocks:
                found.error = found.error or "a <think> block after the call or answer"
            outside.append(text[rest : tag.start()])
            name, ahead, start = tag_name, int(tag[3] or 1), tag.end()
    if name and name != PREDICTION:
        found.error = found.error or f"<{name}> is never closed"
    elif not name:
        outside.append(text[rest:])
    found.outside = "".join(outside)
    return found


def escape_tags(text: str, names: tuple[str, ...]) -> str:
    """JSON whose strings hold none of the tags that :func:`scan` finds.

    >>> escape_tags('{"a": "</answer>, <b>"}', ("answer",))
    '{"a": "\\\\u003c/answer>, <b>"}'
    """
    return _pattern(names).sub(lambda tag: f"\\u003c{tag[0][1:]}", text)


__all__ = ["ANSWER", "PREDICTION", "THINK", "Scanned", "escape_tags", "scan"]
