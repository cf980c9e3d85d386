"""Values of options, checked by pydantic; its errors become one line that names the option."""

from __future__ import annotations

import difflib
import functools
import inspect
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PydanticUserError,
    Strict,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass, is_pydantic_dataclass

from roleagent.options import ConfigError, UnknownOption, check_finite, home_expanded, shown

Options = TypeVar("Options")


def _text(value: Any) -> Any:
    if value is None:
        return ""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value  # YAML reads `1e-4` (no dot) as text
    except ValueError:
        return value


def _choice(value: Any) -> Any:
    return "none" if value is False else value  # YAML reads `off` and `no` as a boolean


Switch = Annotated[bool, Strict()]
Integer = Annotated[int, Strict()]
Number = Annotated[float, BeforeValidator(_number), Strict(), Field(allow_inf_nan=False)]
Text = Annotated[str, BeforeValidator(_text)]
PathText = Annotated[Text, AfterValidator(home_expanded)]
"""A path, or what may stand in its place: a hub name, or nothing."""
OFF_IS_NONE = BeforeValidator(_choice)
"""For a choice that has ``none``: ``off`` means it, too."""
ONE_IS_A_LIST = BeforeValidator(lambda value: ([value] if value else []) if isinstance(value or "", str) else value)
"""For a list of words: one word is a list of it, and nothing is an empty one."""

_STANDARD: dict[Any, Any] = {bool: Switch, int: Integer, float: Number, str: Text}


def validated(
    cls: type[Options],
    tree: Mapping[str, Any],
    words: Mapping[str, tuple[str, ...] | str] | None = None,
    section: str = "",
) -> Options:
    """An instance of a dataclass, whose fields may be dataclasses in turn.

    Args:
        section: where the tree stands, for errors.
        words: names that other programs have, with the keys that do the same here, or a sentence.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type or outside its range.
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{section!r} is a section with keys of its own, not a value: {shown(tree)}")
    for key, value in tree.items():
        check_finite(value, f"{section}.{key}" if section else str(key))
    if not is_pydantic_dataclass(cls):
        frozen = cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        cls = dataclass(cls, frozen=frozen, config=_OWN)  # type: ignore[assignment]
    try:
        return TypeAdapter(cls).validate_python(tree)
    except ValidationError as error:
        found = error.errors(include_url=False)
    # An unknown key first: where one is misspelled, other errors may only follow from it.
    first = next((one for one in found if one["type"] in _UNKNOWN), found[0])
    if first["type"] in _UNKNOWN:
        key = ".".join([*filter(None, [section]), *_path(first["loc"], tree)])
        inner, value = key, first["input"]
        while isinstance(value, Mapping) and len(value) == 1:  # an option in sections that there are not
            [(name, value)] = value.items()
            inner = f"{inner}.{name}"
        known = words or {}
        key = inner if inner.rpartition(".")[2] in known else key
        hint = _hint_in_place(key[:100], _known_keys(cls, f"{section}." if section else ""), known)
        raise UnknownOption(f"unknown key {shown(key)}{hint}")
    raise ConfigError(_line(first, tree, section))


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The arguments, each of the type that the function's annotation names.

    An argument without an annotation, or with one that no configuration can hold, is returned as it is.

    Args:
        prefix: what an error puts before the name of an argument.

    Raises:
        ConfigError: a value of the wrong type, or a number that is not finite.

    >>> check_arguments(lambda n: n, {"n": 1})
    {'n': 1}
    """
    try:
        hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except (AttributeError, NameError, TypeError):  # names that exist for type checkers alone, or no annotations
        hints = {}
    checked = {}
    for name, value in given.items():
        check_finite(value, f"{prefix}{name}")
        try:
            kind = _standard(hints.get(name, Any), optional=value is None)
            checked[name] = TypeAdapter(kind, config=_ARGUMENT).validate_python(value)
        except PydanticUserError:
            checked[name] = value
        except ValidationError as error:
            raise ConfigError(_line(error.errors(include_url=False)[0], value, f"{prefix}{name}")) from None
    return checked


_OWN = ConfigDict(extra="forbid", strict=False)
_ARGUMENT = ConfigDict(arbitrary_types_allowed=True)
_UNKNOWN = ("unexpected_keyword_argument", "invalid_key")
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_LENGTHS = {"too_long": ("at most", "max_length"), "too_short": ("at least", "min_length")}
# What pydantic calls a type: what Python and YAML call it.
_TYPES = {"string": "str", "dict": "mapping", "tuple": "list"}


def _standard(kind: Any, optional: bool = False) -> Any:
    """An annotation with the types of this module in place of the plain ones."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # The line is about a value that is there: it need not say that None would do.
        kinds = [_standard(one) for one in inner if optional or one is not types.NoneType]
        return functools.reduce(operator.or_, kinds) if len(kinds) == 1 else typing.Union[tuple(kinds)]  # noqa: UP007
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(inner) == 2:
        return Mapping[inner[0], _standard(inner[1])]  # type: ignore[misc]
    return _STANDARD.get(kind, kind) if origin is not Literal else kind


def _line(error: Any, value: Any, key: str) -> str:
    """One line about one of pydantic's errors.

    Args:
        value: what was validated.
        key: its name; empty for a whole configuration.
    """
    kind, given, details = error["type"], error["input"], error.get("ctx", {})
    name = ".".join([*filter(None, [key]), *_path(error["loc"], value)])
    if kind == "value_error":
        return str(details["error"])
    if error["loc"][-1:] == ("[key]",):
        return f"{name.rpartition('.')[0]} must have names as keys, not {shown(given)}"
    if kind.startswith("dataclass"):
        return f"{name!r} is a section with keys of its own, not a value: {shown(given)}"
    if kind == "finite_number":
        return f"{name} must be a finite number, not {given}"
    if kind in _LENGTHS:
        word, bound = _LENGTHS[kind]
        return f"{name} must have {word} {details[bound]} entries, not {shown(given)}"
    if kind == "missing":
        return f"{name} must have more entries than {shown(given)}"
    if kind == "literal_error":
        wanted = f"one of {details['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    elif kind in _BOUNDS:
        word, bound = _BOUNDS[kind]
        wanted = f"{word} {details[bound]:.12g}"
    else:
        wanted = f"of type {_TYPES.get(short := kind.partition('_')[0], short)}"
    return f"{name} must be {wanted}, not {shown(given)}"


def _path(loc: tuple[int | str, ...], value: Any) -> list[str]:
    """Where in a value an error lies, without pydantic's own marks."""
    names = []
    for part in loc:
        inside = isinstance(value, Mapping) and part in value
        if inside or (isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)):
            names.append(str(part))
            value = value[part]  # pyright: ignore[reportCallIssue, reportArgumentType] - the type of an index is checked
    return names


def _known_keys(cls: type, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, kind in typing.get_type_hints(cls).items():
        keys.append(prefix + name)
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            kind = typing.get_args(kind)[0]
        if isinstance(kind, type) and is_pydantic_dataclass(kind):
            keys += _known_keys(kind, f"{prefix}{name}.")
    return keys


def _hint_in_place(key: str, known: list[str], words: Mapping[str, tuple[str, ...] | str]) -> str:
    """As :func:`_hint`, also for a key of a section in a list: ``env.0.key``."""
    if not (place := re.match(r"(\w+\.)\d+\.", key)):
        return _hint(key, known, words)
    return _hint(key.replace(place[0], place[1], 1), known, words).replace(place[1], place[0])


def _hint(key: str, known: list[str], words: Mapping[str, tuple[str, ...] | str]) -> str:
    """What may have been meant: the same name elsewhere, or another program's word for it, in all places that fit; else
    a key of the same section with nearly that name, such a name elsewhere, or a key that is like the whole."""
    section, _, leaf = key.rpartition(".")
    by_leaf: dict[str, list[str]] = {}
    for name in known:
        by_leaf.setdefault(name.rpartition(".")[2], []).append(name)

    def places(name: str) -> list[str]:
        meant = words.get(name, ())
        all_of_them = list(dict.fromkeys([*(() if isinstance(meant, str) else meant), *by_leaf.get(name, ())]))
        return [one for one in all_of_them if section and one.startswith(f"{section}.")] or all_of_them

    if isinstance(sentence := words.get(leaf), str):
        return f"; there is none: {sentence}"
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    near = places(leaf) if leaf in words or (leaf in by_leaf and section) or key in by_leaf else []
    near = near or [f"{section}.{name}" if section else name for name in difflib.get_close_matches(leaf, siblings, n=1)]
    for name in difflib.get_close_matches(leaf, [*by_leaf, *words], n=1, cutoff=0.8):
        near = near or places(name)
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if len(near) > 1:
        return f"; did you mean one of {', '.join(near)}?"
    return f"; did you mean {near[0]!r}?" if near else ""
