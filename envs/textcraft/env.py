"""``RoleAgent/TextCraft-v0``: fetch materials and craft by recipes. The action is a bare command."""

from __future__ import annotations

import os
from typing import Any

import gymnasium

from roleagent.envs.textcraft.data.dataset import open_book, recipe_folder
from roleagent.envs.textcraft.data.recipes import RecipeBook
from roleagent.envs.textcraft.engine.crafting import Crafting
from roleagent.envs.textcraft.engine.tasks import (
    DISTRACTORS,
    ENV_ID,
    CraftingTask,
    full_name,
    open_task,
    task_splits,
    training_split,
)
from roleagent.envs.textcraft.task_grammar import generated_by, read_task_id
from roleagent.sharing import Restorable
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.grammar import OpenTaskSplit
from roleagent.tasks.split import TaskSplit, TaskSplitEnv


class TextCraftEnv(Restorable, TaskSplitEnv):
    """TextCraft (Prasad et al. 2023): ``get 2 ash log``, ``craft 4 ash board using 1 ash log``, ``inventory``.

    Reward 1 on the step that crafts the goal, else 0. The first observation lists crafting commands: all that the goal
    may need and up to ten that it does not. Answers are exactly those of the original; docs/exactness.md lists the
    exceptions. An episode ends when the goal is crafted, and is truncated after ``max_steps`` commands, invalid ones
    included.

    ``state`` is the answer to the command, ``grouping_state`` what is carried. ``task_type`` is the depth of the goal:
    the number of crafting steps on top of each other. ``admissible_actions`` has every shown craft that is possible
    now, and ``get`` with the numbers of the shown commands; any other number works as well.

    Args:
        split: ``"train"``, ``"valid"`` or ``"test"``.
        data_dir: a folder with Minecraft's recipe files (``*.json``); None: what ``TEXTCRAFT_DATA`` names, else
            generated recipes; ``"generated"``, ``"official"``: the one or the other in any case.
        seed: of generated recipes.
        worlds: of ``train``: tasks of so many generated worlds, with the seeds from ``seed`` on. A small policy that
            trains in one world learns its recipes by heart.
        max_depth: leaves out deeper goals; None: all depths, 1 to 4.
        distractors: shown commands that cannot serve the goal, at most. The original shows 10.
        max_steps: steps until the episode is truncated, ≥ 1. Every goal of Minecraft's recipes takes at most 48.
        generated_tasks: whether tasks of :class:`~roleagent.envs.textcraft.task_grammar.CraftingGrammar` can be played;
            of the training split and of generated recipes only.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: an argument has no meaning, or there are no such recipes; the message explains what to do.
    """

    episode_attributes = ("_task_id", "_task", "_game", "_text", "_steps")

    def __init__(
        self,
        split: str = "train",
        data_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        worlds: int = 1,
        max_depth: int | None = None,
        distractors: int = DISTRACTORS,
        max_steps: int = 50,
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        if max_steps < 1 or (max_depth is not None and max_depth < 1):
            raise ValueError(f"max_steps and max_depth must be at least 1, not {max_steps} and {max_depth}")
        if distractors < 0:
            raise ValueError(f"distractors must be at least 0, not {distractors}")
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self._folder = folder = recipe_folder(data_dir)
        if worlds < 1 or (worlds > 1 and folder is not None):
            raise ValueError(f"worlds must be at least 1, and 1 with recipe files, not {worlds}")
        self.book = open_book(folder, seed)
        self._books = (self.book, *(open_book(folder, seed + n) for n in range(1, worlds if split == "train" else 1)))
        self.seed, self.max_depth, self.distractors = seed, max_depth, distractors
        if generated_tasks and folder is not None:
            raise ValueError("generated tasks need generated recipes: set data_dir='generated'")
        self._generated_tasks = generated_tasks
        self.task_split = self._find_task_split(split)
        self.max_steps = max_steps
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._task_id = ""
        self._task: CraftingTask | None = None
        self._game: Crafting | None = None
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._task_id = self.task_split.require(task_id)
        self._task = open_task(*self._find(self._task_id))
        self._game = Crafting(self._task.book, self._task.goal)
        self._text = self._task.text
        self._steps = 0
        return self._text, self._info(True, {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carries out one command; one that cannot be done now changes nothing and still costs a step."""
        if self._steps is None or self._game is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        effect = self._game.act(action if isinstance(action, str) else "")
        self._text = effect.text
        self._steps += 1
        won = self._game.won
        truncated = self._steps >= self.max_steps and not won
        if won or truncated:
            self._steps = None
        return self._text, float(won), won, truncated, self._info(effect.done, {"task": float(won)})

    def walkthrough(self) -> tuple[str, ...]:
        """Commands that craft the goal from the start, computed with all recipes."""
        if self._task is None:
            raise gymnasium.error.ResetNeeded("there is no goal yet: call reset() before walkthrough()")
        return self._task.plan()

    @property
    def data_info(self) -> dict[str, str]:
        """The recipes."""
        source = "generated" if self._folder is None else "official"
        return {
            "source": source,
            "worlds": str(len(self._books)),
            "goals": str(len(self.book.goals)),
            "digest": self.book.digest,
        }

    def task_type(self, task_id: str) -> str:
        """The depth of a task's goal, without playing it."""
        book, name, _ = self._find(task_id)
        return f"depth_{book.depths[full_name(book, name)]}"

    def _find(self, task_id: str) -> tuple[RecipeBook, str, int]:
        """The book of a task, its name there, and how many distractors it shows."""
        if full_name(self.book, task_id) in self.book.by_product:  # a recipe folder's names may have "-" and "."
            return self.book, task_id, self.distractors
        if "-" in task_id:
            name, world, distractors = read_task_id(task_id)
            return open_book(None, self.seed + world), name, distractors
        name, _, number = task_id.partition(".")
        return self._books[int(number or 0)], name, self.distractors

    def _find_task_split(self, split: str) -> TaskSplit:
        splits = task_splits(self.book, self.max_depth)
        if split not in splits:
            raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(splits)}")
        found = splits[split] if len(self._books) == 1 else training_split(self._books, self.max_depth)
        return OpenTaskSplit.of(found, generated_by(self.seed)) if self._generated_tasks else found

    def _info(self, valid: bool, rewards: dict[str, float]) -> dict[str, Any]:
        task, game = self._task, self._game
        assert task is not None and game is not None
        return {
            "task_id": self._task_id,
            "goal": task.sentence,
            "task_type": self.task_type(self._task_id),
            "split": self.task_split.split,
            "admissible_actions": task.admissible(game),
            "won": game.won,
            "valid_action": valid,
            "state": self._text,
            "grouping_state": game.inventory(),
            "rewards": rewards,
        }


__all__ = ["TextCraftEnv"]
