"""ALFWorld games from the project's own rooms, in the official format.

A task id determines its game completely; :mod:`roleagent.envs.alfworld.generated.tasks` defines ids and lists the
splits. :func:`generate` makes the game of an id in about a millisecond, with a walkthrough; :func:`write_game` writes
it out for TextWorld.

Sizes: ``standard`` rooms resemble the official ones (about 24 receptacles, 42 objects); ``small`` rooms have 5 to 8
receptacles and 6 to 10 objects, ``tiny`` ones 4 or 5 receptacles and 3 to 5 objects of 24 common types, so that an
episode of a searching agent is short.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from roleagent.commands import Parser, complain, natural, out_folder
from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.engine.affordances import SINGLE_PLACES
from roleagent.envs.alfworld.engine.game import GameSource, display_names
from roleagent.envs.alfworld.engine.textworld import package_texts
from roleagent.envs.alfworld.generated.layout import SIZES, Receptacle, Scene, generator, mangle, mangle_location, scene
from roleagent.envs.alfworld.generated.pddl_writer import Thing, problem_text
from roleagent.envs.alfworld.generated.tasks import (
    SPLITS,
    TaskName,
    draw,
    scene_holds,
    scene_of,
    split_ids,
    supplies,
    task_type_of,
)

__all__ = ["generate", "main", "scene_of", "split_ids", "task_type_of", "write_game"]


OBJECTS = {"small": (6, 10), "tiny": (3, 5)}
"""Fewest and most objects of a room."""


@lru_cache(maxsize=256)
def generate(task_id: str) -> GameSource:
    """The game of a task id: problem, task sentence and a walkthrough.

    Raises:
        ValueError: the id names no generated game, or one that its scene cannot hold.
    """
    name = TaskName.parse(task_id)
    if not scene_holds(name):
        raise ValueError(f"{task_id!r}: scene {name.scene} holds no such task")
    here = scene(name.size, name.scene)
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
    stock = here.room.stock
    if here.size != "standard":
        least, most = OBJECTS[here.size]
        spare = int(rng.random() < 0.25)
        counts = {name.obj: name.needed + (spare if name.spare is None else name.spare)}
        others = [obj for obj in supplies(here.room, here.size) if obj != name.obj]
        total = max(0, int(rng.integers(least, most + 1)) - here.lamp - counts[name.obj])
        return counts | {others[i]: 1 for i in rng.permutation(len(others))[:total]}
    counts = {obj: 1 + int(rng.random() * common.most) for obj, common in stock.items() if rng.random() < common.share}
    common = max(name.needed, counts.get(name.obj, 0))
    return counts | {name.obj: common if name.spare is None else name.needed + name.spare}


def _furnish(rng: np.random.Generator, here: Scene, name: TaskName) -> list[Thing]:
    """Puts objects where they usually are, and adds lamp, basins and fixtures."""
    by_kind: dict[str, list[Receptacle]] = {}
    for receptacle in here.receptacles:
        by_kind.setdefault(receptacle.kind, []).append(receptacle)
    doors = {kind: found for kind, some in by_kind.items() if (found := [r for r in some if name.admits(r.openable)])}
    taken: set[str] = set()  # single places that are no longer free
    ids: set[str] = set()
    things: list[Thing] = []

    def put(obj: str, homes: Mapping[str, int]) -> None:
        pieces = doors if obj == name.obj else by_kind
        spots = {kind: [r for r in pieces[kind] if r.id not in taken] for kind in homes if kind in pieces}
        weights = {kind: homes[kind] for kind, free in spots.items() if free}
        if not weights and obj != name.obj:
            return
        weights = weights or {kind: homes[kind] for kind in spots}  # what the task needs squeezes in
        kind = draw(rng.random(), weights)
        free = spots[kind] or pieces[kind]
        receptacle = free[int(rng.random() * len(free))]
        if receptacle.kind in SINGLE_PLACES:
            taken.add(receptacle.id)
        x, y, z = receptacle.position
        add(obj, lambda: (x + rng.uniform(-0.3, 0.3), y + 0.05, z + rng.uniform(-0.3, 0.3)), receptacle)

    def add(obj, position, receptacle: Receptacle | None) -> None:
        while (id := mangle(obj, *position())) in ids:
            pass
        ids.add(id)
        x, z = (0, 0) if receptacle else rng.integers(-4, 5, 2).tolist()
        where = receptacle.location if receptacle else mangle_location(x, z, 0, 15)
        things.append(Thing(id, obj, where, receptacle.id if receptacle else None))

    counts = _inventory(rng, here, name)
    # What the task asks for chooses its place first, so that a single place is never taken from it.
    for obj in sorted(counts, key=lambda obj: obj != name.obj):
        homes = name.homes if obj == name.obj else here.room.stock[obj].homes
        for _ in range(counts[obj]):
            put(obj, homes)
    if here.lamp:
        put("DeskLamp", here.room.lamp_homes)
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
    ids = {id.lower(): id for id in (*(thing.id for thing in things), *(r.id for r in here.receptacles))}
    names = {ids[low]: name for low, name in display_names(sorted(ids)).items()}
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
    domain, grammar = package_texts()
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes games of a generated split as official game files."""
    parser = Parser(
        "roleagent games",
        "Write generated ALFWorld games as official game files, for other programs: the native engine needs none.\n\n"
        "Needs pip install 'roleagent[alfworld]', whose rules and grammar go into every file.",
        "roleagent games --out games --split valid_seen --games 20\nroleagent games --out games --size small",
    )
    parser.add_argument("--split", choices=SPLITS, default="train", help="the split (default: %(default)s)")
    parser.add_argument("--size", choices=SIZES, default="standard", help="the rooms (default: %(default)s)")
    parser.add_argument("--games", type=natural, metavar="N", help="only the first N games of the split (default: all)")
    parser.add_argument("--out", type=out_folder, required=True, metavar="DIR", help="the games go to DIR/SPLIT")
    options = parser.parse_args(arguments)
    from gymnasium.error import DependencyNotInstalled
    from rich.progress import track

    ids = split_ids(options.split, options.size)[: options.games]
    try:
        package_texts()  # before a bar begins
        for task_id in track(ids, description="writing games"):
            write_game(generate(task_id), options.out / options.split)
    except (DependencyNotInstalled, OSError) as error:
        return complain("roleagent games", error)
    print(f"{len(ids)} games in {options.out / options.split}; play them with ALFWORLD_DATA={options.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
