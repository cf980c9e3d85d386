"""The tasks that can be written for generated recipes (GenEnv): how deep the goal is, from how much, and among what.

A written task is named ``goal.world-distractors``: the n-th world has the recipes of the environment's seed plus n.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache, partial

import gymnasium
from numpy.random import Generator

from roleagent.envs.textcraft.data.dataset import open_book
from roleagent.envs.textcraft.data.recipes import NAMESPACE, RecipeBook
from roleagent.envs.textcraft.engine.tasks import full_name, planner, task_splits
from roleagent.envs.textcraft.text import read_command
from roleagent.tasks.grammar import Refused, TaskGrammar, TaskSpec

WORLDS = 100
"""Worlds of written tasks, numbered from 0."""
DISTRACTORS = (0, 2, 5, 10, 20)
MATERIALS = (1, 2, 3, 4)
"""Different materials to fetch; the last value also stands for more."""
_GOALS = 1000  # more than a book has: a seed is a world and the position of a goal
_TRIES = 8  # worlds that are searched for a goal
_NAME = re.compile(r"(\w+)\.(0|[1-9][0-9]?)-(0|[1-9][0-9]?)")


def generated_by(seed: int) -> partial[bool]:
    """The function that recognizes the ids of written tasks, for an environment of a seed."""
    return partial(is_generated, seed)


def is_generated(seed: int, task_id: str) -> bool:
    """Whether an id is that of a written task: canonical, and of a goal that is not held out."""
    found = _NAME.fullmatch(task_id)
    return bool(found) and int(found[3]) in DISTRACTORS and found[1] in _goals(seed, int(found[2]))  # type: ignore[index]


def read_task_id(task_id: str) -> tuple[str, int, int]:
    """Goal, world and distractors of a written task.

    >>> read_task_id("alder_boat.17-5")
    ('alder_boat', 17, 5)
    """
    goal, _, rest = task_id.partition(".")
    world, _, distractors = rest.partition("-")
    return goal, int(world), int(distractors)


def held_out(seed: int) -> frozenset[str]:
    """The goals of the evaluation splits, which are written in no world."""
    splits = task_splits(open_book(None, seed))
    return frozenset(task_id for name in ("valid", "test") for task_id in splits[name].task_ids)


@lru_cache(maxsize=256)
def _goals(seed: int, world: int) -> dict[str, tuple[int, int]]:
    """The goals of a world that may be written, with depth and materials."""
    book, never = open_book(None, seed + world), held_out(seed)
    named = {goal.removeprefix(NAMESPACE): goal for goal in book.goals}
    return {name: (book.depths[goal], _materials(book, goal)) for name, goal in named.items() if name not in never}


def _materials(book: RecipeBook, goal: str) -> int:
    """The number of different materials that a plan for a goal fetches."""
    commands = map(read_command, planner(book).commands(goal, {}))
    return min(MATERIALS[-1], len({command.name for command in commands if command.verb == "get"}))


class CraftingGrammar(TaskGrammar):
    """Tasks such as ``depth=3 materials=2 distractors=5``; the seed chooses a world and its goal."""

    seed_draws_goal = True

    def __init__(self, env: gymnasium.Env, plan_share: float = 0.5):
        super().__init__(env, plan_share)
        self.seed = self.env.seed
        self.fields = {
            "depth": tuple(str(depth) for depth in range(1, (self.env.max_depth or 4) + 1)),
            "materials": tuple(map(str, MATERIALS)),
            "distractors": tuple(map(str, DISTRACTORS)),
        }

    def task_id(self, spec: TaskSpec) -> str:
        world, place = divmod(spec.seed, _GOALS)
        goal = open_book(None, self.seed + world).goals[place]
        return f"{goal.removeprefix(NAMESPACE)}.{world}-{spec.values[-1]}"

    def spec(self, task_id: str) -> TaskSpec:
        if not isinstance(task_id, str) or not is_generated(self.seed, task_id):
            raise ValueError(f"{str(task_id)[:200]!r} is no task that was written for {self.env.task_split.env_id}")
        goal, world, distractors = read_task_id(task_id)
        return self._spec(world, goal, distractors)

    def base(self, rng: Generator) -> TaskSpec:
        listed = self.env.task_split.task_ids
        goal, _, world = listed[int(rng.integers(len(listed)))].partition(".")
        nearest = min(DISTRACTORS, key=lambda count: abs(count - self.env.distractors))
        return self._spec(int(world or 0), goal, nearest)

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        depth, materials, distractors = map(int, values)
        for world in rng.permutation(WORLDS)[:_TRIES].tolist():
            goals = [goal for goal, kind in _goals(self.seed, world).items() if kind == (depth, materials)]
            if goals:
                return self._spec(world, goals[int(rng.integers(len(goals)))], distractors)
        raise Refused("inconsistent", f"no goal of depth {depth} takes {materials} materials")

    def task_type(self, spec: TaskSpec) -> str:
        return f"depth_{spec.values[0]}"

    def content(self, spec: TaskSpec) -> str:
        return read_task_id(self.task_id(spec))[0]

    def held_out_contents(self) -> frozenset[str]:
        return held_out(self.seed)

    def _spec(self, world: int, goal: str, distractors: int) -> TaskSpec:
        book = open_book(None, self.seed + world)
        depth, materials = _goals(self.seed, world)[goal]
        place = book.goals.index(full_name(book, goal))
        return TaskSpec((str(depth), str(materials), str(distractors)), world * _GOALS + place)


__all__ = ["DISTRACTORS", "MATERIALS", "WORLDS", "CraftingGrammar", "generated_by", "is_generated", "read_task_id"]
