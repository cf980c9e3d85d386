"""Tools that stand for commands: each has one or more forms, such as ``take {thing} from {place}``."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_BREAK = re.compile(r"\s*[\r\n]\s*")


@dataclass(frozen=True)
class CommandTool:
    """A tool whose call is one command of an environment.

    Attributes:
        name: what a call names.
        description: what a model reads about it.
        forms: of the command, with the arguments in braces. The first is taken unless only another one is possible.
        arguments: what each argument is, by name; a text unless it is one of ``integers``.
        listed: arguments whose values are those that the first observation's possible commands have.
        integers: arguments that are whole numbers.
        unbracketed: arguments in which square brackets, which would end the command, become blanks.

    >>> take = CommandTool("take", "Takes a thing.", ("take {thing} from {place}",), {"thing": "it", "place": "where"})
    >>> take.arguments_of("take mug 1 from desk 2")
    {'thing': 'mug 1', 'place': 'desk 2'}
    """

    name: str
    description: str
    forms: tuple[str, ...]
    arguments: Mapping[str, str] = field(default_factory=dict)
    listed: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    unbracketed: tuple[str, ...] = ()

    def schema(self, values: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """The JSON Schema of the arguments.

        Args:
            values: of listed arguments, by name.
        """
        properties: dict[str, Any] = {}
        for name, about in self.arguments.items():
            known = values.get(name, ()) if name in self.listed else ()
            kind = "integer" if name in self.integers else "string"
            properties[name] = {"type": kind, **({"enum": list(known)} if known else {}), "description": about}
        required = list(self.arguments)
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def command(self, arguments: Mapping[str, Any], possible: Collection[str] = ()) -> str:
        """The command of a call, in one line.

        Args:
            possible: commands that are possible now; they choose among several forms.
        """
        given = {name: _BREAK.sub(" ", str(value)) for name, value in arguments.items()}
        given |= {name: " ".join(re.sub(r"[][]", " ", given[name]).split()) for name in self.unbracketed}
        commands = [form.format(**given) for form in self.forms]
        return next((command for command in commands if command in possible), commands[0])

    def arguments_of(self, command: str) -> dict[str, Any] | None:
        """The arguments of a command; None if it is not one of this tool."""
        found = next(filter(None, (_pattern(form).fullmatch(command) for form in self.forms)), None)
        given: dict[str, Any] = found.groupdict() if found else {}
        if found is None or not all(given[name].isdecimal() for name in self.integers):
            return None
        return given | {name: int(given[name]) for name in self.integers}


@lru_cache(maxsize=256)
def _pattern(form: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", form)
    last = len(parts) - 2
    return re.compile(
        "".join(
            (rf"(?P<{part}>.+)" if place == last else rf"(?P<{part}>.+?)") if place % 2 else re.escape(part)
            for place, part in enumerate(parts)
        ),
        re.DOTALL,
    )


def _possible(info: Mapping[str, Any]) -> Sequence[str]:
    return info.get("admissible_actions") or ()


@dataclass(frozen=True)
class CommandTools:
    """An environment's commands as tools (``EnvCard.command_tools``).

    Attributes:
        rules: the task and the world, for a prompt. Tools describe themselves.
        tools: a few general ones.
        fine: one for each verb; empty: there is no such view.
        answer: the tool that an answer calls; empty: there are no answers.
        hints: from ``info``, what can be done now, for those who are shown it.
    """

    rules: str
    tools: tuple[CommandTool, ...]
    fine: tuple[CommandTool, ...] = ()
    answer: str = ""
    hints: Callable[[Mapping[str, Any]], Sequence[str]] = _possible


ACT = CommandTool(
    "act",
    "Carry out one command in the world, and see what happens.",
    ("{command}",),
    {"command": 'The command, for instance "go to desk 1" or "take mug 1 from desk 1".'},
)
DEFAULT = CommandTools(
    "Solve the task that you are given. Act one command at a time, and look at what happens.", (ACT,)
)
"""Of an environment that describes no tools: one tool for every command."""

__all__ = ["ACT", "DEFAULT", "CommandTool", "CommandTools"]
