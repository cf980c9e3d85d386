"""Python types as JSON Schema, values as these types, and the check of a call's arguments."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import validator_for
from referencing import Registry

from roleagent.envs.tools.formats.json_text import read_json, write_json
from roleagent.options import shown

_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_BARE = {list: list[Any], dict: dict[str, Any], tuple: tuple[Any, ...], Sequence: list[Any], Mapping: dict[str, Any]}
_JSON = (str, int, float, bool, type(None), list, dict)

Schema = dict[str, Any]


class SchemaRefused(ValueError):
    """A type or a schema that a tool cannot have; the message is one line."""


def schema_of(kind: Any, seen: tuple[Any, ...] = ()) -> Schema:
    """The JSON Schema of a Python type.

    Args:
        kind: ``str, int, float, bool, None, Any, Literal, Enum, list, dict, tuple, Optional, Union, TypedDict``, a
            dataclass, or ``Annotated`` with a description.
        seen: the classes around it.

    Raises:
        SchemaRefused: no schema describes the type.

    >>> schema_of(Literal["km", "mile"])
    {'type': 'string', 'enum': ['km', 'mile']}
    >>> schema_of(list[int] | None)
    {'anyOf': [{'type': 'array', 'items': {'type': 'integer'}}, {'type': 'null'}]}
    """
    origin, inner = _parts(kind)
    if kind is Any:
        return {}
    if kind is None or (isinstance(kind, type) and not inner and kind in _SCALARS):
        return {"type": _SCALARS[type(None) if kind is None else kind]}
    if origin is Annotated:
        words = [word for word in inner[1:] if isinstance(word, str)]
        return schema_of(inner[0], seen) | ({"description": words[0]} if words else {})
    if origin is Literal:
        return _enumeration(inner)
    if origin in (Union, types.UnionType):
        return _union([schema_of(one, seen) for one in inner])
    if origin in (list, Sequence, typing.get_origin(Sequence[int])):
        return {"type": "array", "items": schema_of(inner[0], seen)}
    if origin is tuple:
        if len(inner) == 2 and inner[1] is ...:
            return {"type": "array", "items": schema_of(inner[0], seen)}
        parts = [schema_of(one, seen) for one in inner]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "maxItems": len(parts)}
    if origin in (dict, Mapping, typing.get_origin(Mapping[str, int])):
        if inner[0] is not str:
            raise SchemaRefused("JSON objects have texts as keys: write dict[str, …]")
        return {"type": "object", "additionalProperties": schema_of(inner[1], seen)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return _enumeration([member.value for member in kind])
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        if kind in seen:
            raise SchemaRefused(f"{_name(kind)} refers to itself")
        return _object(kind, (*seen, kind))
    raise SchemaRefused(f"{_name(kind)} has no JSON Schema")


def _parts(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """Origin and arguments of a type; a list, dict or tuple without arguments holds anything."""
    origin, inner = get_origin(kind), get_args(kind)
    bare = _BARE.get(origin or kind) if not inner and isinstance(origin or kind, type) else None
    return (origin, inner) if bare is None else (get_origin(bare), get_args(bare))


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", None) or str(kind)


def _enumeration(values: Sequence[Any]) -> Schema:
    if not values or not all(isinstance(value, (str, int, float, bool, type(None))) for value in values):
        raise SchemaRefused("its values must be texts, numbers, booleans or None")
    kinds = list(dict.fromkeys(_SCALARS[type(value)] for value in values))
    return ({"type": kinds[0]} if len(kinds) == 1 else {}) | {"enum": list(values)}


def _union(parts: list[Schema]) -> Schema:
    if all(set(part) == {"type"} for part in parts):
        return {"type": [part["type"] for part in parts]}
    return {"anyOf": parts}


def _object(kind: Any, seen: tuple[Any, ...]) -> Schema:
    fields = _fields(kind)
    properties = {}
    for name, (hint, default) in fields.items():
        try:
            properties[name] = with_default(schema_of(hint, seen), default)
        except SchemaRefused as error:
            raise SchemaRefused(f"{name}: {error}") from None
    required = [name for name, (_, default) in fields.items() if default is REQUIRED]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


REQUIRED: Any = object()
"""The default of a field that has none."""


def _fields(kind: Any) -> dict[str, tuple[Any, Any]]:
    """The fields of a dataclass or a TypedDict: type and default."""
    hints = get_type_hints(kind, include_extras=True)
    if typing.is_typeddict(kind):
        hints = {name: _unwrapped(hint) for name, hint in hints.items()}
        return {name: (hint, REQUIRED if name in kind.__required_keys__ else ...) for name, hint in hints.items()}
    found = {}
    for field in dataclasses.fields(kind):
        made = field.default_factory is not dataclasses.MISSING
        default = ... if made else REQUIRED if field.default is dataclasses.MISSING else field.default
        if field.init:
            found[field.name] = hints[field.name], default
    return found


def _unwrapped(hint: Any) -> Any:
    """A TypedDict's field without ``Required`` or ``NotRequired``."""
    return get_args(hint)[0] if getattr(get_origin(hint), "_name", "") in ("Required", "NotRequired") else hint


def with_default(schema: Schema, default: Any) -> Schema:
    """The schema with a default, where JSON can hold it."""
    value = default.value if isinstance(default, enum.Enum) else default
    if isinstance(value, _JSON):
        with contextlib.suppress(ValueError):
            write_json(value)
            return {**schema, "default": value}
    return schema


def converter(kind: Any) -> Callable[[Any], Any] | None:
    """A function that turns a checked JSON value into a value of the type; None where it is one already.

    >>> converter(tuple[int, ...])([1, 2])
    (1, 2)
    """
    origin, inner = _parts(kind)
    if kind in (float, int):
        return lambda value: kind(value) if isinstance(value, int | float) else value
    if origin is Annotated:
        return converter(inner[0])
    if origin in (Union, types.UnionType):
        choices = [(Draft202012Validator(schema_of(one)), converter(one)) for one in inner]
        return (lambda value: _first_fitting(choices, value)) if any(convert for _, convert in choices) else None
    if origin in (list, Sequence, typing.get_origin(Sequence[int])):
        item = converter(inner[0])
        return (lambda value: [item(one) for one in value]) if item else None
    if origin is tuple and inner[1:] == (...,):
        item = converter(inner[0])
        return (lambda value: tuple(item(one) for one in value)) if item else tuple
    if origin is tuple:
        parts = [converter(one) or _same for one in inner]
        return lambda value: tuple(convert(one) for convert, one in zip(parts, value, strict=True))
    if origin in (dict, Mapping, typing.get_origin(Mapping[str, int])):
        item = converter(inner[1])
        return (lambda value: {key: item(one) for key, one in value.items()}) if item else None
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        fields = {name: converter(hint) or _same for name, (hint, _) in _fields(kind).items()}
        make: Any = kind if dataclasses.is_dataclass(kind) else dict
        return lambda value: make(**{name: fields[name](one) for name, one in value.items()})
    return None


def _same(value: Any) -> Any:
    return value


def _first_fitting(choices: list[tuple[Any, Callable[[Any], Any] | None]], value: Any) -> Any:
    convert = next((convert for check, convert in choices if check.is_valid(value)), None)
    return convert(value) if convert else value


class ArgumentCheck:
    """Checks the arguments of one tool against its schema.

    Args:
        schema: JSON Schema of type ``object``, of the draft that its ``$schema`` names, else 2020-12. References to
            other documents are not followed. Patterns are those of ECMAScript: one that Python cannot compile, such as
            ``\\p{L}``, is not checked.

    Raises:
        SchemaRefused: it is no valid schema of an object.

    >>> check = ArgumentCheck({"type": "object", "properties": {"unit": {"enum": ["km", "mile"]}}})
    >>> check.problem({"unit": "miles"})
    "unit: 'miles' is not one of 'km', 'mile'"
    """

    def __init__(self, schema: Mapping[str, Any]):
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise SchemaRefused("the schema of a tool's arguments must be of type object")
        named = schema if isinstance(schema.get("$schema"), str) else {}
        validator: Any = validator_for(named, default=Draft202012Validator)
        try:
            checked = _without_foreign_patterns(schema)
            validator.check_schema(checked)
        except SchemaError as error:
            raise SchemaRefused(f"no JSON Schema: {_path(error)}{_line(error.message)}") from None
        except RecursionError:
            raise SchemaRefused("the schema has too many levels") from None
        self._validator = validator(checked, registry=Registry())
        self._names = list(schema.get("properties", ()))

    def problem(self, arguments: Any) -> str | None:
        """The most relevant problem in one line, with its path; None where the arguments fit. Never raises."""
        try:
            error = best_match(self._validator.iter_errors(arguments))
            return None if error is None else f"{_path(error)}{self._wording(error)}"
        except Exception as reason:  # a pattern that is no regular expression, a reference that leads nowhere
            return f"the arguments cannot be checked: {_line(f'{type(reason).__name__}: {reason}')}"

    def coerced(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """The arguments, with texts converted to numbers or booleans where the schema requires these, and how many."""
        found = copy.deepcopy(dict(arguments))
        errors: list[ValidationError] = []
        with contextlib.suppress(Exception):  # as in `problem`
            errors = list(self._validator.iter_errors(found))
        count = 0
        for error in errors:
            wanted = error.validator_value if isinstance(error.validator_value, list) else [error.validator_value]
            if error.validator != "type" or not isinstance(error.instance, str) or not error.absolute_path:
                continue
            with contextlib.suppress(ValueError, TypeError):
                value = read_json(error.instance)
                if isinstance(value, int | float) and any(self._validator.is_type(value, kind) for kind in wanted):
                    *way, last = error.absolute_path
                    holder: Any = found
                    for step in way:
                        holder = holder[step]
                    holder[last] = value
                    count += 1
        return found, count

    def _wording(self, error: ValidationError) -> str:
        kind, value = error.validator, error.instance
        wanted: Any = error.validator_value
        if kind == "enum":
            return f"{shown(value)} is not one of {', '.join(map(repr, wanted[:20]))}"
        if kind == "type":
            names = wanted if isinstance(wanted, list) else [wanted]
            return f"{shown(value)} is not of type {' or '.join(map(str, names))}"
        if kind == "required" and isinstance(value, Mapping):
            return f"{', '.join(name for name in wanted if name not in value)} is missing"
        if kind == "additionalProperties" and wanted is False and isinstance(value, Mapping):
            known = list(error.schema.get("properties", ())) if isinstance(error.schema, Mapping) else self._names
            others = ", ".join(shown(name) for name in list(value) if name not in known)
            return f"there is no argument {others}; there are {', '.join(known) or 'none'}"
        return _line(error.message)


def _without_foreign_patterns(schema: Any) -> Any:
    """The schema without patterns that Python cannot compile.

    >>> _without_foreign_patterns({"type": "string", "pattern": r"^\\p{L}+$", "minLength": 2})
    {'type': 'string', 'minLength': 2}
    """
    if isinstance(schema, list | tuple):
        return [_without_foreign_patterns(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {
        name: value if name in ("const", "enum", "default", "examples") else _without_foreign_patterns(value)
        for name, value in schema.items()
        if name != "pattern" or not isinstance(value, str) or _compiles(value)
    }
    patterns = kept.get("patternProperties")
    if isinstance(patterns, Mapping) and not all(map(_compiles, patterns)):  # any name may be one of them
        kept["patternProperties"] = {name: one for name, one in patterns.items() if _compiles(name)}
        kept = {
            name: one for name, one in kept.items() if name not in ("additionalProperties", "unevaluatedProperties")
        }
    return kept


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _path(error: ValidationError | SchemaError) -> str:
    """``point.x[2]: ``, or nothing for the whole object."""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    return f"{_line(path.lstrip('.'))}: " if path else ""


def _line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


LONGEST = 200
"""Characters of a part of a message."""
