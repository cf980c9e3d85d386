"""A tag per tool: ``<search>…</search>``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roleagent.envs.tools.formats.base import Format
from roleagent.envs.tools.formats.json_text import read_json
from roleagent.envs.tools.formats.scan import ANSWER, Scanned
from roleagent.tools import Call, Tool


class Tags(Format):
    """``<search>…</search>``: a tag per tool, around its only argument or a JSON object of its arguments."""

    name = "tags"
    form = "<TOOL>…</TOOL>"

    def names(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return tuple(tool.name for tool in tools if tool.name not in (ANSWER, "think", "prediction"))

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        by_name = {tool.name: tool for tool in tools}
        calls: list[Call | str] = []
        for name, content in found.blocks:
            if name != ANSWER:
                try:
                    calls.append(Call(name, _content(by_name[name], content.strip())))
                except ValueError as error:
                    calls.append(f"malformed call: {error}")
        return tuple(calls), 0

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        by_name = {tool.name: tool for tool in tools}
        return "".join(
            f"<{call.name}>{literal(self._inside(by_name.get(call.name), call, tools))}</{call.name}>" for call in calls
        )

    def _inside(self, tool: Tool | None, call: Call, tools: Sequence[Tool]) -> str:
        value: Any = call.arguments
        if tool is not None and (only := _only(tool)) is not None:
            if not value:
                return ""
            if list(value) == [only[0]]:
                value = value[only[0]]
                if isinstance(value, str) and (
                    _kinds(only[1]) == {"string"}
                    or (self.escaped(value, tools) == value and _content(tool, value.strip()) == call.arguments)
                ):
                    return value
        return self.escaped(json.dumps(value, ensure_ascii=False), tools)


def _only(tool: Tool) -> tuple[str, Mapping[str, Any]] | None:
    """The only parameter of a tool and its schema; None where it has none or several."""
    properties = dict(tool.parameters.get("properties", {}))
    return next(iter(properties.items())) if len(properties) == 1 else None


def _content(tool: Tool, content: str) -> dict[str, Any]:
    only = _only(tool)
    if only is not None:
        name, schema = only
        optional = name not in tool.parameters.get("required", ())
        return {} if optional and not content else {name: _value(_kinds(schema), content)}
    value = read_json(content) if content else {}
    if not isinstance(value, dict):
        raise ValueError(f"the arguments of {tool.name} are a JSON object")
    return value


_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_ANY = {*_KINDS.values(), "null"}


def _kinds(schema: Any) -> set[str]:
    """The types of JSON that a schema allows."""
    if not isinstance(schema, Mapping):
        return _ANY
    if "anyOf" in schema:
        return set().union(*map(_kinds, schema["anyOf"]))
    kind = schema.get("type", _ANY)
    return {kind} if isinstance(kind, str) else set(kind)


def _value(kinds: set[str], content: str) -> Any:
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


__all__ = ["Tags"]
