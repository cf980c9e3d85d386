"""``RoleAgent/ALFWorld-v0``: household tasks in text. The action is a bare command."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import gymnasium
from gymnasium.error import DependencyNotInstalled

from roleagent.envs.alfworld.engine.game import Engine, Game, GameSource
from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion
from roleagent.envs.alfworld.engine.planner import plan, shortest_plan
from roleagent.envs.alfworld.engine.simulator import NOTHING, Simulator
from roleagent.envs.alfworld.engine.textworld import TextWorldEngine
from roleagent.envs.alfworld.generated.generate import generate, split_ids
from roleagent.envs.alfworld.generated.tasks import task_type_of
from roleagent.envs.alfworld.official.games import (
    SPLITS,
    explain_absence,
    games_folder,
    list_games,
    read_game,
    version_text,
)
from roleagent.envs.alfworld.official.tasks import NewGoal, game_with_goal, new_goals_in
from roleagent.envs.alfworld.task_grammar import generated_by
from roleagent.sharing import Restorable
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.grammar import OpenTaskSplit
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

ENV_ID = "RoleAgent/ALFWorld-v0"
ENGINES = ("native", "textworld")


@lru_cache(maxsize=64)
def task_split(
    split: str, folder: Path | None, size: str, games: int | None, generated_tasks: bool = False
) -> TaskSplit:
    """The tasks of a split: official ones of ``folder``, else generated ones of ``size``; at most ``games`` of them."""
    task_ids = split_ids(split, size) if folder is None else list_games(folder)
    listed = TaskSplit(ENV_ID, split, task_ids)
    listed = listed if games is None else listed.first(games, task_type_of)
    if not generated_tasks:
        return listed
    return OpenTaskSplit.of(listed, generated_by(size) if folder is None else new_goals_in(folder, games))


@lru_cache(maxsize=128)
def load_source(folder: Path | None, task_id: str) -> GameSource:
    """The text of a game, shared by all environments of the process."""
    if folder is None:
        return generate(task_id)
    return load_game(folder, task_id).source if NewGoal.parse(task_id) else read_game(folder, task_id)


@lru_cache(maxsize=128)
def load_game(folder: Path | None, task_id: str) -> Game:
    """The game, read once for all environments of the process: the G episodes of a group share it."""
    if folder is not None and NewGoal.parse(task_id):
        return game_with_goal(folder, task_id)
    return Game.from_source(load_source(folder, task_id))


class ALFWorldEnv(Restorable, TaskSplitEnv):
    """ALFWorld's six kinds of household task; reward 1 on the step that solves the task, else 0.

    Observations are exactly those of TextWorld; the first one ends with the task. An episode ends when the task is
    solved, and is truncated after ``max_steps`` commands, invalid ones included.

    Copies share the game, which goes along in a pickle (some 40 KB). A TextWorld engine cannot be copied: a copy starts
    another one and gives it the same commands again.

    Args:
        split: ``"train"``, ``"valid_train"``, ``"valid_seen"`` or ``"valid_unseen"``.
        data_dir: the folder with the official games (see :mod:`roleagent.envs.alfworld.official.games`). None: the
            folder that the environment variable ``ALFWORLD_DATA`` names, else generated games. ``"generated"``:
            generated games in any case. ``"official"``: official ones or an error.
        engine: ``"native"`` (games whose rules it does not know are played by TextWorld) or ``"textworld"``.
        size: of generated rooms, ``"standard"``, ``"small"`` or ``"tiny"``.
        max_steps: steps until the episode is truncated, ≥ 1.
        games: keep only so many tasks of the split, of all types (:meth:`~roleagent.tasks.split.TaskSplit.first`).
        grouping: what ``info["grouping_state"]`` is, by which turns are compared: ``"text"``, the last observation, as
            published; or ``"world"``, a digest of the whole state, which has what the text does not show, such as the
            object in hand. The native engine alone has it.
        generated_tasks: whether tasks of the grammar can be played, see
            :func:`~roleagent.envs.alfworld.task_grammar.task_grammar`; of the training split only.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        FileNotFoundError: ``data_dir`` holds no playable games, or ``"official"`` ones are nowhere.
        ValueError: an argument has no meaning, or an evaluation split is to play generated tasks.
    """

    episode_attributes = ("_source", "_engine", "_text", "_situation", "_steps")

    def __init__(
        self,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        engine: Literal["native", "textworld"] = "native",
        size: Literal["standard", "small", "tiny"] = "standard",
        max_steps: int = 50,
        games: int | None = None,
        grouping: Literal["text", "world"] = "text",
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(SPLITS)}")
        if engine not in ENGINES:
            raise ValueError(f"unknown engine {engine!r}; there are {' and '.join(ENGINES)}")
        if grouping not in ("text", "world"):
            raise ValueError(f"unknown grouping {grouping!r}; there are text and world")
        if grouping == "world" and engine != "native":
            raise ValueError("grouping='world' needs engine='native': TextWorld does not say what state it is in")
        if max_steps < 1 or (games is not None and games < 1):
            raise ValueError(f"max_steps and games must be at least 1, not {max_steps} and {games}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.folder = games_folder(data_dir, split)
        self.size, self._games = size, games
        self._generated_tasks = generated_tasks
        self.task_split = self._find_task_split(split)
        self.max_steps = max_steps
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._native = engine == "native"
        self._by_world = grouping == "world"
        self._textworld: TextWorldEngine | None = None
        self._engine: Engine | None = None
        self._source: GameSource | None = None
        self._text = ""
        self._situation = ""  # the last observation that is no failed command's

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task, or its file is broken.
            gymnasium.error.DependencyNotInstalled: TextWorld is needed and missing.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        if task_id not in self.task_split and self.folder is not None:
            explain_absence(self.folder, task_id)
        self._source = load_source(self.folder, self.task_split.require(task_id))
        self._engine = engine = self._start(self._source)
        if self._by_world and not isinstance(engine, Simulator):
            raise ValueError(f"{task_id} is played by TextWorld, which has no states: leave out grouping='world'")
        self._text = self._situation = engine.reset()
        self._steps = 0
        return self._text, self._info(True, {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command; one that cannot be done now changes nothing and still costs a step."""
        if self._steps is None or self._engine is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        self._text = self._engine.step(action) if isinstance(action, str) else NOTHING
        self._steps += 1
        won = self._engine.won
        truncated = self._steps >= self.max_steps and not won
        if won or truncated:
            self._steps = None
        valid = self._text != NOTHING
        if valid:
            self._situation = self._text
        return self._text, float(won), won, truncated, self._info(valid, {"task": float(won)})

    def walkthrough(self) -> tuple[str, ...]:
        """Commands that win the current game from its start, computed with full knowledge of the game.

        Those that came with the game, else (the older official format brings none) a plan of our own; ``()`` where
        the rules are unknown.
        """
        if self._source is None:
            raise gymnasium.error.ResetNeeded("there is no game yet: call reset() before walkthrough()")
        if self._source.walkthrough:
            return self._source.walkthrough
        try:
            return plan(load_game(self.folder, self._source.task_id))
        except UnknownGameVersion:
            return ()

    def shortest_plan(self) -> tuple[str, ...] | None:
        """A shortest sequence of commands that wins from the present state, computed with full knowledge of the game.

        None where none is found, or another engine plays the game.
        """
        if self._engine is None:
            raise gymnasium.error.ResetNeeded("there is no game yet: call reset() before shortest_plan()")
        return shortest_plan(self._engine) if isinstance(self._engine, Simulator) else None

    def snapshot(self) -> dict[str, Any]:
        """See :class:`~roleagent.sharing.Restorable`; only the native engine has snapshots."""
        if self._engine is not None and self._engine is self._textworld:
            raise NotImplementedError("TextWorld has no snapshots: replay the commands, or use engine='native'")
        return super().snapshot()

    @property
    def data_info(self) -> dict[str, str]:
        """The games: official ones by the version of their format, generated ones by the size of their rooms."""
        if self.folder is None:
            return {"source": "generated", "rooms": self.size}
        return {"source": "official", "version": version_text(self.folder)}

    def task_type(self, task_id: str) -> str:
        """The type of a task, without playing it."""
        return task_type_of(task_id)

    def _find_task_split(self, split: str) -> TaskSplit:
        return task_split(split, self.folder, self.size, self._games, self._generated_tasks)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        if self._engine is not self._textworld:
            state["_textworld"] = None  # it holds an earlier game
        return state

    def _start(self, source: GameSource) -> Engine:
        """An engine with the game in it."""
        reason = ""
        if self._native:
            try:
                return Simulator(load_game(self.folder, source.task_id))
            except UnknownGameVersion as error:
                reason = f"{source.task_id} is not for the native simulator ({error})"
        try:
            self._textworld = textworld = self._textworld or TextWorldEngine()
        except DependencyNotInstalled as error:
            raise DependencyNotInstalled(f"{reason}; {error}" if reason else str(error)) from error
        if reason:
            gymnasium.logger.warn(f"{reason}: TextWorld plays it, slowly")
        return textworld.load(source)

    def _grouping_state(self) -> str:
        return self._engine.state if self._by_world and isinstance(self._engine, Simulator) else self._situation

    def _info(self, valid: bool, rewards: dict[str, float]) -> dict[str, Any]:
        assert self._source is not None and self._engine is not None
        return {
            "task_id": self._source.task_id,
            "goal": self._source.goal,
            "task_type": self._source.task_type,
            "split": self.task_split.split,
            "admissible_actions": self._engine.admissible_commands,
            "won": self._engine.won,
            "valid_action": valid,
            "state": self._text,
            "grouping_state": self._grouping_state(),
            "rewards": rewards,
        }


__all__ = ["ALFWorldEnv", "load_game", "load_source", "task_split"]
