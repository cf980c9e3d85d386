"""The games of TextWorldExpress with the parameters of TALES, and their splits.

A task is a game and a number that generates it, such as ``CookingWorld/17``. The simulator has a thousand numbers for
training, for development and for tests; other objects occur in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product
from typing import NamedTuple

from roleagent.tasks.split import TaskSplit

ENV_ID = "RoleAgent/TextWorldExpress-v0"


class Game(NamedTuple):
    """The simulator's name of a game, and its parameters."""

    name: str
    parameters: str = ""


def _simon(length: int, memory: int, verbose: str = "") -> Game:
    return Game("simonsays", f"gameLength={length}, numDistractors=4, memorization={memory}{verbose}")


_ROOM = "numLocations=1, numDistractorItems=5, limitInventorySize=0"
GAMES = {
    "CookingWorld": Game("cookingworld", f"{_ROOM}, numIngredients=2, includeDoors=0"),
    "TextWorldCommonsense": Game("twc", "numLocations=1, numItemsToPutAway=1, includeDoors=0, limitInventorySize=0"),
    "CoinCollector": Game("coin", _ROOM),
    "Arithmetic": Game("arithmetic"),
    "MapReader": Game(
        "mapreader",
        "numLocations=2, maxDistanceApart=1, maxDistractorItemsPerLocation=2, includeDoors=0, limitInventorySize=0",
    ),
    "Sorting": Game("sorting"),
    **{f"SimonSays{length}": _simon(length, 0) for length in (10, 50, 100)},
    **{f"SimonSaysWithMemory{length}": _simon(length, 1, ", verbose=0") for length in (10, 50, 100)},
    **{f"SimonSaysWithMemory{length}Verbose": _simon(length, 1, ", verbose=1") for length in (10, 50, 100)},
    "PeckingOrder": Game("peckingorder"),
}
FOLDS = {
    "train": ("train", range(1000)),
    "valid": ("dev", range(10_000, 11_000)),
    "test": ("test", range(20_000, 21_000)),
}
"""By split, the simulator's name of it and its numbers."""


def task_split(split: str, games: Sequence[str], variations: int | None) -> TaskSplit:
    """The tasks of a split, ordered so that any prefix mixes the games.

    Args:
        split: a key of :data:`FOLDS`.
        games: keys of :data:`GAMES`.
        variations: at most so many tasks of each game; None: all.

    Raises:
        ValueError: there is no such split or game.

    >>> task_split("valid", ("Sorting", "Arithmetic"), 2).task_ids
    ('Sorting/10000', 'Arithmetic/10000', 'Sorting/10001', 'Arithmetic/10001')
    """
    if split not in FOLDS:
        raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(FOLDS)}")
    if unknown := [name for name in games if name not in GAMES]:
        raise ValueError(f"unknown game {unknown[0]!r}; there are {', '.join(GAMES)}")
    numbers = islice(FOLDS[split][1], variations)
    return TaskSplit(ENV_ID, split, tuple(f"{game}/{number}" for number, game in product(numbers, games)))


__all__ = ["ENV_ID", "FOLDS", "GAMES", "Game", "task_split"]
