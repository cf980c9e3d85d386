"""The batched environment of ``textworld.gym``, with ALFWorld's infos: several games side by side."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roleagent.envs.alfworld.engine.game import Engine, Game
from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.engine.textworld import TextWorldEngine
from roleagent.envs.alfworld.env import load_game, load_source
from roleagent.envs.alfworld.expert import SearchExpert

SEED = 1234
"""The seed of the order of games, until :meth:`BatchEnv.seed` sets another one."""

Infos = dict[str, list[Any]]


class Result(NamedTuple):
    """The result of one game's step."""

    observation: str
    score: int
    done: bool
    info: dict[str, Any]


class BatchEnv:
    """Plays ``batch_size`` games at a time, as ``textworld.gym`` does with ALFWorld's wrappers.

    ``reset`` takes the next games, in an order that :meth:`seed` shuffles. A game that is over repeats its last result
    until the next ``reset``. The infos are lists with one entry a game: ``won``, ``admissible_commands``,
    ``extra.gamefile`` (as in the original, None after a step), and ``extra.expert_plan`` where there is an expert.

    Args:
        gamefiles: the paths of the games.
        batch_size: games played at a time, ≥ 1.
        max_episode_steps: commands until a game is over, invalid ones included, ≥ 1.
        expert: whether the infos hold the next command of an expert that sees only the observations.
        shuffle_numbers: whether every ``reset`` draws the numbers of the objects and receptacles anew.

    Raises:
        ValueError: an argument has no meaning.
    """

    def __init__(
        self,
        gamefiles: Sequence[str],
        batch_size: int,
        max_episode_steps: int = 50,
        expert: bool = False,
        shuffle_numbers: bool = False,
    ):
        if batch_size < 1 or max_episode_steps < 1:
            raise ValueError(f"batch_size and the step limit must be at least 1, not {batch_size}, {max_episode_steps}")
        if not gamefiles:
            raise ValueError("there are no games to play: game_files is empty")
        self.gamefiles = gamefiles
        self.batch_size = batch_size
        self.obs: tuple[str, ...] = ()
        self.last_commands: Sequence[str | None] = ()
        self._slots: list[_Slot] | None = [
            _Slot(max_episode_steps, expert, shuffle_numbers) for _ in range(self.batch_size)
        ]
        self.seed(SEED)

    def seed(self, seed: int | None = None) -> list[int | None]:
        """Shuffles the games; ``numpy.random.RandomState(seed)`` as in the original."""
        rng = np.random.RandomState(seed)
        games = list(self.gamefiles)
        rng.shuffle(games)
        self._order = _shuffled_cycle(games, rng)
        self._numbers = random.Random(seed)
        return [seed]

    def reset(self) -> tuple[tuple[str, ...], Infos]:
        """Starts the next games: observations and infos."""
        slots = self._open()
        results = [slot.reset(next(self._order), self._numbers) for slot in slots]
        self.last_commands = [None] * self.batch_size
        self.obs = tuple(result.observation for result in results)
        return self.obs, _together(results)

    def skip(self, nb_games: int = 1) -> None:
        """Leaves out the next games."""
        for _ in range(nb_games):
            next(self._order)

    def step(self, commands: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...], tuple[bool, ...], Infos]:
        """Gives one command to each game: observations, scores (1 for a game that is won), dones and infos.

        Raises:
            AssertionError: it is not one command a game (the original's error).
        """
        slots = self._open()
        if not isinstance(commands, list | tuple):
            raise AssertionError(f"step expects a list with one command a game, not {commands!r}")
        if len(commands) != self.batch_size:
            raise AssertionError(f"step expects one command a game: {self.batch_size}, not {len(commands)}")
        if not self.last_commands:
            raise RuntimeError("there are no games yet: call reset() before step()")
        for command in commands:
            if not isinstance(command, str):
                raise TypeError(f"a command is a string, not {command!r}")
        results = [slot.step(command) for slot, command in zip(slots, commands, strict=True)]
        self.last_commands = commands
        self.obs = tuple(result.observation for result in results)
        scores, dones = tuple(result.score for result in results), tuple(result.done for result in results)
        return self.obs, scores, dones, _together(results)

    def close(self) -> None:
        """Ends the games; nothing can be played any more."""
        self._slots = None

    def render(self, mode: str = "human") -> StringIO | str | None:
        """The last commands and observations: printed (``"human"``), as text, or as a ``StringIO`` (``"ansi"``)."""
        shown = []
        for command, observation in zip(self.last_commands, self.obs, strict=True):
            line = "" if command is None else f"> {command}\n"
            if command is not None and mode == "ansi":
                line = f"\x1b[33m> {command}\x1b[0m\n"
            shown.append(f"{line}{observation.rstrip()}\n")
        text = "\n-----\n".join(shown) + "\n"
        if mode == "human":
            sys.stdout.write(text)
            return None
        return StringIO(text) if mode == "ansi" else text

    def _open(self) -> list[_Slot]:
        if self._slots is None:
            raise RuntimeError("the environment is closed: call init_env() for another one")
        return self._slots


class _Slot:
    """One place of the batch."""

    def __init__(self, max_episode_steps: int, expert: bool, shuffle_numbers: bool):
        self._limit, self._shuffle = max_episode_steps, shuffle_numbers
        self._expert = SearchExpert() if expert else None
        self._engine: Engine | None = None
        self._textworld: TextWorldEngine | None = None  # loads many games: each one keeps a large library in memory
        self._steps = 0
        self._last: Result | None = None

    def reset(self, gamefile: str, numbers: random.Random) -> Result:
        self._steps = 0
        path = Path(gamefile)
        folder, task_id = path.parents[2], f"{path.parents[1].name}/{path.parent.name}"
        try:
            game = load_game(folder, task_id)
            self._engine = Simulator(renumbered(game, numbers) if self._shuffle else game)
        except UnknownGameVersion:
            self._textworld = self._textworld or TextWorldEngine()
            self._engine = self._textworld.load(load_source(folder, task_id))
        observation = self._engine.reset()
        if self._expert is not None:
            self._expert.reset(load_source(folder, task_id).goal, observation)
        self._last = Result(observation, 0, False, self._info(gamefile, ["look"]))
        return self._last

    def step(self, command: str) -> Result:
        engine, last = self._engine, self._last
        assert engine is not None and last is not None
        if last.done:
            return last
        observation = engine.step(command)
        self._steps += 1
        plan = ["look"]
        if self._expert is not None:
            self._expert.observe(command, observation)
            wish = self._expert.act()
            plan = [wish] if wish in engine.admissible_commands else plan
        won = engine.won
        self._last = Result(observation, int(won), won or self._steps >= self._limit, self._info(None, plan))
        return self._last

    def _info(self, gamefile: str | None, plan: list[str]) -> dict[str, Any]:
        assert self._engine is not None
        info: dict[str, Any] = {
            "won": self._engine.won,
            "admissible_commands": self._engine.admissible_commands,
            "extra.gamefile": gamefile,
        }
        if self._expert is not None:
            info["extra.expert_plan"] = plan
        return info


def renumbered(game: Game, rng: random.Random) -> Game:
    """The same game with permuted numbers of equal objects: ``mug 1`` and ``mug 2`` may swap."""

    def shuffled(names: tuple[str, ...]) -> tuple[str, ...]:
        pools: dict[str, list[str]] = {}
        for name in names:
            pools.setdefault(name.partition(" ")[0], []).append(name)
        for pool in pools.values():
            rng.shuffle(pool)
        return tuple(pools[name.partition(" ")[0]].pop() for name in names)

    receptacles, objects = shuffled(game.receptacles), shuffled(game.objects)
    return replace(
        game,
        locations=shuffled(game.locations),
        receptacles=receptacles,
        objects=objects,
        receptacle_numbers={name: number for number, name in enumerate(receptacles)},
        object_numbers={name: number for number, name in enumerate(objects)},
    )


def _shuffled_cycle(games: list[str], rng: np.random.RandomState) -> Iterator[str]:
    """The games in their order, then shuffled again and again."""
    while True:
        yield from games
        rng.shuffle(games)


def _together(results: Sequence[Result]) -> Infos:
    return {key: [result.info[key] for result in results] for key in results[0].info}


__all__ = ["SEED", "BatchEnv", "renumbered"]
