"""``RoleAgent/TextWorldExpress-v0``: cooking, tidying, searching, counting and following orders in text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import gymnasium

from roleagent.envs.textworldexpress.simulator import PlayedGame, Scene, machine, require_textworldexpress
from roleagent.envs.textworldexpress.tasks import ENV_ID, GAMES, task_split
from roleagent.spaces import Unicode, check_render_mode, whole
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

LONGEST = 1_000
"""Characters of a command; a longer one is unknown."""
UNKNOWN = "Unknown action: I'm not sure what you mean."


class TextWorldExpressEnv(TaskSplitEnv):
    """TextWorldExpress (Jansen and Côté 2022) in the package ``textworld-express``, with the games of TALES.

    The ``task`` reward is the change of the score, which is in [0, 1]. An episode ends when the game is won or lost,
    and is truncated after ``max_steps`` commands. The same commands give the same observations.

    All environments of a process share one Java machine. A copy or pickle holds the commands and plays them again.

    Args:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        games: names of :data:`~roleagent.envs.textworldexpress.tasks.GAMES`, also with commas between them; None: all.
        variations: at most so many tasks of each game; None: all thousand.
        max_steps: steps until the episode is truncated, ≥ 1.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: an argument has no meaning.
        gymnasium.error.DependencyNotInstalled: the package or Java is missing.
    """

    def __init__(
        self,
        split: str = "train",
        games: str | Sequence[str] | None = None,
        variations: int | None = None,
        max_steps: int = 100,
        render_mode: str | None = None,
    ):
        if max_steps < 1 or (variations is not None and variations < 1):
            raise ValueError(f"max_steps and variations must be at least 1, not {max_steps} and {variations}")
        games = games.split(",") if isinstance(games, str) else games
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self._games, self._variations = tuple(GAMES if games is None else games), variations
        self.task_split = self._find_task_split(split)
        require_textworldexpress()
        self.max_steps = max_steps
        self.observation_space, self.action_space = Unicode(), Unicode()
        self._game: PlayedGame | None = None
        self._scene: Scene | None = None
        self._task_id = self._goal = ""
        self._commands: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        self._task_id = self.task_split.require(self.task_split.requested(options, self.np_random))
        self._game = PlayedGame(self._task_id, self.task_split.split)
        self._scene, self._goal, self._commands, self._steps = self._game.first, self._game.goal, [], 0
        self._text = f"{self._goal}\n\n{self._scene.text}"
        return self._text, self._info(self._scene, True, {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command; one that is not understood changes nothing and still costs a step."""
        if self._steps is None or self._scene is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        command, before = whole(action.strip()) if isinstance(action, str) else "", self._scene
        if 0 < len(command) <= LONGEST:
            self._scene = self._live_game().step(command)
            self._commands.append(command)
        else:
            self._scene = before._replace(text=UNKNOWN)
        self._steps += 1
        self._text, reward = whole(self._scene.text), self._scene.score - before.score
        terminated = self._scene.won or self._scene.lost
        truncated = self._steps >= self.max_steps and not terminated
        if terminated or truncated:
            self._steps = None
        valid = not self._text.startswith("Unknown action")
        return self._text, reward, terminated, truncated, self._info(self._scene, valid, {"task": reward})

    def close(self) -> None:
        """Gives the game back; a later reset begins another one."""
        self._game = None

    def walkthrough(self) -> tuple[str, ...]:
        """The simulator's way to win from the start, which it takes up to some seconds to find."""
        if not self._task_id:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        return _gold_path(self._task_id, self.task_split.split)

    @property
    def data_info(self) -> dict[str, str]:
        """The package that brings the games."""
        return {"source": "official", "version": f"textworld-express {version('textworld-express')}"}

    def task_type(self, task_id: str) -> str:
        """The game of a task."""
        return task_id.partition("/")[0]

    def check_ready(self) -> None:
        """Starts Java, before a run begins.

        Raises:
            OSError: it does not start.
        """
        machine()

    def _live_game(self) -> PlayedGame:
        """The game of the episode; that of a copy plays the episode again first."""
        if self._game is None:
            self._game = PlayedGame(self._task_id, self.task_split.split)
            for command in self._commands:
                self._game.step(command)
        return self._game

    def _find_task_split(self, split: str) -> TaskSplit:
        return task_split(split, self._games, self._variations)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_game": None}

    def _info(self, scene: Scene, valid: bool, rewards: dict[str, float]) -> dict[str, Any]:
        return {
            "task_id": self._task_id,
            "goal": self._goal,
            "task_type": self.task_type(self._task_id),
            "split": self.task_split.split,
            "admissible_actions": [] if self._steps is None else list(scene.commands),
            "won": scene.won,
            "valid_action": valid,
            "state": self._text,
            "grouping_state": whole(scene.situation),
            "rewards": rewards,
            "score": scene.score,
        }


@lru_cache(maxsize=256)
def _gold_path(task_id: str, split: str) -> tuple[str, ...]:
    return PlayedGame(task_id, split, gold=True).walkthrough


__all__ = ["ENV_ID", "LONGEST", "UNKNOWN", "TextWorldExpressEnv"]
