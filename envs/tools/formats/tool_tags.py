"""A tag per tool: ``<search>…</search>``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roleagent.envs.tools.formats.base import Format
from roleagent.envs.tools.formats.json_text import kinds_of, read_json, typed_value
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
                    kinds_of(only[1]) == {"string"}
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
        return {} if optional and not content else {name: typed_value(kinds_of(schema), content)}
    value = read_json(content) if content else {}
    if not isinstance(value, dict):
        raise ValueError(f"the arguments of {tool.name} are a JSON object")
    return value


__all__ = ["Tags"]
