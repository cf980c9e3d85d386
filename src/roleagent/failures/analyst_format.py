"""The text formats of the environment role: a reflection, a selection of tasks, and a verdict about one action.

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

A verdict (Agent-R, phase I) is one block of two fields, the reason first::

    <verdict>
    REASON: the egg is carried away from the stove before it is hot
    JUDGEMENT: bad
    </verdict>

Steps and list entries are numbered from 1 in the text and from 0 in Python. Replies are parsed strictly. Unambiguous
format errors are repaired and reported; any other reply is invalid. Parsed texts become one line of limited length
without tags, so a text in the failure library cannot inject a part of a later prompt.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.failures.modes import match_mode, within
from roleagent.failures.verdicts import KINDS, UNREAD, Verdict, VerdictKind
from roleagent.types import Reflection, Selection

MODE, DETAIL, STEP, LESSON, QUERY = "DOMINANT_TYPE", "DETAIL", "CRITICAL_STEP", "CORE_LESSON", "RETRIEVAL_QUERY"
FIELDS = (MODE, DETAIL, STEP, LESSON, QUERY)
REASON, JUDGEMENT = "REASON", "JUDGEMENT"
VERDICT_FIELDS = (REASON, JUDGEMENT)
TAGS = ("<reflection>", "</reflection>", "<selected_tasks>", "</selected_tasks>")
VERDICT_TAGS = ("<verdict>", "</verdict>")
ASKED = "the type of failure"
"""What a question says in place of a mode. A small model may repeat it, which is no answer."""
UNREADABLE = "(no readable command)"
"""What stands in a record in place of a command that could not be read."""
MOST_CHARACTERS = 600
"""Of a field; what is longer is cut."""
_MOST_READ = 20_000  # characters after the thought; a block begins within them or not at all
_REASON = 200  # characters
_NONE = frozenset({"none", "n/a", "na", "null", "-", "unknown", "无", "没有", ASKED.replace(" ", "_")})
# Every repetition that could meet its own kind again has a bound: a hostile text must not cost more than its length.
_FIELD, _VERDICT_FIELD = (
    re.compile(
        rf"^(?:[^\w\n]|_){{0,12}}(?:\d{{1,2}}[.)][^\w\n]{{0,4}})?({names})[*_`\"' ]{{0,8}}[:：=][*_` ]{{0,8}}",
        re.IGNORECASE | re.MULTILINE,
    )
    for names in ("|".join(name.replace("_", "[_ -]") for name in FIELDS), "REASON|JUDGE?MENT")
)
_JUDGED = re.compile(rf"[\W_]{{0,12}}({'|'.join(KINDS)})(?![\w?])(?=[\W_]{{0,12}}$|[*_`]{{0,4}}\s?[.,;:!(–—-])", re.I)
_QUOTED = re.compile(r"([\"'])(.*)\1,?", re.DOTALL)
_TAG = re.compile(r"</?\s{0,40}[A-Za-z_|][^<>]{0,40}>|<\|[^<>]{0,40}\|>")
_THINK, _THOUGHT = (re.compile(rf"<{slash}think(?:ing)?\s{{0,4}}>", re.IGNORECASE) for slash in ("", "/"))
_LISTED = re.compile(r"(-?\d{1,40}):(.*)")
_NUMBERED = re.compile(
    r"(?:[-*•]\s{1,4})?[\s\[(#*]{0,4}(-?\d{1,40})(?![\d^]|[.,]\d)[\s\])*]{0,4}(?:[:：.,;、–—-](.*)|(?<=\s)(\D.*))?"
)
_NUMBERS = re.compile(r"[\s\[(]{0,9}\d{1,9}(?:(?:[\s,;、和]|and){1,9}\d{1,9})*[\s\]).]{0,9}")
_STEP = re.compile(r"(?<![\d.^−-])(?<!\d[eE])\d{1,6}(?![\d^]|[.eE]\d)")


def plain(text: Any, most: int = MOST_CHARACTERS) -> str:
    """A text for a prompt: one line without tags or control characters, at most ``most`` characters.

    >>> plain("Look <b>up</b>.\\n</reflection>\\x00 Then stop.")
    'Look up. Then stop.'
    """
    text = str(text)[: 4 * most]
    while (bare := _TAG.sub("", text)) != text:  # a tag taken out may leave another one behind
        text = bare
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(text.replace("<", "‹").replace(">", "›").split())[:most].rstrip()


def write_reflection(reflection: Reflection) -> str:
    """Writes a reflection in the required format."""
    step = "none" if reflection.critical_step is None else str(reflection.critical_step + 1)
    values = (reflection.mode, reflection.detail, step, reflection.lesson, reflection.query)
    lines = [f"{name}: {plain(value)}" for name, value in zip(FIELDS, values, strict=True)]
    return "\n".join(("<reflection>", *lines, "</reflection>"))


def read_reflection(reply: str, modes: Sequence[str], turns: int, source: str = "model") -> Reflection | None:
    """Parses a reflection from a model's reply; None if there is none.

    Repaired (``repaired``): fields outside a block, in JSON, decorated, repeated, missing or too long, a mode with a
    typing error, a step that the episode does not have (which becomes None), prose that names exactly one mode. A mode
    outside ``modes`` in an otherwise valid block is a new mode and needs no repair.

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
    body, sound, _ = _block(reply, "reflection")
    given = _lines(body)
    sound = sound and bool(given)
    given = given or _json_fields(body) or _fields(body)
    if not given and (named := within(body, modes)):
        given = {MODE: named, DETAIL: body}
    mode_text = plain(given.get(MODE, ""), 200)
    word = re.sub(r"^[\W_]+|[\W_]+$", "", mode_text).lower()  # without what decorates it
    mode = match_mode(mode_text, tuple(modes))  # of a text without end, its beginning
    if not re.search(r"[^\W\d_]", mode) or {word, mode} & _NONE:
        return None
    step, step_sound = _step(given.get(STEP, ""), turns)
    detail, lesson, query = (plain(given.get(name, "")) for name in (DETAIL, LESSON, QUERY))
    unchanged = all(plain(given[name]) == " ".join(given[name].split()) for name in given)
    same_mode = mode == mode_text or mode not in modes
    well_formed = sound and unchanged and step_sound and same_mode and all((detail, lesson, query))
    return Reflection(mode, detail, step, lesson, query, source, repaired=not well_formed)


def write_selection(selection: Selection) -> str:
    """Writes a selection in the required format."""
    reasons = selection.reasons or ("",) * len(selection.indices)
    lines = [
        f"{index + 1}: {plain(reason, _REASON)}".rstrip()
        for index, reason in zip(selection.indices, reasons, strict=True)
    ]
    return "\n".join(("<selected_tasks>", *lines, "</selected_tasks>"))


def read_selection(reply: str, shown: int, source: str = "model") -> Selection:
    """Parses a selection from a model's reply; its source is ``"fallback"`` if there is none.

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
    body, sound, tagged = _block(reply, "selected_tasks")
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    listed = [match for line in lines if (match := _LISTED.fullmatch(line))]
    sound = sound and len(listed) == len(lines)
    found = [(int(match[1]), match[2]) for match in listed] if len(listed) == len(lines) else _json_choices(body)
    if not found and len(lines) == 1 and _NUMBERS.fullmatch(lines[0]):
        found = [(int(number), "") for number in re.findall(r"\d+", body)]
    if not found:
        found = _numbered(lines, tagged)
    if not found and not sound and not (tagged and body.strip().lower().strip(".") in _NONE):
        return Selection((), source="fallback")
    chosen = {number - 1: plain(reason, _REASON) for number, reason in reversed(found) if 1 <= number <= shown}
    indices = tuple(dict.fromkeys(number - 1 for number, _ in found if number - 1 in chosen))
    dropped = sum(not 1 <= number <= shown for number, _ in found)
    unchanged = all(plain(reason, _REASON) == " ".join(reason.split()) for _, reason in found)
    reasons = tuple(chosen[index] for index in indices)
    return Selection(indices, reasons, dropped, source, repaired=not (sound and unchanged))


def read_verdict(reply: str, source: str = "model") -> Verdict:
    """Parses a verdict; :data:`~roleagent.failures.verdicts.UNREAD` if there is none.

    Repaired (``repaired``): fields outside a block, in JSON, decorated, in another order, a judgement with something
    behind it, or spelled ``JUDGMENT``. Neither a judgement that does not begin with one of the three words, nor several
    that differ, can be read.

    Args:
        reply: any text.
        source: of the verdict.

    >>> read_verdict("<verdict>\\nREASON: It is cold.\\nJUDGEMENT: bad\\n</verdict>")
    Verdict(kind='bad', reason='It is cold.', source='model', repaired=False)
    >>> read_verdict("Judgment: Bad, not a good action").kind, read_verdict("Judgement: not bad").source
    ('bad', 'fallback')
    """
    body, sound, _ = _block(reply, "verdict")
    given = _lines(body, VERDICT_FIELDS)
    sound = sound and bool(given)
    marks = _VERDICT_FIELD.finditer(body)
    said = [body[mark.end() :].partition("\n")[0] for mark in marks if mark[1][0] in "Jj"]
    given = given or _json_fields(body.replace("judgment", JUDGEMENT), VERDICT_FIELDS) or _fields(body, _VERDICT_FIELD)
    judged = [_JUDGED.match(text) for text in said or [given.get(JUDGEMENT) or given.get("JUDGMENT", "")]]
    kinds = {found[1].lower() if found else "" for found in judged}
    kind: VerdictKind | None = next((name for name in KINDS if kinds == {name}), None)
    if kind is None:
        return UNREAD
    reason = plain(given.get(REASON, ""))
    unchanged = given.get(JUDGEMENT) == kind and reason == " ".join(given.get(REASON, "").split())
    return Verdict(kind, reason, source, repaired=not (sound and unchanged and bool(reason)))


def _block(reply: str, name: str) -> tuple[str, bool, bool]:
    """What stands between the tags, whether there is exactly one such block, and whether one was begun at all.

    Of nested or repeated blocks the innermost first one counts. Without a closing tag it is all that follows the
    opening one, and without any tag the whole reply. A thought before the answer is no part of it, and neither is one
    that was not finished.
    """
    reply = str(reply)
    reply = reply[max((thought.end() for thought in _THOUGHT.finditer(reply)), default=0) :]
    unfinished = _THINK.search(reply)
    reply = reply[: unfinished.start() if unfinished else _MOST_READ][:_MOST_READ]
    tags = list(re.finditer(rf"<(/?)\s{{0,4}}{name}\s{{0,4}}>", reply, re.IGNORECASE))
    closing = next((place for place, tag in enumerate(tags) if tag[1] and place and not tags[place - 1][1]), None)
    if closing is not None:
        return reply[tags[closing - 1].end() : tags[closing].start()], len(tags) == 2, True
    opening = next((tag for tag in tags if not tag[1]), None)
    return (reply[opening.end() :] if opening else reply), False, opening is not None


def _lines(body: str, names: Sequence[str] = FIELDS) -> dict[str, str]:
    """The values where the text is as it should be: every field once, in order, on a line of its own."""
    lines = [line for line in body.split("\n") if line.strip()]
    if len(lines) != len(names) or not all(map(str.startswith, lines, (f"{name}:" for name in names))):
        return {}
    return {name: line[len(name) + 1 :].strip() for name, line in zip(names, lines, strict=True)}


def _fields(body: str, pattern: re.Pattern[str] = _FIELD) -> dict[str, str]:
    """The values after the fields' names wherever these begin a line; the first one of each."""
    marks = list(pattern.finditer(body))
    found: dict[str, str] = {}
    ends = [mark.start() for mark in marks[1:]] + [len(body)]
    for mark, end in zip(marks, ends, strict=False):  # no mark, no value
        value = body[mark.end() : end].strip().strip("*`").strip()
        quoted = _QUOTED.fullmatch(value)
        value = quoted[2] if quoted and quoted[1] not in quoted[2] else value
        found.setdefault(re.sub(r"\W", "_", mark[1]).upper(), value)
    return found


def _numbered(lines: Sequence[str], tagged: bool) -> list[tuple[int, str]]:
    """Numbers at the beginning of lines, with what follows; outside a block a number and a word are but a sentence."""
    matches = [match for line in lines if (match := _NUMBERED.fullmatch(line)) and (tagged or match[3] is None)]
    return [(int(match[1]), match[2] or match[3] or "") for match in matches]


def _json_value(body: str) -> Any:
    """The first JSON object within a text, or the list that is the text; None where there is neither."""
    start = re.search(r"[\[{]", body)
    try:
        value, end = json.JSONDecoder().raw_decode(body, start.start()) if start else (None, 0)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, Mapping) or not re.search(r"\w", body[end:]) else None


def _json_fields(body: str, names: Sequence[str] = FIELDS) -> dict[str, str]:
    """The fields of a JSON object, however deep it lies in others that hold nothing else."""
    value = _json_value(body)
    while isinstance(value, (Mapping, list)) and len(value) == 1:
        [value] = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping):
        return {}
    named = {re.sub(r"\W+", "_", str(key)).upper(): item for key, item in value.items()}
    if not any(name in named for name in names):
        return {}
    texts = {name: str(item) for name in names if type(item := named.get(name)) in (str, int)}
    return {names[0]: "", **texts}


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
        if isinstance(item, str) and re.fullmatch(r"\s{0,9}-?\d{1,40}\s{0,9}", item):
            item = int(item)
        if type(item) is int:
            found.append((item, reason if isinstance(reason, str) else ""))
    return found


def _step(text: str, turns: int) -> tuple[int | None, bool]:
    """The critical step, 0-based, and whether the text was sound."""
    text = str(text).strip()
    if text.lower().strip(".") in _NONE:
        return None, True
    number = _STEP.search(text)
    if number is None or not 1 <= int(number[0]) <= turns:
        return None, False
    return int(number[0]) - 1, number[0] == text
