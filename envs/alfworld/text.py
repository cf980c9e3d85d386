"""Reading ALFWorld's text: the sentence of a task, commands and names. The toy kitchen is worded alike."""

from __future__ import annotations

import re
from typing import NamedTuple

TREATMENTS = ("clean", "cool", "heat")
_ADJECTIVES = {"clean": "clean", "cool": "cool", "hot": "heat"}
_COMMANDS = (
    (r"go to (?P<place>.+)", "go"),
    (r"take (?P<thing>.+) from (?P<place>.+)", "take"),
    (r"(?:move|put) (?P<thing>.+?) (?:to|in/on|in|on) (?P<place>.+)", "move"),
    (r"(?P<verb>heat|cool|clean|slice) (?P<thing>.+) with (?P<place>.+)", ""),
    (r"(?P<verb>open|close) (?P<place>.+)", ""),
    (r"(?P<verb>use|examine) (?P<thing>.+)", ""),
    (r"(?P<verb>look|inventory|help)", ""),
)
_SOME = r"(?:(?P<two>two)|a|an|some|the)"
_THERE = r"(?:in/on|in|on) (?:the )?(?P<target>\w+)"
_GOALS = (
    rf"put {_SOME} (?:(?P<adjective>clean|cool|hot) )?(?P<item>\w+) {_THERE}",
    rf"(?P<verb>find|clean|cool|heat) {_SOME} (?P<item>\w+) and put (?:it|them) {_THERE}",
    r"(?:look at|examine) (?:(?:a|an|some|the) )?(?P<item>\w+) (?:under|with) (?:the )?\w+",
)


class Goal(NamedTuple):
    """The goal of a task, in types (names without numbers); ``""`` for a missing part."""

    item: str = ""
    target: str = ""
    treatment: str = ""
    count: int = 1


def read_goal(text: str) -> Goal:
    """Reads the sentence of a household task; an empty goal if it is no such sentence.

    >>> read_goal("put two cellphone in drawer.")
    Goal(item='cellphone', target='drawer', treatment='', count=2)
    >>> read_goal("heat some egg and put it in garbagecan.")
    Goal(item='egg', target='garbagecan', treatment='heat', count=1)
    >>> read_goal("look at bowl under the desklamp.")
    Goal(item='bowl', target='', treatment='', count=1)
    """
    for pattern in _GOALS:
        found = re.search(pattern, text.lower())
        if found:
            part = found.groupdict()
            verb = _ADJECTIVES.get(part.get("adjective") or "") or part.get("verb")
            treatment = verb if verb in TREATMENTS else ""
            return Goal(part["item"], part.get("target") or "", treatment, 2 if part.get("two") else 1)
    return Goal()


def read_command(command: str) -> tuple[str, str, str]:
    """Verb, object and receptacle of a command; ``""`` for a missing part.

    >>> read_command("put egg 1 in/on fridge 1")
    ('move', 'egg 1', 'fridge 1')
    """
    for pattern, verb in _COMMANDS:
        found = re.fullmatch(pattern, command)
        if found:
            part = found.groupdict()
            return verb or part["verb"], part.get("thing") or "", part.get("place") or ""
    return "", "", ""


def kind_of(name: str) -> str:
    """A thing's name without its number.

    >>> kind_of("cabinet 12"), kind_of("tray")
    ('cabinet', 'tray')
    """
    head, _, number = name.rpartition(" ")
    return head if number.isdecimal() else name


__all__ = ["TREATMENTS", "Goal", "kind_of", "read_command", "read_goal"]
