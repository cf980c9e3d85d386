"""The tasks: a goal, the commands that are shown for it, and the splits.

A task is named by its goal. In the original a task is a position in a list whose order depends on the machine; with the
files in the order of their names, the published test ids are the goals of the split ``test`` here.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from roleagent.envs.textcraft.data.recipes import NAMESPACE, Recipe, RecipeBook, plain_name
from roleagent.envs.textcraft.engine.crafting import Crafting
from roleagent.envs.textcraft.engine.planner import Planner, craft
from roleagent.sharing import Immutable
from roleagent.tasks.split import TaskSplit

ENV_ID = "RoleAgent/TextCraft-v0"
SPLITS = ("train", "valid", "test")
DISTRACTORS = 10
"""Commands that are shown besides what the goal may need, at most."""
_USES = 10  # of one ingredient that distractors are drawn from, at most
# Of the goals of Minecraft 1.16.5 in the order of depth and file names: the published test ids, and those that are in
# neither published list. All others are the published training ids.
_PUBLISHED_GOALS = "69ba04d326e91a45"
_TEST = (*range(31), *range(140, 181), *range(420, 445), *range(533, 536))
_VALID = (
    *(184, 195, 216, 223, 229, 239, 243, 254, 265, 287, 302, 323, 362, 376, 381, 382, 385, 404, 447, 453, 454, 456),
    *(457, 458, 460, 461, 465, 467, 468, 473, 474, 476, 478, 479, 483, 485, 486, 487, 488, 490, 493, 494, 497, 498),
    *(499, 500, 503, 505, 507, 508, 509, 512, 515, 516, 519, 521, 522, 524, 525, 526, 527, 529, 530, 536, 538, 539),
    *(540, 541, 542, 543),
)
_SHARES = {"test": 0.18, "valid": 0.13}  # of the goals of a depth, in other books


class Craft(NamedTuple):
    """A shown recipe whose ingredients are all items: the command and what it takes."""

    command: str
    inputs: tuple[tuple[str, int], ...]


class CraftingTask(Immutable):
    """The definition of a task.

    Attributes:
        task_id: the goal without its namespace.
        goal: the goal's full name.
        shown: the recipes that are shown, in order.
        text: the first observation.
    """

    def __init__(self, book: RecipeBook, task_id: str, distractors: int = DISTRACTORS):
        self.book, self.task_id = book, task_id
        self.goal = full_name(book, task_id)
        self.shown = shown = shown_recipes(book, self.goal, distractors)
        commands = (recipe.text for recipe in shown)
        self.text = "\n".join(("Crafting commands:", *commands, "", f"Goal: {self.sentence}."))
        named = {
            f"get {one.count} {plain_name(one.name)}": None
            for recipe in shown
            for one in recipe.ingredients
            if book.can_be_fetched(one.name)
        }
        self._fetches = [*named, "inventory"]
        plain = [recipe for recipe in shown if not any(one.is_tag for one in recipe.ingredients)]
        self._plain = [
            Craft(recipe.text, tuple((one.name, one.count) for one in recipe.ingredients)) for recipe in plain
        ]
        self._generic = [recipe for recipe in shown if recipe not in plain]

    @property
    def sentence(self) -> str:
        """The goal in words."""
        return f"craft {plain_name(self.goal)}"

    def admissible(self, game: Crafting) -> list[str]:
        """Fetching each ingredient of a shown command in its number, each possible shown craft, and the inventory."""
        crafts = [one.command for one in self._plain if game.holds(one.inputs)]
        crafts += [command for recipe in self._generic for command in _filled(recipe, game)]
        return crafts + self._fetches

    def plan(self) -> tuple[str, ...]:
        """Commands that win from the start."""
        return tuple(planner(self.book).commands(self.goal, {}))


@lru_cache(maxsize=1024)
def open_task(book: RecipeBook, task_id: str, distractors: int) -> CraftingTask:
    """A task of a book; its environments share it."""
    return CraftingTask(book, task_id, distractors)


def _filled(recipe: Recipe, game: Crafting) -> Iterator[str]:
    """The commands for a recipe with every choice of carried items that fits its tags."""
    tag_of = game.book.tag_of
    choices = [
        [item for item, held in game.carried.items() if held >= one.count and tag_of.get(item) == one.name]
        if one.is_tag
        else [one.name]
        for one in recipe.ingredients
    ]
    for items in product(*choices):
        inputs = [(item, one.count) for item, one in zip(items, recipe.ingredients, strict=True)]
        if len(set(items)) == len(items) and game.holds(inputs):
            yield craft(recipe, inputs)


def planner(book: RecipeBook) -> Planner:
    """The planner with all recipes."""
    return Planner(
        lambda name: book.by_product.get(name, ()),
        lambda tag: tuple(dict.fromkeys(recipe.product for recipe in book.by_tag.get(tag, ()))),
    )


def shown_recipes(book: RecipeBook, goal: str, most: int = DISTRACTORS) -> tuple[Recipe, ...]:
    """The recipes that a task shows: all that may lead to the goal and a few with the same ingredients, shuffled.

    The goal's name alone decides which these are, and their order.

    Args:
        most: of those that cannot serve the goal.
    """
    rng = random.Random(f"TextCraft {goal}")
    own = book.reachable(goal)
    known = set(own)
    others: dict[Recipe, None] = {}
    for name in dict.fromkeys(one.name for recipe in own for one in recipe.ingredients):
        uses = [recipe for recipe in book.uses.get(name, ()) if recipe not in known]
        others |= dict.fromkeys(rng.sample(uses, min(_USES, len(uses))))
    distractors = rng.sample([*others], min(most, len(others)))
    shown = [*own, *distractors]
    rng.shuffle(shown)
    return tuple(shown)


def full_name(book: RecipeBook, task_id: str) -> str:
    """The goal of a task."""
    return task_id if task_id in book.by_product else NAMESPACE + task_id


@lru_cache(maxsize=16)
def task_splits(book: RecipeBook, max_depth: int | None = None) -> Mapping[str, TaskSplit]:
    """The splits of a book; any prefix of one mixes the depths.

    The 544 goals of Minecraft 1.16.5 have the published splits. Of other books every depth is divided by hash.

    Args:
        max_depth: leaves out deeper goals.

    Raises:
        ValueError: there are too few goals for three splits.
    """
    if hashlib.sha256("\n".join(book.goals).encode()).hexdigest()[:16] == _PUBLISHED_GOALS:
        chosen = {
            name: {book.goals[place] for place in places} for name, places in (("test", _TEST), ("valid", _VALID))
        }
    else:
        chosen = {name: set() for name in _SHARES}
        for depth in sorted(set(book.depths.values())):
            left = sorted((goal for goal in book.goals if book.depths[goal] == depth), key=_by_hash)
            whole = len(left)
            for name, share in _SHARES.items():
                n = round(share * whole)
                chosen[name] |= set(left[:n])
                left = left[n:]
    chosen["train"] = set(book.goals) - chosen["test"] - chosen["valid"]
    deepest = max_depth or max(book.depths.values())
    named = {
        name: [goal for goal in sorted(chosen[name], key=_by_hash) if book.depths[goal] <= deepest] for name in SPLITS
    }
    return {
        name: TaskSplit(ENV_ID, name, tuple(goal.removeprefix(NAMESPACE) for goal in goals))
        for name, goals in named.items()
    }


@lru_cache(maxsize=2)  # an entry keeps its books
def training_split(books: tuple[RecipeBook, ...], max_depth: int | None = None) -> TaskSplit:
    """The training tasks of several books, mixed; those of the n-th are named ``goal.n``.

    A goal that the first book holds out, in ``valid`` or ``test``, is in none of them.
    """
    first, *others = books
    splits = task_splits(first, max_depth)
    held_out = {task_id for name in ("valid", "test") for task_id in splits[name].task_ids}
    names = list(splits["train"].task_ids)
    for number, book in enumerate(others, start=1):
        found = task_splits(book, max_depth)["train"].task_ids
        names += [f"{task_id}.{number}" for task_id in found if task_id not in held_out]
    return TaskSplit(ENV_ID, "train", tuple(sorted(names, key=_by_hash)))


def _by_hash(goal: str) -> str:
    return hashlib.sha256(goal.encode()).hexdigest()


__all__ = [
    "DISTRACTORS",
    "ENV_ID",
    "SPLITS",
    "CraftingTask",
    "full_name",
    "open_task",
    "planner",
    "shown_recipes",
    "task_splits",
    "training_split",
]
