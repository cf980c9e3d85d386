"""``RoleAgent/ScienceWorld-v0``: elementary science in text. The action is a bare command."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import gymnasium

from roleagent.envs.scienceworld.java import World, gold_world, open_world, require_scienceworld
from roleagent.envs.scienceworld.tasks import ENV_ID, NUMBERS, task_split
from roleagent.envs.scienceworld.text import UNKNOWN, understood
from roleagent.spaces import Unicode, check_render_mode, whole
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

SIMPLIFICATIONS = ("teleportAction", "selfWateringFlowerPots", "openContainers", "openDoors", "noElectricalAction")
LONGEST = 1_000
"""Characters of a command; a longer one is unknown."""
_ELECTRICAL = ("power-component", "conductivity")


class ScienceWorldEnv(TaskSplitEnv):
    """ScienceWorld (Wang et al. 2022) in the package ``scienceworld``: 30 tasks in ten rooms.

    The score is in [0, 100]; the ``task`` reward is its change divided by 100, so that an episode's sum is the final
    score. An episode ends when the task is done or has failed (the score is then -100, and counts as 0), and is
    truncated after ``max_steps`` commands. It is won with a score of 100. The simulator does not repeat the wording of
    its observations exactly; the score it does.

    Up to 16 environments of a process share one Java machine. A copy or pickle holds the commands and plays them again
    in a world of its own.

    ``info`` holds, besides the keys of :mod:`roleagent.types`:

    ===========  =======================================================================================================
    ``score``    the simulator's, in [-100, 100]
    ``moves``    the simulator's time: unknown commands take none, ``wait`` takes eleven
    ===========  =======================================================================================================

    Args:
        split: ``"train"``, ``"dev"``, ``"test"`` or ``"agentgym_test"``.
        tasks: numbers of the tasks, such as ``("1-1", "4-2")`` or ``"1-1,4-2"``; None: all 30.
        variations: at most so many variations of each task; None: all.
        simplifications: names with commas between them, or ``"easy"``; the published protocols differ.
        list_actions: whether ``admissible_actions`` lists the valid actions, thousands, at five times the cost of a
            step; else it is empty.
        max_steps: steps until the episode is truncated, ≥ 1.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: an argument has no meaning.
        gymnasium.error.DependencyNotInstalled: the package or Java is missing.
    """

    observations_repeat = False
    """A replayed episode has the same scores, and not always the same wording."""

    def __init__(
        self,
        split: str = "train",
        tasks: str | Sequence[str] | None = None,
        variations: int | None = None,
        simplifications: str = "",
        list_actions: bool = False,
        max_steps: int = 100,
        render_mode: str | None = None,
    ):
        if max_steps < 1 or (variations is not None and variations < 1):
            raise ValueError(f"max_steps and variations must be at least 1, not {max_steps} and {variations}")
        tasks = tasks.split(",") if isinstance(tasks, str) else tasks
        known = ("easy", *SIMPLIFICATIONS)
        if unknown := [name for name in simplifications.split(",") if name and name not in known]:
            raise ValueError(f"unknown simplification {unknown[0]!r}; there are {', '.join(known)}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self._numbers, self._variations = NUMBERS if tasks is None else tuple(tasks), variations
        self.task_split = self._find_task_split(split)
        electrical = any(kind in task_id for task_id in self.task_split.task_ids for kind in _ELECTRICAL)
        if electrical and "noElectricalAction" in simplifications:
            raise ValueError("noElectricalAction is not possible with electrical tasks: leave out 3-1 to 3-4 in tasks")
        require_scienceworld()
        self.max_steps = max_steps
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._simplifications, self._list_actions = simplifications, list_actions
        self._world: World | None = None
        self._task_id = self._goal = self._text = self._situation = ""
        self._commands: list[str] = []
        self._score = self._moves = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._task_id = self.task_split.require(task_id)
        self._world, self._text = self._load()
        self._situation = self._text
        self._goal = self._text.partition("\n")[0]
        self._commands = []
        self._score = self._moves = self._steps = 0
        return self._text, self._info(True, {}, self._actions())

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command; one that is not understood changes nothing and still costs a step."""
        if self._steps is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        command = whole(action.strip()) if isinstance(action, str) else ""
        known = 0 < len(command) <= LONGEST
        before, done = self._score, False
        if known:
            self._text, self._score, done, self._moves = self._live_world().step(command)
            self._commands.append(command)
        else:
            self._text = UNKNOWN
        valid = understood(self._text)
        if valid:
            self._situation = self._text
        self._steps += 1
        terminated = done or self._score < 0
        truncated = self._steps >= self.max_steps and not terminated
        reward = (max(self._score, 0) - max(before, 0)) / 100
        over = terminated or truncated
        if over:
            self._steps = None
        actions = [] if over else self._actions()
        return self._text, reward, terminated, truncated, self._info(valid, {"task": reward}, actions)

    def close(self) -> None:
        """Gives the world's place in its Java machine back; a later reset takes another one."""
        self._world = None

    def walkthrough(self) -> tuple[str, ...]:
        """The simulator's gold path from the start, which it takes 0.1 s to a minute to find. Most of them win."""
        if not self._task_id:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        return _gold_path(self._task_id, self._simplifications)

    @property
    def data_info(self) -> dict[str, str]:
        """The package that brings the tasks."""
        return {"source": "official", "version": f"scienceworld {version('scienceworld')}"}

    def task_type(self, task_id: str) -> str:
        """The name of a task, without its variation."""
        return task_id.partition("/")[0]

    def check_ready(self) -> None:
        """Starts Java, before a run begins.

        Raises:
            OSError: it does not start.
        """
        open_world()

    def _load(self) -> tuple[World, str]:
        world = self._world or open_world()
        task, _, variation = self._task_id.partition("/")
        return world, world.load(task, int(variation), self._simplifications)

    def _live_world(self) -> World:
        """The world of the episode; that of a copy plays the episode again first."""
        if self._world is None:
            self._world, _ = self._load()
            score = 0
            for command in self._commands:
                _, score, *_ = self._world.step(command)
            if score != self._score:
                raise RuntimeError(f"{self._task_id} was replayed to a score of {score}, not {self._score}")
        return self._world

    def _actions(self) -> list[str]:
        return self._live_world().valid_actions() if self._list_actions else []

    def _find_task_split(self, split: str) -> TaskSplit:
        return task_split(split, self._numbers, self._variations)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_world": None}

    def _info(self, valid: bool, rewards: dict[str, float], actions: list[str]) -> dict[str, Any]:
        return {
            "task_id": self._task_id,
            "goal": self._goal,
            "task_type": self.task_type(self._task_id),
            "split": self.task_split.split,
            "admissible_actions": actions,
            "won": self._score == 100,
            "valid_action": valid,
            "state": self._text,
            "grouping_state": self._situation,
            "rewards": rewards,
            "score": self._score,
            "moves": self._moves,
        }


@lru_cache(maxsize=256)
def _gold_path(task_id: str, simplifications: str) -> tuple[str, ...]:
    task, _, variation = task_id.partition("/")
    return tuple(command.strip() for command in gold_world().gold_path(task, int(variation), simplifications))


__all__ = ["ENV_ID", "LONGEST", "SIMPLIFICATIONS", "UNKNOWN", "ScienceWorldEnv"]
