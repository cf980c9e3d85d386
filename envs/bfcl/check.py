"""BFCL's check of calls against the accepted values ("AST evaluation"), in our words.

A call is right if it names the function, has every required argument, and each argument has the described type and one
of the accepted values. Texts are compared without case, blanks and ``,./-_*^``. An accepted value of another type than
the described one is the name of a variable. ``""`` among the accepted values marks an argument that may be missing.

Two choices differ from the published checker. Arguments of Java and JavaScript may be JSON values; the publisher wants
texts of source code, which are read as well. An accepted value of a key that is not a list counts as a list of one.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.envs.bfcl.schema import plain_name
from roleagent.envs.tools.judges import listed, plain_text
from roleagent.tools import Call

_KINDS: dict[str, type] = {
    **dict.fromkeys(("string", "String", "char", "any"), str),
    **dict.fromkeys(("integer", "long", "short", "byte", "Bigint"), int),
    **dict.fromkeys(("float", "double"), float),
    **dict.fromkeys(("boolean", "Boolean"), bool),
    **dict.fromkeys(("array", "tuple", "Array", "ArrayList", "Set", "Queue", "Stack"), list),
    **dict.fromkeys(("dict", "HashMap", "Hashtable"), dict),
}
_LISTS = ("array", "tuple", "Array", "ArrayList")
Accepted = Mapping[str, Sequence[Any]]


def problem_of(
    calls: Sequence[Call | str],
    functions: Sequence[Mapping[str, Any]],
    wanted: Sequence[Mapping[str, Accepted]],
    source: bool = False,
) -> str | None:
    """Why calls are wrong; None: they are the wanted ones, in any order.

    Args:
        calls: a text in place of a call is a malformed one.
        functions: as BFCL describes them.
        wanted: for each call ``{function: {argument: accepted values}}``.
        source: whether texts are read as source code (Java, JavaScript).
    """
    if len(calls) != len(wanted):
        return f"{len(calls)} calls, {len(wanted)} are right"
    left = list(calls)
    for one in wanted:
        (name, accepted), *_ = one.items()
        function = next(function for function in functions if function["name"] == name)
        problems = [_problem(call, function, accepted, source) for call in left]
        if None not in problems:
            return problems[0]
        left.pop(problems.index(None))
    return None


def _problem(call: Call | str, function: Mapping[str, Any], accepted: Accepted, source: bool) -> str | None:
    if isinstance(call, str):
        return call
    if plain_name(call.name) != plain_name(function["name"]):
        return f"{function['name']} is not called"
    properties, required = function["parameters"].get("properties", {}), function["parameters"].get("required", ())
    for name in required:
        if name not in call.arguments:
            return f"{name} is missing"
    for name, value in call.arguments.items():
        if name not in properties or name not in accepted:
            return f"there is no argument {name}"
        if problem := _value_problem(name, value, accepted[name], properties[name], source):
            return problem
    wanted = [name for name, values in accepted.items() if "" not in values]
    missing = [name for name in wanted if name not in call.arguments]
    return f"{missing[0]} is missing" if missing else None


def _value_problem(
    name: str, value: Any, accepted: Sequence[Any], about: Mapping[str, Any], source: bool
) -> str | None:
    described = str(about.get("type", "any"))
    kind = _KINDS.get(described, str)
    inner = _KINDS.get(str((about.get("items") or {}).get("type", "any")), str) if described in _LISTS else None
    if source and isinstance(value, str) and kind is not str and value not in accepted:
        value = read_source(value, kind, inner)
    if kind is float and type(value) is int:
        with contextlib.suppress(OverflowError):  # beyond all floats: of another type
            value = float(value)
    fits, variable = _type_fits(value, accepted, kind, inner)
    if not fits:
        return f"{name}: {value!r} is not of type {described}"
    return None if _accepted(value, accepted, kind, inner, variable) else f"{name}: {value!r} is not accepted"


def _type_fits(value: Any, accepted: Sequence[Any], kind: type, inner: type | None) -> tuple[bool, bool]:
    """Whether a value has the described type or that of the accepted values; and whether it is a variable's name."""
    given = next((type(one) for one in accepted if one != ""), None)
    if type(value) is kind:
        variable = given is not None and given is not kind
        if inner is None:
            return True, variable
        for one in accepted:
            if not isinstance(one, list) or all(_type_fits(part, one, inner, None)[0] for part in value):
                return True, variable
    return given is not None and type(value) is given, True


def _accepted(value: Any, accepted: Sequence[Any], kind: type, inner: type | None, variable: bool) -> bool:
    if not variable and kind is dict:
        return any(_object_fits(value, one) for one in accepted if isinstance(one, Mapping))
    if not variable and kind is list and inner is dict:
        return any(
            isinstance(one, list) and len(one) == len(value) and all(map(_object_fits, value, one)) for one in accepted
        )
    if not variable and kind is str:
        return _plain(value) in [_plain(one) for one in accepted if isinstance(one, str)]
    if not variable and kind is list:
        parts = [[_plain(part) for part in one] for one in accepted if isinstance(one, list | str)]
        return [_plain(part) for part in value] in parts
    return value in accepted


def _object_fits(value: Any, accepted: Mapping[str, Any]) -> bool:
    if not isinstance(value, Mapping) or any(key not in accepted for key in value):
        return False
    values = listed(accepted)
    if any(key not in value and "" not in one for key, one in values.items()):
        return False
    return all(_plain(one) in [_plain(other) for other in values[key]] for key, one in value.items())


def _plain(value: Any) -> Any:
    """A value as it is compared."""
    return plain_text(value) if isinstance(value, str) else value


_WHOLE = re.compile(r"-?[0-9]{1,400}[lL]?")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?[lLfFdD]?")
_ENTRY = re.compile(r"put\(\s*(\"[^\"]*\"|[^,()]+)\s*,\s*(\"[^\"]*\"|[^()]+)\s*\)")
_PARTS = re.compile(r"\"[^\"]*\"|'[^']*'|[^,\s][^,]*")


def read_source(text: str, kind: type, inner: type | None = None) -> Any:
    """A value in the source code of Java or JavaScript; the text itself if it is none, e.g. a variable.

    >>> read_source("5L", int), read_source("new int[]{1, 2}", list, int), read_source("true", bool)
    (5, [1, 2], True)
    """
    text = text.strip()
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and _WHOLE.fullmatch(text):
        return int(text.rstrip("lL"))
    if kind is float and _NUMBER.fullmatch(text):
        return float(text.rstrip("lLfFdD"))
    if kind in (list, dict):
        try:
            return json.loads(text)
        except ValueError:
            pass
    if kind is dict and "put(" in text:
        return {_quoted(key): _quoted(value) for key, value in _ENTRY.findall(text)}
    found = re.search(r"[\[{(]([^\[\]{}()]*)[\]})]\s*\)?$", text) if kind is list else None
    if found:
        return [read_source(_quoted(part), inner or str) for part in _PARTS.findall(found[1])]
    return text


def _quoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def gold_calls(wanted: Sequence[Mapping[str, Accepted]], functions: Sequence[Mapping[str, Any]]) -> tuple[Call, ...]:
    """Calls that are right: the first accepted value of every argument that the function has.

    A required argument that may only be empty is an empty value of its type.
    """
    calls = []
    for one in wanted:
        (name, accepted), *_ = one.items()
        about = next(function for function in functions if function["name"] == name)["parameters"]
        required = about.get("required", ())
        given = {}
        for key, values in accepted.items():
            if key not in about.get("properties", {}):
                continue
            if any(value != "" for value in values):
                given[key] = _first(_some(values))
            elif key in required:
                given[key] = _KINDS.get(about["properties"][key]["type"], str)()
        calls.append(Call(plain_name(name), given))
    return tuple(calls)


def _first(value: Any) -> Any:
    """An accepted value; in an object every key has a list of them."""
    if isinstance(value, Mapping):
        return {key: _some(one) for key, one in listed(value).items() if _some(one) is not None}
    return [_first(one) for one in value] if isinstance(value, list) else value


def _some(values: Sequence[Any]) -> Any:
    return next((value for value in values if value != ""), None)


__all__ = ["gold_calls", "problem_of", "read_source"]
