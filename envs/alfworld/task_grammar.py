"""The tasks that can be written for generated ALFWorld rooms (GenEnv).

A line describes what to do with what, how large the room is, and where the wanted objects lie. The scene is no part of
it: a simulator cannot know the furniture of 240 rooms, so the seed chooses among the training scenes that hold the
task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

import gymnasium
from numpy.random import Generator

from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.generated import rooms
from roleagent.envs.alfworld.generated.layout import SIZES, scene
from roleagent.envs.alfworld.generated.tasks import (
    ROOM_SHARES,
    SPLITS,
    TASK_SHARES,
    TaskName,
    draw,
    draw_name,
    scene_holds,
    scene_of,
    scenes_for,
    split_ids,
)
from roleagent.envs.alfworld.official.tasks import NewGoalGrammar
from roleagent.tasks.grammar import Refused, TaskGrammar, TaskSpec

TRAINING_SCENES = frozenset(room.first_scene + offset for room in rooms.ROOMS for offset in SPLITS["train"][0])
LAYOUTS = 1_000_000
"""Layouts of a scene, numbered from 0."""
_SCENES = 1000  # more than the largest scene number: a seed is a layout and a scene


def sizes_up_to(size: str) -> tuple[str, ...]:
    """The sizes of rooms in which tasks are written, for an environment of a size; its own one first.

    >>> sizes_up_to("small")
    ('small', 'tiny')
    """
    return SIZES[SIZES.index(size) :]


@cache
def generated_by(size: str) -> partial[bool]:
    """The function that recognizes the ids of written tasks, for an environment of a size."""
    return partial(is_generated, sizes_up_to(size))


def is_generated(sizes: tuple[str, ...], task_id: str) -> bool:
    """Whether an id is that of a written task: canonical, in a training scene that holds it."""
    try:
        name = TaskName.parse(task_id)
    except ValueError:
        return False
    known = name.door is not None and name.scene in TRAINING_SCENES and name.size in sizes
    return known and name.number < LAYOUTS and name.task_id == task_id and scene_holds(name)


@lru_cache(maxsize=4096)
def scenes_of(task_type: str, obj: str, place: str, size: str, door: bool) -> dict[rooms.Room, tuple[int, ...]]:
    """The training scenes that hold such a task, by room."""
    found: dict[rooms.Room, tuple[int, ...]] = {}
    for room in ROOM_SHARES[task_type]:
        numbers = (room.first_scene + offset for offset in SPLITS["train"][0])
        names = (TaskName(task_type, obj, place, number, size, 0, door, 0) for number in numbers)
        if scenes := tuple(name.scene for name in names if scene_holds(name)):
            found[room] = scenes
    return found


@cache
def _things(size: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The objects and the targets of the tasks of a size's training scenes, sorted."""
    objects: set[str] = set()
    targets: set[str] = set()
    for task_type, shares in ROOM_SHARES.items():
        for room in shares:
            for _, choices in scenes_for(task_type, room, "train", size):
                objects.update(obj for obj, _ in choices)
                targets.update(place for _, places in choices for place in places)
    return tuple(sorted(objects)), tuple(sorted(targets))


class RoomGrammar(TaskGrammar):
    """Tasks in generated rooms, of the environment's size and of smaller ones."""

    def __init__(self, env: gymnasium.Env, plan_share: float = 0.5):
        super().__init__(env, plan_share)
        self.sizes = sizes_up_to(self.env.size)
        objects, targets = _things(self.env.size)
        self.fields = {
            "type": goals.TASK_TYPES,
            "object": objects,
            "target": targets,
            **({"size": self.sizes} if len(self.sizes) > 1 else {}),
            "door": ("no", "yes"),
            "spare": ("0", "1", "2"),
        }

    def task_id(self, spec: TaskSpec) -> str:
        return self._name(spec).task_id

    def spec(self, task_id: str) -> TaskSpec:
        if not isinstance(task_id, str) or not is_generated(self.sizes, task_id):
            raise ValueError(f"{str(task_id)[:200]!r} is no task that was written for {self.env.task_split.env_id}")
        name = TaskName.parse(task_id)
        return self._spec(name)

    def base(self, rng: Generator) -> TaskSpec:
        task_type = draw(rng.random(), TASK_SHARES)
        name = draw_name(task_type, rng.random(4).tolist(), "train", self.env.size, int(rng.integers(LAYOUTS)))
        door, spare = _arrangement(name, rng)
        return self._spec(replace(name, door=door, spare=spare))

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        named = self._named(values)
        scenes = scenes_of(named["type"], named["object"], named["target"], named["size"], named["door"] == "yes")
        if not scenes:
            raise Refused("inconsistent", "no training scene holds such a task")
        room = draw(rng.random(), {room: ROOM_SHARES[named["type"]][room] for room in scenes})
        number = scenes[room][int(rng.integers(len(scenes[room])))]
        return TaskSpec(tuple(values), int(rng.integers(LAYOUTS)) * _SCENES + number)

    def content(self, spec: TaskSpec) -> str:
        return str(spec.seed % _SCENES)

    def held_out_contents(self) -> frozenset[str]:
        return frozenset(scene_of(id) for split in SPLITS if split != "train" for id in split_ids(split, self.env.size))

    def _named(self, values: Sequence[str]) -> dict[str, str]:
        return {"size": self.env.size, **dict(zip(self.fields, values, strict=True))}

    def _name(self, spec: TaskSpec) -> TaskName:
        named = self._named(spec.values)
        what = named["type"], named["object"], named["target"], spec.seed % _SCENES, named["size"]
        return TaskName(*what, spec.seed // _SCENES, named["door"] == "yes", int(named["spare"]))

    def _spec(self, name: TaskName) -> TaskSpec:
        named = {"type": name.task_type, "object": name.obj, "target": name.place, "size": name.size}
        named |= {"door": "yes" if name.door else "no", "spare": str(name.spare)}
        return TaskSpec(tuple(named[field] for field in self.fields), name.number * _SCENES + name.scene)


def _arrangement(name: TaskName, rng: Generator) -> tuple[bool, int]:
    """Door and spare objects as the split's games have them."""
    here = scene(name.size, name.scene)
    kinds = {receptacle.kind for receptacle in here.receptacles}
    home = draw(rng.random(), {kind: weight for kind, weight in name.homes.items() if kind in kinds})
    doors = [receptacle.openable for receptacle in here.receptacles if receptacle.kind == home]
    door = doors[int(rng.integers(len(doors)))]
    if name.size != "standard":
        return door, int(rng.random() < 0.25)
    stock = here.room.stock[name.obj]
    there = 1 + int(rng.random() * stock.most) if rng.random() < stock.share else 0
    return door, min(2, max(0, there - name.needed))


def task_grammar(env: gymnasium.Env, plan_share: float = 0.5) -> TaskGrammar:
    """The grammar of an ALFWorld environment: new goals in official rooms, or tasks in generated rooms."""
    return (RoomGrammar if env.unwrapped.folder is None else NewGoalGrammar)(env, plan_share)


__all__ = ["RoomGrammar", "is_generated", "task_grammar"]
