"""Dataclasses filled from nested mappings, every key and type checked.

An error is one line that names the option and, for a misspelled one, the nearest that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

Options = TypeVar("Options")


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line that says what to change."""


def fill(cls: type[Options], tree: Mapping[str, Any], renamed: Mapping[str, str] | None = None) -> Options:
    """An instance of a dataclass, whose fields may be dataclasses in turn.

    Args:
        renamed: keys that were renamed, with their new names, for the error's hint.

    Raises:
        ConfigError: an unknown key, or a value of the wrong type.
    """
    return _build(cls, tree, "", cls, renamed or {})


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
    return {name: _check(hints.get(name, Any), value, f"{prefix}{name}") for name, value in given.items()}


def shown(value: object) -> str:
    """A value as an error shows it, in one line that can be read.

    >>> shown("fast"), len(shown("x" * 10_000))
    ("'fast'", 100)
    """
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


def _known_keys(cls: type, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, kind in typing.get_type_hints(cls).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(kind):
            keys += _known_keys(typing.cast(type, kind), f"{prefix}{name}.")
    return keys


def _nearest(key: str, root: type, renamed: Mapping[str, str]) -> str:
    """A hint: the new name, else a key of the same section with nearly that name, else the nearest of all."""
    if key in renamed:
        return f"; it is called {renamed[key]!r} now"
    known, key = _known_keys(root), key[:100]
    section, _, leaf = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    near = [siblings[name] for name in difflib.get_close_matches(leaf, siblings, n=1)]
    near = near or [name for name in known if name.rpartition(".")[2] == leaf]
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _build(cls: type, tree: Any, prefix: str, root: type, renamed: Mapping[str, str]) -> Any:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')!r} is a section with keys of its own, not a value: {shown(tree)}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if key not in hints:
            raise ConfigError(f"unknown key {shown(full)}{_nearest(full, root, renamed)}")
        kind = hints[key]
        section = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        values[key] = _build(kind, value, f"{full}.", root, renamed) if section else _check(kind, value, full)
    return cls(**values)


def _check(kind: Any, value: Any, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value is False and "none" in choices:
            value = "none"
        if value in choices and not isinstance(value, bool):
            return value
        raise ConfigError(f"{key} must be one of {', '.join(map(str, choices))}, not {shown(value)}")
    if origin in (typing.Union, types.UnionType):
        return _check_any(typing.get_args(kind), value, key)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return _items(typing.get_args(kind), value, key)
    elif kind is bool:
        if isinstance(value, bool):
            return value
    elif kind is float:
        try:
            number = None if isinstance(value, bool) else float(value)  # YAML reads `1e-4` (no dot) as text
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is not None:
            check_finite(number, key)
            return number
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif kind is str:
        if value is None:
            return ""
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
    else:
        check_finite(value, key)
        return value
    name = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else "mapping"
    raise ConfigError(f"{key} must be of type {name}, not {shown(value)}")


def _check_any(kinds: tuple[Any, ...], value: Any, key: str) -> Any:
    """As the first of these types that fits; where none does, the first says what is wrong."""
    if value is None and type(None) in kinds:
        return None
    wrong: list[ConfigError] = []
    for kind in kinds:
        try:
            if kind is not type(None):
                return _check(kind, value, key)
        except ConfigError as error:
            wrong.append(error)
    raise wrong[0]


def _items(kinds: tuple[Any, ...], value: Mapping[Any, Any], key: str) -> dict[str, Any]:
    kind = kinds[1] if len(kinds) == 2 else Any
    for name in value:
        if not isinstance(name, str):
            raise ConfigError(f"{key} must have names as keys, not {shown(name)}")
    return {name: _check(kind, item, f"{key}.{name}") for name, item in value.items()}


def check_finite(value: Any, key: str) -> None:
    """Refuses infinity and NaN anywhere in a value of any type: JSON cannot write them, and no option means them.

    Raises:
        ConfigError: one line that names the key.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key} must be a finite number, not {value}")
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        check_finite(item, f"{key}.{name}")
