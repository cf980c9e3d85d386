"""BFCL's descriptions of functions as JSON Schema: its types are those of Python, Java and JavaScript."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from roleagent.envs.tools.definition.function_tool import DescribedTool

_JSON = {"string", "integer", "number", "boolean", "array", "object", "null"}
_TYPES = {
    **{name: "object" for name in ("dict", "HashMap", "Hashtable")},
    **{name: "number" for name in ("float", "double", "Float", "Double")},
    **{name: "integer" for name in ("long", "short", "byte", "Long", "Integer", "Bigint")},
    **{name: "array" for name in ("tuple", "Array", "ArrayList", "Set", "Queue", "Stack", "list")},
    **{name: "string" for name in ("String", "char")},
    "Boolean": "boolean",
}
"""Types that JSON Schema calls otherwise. Any other type (``any``, an empty one) is left out."""


def tool_of(function: Mapping[str, Any], mapped: Counter[str]) -> DescribedTool:
    """A function as a tool. A dot in its name, which no server accepts, becomes an underscore.

    Args:
        function: as BFCL describes it.
        mapped: counts the types that were mapped, by their names.
    """
    parameters = _schema(function.get("parameters") or {"type": "dict"}, mapped)
    return DescribedTool(plain_name(function["name"]), str(function.get("description") or ""), parameters)


def plain_name(name: str) -> str:
    """A function's name in the offered schema.

    >>> plain_name("math.sum")
    'math_sum'
    """
    return re.sub(r"\W", "_", name)


def _schema(value: Any, mapped: Counter[str]) -> Any:
    """A part of a description that is a schema."""
    if not isinstance(value, Mapping):
        return value
    found = {}
    for key, part in value.items():
        if key == "type" and isinstance(part, str) and part not in _JSON:
            mapped[part] += 1
            if part in _TYPES:
                found[key] = _TYPES[part]
        elif key == "properties" and isinstance(part, Mapping):
            found[key] = {name: _schema(one, mapped) for name, one in part.items()}
        else:
            found[key] = _schema(part, mapped) if key in ("items", "additionalProperties") else part
    return found


__all__ = ["plain_name", "tool_of"]
