"""The tasks of the generated splits: their ids, and the parts of an id.

A task id such as ``pick_clean_then_place_in_recep-Mug-None-Cabinet-12/gen_small_000123`` names the kind of task, the
object, the target receptacle (or the lamp), the scene, the size of the room and a running number. The id of a task that
was written for training has two more parts, as in ``gen_small+d1s0_000123``: whether what is wanted lies behind a door,
and how many more of it there are than the task needs.

The four splits share no scene. All draw their rooms from the same tables, so they differ in nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar

from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.engine.affordances import CLEANABLE, COOLABLE, HEATABLE, accepts
from roleagent.envs.alfworld.generated import rooms
from roleagent.envs.alfworld.generated.layout import SIZES, furniture, generator, scene

_Key = TypeVar("_Key")

SPLITS: Mapping[str, tuple[range, int]] = {
    "train": (range(1, 61), 3553),
    "valid_train": (range(61, 71), 200),
    "valid_seen": (range(71, 86), 200),
    "valid_unseen": (range(86, 100), 200),
}
"""For each split: its scenes, as offsets into every kind of room, and its number of games."""

TASK_SHARES = {goals.PICK: 0.22, goals.LOOK: 0.09, goals.CLEAN: 0.18, goals.HEAT: 0.13, goals.COOL: 0.15}
TASK_SHARES[goals.TWO] = 1 - sum(TASK_SHARES.values())
"""How often each kind of task is posed, as in the official set."""

ROOM_SHARES: Mapping[str, Mapping[rooms.Room, float]] = {
    goals.PICK: {rooms.KITCHEN: 0.1, rooms.LIVING_ROOM: 0.3, rooms.BEDROOM: 0.3, rooms.BATHROOM: 0.3},
    goals.LOOK: {rooms.LIVING_ROOM: 0.2, rooms.BEDROOM: 0.8},
    goals.CLEAN: {rooms.KITCHEN: 0.75, rooms.BATHROOM: 0.25},
    goals.HEAT: {rooms.KITCHEN: 1.0},
    goals.COOL: {rooms.KITCHEN: 1.0},
    goals.TWO: {rooms.KITCHEN: 0.15, rooms.LIVING_ROOM: 0.25, rooms.BEDROOM: 0.3, rooms.BATHROOM: 0.3},
}
"""In which rooms each kind of task is posed."""
_GOLDEN = 0.6180339887498949
"""Multiples of it, modulo 1, fill the unit interval evenly: every stretch of a split has all kinds of task."""

_TASK_ID = re.compile(
    r"(?P<type>[a-z_]+)-(?P<obj>[A-Za-z]+)-None-(?P<place>[A-Za-z]+)-(?P<scene>\d+)/gen_(?P<size>[a-z]+)"
    r"(?:\+d(?P<door>[01])s(?P<spare>\d))?_(?P<number>\d+)"
)


@dataclass(frozen=True, slots=True)
class TaskName:
    """The parts of a generated task id.

    Attributes:
        number: the running number.
        door: whether all wanted objects lie behind doors, or none of them; None: as it comes.
        spare: how many more of them there are than the task needs; None: as it comes.
    """

    task_type: str
    obj: str
    place: str
    scene: int
    size: str
    number: int
    door: bool | None = None
    spare: int | None = None

    @classmethod
    def parse(cls, task_id: str) -> TaskName:
        """Reads an id.

        Raises:
            ValueError: it is no id of a generated game.
        """
        match = _TASK_ID.fullmatch(task_id)
        if not match or match["type"] not in goals.TASK_TYPES or match["size"] not in SIZES:
            raise ValueError(
                f"{task_id!r} names no generated game; ids look like {goals.CLEAN}-Mug-None-Cabinet-12/gen_small_000123"
            )
        parts = match["type"], match["obj"], match["place"], int(match["scene"]), match["size"], int(match["number"])
        return cls(*parts) if match["door"] is None else cls(*parts, match["door"] == "1", int(match["spare"]))

    @property
    def task_id(self) -> str:
        """The id in its canonical form."""
        suffix = "" if self.door is None else f"+d{self.door:d}s{self.spare}"
        task = f"{self.task_type}-{self.obj}-None-{self.place}-{self.scene}"
        return f"{task}/gen_{self.size}{suffix}_{self.number:06d}"

    @property
    def needed(self) -> int:
        """How many objects the task asks for."""
        return 2 if self.task_type == goals.TWO else 1

    def admits(self, openable: bool) -> bool:
        """Whether what is wanted may lie in a receptacle with a door, or in one without."""
        return self.door is None or self.door == openable

    @property
    def homes(self) -> dict[str, int]:
        """Where what is wanted may lie at the start (weights), whatever furniture there is."""
        moves_only = self.task_type in (goals.PICK, goals.TWO)
        homes = rooms.room_of(self.scene).stock[self.obj].homes
        return {kind: weight for kind, weight in homes.items() if not moves_only or kind != self.place}


def task_type_of(task_id: str) -> str:
    """The kind of task, e.g. ``"look_at_obj_in_light"``; reads official ids too."""
    return task_id.partition("-")[0]


def scene_of(task_id: str) -> str:
    """The scene, e.g. ``"12"``; reads official ids too.

    >>> scene_of("pick_heat_then_place_in_recep-Mug-None-Cabinet-12/gen_small_000123")
    '12'
    """
    return task_id.partition("/")[0].rpartition("-")[2]


def draw(u: float, shares: Mapping[_Key, float]) -> _Key:
    """The key of ``shares`` (positive weights) at ``u`` in [0, 1)."""
    left = u * sum(shares.values())
    keys = list(shares)
    for key in keys[:-1]:
        if left < shares[key]:
            return key
        left -= shares[key]
    return keys[-1]


@cache
def supplies(room: rooms.Room, size: str) -> tuple[str, ...]:
    """The object types that rooms of a size draw from."""
    if size == "tiny":
        return room.staples
    return tuple(obj for obj, stock in room.stock.items() if size == "standard" or stock.share == 1)


@lru_cache(maxsize=4096)
def choices_in(task_type: str, room: rooms.Room, places: frozenset[str], size: str) -> tuple[tuple[str, tuple], ...]:
    """The possible objects of a task type in a room with these receptacles, each with its possible targets."""
    able = {goals.CLEAN: CLEANABLE, goals.HEAT: HEATABLE, goals.COOL: COOLABLE}.get(task_type)
    found = []
    for obj, stock in room.stock.items():
        homes = places & stock.homes.keys()
        if not homes or (able is not None and obj not in able) or obj not in supplies(room, size):
            continue
        if task_type == goals.LOOK:
            found.append((obj, ("DeskLamp",)))
            continue
        targets = sorted(place for place in places if accepts(place, obj))
        if able is not None:
            targets = [place for place in targets if place != goals.STATIONS[task_type]]
        else:  # the goal must not hold from the start, so the object has to come from elsewhere
            targets = [place for place in targets if homes - {place}]
        if targets:
            found.append((obj, tuple(targets)))
    return tuple(found)


def scene_holds(name: TaskName) -> bool:
    """Whether the scene of a task has what the task needs.

    Raises:
        ValueError: no room has that scene number.
    """
    here = scene(name.size, name.scene)
    places = frozenset(receptacle.kind for receptacle in here.receptacles)
    choices = dict(choices_in(name.task_type, here.room, places, name.size))
    return (
        name.place in choices.get(name.obj, ())
        and (here.lamp or name.task_type != goals.LOOK)
        and any(name.admits(r.openable) for r in here.receptacles if r.kind in name.homes)
    )


@cache
def split_ids(split: str, size: str = "standard") -> tuple[str, ...]:
    """The task ids of a split. No game is made for it.

    Raises:
        ValueError: there is no such split or size.
    """
    if split not in SPLITS or size not in SIZES:
        raise ValueError(f"no generated split {split!r} of size {size!r}; splits: {list(SPLITS)}, sizes: {list(SIZES)}")
    _, count = SPLITS[split]
    draws = generator("panel", split, size).random((count, 4)).tolist()
    return tuple(
        draw_name(draw(number * _GOLDEN % 1, TASK_SHARES), us, split, size, number).task_id
        for number, us in enumerate(draws)
    )


def draw_name(task_type: str, us: Sequence[float], split: str, size: str, number: int) -> TaskName:
    """A task of this kind in a scene of the split. ``us``: four numbers in [0, 1) that choose it."""
    room = draw(us[0], ROOM_SHARES[task_type])
    options = scenes_for(task_type, room, split, size)
    scene_number, choices = options[int(us[1] * len(options))]
    obj, targets = choices[int(us[2] * len(choices))]
    return TaskName(task_type, obj, targets[int(us[3] * len(targets))], scene_number, size, number)


@cache
def scenes_for(task_type: str, room: rooms.Room, split: str, size: str) -> list[tuple[int, tuple]]:
    """The scenes of a split in which a kind of task can be posed, with the choices there."""
    options = []
    for number in (room.first_scene + offset for offset in SPLITS[split][0]):
        pieces, lamp = furniture(size, number)
        choices = choices_in(task_type, room, frozenset(pieces), size)
        if choices and (lamp or task_type != goals.LOOK):
            options.append((number, choices))
    return options
