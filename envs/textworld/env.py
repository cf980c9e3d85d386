"""``RoleAgent/TextWorld-v0``: game files of TextWorld. The action is a bare command."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled

from roleagent.spaces import Unicode, check_render_mode, whole
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

ENV_ID = "RoleAgent/TextWorld-v0"
_SPLITS = ("train", "valid", "test")
LONGEST = 1_000
"""Characters of a command; a longer one is unknown."""
UNKNOWN = "That's not a verb I recognise."
_WORDS = re.compile(r"[A-Za-z0-9][A-Za-z0-9 '-]*")
_WORD = re.compile(r"[a-z0-9]+")
_KNOWN = 9  # letters of a word that the interpreter reads
_OF_FILES = frozenset(
    word[:_KNOWN]
    for word in (
        *("save", "restore", "restart", "quit", "q", "undo"),
        *("script", "unscript", "transcript", "recording", "replay", "verify"),
    )
)
_STATUS = re.compile(r"\n>[^\n]*(\n[^\n]*)?\s*\Z")  # the prompt of the interpreter, and its line of status


class TextWorldEnv(TaskSplitEnv):
    """Games of TextWorld (Côté et al. 2018): a file ``.z8`` or ``.ulx`` with the ``.json`` of the same name beside it.

    The ``task`` reward is the change of the score, divided by the game's maximum. An episode ends when the game is won
    or lost, and is truncated after ``max_steps`` commands. A copy or pickle holds the commands and plays them again.

    Args:
        games: a folder. Its games belong to every split, or its folders ``train``, ``valid`` and ``test`` have those of
            one each.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        max_steps: steps until the episode is truncated, ≥ 1.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: the folder has no game, or an argument has no meaning.
        gymnasium.error.DependencyNotInstalled: the package is missing.
    """

    def __init__(self, games: str = "", split: str = "train", max_steps: int = 100, render_mode: str | None = None):
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {max_steps}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        if not games:
            raise FileNotFoundError(f"{ENV_ID} plays games that you have or tw-make makes: give games, their folder")
        self._folder = Path(games).expanduser()
        self.task_split = self._find_task_split(split)
        if find_spec("textworld") is None:
            raise DependencyNotInstalled("TextWorld is not installed: pip install 'roleagent[textworld]'")
        self.max_steps = max_steps
        self.observation_space, self.action_space = Unicode(), Unicode()
        self._game: Any = None  # textworld.Environment
        self._task_id = ""
        self._commands: list[str] = []
        self._state: Mapping[str, Any] = {}  # of textworld

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        self._task_id = self.task_split.require(self.task_split.requested(options, self.np_random))
        self._state = self._start()
        self._commands, self._steps = [], 0
        goal, text = self._goal(), cleaned(self._state["feedback"])
        self._text = text[text.find(goal) :] if goal in text else f"{goal}\n\n{text}"  # without the title's letters
        return self._text, self._info(True, {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command; one that is not understood changes nothing and still costs a step."""
        if self._steps is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        command = " ".join(whole(action).split()) if isinstance(action, str) else ""
        before, moves, valid = self._state["score"], self._state["moves"], False
        if command in self._state["admissible_commands"] or reaches_the_game(command):
            self._state = self._live_game().step(command)[0]
            self._commands.append(command)
            self._text = cleaned(self._state["feedback"])
            # The interpreter counts what it has done, such as `i` for `inventory`, and nothing that it refuses.
            valid = bool(self._state["moves"] > moves or self._state["won"] or self._state["lost"])
        else:
            self._text = UNKNOWN
        self._steps += 1
        reward = (self._state["score"] - before) / max(1, self._state["max_score"])
        terminated = bool(self._state["won"] or self._state["lost"])
        truncated = self._steps >= self.max_steps and not terminated
        if terminated or truncated:
            self._steps = None
        return self._text, reward, terminated, truncated, self._info(valid, {"task": reward})

    def close(self) -> None:
        """Ends the interpreter of the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def walkthrough(self) -> tuple[str, ...]:
        """The game's own way to win."""
        if not self._task_id:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        return tuple(self._state["extra.walkthrough"])

    @property
    def data_info(self) -> dict[str, str]:
        """The package that plays the games, which are the user's."""
        return {"source": "own", "version": f"textworld {version('textworld')}"}

    def task_type(self, task_id: str) -> str:
        """The folder of a game, such as TALES's ``difficulty_level_3``; empty where there is none."""
        return task_id.rpartition("/")[0]

    def _start(self) -> Mapping[str, Any]:
        import textworld

        self.close()
        wanted = ("score", "max_score", "won", "lost", "feedback", "admissible_commands", "objective", "moves")
        infos = textworld.EnvInfos(**dict.fromkeys((*wanted, "description", "inventory"), True), extras=["walkthrough"])
        self._game = textworld.start(str(self._games(self.task_split.split) / self._task_id), infos)
        return self._game.reset()

    def _live_game(self) -> Any:
        """The game of the episode; that of a copy plays the episode again first."""
        if self._game is None:
            self._start()
            for command in self._commands:
                self._game.step(command)
        return self._game

    def _games(self, split: str) -> Path:
        return self._folder / split if any((self._folder / one).is_dir() for one in _SPLITS) else self._folder

    def _find_task_split(self, split: str) -> TaskSplit:
        if split not in _SPLITS:
            raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(_SPLITS)}")
        folder = self._games(split)
        files = (file for file in folder.rglob("*") if file.suffix in (".z8", ".ulx"))
        games = sorted(file.relative_to(folder).as_posix() for file in files if file.with_suffix(".json").exists())
        if not games:
            raise ValueError(f"games={folder} has no game, a file .z8 or .ulx with its .json: tw-make makes one")
        return TaskSplit(ENV_ID, split, tuple(games))

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_game": None, "_state": dict(self._state)}

    def __deepcopy__(self, memo: dict[int, Any]) -> TextWorldEnv:
        from copy import deepcopy

        other = object.__new__(type(self))
        memo[id(self)] = other
        state = {name: value for name, value in self.__dict__.items() if name not in ("_game", "_state")}
        other.__dict__.update(deepcopy(state, memo), _game=None, _state=dict(self._state))
        return other

    def _goal(self) -> str:
        return str(self._state["objective"]).strip()

    def _info(self, valid: bool, rewards: dict[str, float]) -> dict[str, Any]:
        state = self._state
        return {
            "task_id": self._task_id,
            "goal": self._goal(),
            "task_type": self.task_type(self._task_id),
            "split": self.task_split.split,
            "admissible_actions": [] if self._steps is None else list(state["admissible_commands"]),
            "won": bool(state["won"]),
            "valid_action": valid,
            "state": self._text,
            "grouping_state": f"{str(state['description']).strip()}\n{str(state['inventory']).strip()}",
            "rewards": rewards,
            "score": state["score"] / max(1, state["max_score"]),
        }


def reaches_the_game(command: str) -> bool:
    """Whether a command is a single one of the game: a backslash commands the interpreter, and some words its files.

    Such a word may stand anywhere, for ``oops`` replaces a word. A full stop, a comma and ``then`` begin another
    command: a whole game would be one step.

    >>> [reaches_the_game(command) for command in ("take key", "\\\\save x", "SAVE", "look.look", "oops transcripts")]
    [True, False, False, False, False]
    """
    if len(command) > LONGEST or not _WORDS.fullmatch(command):
        return False
    return not any(word == "then" or word[:_KNOWN] in _OF_FILES for word in _WORD.findall(command.lower()))


def cleaned(text: str) -> str:
    """The text of a game without the interpreter's prompt and line of status.

    >>> cleaned("\\nYou take the key.\\n\\n>      -= Kitchen =-0/1")
    'You take the key.'
    """
    return whole(_STATUS.sub("", text)).strip()


__all__ = ["ENV_ID", "LONGEST", "UNKNOWN", "TextWorldEnv", "cleaned"]
