"""Calls as an OpenAI-compatible server returns them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roleagent.envs.tools.formats.base import Format, Malformed, Reading
from roleagent.envs.tools.formats.json_text import call_of, read_message, write_json
from roleagent.envs.tools.formats.scan import ANSWER, Scanned, scan
from roleagent.spaces import whole
from roleagent.tools import Call, Tool


class Native(Format):
    """``tool_calls`` of an OpenAI-compatible server: the reply is the assistant's message, an object or its JSON."""

    name = "native"
    form = "a tool call"

    def read(self, reply: Any, tools: Sequence[Tool] = (), plain: bool = False) -> Reading:
        try:
            message = reply if isinstance(reply, Mapping) else _message(reply)
        except ValueError as error:
            return Reading(error=str(error))
        content = message.get("content")
        found = scan(whole(content), (ANSWER,)) if isinstance(content, str) else Scanned()
        more: dict[str, Any] = {"predictions": found.predictions, "thoughts": found.thoughts}
        try:
            made = message.get("tool_calls") or []
            if not isinstance(made, list):
                raise Malformed("tool_calls is no list")
            calls = tuple(map(_native_call, made))
            if calls and not found.blocks:
                found.error = None  # what is said beside calls is a remark
            if found.error:
                raise Malformed(found.error)
            return Reading(calls, self._answer(found, calls, plain), **more)
        except Malformed as error:
            return Reading(error=str(error), **more)

    def calls(self, found: Scanned, tools: Sequence[Tool], plain: bool) -> tuple[tuple[Call | str, ...], int]:
        return (), 0

    def write(self, calls: Sequence[Call], tools: Sequence[Tool] = (), literal: Callable[[str], str] = str) -> str:
        made = {"role": "assistant", "content": None, "tool_calls": native_calls(calls)}
        return literal(json.dumps(made, ensure_ascii=False))


def native_calls(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Calls as the ``tool_calls`` of an assistant's message; one without an id is named by its place."""
    return [
        {
            "id": call.id or f"call_{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for number, call in enumerate(calls)
    ]


def _message(reply: Any) -> Mapping[str, Any]:
    """The message that a text holds; any other text is the content of one.

    Raises:
        ValueError: neither, or JSON with a key that occurs twice, NaN or too many levels.
    """
    if not isinstance(reply, str):
        raise ValueError(f"the reply is not a message but {type(reply).__name__}")
    if reply.lstrip().startswith("{"):
        try:
            value = read_message(reply)
        except json.JSONDecodeError:
            value = None
        if isinstance(value, dict) and ("tool_calls" in value or "content" in value):
            return value
    return {"content": reply}


def _native_call(value: Any) -> Call | str:
    function = value.get("function") if isinstance(value, Mapping) else None
    number = value.get("id") if isinstance(value, Mapping) else None
    try:
        if not isinstance(function, Mapping):
            raise ValueError("no function is named")
        # Arguments are a text, whose length is limited; an object is written as one.
        call, _ = call_of({k: write_json(v) if isinstance(v, (dict, list)) else v for k, v in function.items()})
        return Call(call.name, call.arguments, number if isinstance(number, str) else None)
    except ValueError as error:
        return f"malformed call: {error}"


__all__ = ["Native", "native_calls"]
