"""ALFWorld games from the project's own rooms, in the official format.

A task id such as ``pick_clean_then_place_in_recep-Mug-None-Cabinet-12/gen_small_000123`` names the kind of task, the
object, the target receptacle (or the lamp), the scene, the size of the room and a running number, and determines the
game completely. :func:`panel_ids` lists the ids of a split, :func:`generate` makes the game of an id in a few
milliseconds, and :func:`write_game` writes it out for TextWorld.

Sizes: ``standard`` rooms resemble the official ones (about 24 receptacles, 42 objects); ``small`` rooms have 5 to 8
receptacles and 6 to 10 objects, so that an episode of a searching agent is short.

The four splits share no scene. All draw their rooms from the same tables, so they differ in nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from roleagent.envs.alfworld import goals, rooms
from roleagent.envs.alfworld.game import GameSource
from roleagent.envs.alfworld.problem import Thing, display_names, problem_text
from roleagent.envs.alfworld.scenes import (
    SIZES,
    Receptacle,
    Scene,
    furniture,
    generator,
    mangle,
    mangle_location,
    scene,
)

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
"""Multiples of it, modulo 1, fill the unit interval evenly: every stretch of a panel has all kinds of task."""

_TASK_ID = re.compile(
    r"(?P<type>[a-z_]+)-(?P<obj>[A-Za-z]+)-None-(?P<place>[A-Za-z]+)-(?P<scene>\d+)/gen_(?P<size>[a-z]+)_(?P<number>\d+)"
)


@dataclass(frozen=True, slots=True)
class TaskName:
    """The parts of a generated task id."""

    task_type: str
    obj: str
    place: str
    scene: int
    size: str

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
        return cls(match["type"], match["obj"], match["place"], int(match["scene"]), match["size"])


def task_type_of(task_id: str) -> str:
    """The kind of task, e.g. ``"look_at_obj_in_light"``; reads official ids too."""
    return task_id.partition("-")[0]


def scene_of(task_id: str) -> str:
    """The scene, e.g. ``"12"``; reads official ids too.

    >>> scene_of("pick_heat_then_place_in_recep-Mug-None-Cabinet-12/gen_small_000123")
    '12'
    """
    return task_id.partition("/")[0].rpartition("-")[2]


def _draw(u: float, shares: Mapping) -> object:
    """The key of ``shares`` (positive weights) at ``u`` in [0, 1)."""
    left = u * sum(shares.values())
    for key, share in shares.items():
        left -= share
        if left < 0:
            return key
    return key


@lru_cache(maxsize=4096)
def _choices(task_type: str, room: rooms.Room, places: frozenset[str], size: str) -> tuple[tuple[str, tuple], ...]:
    """The objects that a kind of task can ask for where these receptacles stand, each with its possible targets."""
    able = {goals.CLEAN: rooms.CLEANABLE, goals.HEAT: rooms.HEATABLE, goals.COOL: rooms.COOLABLE}.get(task_type)
    found = []
    for obj, stock in room.stock.items():
        homes = places & stock.homes.keys()
        if not homes or (able is not None and obj not in able) or (size == "small" and stock.share < 1):
            continue
        if task_type == goals.LOOK:
            found.append((obj, ("DeskLamp",)))
            continue
        targets = sorted(place for place in places if rooms.accepts(place, obj))
        if able is not None:
            targets = [place for place in targets if place != goals.STATIONS[task_type]]
        else:  # the goal must not hold from the start, so the object has to come from elsewhere
            targets = [place for place in targets if homes - {place}]
        if targets:
            found.append((obj, tuple(targets)))
    return tuple(found)


@cache
def panel_ids(split: str, size: str = "standard") -> tuple[str, ...]:
    """The task ids of a split. No game is made for it.

    Raises:
        ValueError: there is no such split or size.
    """
    if split not in SPLITS or size not in SIZES:
        raise ValueError(f"no generated panel {split!r} of size {size!r}; splits: {list(SPLITS)}, sizes: {list(SIZES)}")
    offsets, count = SPLITS[split]
    draws = generator("panel", split, size).random((count, 4)).tolist()
    ids = []
    for number, (u_room, u_scene, u_obj, u_place) in enumerate(draws):
        task_type = str(_draw(number * _GOLDEN % 1, TASK_SHARES))
        room = _draw(u_room, ROOM_SHARES[task_type])
        assert isinstance(room, rooms.Room)
        options = _scenes(task_type, room, split, size)
        scene_number, choices = options[int(u_scene * len(options))]
        obj, targets = choices[int(u_obj * len(choices))]
        place = targets[int(u_place * len(targets))]
        ids.append(f"{task_type}-{obj}-None-{place}-{scene_number}/gen_{size}_{number:06d}")
    return tuple(ids)


@cache
def _scenes(task_type: str, room: rooms.Room, split: str, size: str) -> list[tuple[int, tuple]]:
    """The scenes of a split in which a kind of task can be posed, with the choices there."""
    options = []
    for number in (room.first_scene + offset for offset in SPLITS[split][0]):
        pieces, lamp = furniture(size, number)
        choices = _choices(task_type, room, frozenset(pieces), size)
        if choices and (lamp or task_type != goals.LOOK):
            options.append((number, choices))
    return options


@lru_cache(maxsize=256)
def generate(task_id: str) -> GameSource:
    """The game of a task id: problem, task sentence and a walkthrough.

    Raises:
        ValueError: the id names no generated game, or one that its scene cannot hold.
    """
    name = TaskName.parse(task_id)
    here = scene(name.size, name.scene)
    places = frozenset(receptacle.kind for receptacle in here.receptacles)
    choices = dict(_choices(name.task_type, here.room, places, name.size))
    if name.place not in choices.get(name.obj, ()) or (name.task_type == goals.LOOK and not here.lamp):
        raise ValueError(f"{task_id!r}: scene {name.scene} holds no such task")
    rng = generator("game", task_id)
    things = _furnish(rng, here, name)
    wording = int(rng.integers(2))
    return GameSource(
        task_id=task_id,
        task_type=name.task_type,
        problem=problem_text(
            task_id.partition("/")[2], here, things, goals.pddl_condition(name.task_type, name.obj, name.place)
        ),
        goal=goals.sentence(name.task_type, name.obj, name.place, wording),
        walkthrough=_walkthrough(here, things, name),
    )


def _inventory(rng: np.random.Generator, here: Scene, name: TaskName) -> dict[str, int]:
    """How many objects of each type a game has. What the task asks for is always there."""
    need = 2 if name.task_type == goals.TWO else 1
    stock = here.room.stock
    if here.size == "small":
        counts = {name.obj: need + int(rng.random() < 0.25)}
        others = [obj for obj, common in stock.items() if common.share == 1 and obj != name.obj]
        total = int(rng.integers(6, 11)) - here.lamp - counts[name.obj]
        return counts | {others[i]: 1 for i in rng.permutation(len(others))[:total]}
    counts = {obj: 1 + int(rng.random() * common.most) for obj, common in stock.items() if rng.random() < common.share}
    counts[name.obj] = max(need, counts.get(name.obj, 0))
    return counts


def _furnish(rng: np.random.Generator, here: Scene, name: TaskName) -> list[Thing]:
    """Puts objects where they usually are, and adds lamp, basins and fixtures."""
    by_kind: dict[str, list[Receptacle]] = {}
    for receptacle in here.receptacles:
        by_kind.setdefault(receptacle.kind, []).append(receptacle)
    taken: set[str] = set()  # single places that are no longer free
    ids: set[str] = set()
    things: list[Thing] = []

    def put(obj: str, homes: Mapping[str, int]) -> None:
        spots = {kind: [r for r in by_kind[kind] if r.id not in taken] for kind in homes if kind in by_kind}
        weights = {kind: homes[kind] for kind, free in spots.items() if free}
        if not weights and obj != name.obj:
            return
        weights = weights or {kind: homes[kind] for kind in spots}  # what the task needs squeezes in
        kind = str(_draw(rng.random(), weights))
        free = spots[kind] or by_kind[kind]
        receptacle = free[int(rng.random() * len(free))]
        if receptacle.kind in rooms.SINGLE_PLACES:
            taken.add(receptacle.id)
        x, y, z = receptacle.position
        add(obj, lambda: (x + rng.uniform(-0.3, 0.3), y + 0.05, z + rng.uniform(-0.3, 0.3)), receptacle)

    def add(obj, position, receptacle: Receptacle | None) -> None:
        while (id := mangle(obj, *position())) in ids:
            pass
        ids.add(id)
        where = receptacle.location if receptacle else mangle_location(*rng.integers(-4, 5, 2).tolist(), 0, 15)
        things.append(Thing(id, obj, where, receptacle.id if receptacle else None))

    moves_only = name.task_type in (goals.PICK, goals.TWO)
    counts = _inventory(rng, here, name)
    # What the task asks for chooses its place first, so that a single place is never taken from it.
    for obj in sorted(counts, key=lambda obj: obj != name.obj):
        homes = here.room.stock[obj].homes
        if obj == name.obj and moves_only:
            homes = {kind: weight for kind, weight in homes.items() if kind != name.place}
        for _ in range(counts[obj]):
            put(obj, homes)
    if here.lamp:
        put("DeskLamp", here.room.lamp_homes or {})
    if here.size == "standard":
        for kind in ("Sink", "Bathtub"):
            for receptacle in by_kind.get(f"{kind}Basin", ()):
                things.append(Thing(receptacle.id.rpartition("_bar_")[0], kind, mangle_location(0, 0, 1, 15), None))
        for kind, (least, most) in here.room.fixtures.items():
            for _ in range(int(rng.integers(least, most + 1))):
                add(kind, lambda: tuple(rng.uniform(-3, 3, 3)), None)
    return things


def _walkthrough(here: Scene, things: Sequence[Thing], name: TaskName) -> tuple[str, ...]:
    """A plan that knows where everything is: of all objects and targets it takes those with the fewest doors."""
    names = display_names([*(thing.id for thing in things), *(receptacle.id for receptacle in here.receptacles)])
    receptacles = {receptacle.id: receptacle for receptacle in here.receptacles}
    commands: list[str] = []
    at = here.start
    opened: set[str] = set()

    def easiest(kind: str) -> Receptacle:
        return min((r for r in here.receptacles if r.kind == kind), key=lambda r: r.openable)

    def reach(receptacle: Receptacle, inside: bool) -> None:
        nonlocal at
        if receptacle.location != at:
            commands.append(f"go to {names[receptacle.id]}")
            at = receptacle.location
        if inside and receptacle.openable and receptacle.id not in opened:
            commands.append(f"open {names[receptacle.id]}")
            opened.add(receptacle.id)

    def take(thing: Thing) -> None:
        place = receptacles[str(thing.place)]
        reach(place, inside=True)
        commands.append(f"take {names[thing.id]} from {names[place.id]}")

    wanted = sorted(
        (thing for thing in things if thing.kind == name.obj), key=lambda thing: receptacles[str(thing.place)].openable
    )
    if name.task_type == goals.LOOK:
        lamp = next(thing for thing in things if thing.kind == name.place)
        take(wanted[0])
        reach(receptacles[str(lamp.place)], inside=False)
        commands.append(f"use {names[lamp.id]}")
        return tuple(commands)
    target = easiest(name.place)
    for thing in wanted[: 2 if name.task_type == goals.TWO else 1]:
        take(thing)
        if name.task_type in goals.STATIONS:
            station = easiest(goals.STATIONS[name.task_type])
            reach(station, inside=False)
            verb = goals.PROPERTIES[name.task_type][0]
            commands.append(f"{verb} {names[thing.id]} with {names[station.id]}")
        reach(target, inside=True)
        commands.append(f"move {names[thing.id]} to {names[target.id]}")
    return tuple(commands)


def write_game(source: GameSource, folder: str | Path) -> Path:
    """Writes ``folder/<task id>/game.tw-pddl`` and a ``traj_data.json`` as the official tools read them.

    Returns:
        The path of the game file.

    Raises:
        gymnasium.error.DependencyNotInstalled: domain and grammar come from the ``alfworld`` package, which is missing.
    """
    domain, grammar = _official_texts()
    name = TaskName.parse(source.task_id)
    target = Path(folder) / source.task_id
    target.mkdir(parents=True, exist_ok=True)
    game = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", source.goal),
        "pddl_problem": source.problem,
        "solvable": True,
        "walkthrough": list(source.walkthrough),
    }
    looks = name.task_type == goals.LOOK
    trajectory = {
        "task_id": target.name,
        "task_type": name.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": name.obj,
            "parent_target": "" if looks else name.place,
            "toggle_target": name.place if looks else "",
        },
        "scene": {"floor_plan": f"FloorPlan{name.scene}", "scene_num": name.scene},
    }
    path = target / "game.tw-pddl"
    path.write_text(json.dumps(game), encoding="utf-8")
    (target / "traj_data.json").write_text(json.dumps(trajectory, indent=2), encoding="utf-8")
    return path


@cache
def _official_texts() -> tuple[str, str]:
    """Domain and grammar of the installed ``alfworld`` package, read without importing it."""
    from importlib.util import find_spec

    from gymnasium.error import DependencyNotInstalled

    spec = find_spec("alfworld")
    if spec is None or spec.origin is None:
        raise DependencyNotInstalled(
            "official game files need the domain and grammar of the alfworld package: pip install 'roleagent[alfworld]'"
        )
    data = Path(spec.origin).parent / "data"
    return (data / "alfred.pddl").read_text(encoding="utf-8"), (data / "alfred.twl2").read_text(encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes games of a generated panel as official game files."""
    parser = argparse.ArgumentParser(
        prog="python -m roleagent.envs.alfworld.generate",
        description="Write generated ALFWorld games in the official format (needs the alfworld package).",
    )
    parser.add_argument("--split", choices=SPLITS, default="train", help="the panel (default: %(default)s)")
    parser.add_argument(
        "--size", choices=SIZES, default="standard", help="the size of the rooms (default: %(default)s)"
    )
    parser.add_argument("--games", type=int, metavar="N", help="only the first N games of the panel (default: all)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the games go to DIR/SPLIT")
    options = parser.parse_args(arguments)
    if options.games is not None and options.games < 1:
        parser.error(f"--games must be at least 1, not {options.games}")
    from gymnasium.error import DependencyNotInstalled
    from rich.progress import track

    ids = panel_ids(options.split, options.size)[: options.games]
    try:
        for task_id in track(ids, description="writing games"):
            write_game(generate(task_id), options.out / options.split)
    except (DependencyNotInstalled, OSError) as error:
        parser.exit(1, f"{error}\n")
    print(f"{len(ids)} games in {options.out / options.split}; play them with ALFWORLD_DATA={options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
