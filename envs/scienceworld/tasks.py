"""The 30 tasks of ScienceWorld, their variations and splits.

Of every task's variations the first half is for training, then a quarter for development, the rest for tests. AgentGym
and Agent-R test on 200 ids of their own, of which some are official training variations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from roleagent.tasks.split import TaskSplit

ENV_ID = "RoleAgent/ScienceWorld-v0"


class ScienceTask(NamedTuple):
    """A kind of task: its number in the paper, its name in the simulator, and how many variations it has."""

    number: str
    name: str
    variations: int


TASKS = (
    ScienceTask("1-1", "boil", 30),
    ScienceTask("1-2", "melt", 30),
    ScienceTask("1-3", "freeze", 30),
    ScienceTask("1-4", "change-the-state-of-matter-of", 30),
    ScienceTask("2-1", "use-thermometer", 540),
    ScienceTask("2-2", "measure-melting-point-known-substance", 436),
    ScienceTask("2-3", "measure-melting-point-unknown-substance", 300),
    ScienceTask("3-1", "power-component", 20),
    ScienceTask("3-2", "power-component-renewable-vs-nonrenewable-energy", 20),
    ScienceTask("3-3", "test-conductivity", 900),
    ScienceTask("3-4", "test-conductivity-of-unknown-substances", 600),
    ScienceTask("4-1", "find-living-thing", 300),
    ScienceTask("4-2", "find-non-living-thing", 300),
    ScienceTask("4-3", "find-plant", 300),
    ScienceTask("4-4", "find-animal", 300),
    ScienceTask("5-1", "grow-plant", 126),
    ScienceTask("5-2", "grow-fruit", 126),
    ScienceTask("6-1", "chemistry-mix", 32),
    ScienceTask("6-2", "chemistry-mix-paint-secondary-color", 36),
    ScienceTask("6-3", "chemistry-mix-paint-tertiary-color", 36),
    ScienceTask("7-1", "lifespan-longest-lived", 125),
    ScienceTask("7-2", "lifespan-shortest-lived", 125),
    ScienceTask("7-3", "lifespan-longest-lived-then-shortest-lived", 125),
    ScienceTask("8-1", "identify-life-stages-1", 14),
    ScienceTask("8-2", "identify-life-stages-2", 10),
    ScienceTask("9-1", "inclined-plane-determine-angle", 168),
    ScienceTask("9-2", "inclined-plane-friction-named-surfaces", 1386),
    ScienceTask("9-3", "inclined-plane-friction-unnamed-surfaces", 162),
    ScienceTask("10-1", "mendelian-genetics-known-plant", 120),
    ScienceTask("10-2", "mendelian-genetics-unknown-plant", 480),
)
NUMBERS = tuple(task.number for task in TASKS)
# fmt: off
AGENTGYM_TEST = {
    "2-1": (416, 417, 418, 423, 424, 427, 437, 439, 445, 449, 452, 453, 461, 464, 486, 489, 490, 496, 500, 504, 511,
        515, 521, 532, 537),
    "2-2": (335, 342, 343, 346, 357, 360, 363, 364, 366, 368, 369, 372, 373, 392, 395, 398, 405, 406, 408, 414, 428,
        433, 435),
    "2-3": (15, 16, 35, 38, 39),
    "3-3": (380, 385, 386, 388, 395, 399, 402, 408, 437, 443, 446, 461, 476, 478, 479, 483, 495, 498, 502, 504, 513,
        517, 518, 519, 533, 552, 558, 572, 579, 580, 593),
    "3-4": (151, 152, 160, 161, 162, 164, 167, 168, 170, 175, 176, 177, 185, 191, 195, 210, 212, 216, 219, 223, 227,
        233, 237, 241, 245, 246, 253, 283, 285, 289, 295, 297, 526, 528, 530, 535, 539, 540, 551, 552, 557, 560,
        563, 565, 568, 574, 576, 579, 581, 588, 595, 596),
    "4-1": (232, 238, 255, 259, 261, 264, 271, 274, 280, 287, 295),
    "4-2": (228, 229, 235, 246, 247, 249, 252, 254, 255, 258, 260, 279, 282, 283, 287, 288, 297),
    "4-3": (230, 246, 253, 258, 275, 277, 278, 279, 292),
    "4-4": (25, 31, 59, 95, 212, 214, 223),
    "6-1": (23,),
    "6-2": (2, 7, 8, 10),
    "7-1": (43, 44, 47, 48, 52, 54, 55, 56, 57, 59, 67, 72, 87, 95, 96),
}
# fmt: on
"""AgentGym's test ids: task number → variations."""
SPLITS = ("train", "dev", "test", "agentgym_test")


def variations(task: ScienceTask, split: str) -> Sequence[int]:
    """The variations of a task in a split.

    >>> [len(variations(TASKS[0], split)) for split in SPLITS]
    [14, 7, 9, 0]
    """
    if split == "agentgym_test":
        return AGENTGYM_TEST.get(task.number, ())
    dev = task.variations // 4
    train = 2 * dev
    parts = {"train": range(train), "dev": range(train, train + dev)}
    return parts.get(split, range(train + dev, task.variations))


@lru_cache(maxsize=32)
def task_split(split: str, numbers: tuple[str, ...] = NUMBERS, most: int | None = None) -> TaskSplit:
    """The tasks of a split, in turns, so that any prefix mixes them.

    Args:
        split: one of :data:`SPLITS`.
        numbers: of the tasks that are in it.
        most: variations of each task, from its first on; None: all.

    Raises:
        ValueError: there is no such split or task.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(SPLITS)}")
    if unknown := set(numbers) - set(NUMBERS):
        raise ValueError(f"unknown tasks {', '.join(sorted(unknown))} of {ENV_ID}; there are {', '.join(NUMBERS)}")
    columns = [
        [f"{task.name}/{variation}" for variation in variations(task, split)[:most]]
        for task in TASKS
        if task.number in numbers
    ]
    names = (name for row in zip_longest(*columns) for name in row if name is not None)
    return TaskSplit(ENV_ID, split, tuple(names))


__all__ = ["AGENTGYM_TEST", "ENV_ID", "NUMBERS", "SPLITS", "TASKS", "ScienceTask", "task_split", "variations"]
