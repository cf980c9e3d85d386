"""Calls in JSON, strictly and within limits. It raises nothing but ``ValueError``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from roleagent.tools import Call

LONGEST = 16_384
"""Characters of JSON that are read."""
DEEPEST = 32
"""Levels of objects and lists."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is no finite number")
    return value


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_number, parse_constant=_constant)


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, a key that occurs twice, NaN or infinity, too long or too deep; a few words.

    >>> read_json('{"a": [1, 2]}')
    {'a': [1, 2]}
    """
    values = read_sequence(text, "")
    if len(values) != 1:
        raise ValueError("no single JSON value")
    return values[0]


def read_message(text: str) -> Any:
    """The value of a JSON text of any length; raises as :func:`read_json`, whose other limits its arguments have."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None


def write_json(value: Any) -> str:
    """A value as JSON text.

    Raises:
        ValueError: no JSON, NaN or infinity, or too deep; a few words.

    >>> write_json({"a": [1, 2]})
    '{"a":[1,2]}'
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except TypeError as error:
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    if _too_deep(text):
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    return text


def read_sequence(text: str, between: str) -> list[Any]:
    """JSON values one after another, with blanks or characters of ``between`` in between.

    Raises:
        ValueError: as :func:`read_json`.
    """
    if len(text) > LONGEST:
        raise ValueError(f"{len(text):,} characters where {LONGEST:,} are the most")
    if _too_deep(text):
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    values, at = [], _next(text, 0, "")
    while at < len(text):
        try:
            value, end = _DECODER.raw_decode(text, at)
        except RecursionError:
            raise ValueError(f"nested deeper than {DEEPEST} levels") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON at character {error.pos + 1}: {error.msg}") from None
        values.append(value)
        at = _next(text, end, between)
    return values


def _next(text: str, at: int, between: str) -> int:
    while at < len(text) and (text[at].isspace() or text[at] in between):
        at += 1
    return at


def _too_deep(text: str) -> bool:
    """Whether brackets outside of texts are nested too deep; cheap, since few replies have that many at all."""
    if text.count("{") + text.count("[") <= DEEPEST:
        return False
    depth, inside, escaped = 0, False, False
    for letter in text:
        if inside:
            inside = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            inside = True
        elif letter in "{[":
            depth += 1
            if depth > DEEPEST:
                return True
        elif letter in "}]":
            depth -= 1
    return False


_ARGUMENTS = ("arguments", "parameters")


def call_of(value: Any, key: str = "arguments") -> tuple[Call, bool]:
    """A call from ``{"name": …, "arguments": {…}}``, and whether it was repaired.

    Arguments under the other of the two names, ``arguments`` and ``parameters``, are read, and so is a text that holds
    an object; left out, they are ``{}``. All of that counts as repaired.

    Args:
        value: the object.
        key: the name that the format has for arguments.

    Raises:
        ValueError: it is no such object, or its arguments may stand under yet another name; a few words.

    >>> call_of({"name": "look"}), call_of({"name": "find", "parameters": {"word": "egg"}})
    ((Call(name='look', arguments={}, id=None), True), (Call(name='find', arguments={'word': 'egg'}, id=None), True))
    """
    if not isinstance(value, dict):
        kinds = {list: "a list", str: "a text", bool: "a boolean", int: "a number", float: "a number"}
        raise ValueError(f"a call is an object, not {kinds.get(type(value), 'null')}")
    name, number = value.get("name"), value.get("id")
    if not isinstance(name, str) or not name.strip():
        raise ValueError('"name" is missing' if "name" not in value else '"name" is no text')
    given = [found for found in _ARGUMENTS if value.get(found) not in (None, "")]
    if len(given) == len(_ARGUMENTS):
        raise ValueError('"arguments" and "parameters" are both given')
    if not given and (others := value.keys() - {"name", "id", "type", *_ARGUMENTS}):
        raise ValueError(f'"{key}" is missing, and {json.dumps(min(others), ensure_ascii=False)} is not read')
    arguments = value[given[0]] if given else {}
    repaired = given != [key] or isinstance(arguments, str)
    if isinstance(arguments, str):
        arguments = read_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f'"{given[0]}" is no object')
    return Call(name.strip(), arguments, number if isinstance(number, str) else None), repaired


_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_ANY = {*_KINDS.values(), "null"}


def kinds_of(schema: Any) -> set[str]:
    """The types of JSON that a schema allows."""
    if not isinstance(schema, Mapping):
        return _ANY
    if "anyOf" in schema:
        return set().union(*map(kinds_of, schema["anyOf"]))
    kind = schema.get("type", _ANY)
    return {kind} if isinstance(kind, str) else set(kind)


def typed_value(kinds: set[str], content: str) -> Any:
    """A text where only a text is allowed, else JSON; what is no JSON of these types is a text where one is allowed."""
    if kinds == {"string"}:
        return content
    try:
        value = read_json(content)
    except ValueError:
        if "string" not in kinds:
            raise
        return content
    kind = _KINDS.get(type(value), "null")
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    return value if fits or "string" not in kinds else content


__all__ = [
    "DEEPEST",
    "LONGEST",
    "call_of",
    "kinds_of",
    "read_json",
    "read_message",
    "read_sequence",
    "typed_value",
    "write_json",
]
