"""A kitchen in text: the reference environment and the fastest test bed.

Something to eat lies in one of a few containers. It has to be found, perhaps heated, cooled or cleaned, and brought to
a place. The commands are those of ALFWorld, and observations report what happened, what is here and what you carry.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

import gymnasium

from roleagent.sharing import Restorable
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.grammar import OpenTaskSplit
from roleagent.tasks.split import TaskSplit, TaskSplitEnv

ENV_ID = "RoleAgent/Toy-v0"
ITEMS = ("apple", "carrot", "egg", "fish", "potato", "tomato")
CONTAINERS = ("basket", "cupboard 1", "cupboard 2", "drawer 1", "drawer 2", "shelf")  # a game has four of them
CLOSED = ("cupboard", "drawer")
PLACES = ("counter", "table", "tray")
TOOLS = {"heat": ("stove", "hot"), "cool": ("fridge", "cool"), "clean": ("sink", "clean")}  # verb: tool, condition
TASK_TYPES = ("bring", *TOOLS)
NOTHING = "Nothing happens."
# Of every task, place and item games 1–6 are for training, 7–9 for validation, 10–12 for tests: an id's number is
# part of its layout.
SPLITS = {"train": range(1, 7), "valid": range(7, 10), "test": range(10, 13)}
GENERATED = re.compile(
    f"({'|'.join(TASK_TYPES)})-({'|'.join(ITEMS)})-({'|'.join(PLACES)})-([4-6])x([0-4])-([1-9][0-9]{{2,8}})"
)
"""A generated task: kind, item, place, containers, how many of them are closed, and a layout seed of 100 or more."""


def task_split(split: str, shares: Mapping[str, float] | None = None) -> TaskSplit:
    """The tasks of a split, ordered so that any prefix mixes the task types.

    Args:
        split: a key of :data:`SPLITS`.
        shares: task type → the share of its tasks, in [0, 1]; default: all.

    >>> len(task_split("train")), len(task_split("valid")), task_split("train").task_ids[:2]
    (432, 216, ('bring-apple-counter-1', 'heat-apple-counter-1'))
    >>> len(task_split("train", {"cool": 0.25}))
    351
    """
    return _task_split(split, tuple((shares or {}).items()))


@lru_cache  # copies of an environment share their split
def _task_split(split: str, shares: tuple[tuple[str, float], ...]) -> TaskSplit:
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(SPLITS)}")
    left = {kind: share * len(SPLITS[split]) * len(PLACES) * len(ITEMS) for kind, share in shares}
    if not set(left) <= set(TASK_TYPES) or any(not 0 <= share <= 1 for _, share in shares):
        given = dict(shares)
        raise ValueError(f"shares of task types are numbers from 0 to 1 for {', '.join(TASK_TYPES)}, not {given}")
    names = []
    for number, place, item, kind in product(SPLITS[split], PLACES, ITEMS, TASK_TYPES):
        left[kind] = left.get(kind, math.inf) - 1
        if left[kind] >= 0:
            names.append(f"{kind}-{item}-{place}-{number}")
    return TaskSplit(ENV_ID, split, tuple(names))


def is_generated(task_id: str) -> bool:
    """Whether an id is that of a generated task.

    >>> is_generated("heat-egg-counter-5x2-137"), is_generated("heat-egg-counter-3")
    (True, False)
    """
    return GENERATED.fullmatch(task_id) is not None


def arrange(task_id: str) -> tuple[dict[str, list[str]], set[str]]:
    """What is where in a task's kitchen, and the closed containers. The id alone decides it.

    >>> contents, closed = arrange("heat-egg-counter-5x2-137")
    >>> len(contents) - len(PLACES) - len(TOOLS), len(closed)
    (5, 2)
    """
    layout = random.Random(task_id)
    if found := GENERATED.fullmatch(task_id):
        count, closed = int(found[4]), int(found[5])
        can_close = [name for name in CONTAINERS if name.startswith(CLOSED)]
        always_open = [name for name in CONTAINERS if name not in can_close]
        # As few cupboards and drawers stand open as the numbers allow; in a listed task none does.
        drawn = layout.sample(can_close, max(closed, count - len(always_open)))
        containers = sorted([*drawn, *layout.sample(always_open, count - len(drawn))])
        shut = set(drawn[:closed])
    else:
        containers = sorted(layout.sample(CONTAINERS, 4))
        shut = {name for name in containers if name.startswith(CLOSED)}
    contents: dict[str, list[str]] = {name: [] for name in (*containers, *PLACES)}
    contents |= {tool: [] for tool, _ in TOOLS.values()}
    for item in ITEMS:
        contents[layout.choice(containers)].append(item)
    return contents, shut


class ToyKitchen(Restorable, TaskSplitEnv):
    """Text in, text out; reward 1 on the step that solves the task, else 0.

    Args:
        split: ``"train"`` or ``"valid"``.
        max_steps: steps until the episode is truncated, ≥ 1.
        shares: of the training tasks of each type, see :func:`task_split`; a type can be rare. Other splits have all.
        generated_tasks: whether tasks of :class:`~roleagent.envs.toy.task_grammar.ToyGrammar` can be played; of the
            training split only.
        render_mode: ``"ansi"`` renders the last observation.
    """

    data_info = MappingProxyType({"source": "built in"})
    episode_attributes = (
        *("_task_id", "_kind", "_item", "_target", "_wanted", "_goal", "_start", "_steps", "_won", "_text"),
        *("_situation", "_contents", "_shut", "_condition", "_here", "_carried"),
    )

    def __init__(
        self,
        split: str = "train",
        max_steps: int = 15,
        shares: Mapping[str, float] | None = None,
        generated_tasks: bool = False,
        render_mode: str | None = None,
    ):
        self._shares, self._generated_tasks = shares, generated_tasks
        self.task_split = self._find_task_split(split)
        if max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, not {max_steps}")
        self.max_steps = max_steps
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.observation_space = Unicode(4096)
        self.action_space = Unicode(4096)
        self._text = ""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Plays ``options["task_id"]``, or a task of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._task_id = self.task_split.require(task_id)
        self._kind, self._item, self._target, *_ = task_id.split("-")
        self._wanted = TOOLS[self._kind][1] if self._kind in TOOLS else ""
        self._contents, self._shut = arrange(task_id)
        found = next(name for name, things in self._contents.items() if self._item in things)
        self._start = found, found in self._shut  # where what is wanted lies at first
        self._condition: dict[str, str] = {item: "" for item in ITEMS}  # what was last done to it
        self._here = self._carried = ""
        self._steps, self._won = 0, False

        named = f"{'a ' + self._wanted if self._wanted else 'the'} {self._item}"
        self._goal = f"put {named} on the {self._target}"
        self._text = self._situation = (
            f"You are in a kitchen. There are: {', '.join(self._contents)}. Your task is to: {self._goal}."
        )
        return self._text, self._info(True, {})

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Executes a command; an inadmissible one changes nothing and still costs a step."""
        if self._steps is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        effect = self._commands().get(action.strip()) if isinstance(action, str) else None
        self._text = self._do(*effect) if effect else NOTHING
        if effect:
            self._situation = self._text
        self._steps += 1
        done_to_it = self._wanted in ("", self._condition[self._item])
        self._won = done_to_it and self._item in self._contents[self._target]
        truncated = self._steps >= self.max_steps and not self._won
        reward = float(self._won)
        info = self._info(effect is not None, {"task": reward})
        if self._won or truncated:
            self._steps = None
        return self._text, reward, self._won, truncated, info

    def walkthrough(self) -> tuple[str, ...]:
        """Commands of a shortest solution from the start, computed with full knowledge of the game."""
        if not hasattr(self, "_start"):
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        place, shut = self._start
        commands = [f"go to {place}", *([f"open {place}"] if shut else []), f"take {self._item} from {place}"]
        if self._wanted:
            tool = TOOLS[self._kind][0]
            commands += [f"go to {tool}", f"{self._kind} {self._item} with {tool}"]
        return (*commands, f"go to {self._target}", f"move {self._item} to {self._target}")

    def shortest_plan(self) -> tuple[str, ...]:
        """A shortest sequence of commands that wins from the present state, with full knowledge of the game."""
        if not hasattr(self, "_start"):
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before shortest_plan()")
        if self._won:
            return ()
        commands: list[str] = []
        here, shut = self._here, set(self._shut)

        def reach(place: str) -> None:
            nonlocal here
            if here != place:
                commands.append(f"go to {place}")
                here = place
            if place in shut:
                commands.append(f"open {place}")
                shut.remove(place)

        if self._carried != self._item:
            holder = next(name for name, things in self._contents.items() if self._item in things)
            if self._carried:  # put down here, or, where it is closed, at the next stop
                reach(holder if here in shut else here)
                commands.append(f"move {self._carried} to {here}")
            reach(holder)
            commands.append(f"take {self._item} from {holder}")
        if self._wanted not in ("", self._condition[self._item]):
            reach(TOOLS[self._kind][0])
            commands.append(f"{self._kind} {self._item} with {here}")
        reach(self._target)
        return (*commands, f"move {self._item} to {self._target}")

    def task_type(self, task_id: str) -> str:
        """The type of a task, without playing it."""
        return task_id.partition("-")[0]

    def _find_task_split(self, split: str) -> TaskSplit:
        found = task_split(split, self._shares if split == "train" else None)
        return OpenTaskSplit.of(found, is_generated) if self._generated_tasks else found

    def _commands(self) -> dict[str, tuple[str, str]]:
        """What can be done now: command → (verb, its object)."""
        here, item = self._here, self._carried
        commands = {f"go to {name}": ("go", name) for name in self._contents if name != here}
        commands["look"] = ("look", "")
        if here in self._shut:
            commands[f"open {here}"] = ("open", here)
        elif here and item:
            commands[f"move {item} to {here}"] = ("move", item)
        elif here:
            commands |= {f"take {thing} from {here}": ("take", thing) for thing in self._contents[here]}
        for verb, (tool, _) in TOOLS.items():
            if item and tool == here:
                commands[f"{verb} {item} with {tool}"] = (verb, item)
        return commands

    def _do(self, verb: str, thing: str) -> str:
        if verb == "go":
            self._here = thing
            event = f"You arrive at {thing}."
        elif verb == "open":
            self._shut.remove(thing)
            event = f"You open the {thing}."
        elif verb == "take":
            self._contents[self._here].remove(thing)
            self._carried = thing
            event = f"You take the {thing} from the {self._here}."
        elif verb == "move":
            self._contents[self._here].append(thing)
            self._carried = ""
            event = f"You move the {thing} to the {self._here}."
        elif verb in TOOLS:
            tool, self._condition[thing] = TOOLS[verb]
            event = f"You {verb} the {thing} with the {tool}."
        else:
            event = f"You are at {self._here}." if self._here else "You are in the middle of the kitchen."
        return f"{event} {self._view()} You carry {self._named(self._carried) if self._carried else 'nothing'}."

    def _view(self) -> str:
        if self._here in self._shut:
            return "It is closed."
        things = sorted(self._contents.get(self._here, ()))
        return f"You see {', '.join(map(self._named, things)) or 'nothing'}."

    def _named(self, item: str) -> str:
        return f"{self._condition[item]} {item}".strip()

    def _info(self, valid: bool, rewards: dict[str, float]) -> dict[str, Any]:
        return {
            "task_id": self._task_id,
            "goal": self._goal,
            "task_type": self._kind,
            "split": self.task_split.split,
            "admissible_actions": sorted(self._commands()),
            "won": self._won,
            "valid_action": valid,
            "state": self._text,
            "grouping_state": self._situation,
            "rewards": rewards,
        }
