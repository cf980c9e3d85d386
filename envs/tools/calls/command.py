"""The command of a :class:`~roleagent.envs.tools.env.ToolEnv`: one JSON line with calls, or with an answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from roleagent.envs.tools.formats.json_text import write_json
from roleagent.tools import Call

INVALID = 'That was neither {"calls": [{"name": …, "arguments": {…}}]} nor {"answer": "…"}.'


@dataclass(frozen=True, slots=True)
class Command:
    """A command, read.

    Attributes:
        calls: in order; a text in place of a call explains why it could not be read.
        answer: None where there is none.
        error: why the whole command is malformed, None if it is not. The agent reads it.
    """

    calls: tuple[Call | str, ...] = ()
    answer: str | None = None
    error: str | None = None

    @property
    def readable(self) -> list[Call]:
        """The calls that could be read."""
        return [call for call in self.calls if isinstance(call, Call)]


def call_command(calls: Iterable[Call | str]) -> str:
    """The command that makes calls.

    >>> call_command([Call("add", {"a": 1})])
    '{"calls": [{"name": "add", "arguments": {"a": 1}}]}'
    """
    return _line({"calls": [{"error": one} if isinstance(one, str) else _described(one) for one in calls]})


def _described(call: Call) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments} | ({"id": call.id} if call.id is not None else {})


def answer_command(answer: str) -> str:
    """The command that answers."""
    return _line({"answer": answer})


def error_command(error: str) -> str:
    """The command for a malformed reply: the agent reads the text."""
    return _line({"error": error})


def _line(command: Any) -> str:
    return json.dumps(command, ensure_ascii=False)


def read_command(action: Any) -> Command:
    """Reads a command. Never raises.

    >>> read_command('{"answer": "Oslo"}').answer, read_command("look").error == INVALID
    ('Oslo', True)
    """
    try:
        found = json.loads(action) if isinstance(action, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or len(found) != 1:
        return Command(error=INVALID)
    (kind, value), *_ = found.items()
    if kind == "answer" and isinstance(value, str) and value.strip():
        return Command(answer=value)
    if kind == "error" and isinstance(value, str):
        return Command(error=value)
    if kind == "calls" and isinstance(value, list) and value:
        calls = tuple(map(_read_call, value))
        return Command(calls)
    return Command(error=INVALID)


def _read_call(value: Any) -> Call | str:
    if isinstance(value, Mapping):
        name, arguments, number = value.get("name"), value.get("arguments"), value.get("id")
        if isinstance(value.get("error"), str):
            return value["error"]
        if isinstance(name, str) and name and isinstance(arguments, dict):
            try:
                write_json(arguments)
            except ValueError as error:
                return f"malformed call: {error}"
            return Call(name, arguments, number if isinstance(number, str) else None)
    return 'a call is {"name": …, "arguments": {…}}'


__all__ = ["INVALID", "Command", "answer_command", "call_command", "error_command", "read_command"]
