"""Calls as JSON: ``hermes``, ``json`` and ``llama3``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from roleagent.envs.tools.formats.base import Format, Malformed
from roleagent.envs.tools.formats.json_text import call_of, read_json, read_sequence
from roleagent.envs.tools.formats.scan import ANSWER, Scanned
from roleagent.tools import Call, Tool


def _each(values: Iterable[Any], read: Callable[[Any], tuple[Call, bool]]) -> tuple[tuple[Call | str, ...], int]:
    """The calls of values, and how many were repaired; a text in place of each that is malformed."""
    calls: list[Call | str] = []
    count = 0
    for value in values:
        try:
            call, repaired = read(value)
            calls.append(call)
            count += repaired
        except ValueError as error:
            calls.append(f"malformed call: {error}")
    return tuple(calls), count


def _json(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)


class Hermes(Format):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, several in a row: Qwen2.5, Qwen3, Hermes."""

    name = "hermes"
    form = '<tool_call>{"name": …, "arguments": {…}}</tool_call>'

    def names(self, tools: Sequence[Tool]) -> tuple[str, ...]:
        return ("tool_call",)

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        contents = (content for name, content in found.blocks if name == "tool_call")
        return _each(contents, lambda content: call_of(read_json(content)))

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        return "".join(f"<tool_call>{literal(self.escaped(_json(call), tools))}</tool_call>" for call in calls)


_FENCE = re.compile(r"```\w{0,10}\n(.*?)\n?```", re.DOTALL)


class Json(Format):
    """The reply is one object ``{"name": …, "arguments": {…}}``, or a list of them."""

    name = "json"
    form = '{"name": …, "arguments": {…}}'

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        text = found.outside.strip()
        fenced = _FENCE.fullmatch(text)
        text = fenced[1].strip() if fenced else text
        if not text or (plain and text[0] not in "{["):
            return (), 0
        if any(name == ANSWER for name, _ in found.blocks) and text[0] not in "{[":
            return (), 0
        try:
            value = read_json(text)
        except ValueError as error:
            raise Malformed(f"malformed call: {error}") from None
        calls, repaired = _each(value if isinstance(value, list) else [value], call_of)
        return calls, repaired + (fenced is not None)

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        written = [_json(call) for call in calls]
        return literal(self.escaped(written[0] if len(written) == 1 else f"[{', '.join(written)}]", tools))


class Llama3(Format):
    """``{"name": …, "parameters": {…}}`` after an optional ``<|python_tag|>``; several are separated by ``;``."""

    name = "llama3"
    form = '{"name": …, "parameters": {…}}'
    _tag, _ends = "<|python_tag|>", ("<|eom_id|>", "<|eot_id|>")

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        text = found.outside.strip()
        for end in self._ends:
            text = text.removesuffix(end)
        tagged, text = text.startswith(self._tag), text.removeprefix(self._tag).strip()
        if not tagged and (not text or (plain and text[0] not in "{[")):
            return (), 0
        if any(name == ANSWER for name, _ in found.blocks) and not tagged and text[0] not in "{[":
            return (), 0
        try:
            values = read_sequence(text, ";")
        except ValueError as error:
            raise Malformed(f"malformed call: {error}") from None
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        return _each(values, partial(call_of, key="parameters"))

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        return literal(self.escaped("; ".join(_json(call, "parameters") for call in calls), tools))


__all__ = ["Hermes", "Json", "Llama3"]
