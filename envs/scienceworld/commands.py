"""Commands of ScienceWorld, which is not asked for the thousands of valid actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from roleagent.env_card import CommandForm
from roleagent.envs.scienceworld.text import read_choices, read_room


def _doors(verb: str, is_open: bool) -> Callable[[str, Mapping[str, Any]], Sequence[str]]:
    def suggest(observation: str, info: Mapping[str, Any]) -> list[str]:
        room = read_room(observation)
        return [f"{verb} {name}" for name, state in room.doors.items() if state == is_open] if room else []

    return suggest


def _things(*forms: str) -> Callable[[str, Mapping[str, Any]], Sequence[str]]:
    def suggest(observation: str, info: Mapping[str, Any]) -> list[str]:
        room = read_room(observation)
        return [form.format(thing) for form in forms for thing in (room.things if room else ())]

    return suggest


def _looks(observation: str, info: Mapping[str, Any]) -> list[str]:
    if choices := read_choices(observation):
        return [str(number) for number in range(len(choices))]
    return [] if read_room(observation) else ["look around"]


COMMAND_FORMS = tuple(
    CommandForm(verb, description, example, suggest, brackets=False)
    for verb, description, example, suggest in (
        ("look", "looks around, or at or in a thing", "look around", _looks),
        ("open", "opens a door or a container", "open door to kitchen", _doors("open door to", False)),
        ("go", "goes through an open door", "go to kitchen", _doors("go to", True)),
        ("pick", "picks a thing up", "pick up thermometer", _things("pick up {}")),
        ("focus", "says that the task is about this thing", "focus on thermometer", lambda observation, info: ()),
        ("move", "moves a thing to another", "move metal pot to stove", lambda observation, info: ()),
        ("pour", "pours what a container holds into another", "pour cup into metal pot", lambda observation, info: ()),
        ("use", "uses a tool on a thing", "use thermometer on water", lambda observation, info: ()),
        ("activate", "switches a device on", "activate stove", _things("activate {}")),
        ("connect", "connects parts of a circuit", "connect battery anode to wire", lambda observation, info: ()),
    )
)

__all__ = ["COMMAND_FORMS"]
