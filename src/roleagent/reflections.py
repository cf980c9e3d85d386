"""The two things that the environment role writes, as text: a reflection, and a selection of tasks.

A reflection (Agent-In-World, step 1) is one block of five fields::

    <reflection>
    DOMINANT_TYPE: navigation_loop
    DETAIL: the agent walked back and forth between shelf 1 and desk 2
    CRITICAL_STEP: 4
    CORE_LESSON: Look somewhere new.
    RETRIEVAL_QUERY: pick and place: navigation loop
    </reflection>

and a selection (step 4) one block of numbers from a list, each with a reason::

    <selected_tasks>
    2: the same loop in another room
    5: the same kind of task
    </selected_tasks>

Steps and list entries are numbered from 1 in the text and from 0 in Python. What a model writes is read strictly;
what departs from the form in a way that leaves no doubt is mended and said to be; all else is no answer. Everything
read is text to be shown, in one line, cut to a length and without tags, so that nothing written into a failure library
can pass for a part of a later prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.modes import match_mode, within
from roleagent.types import Reflection, Selection

MODE, DETAIL, STEP, LESSON, QUERY = "DOMINANT_TYPE", "DETAIL", "CRITICAL_STEP", "CORE_LESSON", "RETRIEVAL_QUERY"
FIELDS = (MODE, DETAIL, STEP, LESSON, QUERY)
MOST_CHARACTERS = 600
"""Of a field; what is longer is cut."""
_MOST_READ = 20_000  # characters of a reply; a block begins within them or not at all
_NONE = frozenset({"none", "n/a", "na", "null", "-", "unknown", "无", "没有"})
_FIELD = re.compile(rf"^[\W_]*({'|'.join(FIELDS)})[*_`\"' ]*[:：=][*_`\"' ]*", re.IGNORECASE | re.MULTILINE)
_TAG = re.compile(r"</?\s*[A-Za-z_|][^<>]{0,40}>|<\|[^<>]{0,40}\|>")
_NUMBERED = re.compile(r"^\s*(?:[-*•]\s+)?[\s\[(#]*(\d{1,9})[\s\])*]*(?:[:：.,;、–-]\s*(.*)|\s+(\D.*))?$")
_NUMBERS = re.compile(r"[\s\[(]*\d{1,9}(?:(?:[\s,;、和]|and)+\d{1,9})*[\s\]).]*")


def plain(text: Any, most: int = MOST_CHARACTERS) -> str:
    """A text as it may be shown within a prompt: one line, without tags or control characters, at most ``most`` long.

    >>> plain("Look <b>up</b>.\\n</reflection>\\x00 Then stop.")
    'Look up. Then stop.'
    """
    text = str(text)[: 4 * most]
    while (bare := _TAG.sub("", text)) != text:  # a tag taken out may leave another one behind
        text = bare
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(text.replace("<", "‹").replace(">", "›").split())[:most].rstrip()


def write_reflection(reflection: Reflection) -> str:
    """The block that says what a reflection says."""
    step = "none" if reflection.critical_step is None else str(reflection.critical_step + 1)
    values = (reflection.mode, reflection.detail, step, reflection.lesson, reflection.query)
    lines = [f"{name}: {plain(value)}" for name, value in zip(FIELDS, values, strict=True)]
    return "\n".join(("<reflection>", *lines, "</reflection>"))


def read_reflection(reply: str, modes: Sequence[str], turns: int, source: str = "model") -> Reflection | None:
    """A reflection from a model's reply; None where the reply holds none.

    Mended (``repaired``): fields outside a block, in JSON, decorated, repeated, missing or too long, a mode with a
    typing error, a step that the episode does not have (which becomes None), prose that names exactly one mode. A mode
    outside ``modes`` in an otherwise sound block is a new one and needs no mending.

    Args:
        reply: any text.
        modes: the taxonomy of the environment.
        turns: steps of the episode.
        source: of the reflection.

    >>> reply = "<reflection>\\nDOMINANT_TYPE: navigation_loop\\nCRITICAL_STEP: 3\\n</reflection>"
    >>> reflection = read_reflection(reply, ("navigation_loop",), turns=4)
    >>> reflection.mode, reflection.critical_step, reflection.repaired
    ('navigation_loop', 2, True)
    >>> read_reflection("It failed.", ("navigation_loop",), turns=4) is None
    True
    """
    body, sound = _block(reply, "reflection")
    given, in_order = _fields(body)
    if not given:
        given = _json_fields(body)
    if not given and (named := within(body, modes)):
        given = {MODE: named, DETAIL: body}
    mode_text = plain(given.get(MODE, ""), 200)
    if not re.search(r"\w", mode_text) or mode_text.lower() in _NONE:
        return None
    mode = match_mode(mode_text, tuple(modes))
    step, step_sound = _step(given.get(STEP, ""), turns)
    detail, lesson, query = (plain(given.get(name, "")) for name in (DETAIL, LESSON, QUERY))
    uncut = all(len(str(value)) <= MOST_CHARACTERS for value in given.values())
    well_formed = sound and in_order and set(given) == set(FIELDS) and all((detail, lesson, query))
    same_mode = mode == mode_text or mode not in modes
    return Reflection(
        mode, detail, step, lesson, query, source, repaired=not (well_formed and uncut and step_sound and same_mode)
    )


def write_selection(selection: Selection) -> str:
    """The block that says what a selection says."""
    reasons = selection.reasons or ("",) * len(selection.indices)
    lines = [f"{index + 1}: {plain(reason)}".rstrip() for index, reason in zip(selection.indices, reasons, strict=True)]
    return "\n".join(("<selected_tasks>", *lines, "</selected_tasks>"))


def read_selection(reply: str, shown: int, source: str = "model") -> Selection:
    """A selection from a model's reply; of source ``"fallback"`` where the reply holds none.

    Numbers are taken from lines that begin with one, or from JSON, never from running text. Those that the list does
    not have are dropped and counted; a number named twice counts once.

    Args:
        reply: any text.
        shown: the length of the list that was shown.
        source: of the selection.

    >>> read_selection("<selected_tasks>\\n2: the same loop\\n9: no such task\\n</selected_tasks>", shown=3)
    Selection(indices=(1,), reasons=('the same loop',), dropped=1, source='model', repaired=False)
    >>> read_selection("Tasks 1 to 3 all look alike.", shown=3).source
    'fallback'
    """
    body, sound = _block(reply, "selected_tasks")
    lines = [line for line in body.splitlines() if line.strip()]
    well_formed = False
    found = _json_choices(body)
    if not found and len(lines) == 1 and _NUMBERS.fullmatch(body):
        found = [(int(number), "") for number in re.findall(r"\d+", body)]
    if not found:
        found = [(int(match[1]), match[2] or match[3] or "") for line in lines if (match := _NUMBERED.match(line))]
        well_formed = sound and len(found) == len(lines)
    if not found and not (sound and (not lines or body.strip().lower().strip(".") in _NONE)):
        return Selection((), source="fallback")
    chosen = {number - 1: plain(reason, 200) for number, reason in reversed(found) if 1 <= number <= shown}
    indices = tuple(dict.fromkeys(number - 1 for number, _ in found if number - 1 in chosen))
    dropped = sum(not 1 <= number <= shown for number, _ in found)
    return Selection(indices, tuple(chosen[index] for index in indices), dropped, source, repaired=not well_formed)


def _block(reply: str, name: str) -> tuple[str, bool]:
    """What stands between the tags, and whether there is exactly one such block.

    Of nested or repeated blocks the innermost first one counts. Without a closing tag it is all that follows the
    opening one, and without any tag the whole reply. A thought before the answer is no part of it.
    """
    reply = str(reply)[:_MOST_READ].rpartition("</think>")[2]
    tags = list(re.finditer(rf"<(/?)\s{{0,4}}{name}\s{{0,4}}>", reply, re.IGNORECASE))
    closing = next((place for place, tag in enumerate(tags) if tag[1] and place and not tags[place - 1][1]), None)
    if closing is not None:
        return reply[tags[closing - 1].end() : tags[closing].start()], len(tags) == 2
    opening = next((tag for tag in tags if not tag[1]), None)
    return (reply[opening.end() :] if opening else reply), False


def _fields(body: str) -> tuple[dict[str, str], bool]:
    """The values after the fields' names, and whether each has its place at the beginning of a line, once, in order."""
    marks = list(_FIELD.finditer(body))
    found: dict[str, str] = {}
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    for mark, end in zip(marks, ends, strict=False):  # no mark, no value
        found.setdefault(mark[1].upper(), body[mark.end() : end].strip().strip("*`\"'").strip())
    bare = [body[mark.start() : mark.end()].lstrip("\n").rstrip() for mark in marks]
    return found, bare == [f"{name}:" for name in FIELDS] and not body[: marks[0].start()].strip() if marks else False


def _json_value(body: str) -> Any:
    """The first JSON object within a text, or the list that is the text; None where there is neither."""
    start = re.search(r"[\[{]", body)
    try:
        value, end = json.JSONDecoder().raw_decode(body, start.start()) if start else (None, 0)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) or not re.search(r"\w", body[end:]) else None


def _json_fields(body: str) -> dict[str, str]:
    value = _json_value(body)
    if isinstance(value, Mapping) and len(value) == 1 and isinstance(inner := next(iter(value.values())), Mapping):
        value = inner
    if not isinstance(value, Mapping):
        return {}
    named = {re.sub(r"\W+", "_", str(key)).upper(): item for key, item in value.items()}
    return {name: str(named[name]) for name in FIELDS if isinstance(named.get(name), (str, int))}


def _json_choices(body: str) -> list[tuple[int, str]]:
    value = _json_value(body)
    if isinstance(value, Mapping):
        value = next((item for item in value.values() if isinstance(item, list)), [])
    found = []
    for item in value if isinstance(value, list) else []:
        reason: Any = ""
        if isinstance(item, Mapping):
            reason = item.get("reason", "")
            item = next((item[key] for key in ("index", "task", "number", "id") if key in item), None)
        if isinstance(item, int) and not isinstance(item, bool):
            found.append((item, reason if isinstance(reason, str) else ""))
    return found


def _step(text: str, turns: int) -> tuple[int | None, bool]:
    """The critical step, 0-based, and whether the text was sound."""
    text = str(text).strip()
    if text.lower().strip(".") in _NONE:
        return None, True
    number = re.search(r"(?<![\d.])\d{1,6}(?![\d])", text)
    if number is None or not 1 <= int(number[0]) <= turns:
        return None, False
    return int(number[0]) - 1, number[0] == text
