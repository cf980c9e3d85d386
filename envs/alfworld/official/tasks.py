"""The tasks that can be written for official ALFWorld games (GenEnv): other goals in the rooms of the training games.

The id of such a task names the goal first, as the ids of the games do, and then the game whose room it is about:
``pick_heat_then_place_in_recep-Egg-None-Fridge-12/trial_X+pick_and_place_simple-Mug-None-Shelf-12``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import gymnasium
from numpy.random import Generator

from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.engine.game import Game, GameSource
from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion, with_sentence
from roleagent.envs.alfworld.generated.layout import generator
from roleagent.envs.alfworld.generated.tasks import task_type_of
from roleagent.envs.alfworld.official.games import SPLITS, list_games, read_game, split_folder
from roleagent.tasks.grammar import Refused, TaskGrammar, TaskSpec
from roleagent.tasks.split import mixed

_NAME = r"(?P<{0}type>[a-z_]+)-(?P<{0}obj>\w+)-None-(?P<{0}place>\w+)-(?P<{0}scene>\d+)"
_GAME = re.compile(_NAME.format(""))
_TASK_ID = re.compile(rf"{_NAME.format('')}/(?P<trial>[\w-]+)\+(?P<task>[\w-]+)")
_TRIES = 8  # games that are read in search of one that holds a task


class NewGoal(NamedTuple):
    """A goal for an official game.

    Attributes:
        task_type, obj, place: the goal, in the words of the game files.
        game: the id of the game.
    """

    task_type: str
    obj: str
    place: str
    game: str

    @classmethod
    def parse(cls, task_id: str) -> NewGoal | None:
        """Reads an id; None if it is none of a written task."""
        match = _TASK_ID.fullmatch(task_id)
        if not match or match["type"] not in goals.TASK_TYPES:
            return None
        goal = cls(match["type"], match["obj"], match["place"], f"{match['task']}/{match['trial']}")
        return goal if goal.task_id == task_id else None

    @property
    def task_id(self) -> str:
        """The id."""
        task, _, trial = self.game.partition("/")
        return f"{self.task_type}-{self.obj}-None-{self.place}-{task.rpartition('-')[2]}/{trial}+{task}"

    def source(self, game: GameSource) -> GameSource:
        """The game with this goal in place of its own, without a walkthrough.

        Raises:
            ValueError: its room does not hold what the goal needs.
        """
        if not self._fits(game.problem):
            raise ValueError(f"{self.task_id}: the room holds no such task")
        wording = int(generator("wording", self.task_id).integers(2))
        sentence = goals.sentence(self.task_type, self.obj, self.place, wording)
        room, found, _ = game.problem.partition("(:goal")
        condition = goals.pddl_condition(self.task_type, self.obj, self.place)
        return replace(
            game,
            task_id=self.task_id,
            task_type=self.task_type,
            problem=f"{room}{found}\n{condition}\n)\n)\n",
            goal=sentence,
            walkthrough=(),
            grammar=with_sentence(game.grammar, sentence),
        )

    def _fits(self, problem: str) -> bool:
        """Whether the room has the things; whether they can be brought together, a plan shows."""
        there = re.findall(rf"\(objectType (\S+) {self.obj}Type\)", problem)
        if self.task_type == goals.LOOK:
            lamps = re.findall(rf"\(objectType (\S+) {self.place}Type\)", problem)
            return bool(there) and any(f"(toggleable {lamp})" in problem for lamp in lamps)
        if self.task_type in goals.PROPERTIES:
            able = goals.PROPERTIES[self.task_type][1]
            there = [name for name in there if f"({able} {name})" in problem]
        station = goals.STATIONS.get(self.task_type, self.place)
        stands = all(re.search(rf"\(receptacleType \S+ {kind}Type\)", problem) for kind in (self.place, station))
        needed = 2 if self.task_type == goals.TWO else 1
        return len(there) >= needed and stands and f"(canContain {self.place}Type {self.obj}Type)" in problem


def game_with_goal(folder: Path, task_id: str) -> Game:
    """The game of a written task.

    Raises:
        ValueError: its room does not hold the task, the goal holds from the start, or TextWorld would have to play it.
    """
    goal = NewGoal.parse(task_id)
    assert goal is not None, task_id
    try:
        game = Game.from_source(goal.source(_official(folder, goal.game)))
    except UnknownGameVersion as error:
        raise ValueError(f"{task_id}: {error}") from None
    if game.won.holds(game.facts):
        raise ValueError(f"{task_id}: the goal holds from the start")
    return game


@lru_cache(maxsize=128)
def _official(folder: Path, task_id: str) -> GameSource:
    return read_game(folder, task_id)


@cache
def new_goals_in(folder: Path, games: int | None) -> partial[bool]:
    """The function that recognizes the ids of written tasks, for so many games of a training split, of all types."""
    return partial(is_new_goal, folder, games)


def is_new_goal(folder: Path, games: int | None, task_id: str) -> bool:
    """Whether an id names a goal and a training game."""
    goal = NewGoal.parse(task_id)
    return goal is not None and goal.game in _first_games(folder, games)


@lru_cache(maxsize=8)
def _first_games(folder: Path, games: int | None) -> frozenset[str]:
    return frozenset(mixed(list_games(folder), task_type_of)[:games])


class _Rooms:
    """What the names of the official games say about their rooms.

    Args:
        task_ids: the games.
    """

    def __init__(self, task_ids: Iterable[str]):
        self.goals: dict[int, tuple[str, str, str]] = {}  # by game
        self.games: dict[str, list[int]] = {}  # by scene
        self.seen: dict[str, set[str]] = {}  # by scene: types, objects and places of its tasks
        for position, task_id in enumerate(task_ids):
            match = _GAME.match(task_id)
            if match and match["type"] in goals.TASK_TYPES:
                self.goals[position] = goal = (match["type"], match["obj"], match["place"])
                self.games.setdefault(match["scene"], []).append(position)
                self.seen.setdefault(match["scene"], set()).update(goal)

    def holding(self, task_type: str, obj: str, place: str) -> list[int]:
        """Games in whose scene such a thing and such a place have been seen; candidates, no more."""
        needed = {obj, place} | ({task_type} if task_type in goals.STATIONS else set())
        return [game for scene, games in self.games.items() if needed <= self.seen[scene] for game in games]


class NewGoalGrammar(TaskGrammar):
    """Other goals in the rooms of the official training games. The seed is the place of the game in the split."""

    def __init__(self, env: gymnasium.Env, plan_share: float = 0.5):
        super().__init__(env, plan_share)
        self._games = self.env.task_split.task_ids
        self._rooms = _Rooms(self._games)
        if not self._rooms.goals:
            raise ValueError(f"no game in {self.env.folder} is named as the official ones are: there are no new goals")
        _, objects, places = (tuple(sorted(set(values))) for values in zip(*self._rooms.goals.values(), strict=True))
        self.fields = {"type": goals.TASK_TYPES, "object": objects, "target": places}

    def task_id(self, spec: TaskSpec) -> str:
        task_type, obj, place = spec.values
        return NewGoal(task_type, obj, place, self._games[spec.seed]).task_id

    def spec(self, task_id: str) -> TaskSpec:
        goal = NewGoal.parse(task_id) if isinstance(task_id, str) else None
        if goal is None or goal.game not in self.env.task_split.task_ids:
            raise ValueError(f"{str(task_id)[:200]!r} is no task that was written for {self.env.task_split.env_id}")
        values = goal.task_type, goal.obj, goal.place
        if any(value not in known for value, known in zip(values, self.fields.values(), strict=True)):
            raise ValueError(f"{task_id!r} asks for something that no game asks for")
        return TaskSpec(values, self.env.task_split.position(goal.game))

    def base(self, rng: Generator) -> TaskSpec:
        game = int(rng.choice(list(self._rooms.goals)))
        return TaskSpec(self._rooms.goals[game], game)

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        candidates = self._rooms.holding(*values)
        for number in rng.permutation(len(candidates))[:_TRIES]:
            spec = TaskSpec(tuple(values), candidates[int(number)])
            with suppress(ValueError):
                self.env.reset(options={"task_id": self.task_id(spec)})
                return spec
        raise Refused("inconsistent", "no training game holds such a task")

    def content(self, spec: TaskSpec) -> str:
        return self.task_id(spec).partition("/")[0]

    def held_out_contents(self) -> frozenset[str]:
        """Tasks, scene included, that only evaluation splits have: most tasks of ``valid_seen`` are in both."""
        held_out: set[str] = set()
        for split in SPLITS:
            with suppress(FileNotFoundError):
                if split != "train":
                    held_out.update(list_games(split_folder(self.env.folder.parent, split)))
        return _tasks(held_out) - _tasks(list_games(self.env.folder))


def _tasks(task_ids: Iterable[str]) -> frozenset[str]:
    return frozenset(task_id.partition("/")[0] for task_id in task_ids)


__all__ = ["NewGoal", "NewGoalGrammar", "game_with_goal", "new_goals_in"]
