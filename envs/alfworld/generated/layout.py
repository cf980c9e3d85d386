"""Scenes: the furniture of a room, its locations, and the locations from which an agent reaches it.

A scene number determines its layout completely; what lies in the room varies from game to game. Coordinates are meters
in identifiers and quarter meters in locations, as in the official files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from roleagent.envs.alfworld.engine.affordances import OPENABLE
from roleagent.envs.alfworld.generated.rooms import Room, room_of

SIZES = ("standard", "small", "tiny")

SHARED_SPOT = {"standard": 0.11, "small": 0.03, "tiny": 0.0}
"""The chance that a receptacle is reached from the same spot as its neighbor."""

OPENABLE_SHARE = 0.85
"""The share of cabinets, drawers and safes that are openable; the rest read like shelves, as in the official games."""

HEIGHTS = {
    "Cabinet": (0.4, 2.1),
    "Drawer": (0.2, 0.9),
    "Shelf": (0.5, 1.8),
    "Bed": (0.4, 0.5),
    "Sofa": (0.3, 0.5),
    "ArmChair": (0.3, 0.5),
    "GarbageCan": (0.0, 0.1),
    "Toilet": (0.4, 0.5),
}
"""Meters above the floor, from and to; everything else is about as high as a table."""


def generator(*words: object) -> np.random.Generator:
    """A generator seeded by words: the same ones give the same numbers on every machine."""
    digest = hashlib.sha256("/".join(map(str, words)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))


def mangle(kind: str, x: float, y: float, z: float) -> str:
    """An identifier as PDDL can hold it.

    >>> mangle("Cabinet", 0.68, 0.5, -2.2)
    'Cabinet_bar__plus_00_dot_68_bar__plus_00_dot_50_bar__minus_02_dot_20'
    """
    text = "|".join([kind, *(f"{value:+06.2f}" for value in (x, y, z))])
    return text.replace("|", "_bar_").replace("+", "_plus_").replace("-", "_minus_").replace(".", "_dot_")


def mangle_location(x: int, z: int, rotation: int, horizon: int) -> str:
    """A place to stand, in quarter meters, with quarter turns and the camera's tilt in degrees.

    >>> mangle_location(-5, 4, 2, -30)
    'loc_bar__minus_5_bar_4_bar_2_bar__minus_30'
    """
    return f"loc|{x}|{z}|{rotation}|{horizon}".replace("|", "_bar_").replace("-", "_minus_")


@dataclass(frozen=True, slots=True)
class Receptacle:
    """A piece of furniture: identifier, type, whether it opens, the location in front of it, and coordinates."""

    id: str
    kind: str
    openable: bool
    location: str
    position: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Scene:
    """One room with its furniture. ``side`` is its length and width in quarter meters."""

    number: int
    size: str
    room: Room
    receptacles: tuple[Receptacle, ...]
    lamp: bool
    start: str
    side: int


@cache
def furniture(size: str, number: int) -> tuple[Mapping[str, int], bool]:
    """The number of receptacles of each type in a scene, and whether it has a desk lamp."""
    room = room_of(number)
    rng = generator("furniture", size, number)
    pieces: dict[str, int] = {}
    if size != "standard":
        least, most = room.extra_pieces if size == "small" else (1, 1)
        extras = rng.permutation(len(room.extras))[: rng.integers(least, most + 1)]
        for kind in (*room.core, *(room.extras[i] for i in sorted(extras))):
            pieces[kind] = pieces.get(kind, 0) + 1
        return pieces, bool(room.lamp_homes)
    for kind, common in room.furniture.items():
        if rng.random() < common.share:
            pieces[kind] = int(rng.integers(common.least, common.most + 1))
    lamp = rng.random() < room.lamp_share and any(home in pieces for home in room.lamp_homes)
    return pieces, bool(lamp)


@cache
def scene(size: str, number: int) -> Scene:
    """The layout of a scene. Furniture stands along the four walls; the agent starts in the middle."""
    rng = generator("scene", size, number)
    pieces, lamp = furniture(size, number)
    kinds = [kind for kind, count in pieces.items() for _ in range(count)]
    per_wall = -(-len(kinds) // 4)
    side = 3 * (per_wall + 1)
    slots = [(wall, 3 * (i + 1) - side // 2) for wall in range(4) for i in range(per_wall)]
    order = iter(rng.permutation(len(slots)))
    receptacles: list[Receptacle] = []
    for kind in kinds:
        low, high = HEIGHTS.get(kind, (0.85, 0.95))
        height = rng.uniform(low, high)
        neighbor = receptacles[-1] if receptacles and rng.random() < SHARED_SPOT[size] else None
        if neighbor:
            x, z, location = neighbor.position[0] + 0.2, neighbor.position[2] + 0.2, neighbor.location
        else:
            wall, along = slots[next(order)]
            (dx, dz), reach = ((0, 1), (1, 0), (0, -1), (-1, 0))[wall], side // 2
            cell_x, cell_z = (along, dz * reach) if dz else (dx * reach, along)
            x, z = cell_x / 4, cell_z / 4
            tilt = int(np.clip(15 * round(3.2 - 2 * height), -30, 60))
            location = mangle_location(cell_x - 2 * dx, cell_z - 2 * dz, wall, tilt)
        basin = f"_bar_{kind}" if kind.endswith("Basin") else ""
        id = mangle(kind.removesuffix("Basin"), x, height, z) + basin
        opens = kind in OPENABLE and (kind in ("Fridge", "Microwave") or rng.random() < OPENABLE_SHARE)
        receptacles.append(Receptacle(id, kind, opens, location, (x, height, z)))
    return Scene(number, size, room_of(number), tuple(receptacles), lamp, mangle_location(0, 0, 0, 30), side)
