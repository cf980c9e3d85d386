"""Parsers of ScienceWorld's text: rooms, doors, things, numbered choices, and what an answer means.

>>> room = read_room("This room is called the hallway. In it, you see: \\n\\ta substance called air\\n\\ta table. "
...     "On the table is: a bowl (containing a fig).\\nYou also see:\\n\\tA door to the kitchen (that is closed)")
>>> room.name, room.things, room.doors
('hallway', ('air', 'table', 'bowl'), {'kitchen': False})
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN = "No known action matches that input."
LOST = "Unknown action"
"""Begins the answer to a text that was taken for a wrong choice; it costs a move and nothing is done."""
AMBIGUOUS = "Ambiguous request"

DOORS: Mapping[str, tuple[str, ...]] = {
    "hallway": ("art studio", "bedroom", "greenhouse", "kitchen", "living room", "workshop"),
    "kitchen": ("bathroom", "hallway", "outside"),
    "outside": ("foundry", "greenhouse", "kitchen"),
    "greenhouse": ("hallway", "outside"),
    "art studio": ("hallway",),
    "bathroom": ("kitchen",),
    "bedroom": ("hallway",),
    "foundry": ("outside",),
    "living room": ("hallway",),
    "workshop": ("hallway",),
}
"""The rooms, and to which rooms they have a door: the same in every task."""

_ROOM = re.compile(r"This (?:room|outside location) is called the ([\w ]+?)\. .*? you see: *\n(.*)", re.DOTALL | re.I)
_MOVED = re.compile(r"You (?:move|teleport) to the ([\w ]+)\.")
_DOOR = re.compile(r"A door to the ([\w ]+?) \(that is (open|closed)\)")
_CHOICE = re.compile(r"^\d+:\t(.*)$", re.MULTILINE)
_ARTICLE = re.compile(r"^(?:an?|the|a substance called) (?:substance called )?", re.I)
_DETAIL = re.compile(r"[.,(]| titled ")
_INSIDE = re.compile(r"(?:On|In) the [\w ]+ is: (.*)")


class Room(NamedTuple):
    """A look around.

    Attributes:
        name: of the room.
        things: their names, without the agent and without what is inside of other containers.
        doors: the room behind each door, and whether the door is open.
    """

    name: str
    things: tuple[str, ...]
    doors: dict[str, bool]


def read_room(observation: str) -> Room | None:
    """The room that an observation describes; None if it describes none."""
    found = _ROOM.search(observation)
    if found is None:
        return None
    listed = found[2].partition("You also see:")[0]
    named = (name for line in listed.splitlines() for name in _things(line))
    doors = {name: state == "open" for name, state in _DOOR.findall(found[2])}
    return Room(found[1], tuple(dict.fromkeys(name for name in named if name not in ("", "agent", "nothing"))), doors)


def read_place(observation: str) -> str:
    """The name of the room in which the agent is, by an observation; ``""`` if that names none.

    >>> read_place("You move to the art studio."), read_place("You move the cup to the inventory.")
    ('art studio', '')
    """
    room = _ROOM.search(observation) or _MOVED.fullmatch(observation)
    return room[1] if room else ""


def read_choices(observation: str) -> tuple[str, ...]:
    """The numbered choices of an ambiguous command, in order.

    >>> read_choices("Ambiguous request: Please enter …:\\n0:\\topen door to kitchen\\n1:\\topen door to outside\\n")
    ('open door to kitchen', 'open door to outside')
    """
    return tuple(_CHOICE.findall(observation)) if observation.startswith(AMBIGUOUS) else ()


def understood(observation: str) -> bool:
    """Whether the answer is to a command that the world understood."""
    return not observation.startswith((UNKNOWN, LOST))


def way(start: str, end: str) -> list[str]:
    """The rooms on a shortest way, without the first one.

    >>> way("bathroom", "foundry")
    ['kitchen', 'outside', 'foundry']
    """
    before, queue = {start: ""}, deque([start])
    while queue and end not in before:
        room = queue.popleft()
        for other in DOORS.get(room, ()):
            if other not in before:
                before[other] = room
                queue.append(other)
    path: list[str] = []
    while end != start and end in before:
        path.append(end)
        end = before[end]
    return path[::-1]


def _things(line: str) -> list[str]:
    """The names in a line of a look around: a thing, and what stands on it or lies in it."""
    names = [line]
    if inside := _INSIDE.search(line):
        # Brackets hold commas of their own.
        names += re.sub(r"\([^()]*\)|, (?:which|currently) [^,.]*", "", inside[1]).split(",")
    return [_ARTICLE.sub("", _DETAIL.split(name.strip(), maxsplit=1)[0].strip()) for name in names if name.strip()]


__all__ = [
    "AMBIGUOUS",
    "DOORS",
    "LOST",
    "UNKNOWN",
    "Room",
    "read_choices",
    "read_place",
    "read_room",
    "understood",
    "way",
]
