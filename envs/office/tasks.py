"""The tasks of the office: which there are, and the office and goal of each."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import Any

from roleagent.envs.office.goals import DONE, KINDS, Plan, key_of, understand
from roleagent.envs.office.tools import TOOLS
from roleagent.envs.office.world import CURRENCIES, DAYS, HOURS, RELATIONS, SPLITS, Office, build_office
from roleagent.envs.tools.tasks import Tasks, ToolTask
from roleagent.tasks.split import TaskSplit
from roleagent.tools import Call, ToolError

ENV_ID = "RoleAgent/Office-v0"
CALLS = (1, 2, 3, 4)
"""The numbers of calls that solve a task."""
NUMBERS = {"train": range(400), "valid": range(400, 416), "test": range(416, 432)}
"""The tasks of each kind and number of calls, by split."""
WRITTEN = range(1000, 1_000_000)
"""The numbers of the tasks that are written for training (GenEnv)."""
MOST_CALLS = 6
"""The largest number of calls of such a task."""
_WRITTEN_ID = re.compile(rf"(?:{'|'.join(KINDS)})-[1-{MOST_CALLS}]-[1-9][0-9]{{3,5}}")


def task_ids(split: str, calls: Sequence[int] = CALLS) -> tuple[str, ...]:
    """The tasks of a split, ordered so that any prefix mixes kinds and numbers of calls.

    >>> task_ids("train")[:5]
    ('lookup-1-0', 'price-1-0', 'book-1-0', 'meet-1-0', 'lookup-2-0')
    >>> len(task_ids("train")), len(task_ids("test", calls=(3, 4)))
    (6400, 128)
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r} of {ENV_ID}; there are {', '.join(SPLITS)}")
    if not calls or not set(calls) <= set(CALLS):
        raise ValueError(f"calls are numbers among {', '.join(map(str, CALLS))}, not {list(calls)}")
    numbers = product(NUMBERS[split], sorted(set(calls)), KINDS)
    return tuple(f"{kind}-{count}-{number}" for number, count, kind in numbers)


def is_generated(task_id: str) -> bool:
    """Whether an id is that of a task that can be written for training.

    >>> is_generated("book-5-1234"), is_generated("book-4-12")
    (True, False)
    """
    return _WRITTEN_ID.fullmatch(task_id) is not None


class _Lazy(dict[str, ToolTask]):
    """Tasks by id, each made when it is first played."""

    def __init__(self, split: str, seed: int):
        self._split, self._seed = split, seed

    def __missing__(self, task_id: str) -> ToolTask:
        return build_task(task_id, self._split, self._seed)


class OfficeTasks(Tasks):
    """The tasks of one split."""

    def __init__(self, split: str, calls: Sequence[int], seed: int):
        self.env_id, self.by_id = ENV_ID, _Lazy(split, seed)
        self._task_split = TaskSplit(ENV_ID, split, task_ids(split, calls))
        self.digest = hashlib.sha256(f"{seed} {self._task_split.digest}".encode()).hexdigest()[:16]  # type: ignore[misc]
        self.origin = (open_office, (split, tuple(calls), seed))

    def task_split(self, split: str) -> TaskSplit:
        """The ids, whatever the split is called."""
        return self._task_split


@cache
def open_office(split: str, calls: tuple[int, ...] = CALLS, seed: int = 0) -> OfficeTasks:
    """The tasks of a split, once per process.

    Raises:
        ValueError: there is no such split, or there are no such tasks.
    """
    return OfficeTasks(split, calls, seed)


@lru_cache(maxsize=4096)
def build_task(task_id: str, split: str, seed: int = 0) -> ToolTask:
    """The task of an id, drawn by seed, split and id."""
    kind, count = task_id.split("-")[:2]
    rng = random.Random(f"{seed} {split} {task_id}")
    while True:
        office = build_office(split, rng, seed)
        goal = _GOALS[kind](office, int(count), rng)
        plan = understand(goal)
        assert plan is not None and plan.calls == int(count), goal
        calls, answer = solve(plan, office)
        if len(calls) == int(count) and not any(map(_is_idle, calls)):
            break
    described = tuple({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
    state = {"office": office, "bookings": []}
    if answer != DONE:
        return ToolTask(task_id, goal, answer, state, type=kind, calls=described)
    wanted = calls[-1].arguments
    bookings = {"bookings": [[wanted["id"], wanted["day"], wanted["hour"]]]}
    return ToolTask(task_id, goal, bookings, state, type=kind, judge="state", calls=described)


def solve(plan: Plan, office: Office) -> tuple[tuple[Call, ...], str]:
    """The calls of a plan and its answer, as far as it can be carried out in this office."""
    state: dict[str, Any] = {"office": office, "bookings": []}
    calls: list[Call] = []
    results: dict[str, str] = {}
    while not isinstance(step := plan.next(results.get), str):
        try:
            results[key_of(step)] = str(TOOLS[step.name].execute(step.arguments, state))
        except ToolError:
            return tuple(calls), ""
        calls.append(step)
    return tuple(calls), step


def _is_idle(call: Call) -> bool:
    """Whether a call converts an amount into its own currency."""
    return call.name == "convert" and call.arguments["amount"].startswith(call.arguments["to"])


def _subject(office: Office, wanted: str, calls: int, rng: random.Random) -> str:
    """Words for a person or a room that takes a number of calls to find: an id, a name, relations.

    Args:
        wanted: ``"person"`` or ``"room"``.
        calls: 0 for an id.
    """
    if not calls:
        return rng.choice(office.people() if wanted == "person" else office.rooms())
    if calls == 1 and rng.random() < 0.8:
        people, rooms = len(office.people()), len(office.rooms())
        places = range(people) if wanted == "person" else range(people, people + rooms)
        return [*office.ids][rng.choice(places)]
    relation = rng.choice([field for field, kind in RELATIONS.items() if kind == wanted])
    start = "room" if relation == "keeper" else "person"
    return f"the {relation} of {_subject(office, start, calls - 1, rng)}"


def _lookup(office: Office, calls: int, rng: random.Random) -> str:
    wanted, field = rng.choice((("person", "phone"), ("room", "size")))
    return f"What is the {field} of {_subject(office, wanted, calls - 1, rng)}?"


def _price(office: Office, calls: int, rng: random.Random) -> str:
    currency = rng.choice(CURRENCIES)
    if calls == 1:
        return f"What is {rng.choice(CURRENCIES)}{rng.randrange(20, 80)} in {currency}?"
    if calls > 2 and rng.random() < 0.5:
        return f"What are the expenses of {_subject(office, 'person', calls - 3, rng)} in {currency}?"
    if rng.random() < 0.25:
        return f"What are the expenses of {_subject(office, 'person', calls - 2, rng)}?"
    return f"What is the price of {_subject(office, 'room', calls - 2, rng)} in {currency}?"


def _book(office: Office, calls: int, rng: random.Random) -> str:
    return _booking("Book", office, "room", calls, rng)


def _meet(office: Office, calls: int, rng: random.Random) -> str:
    return _booking("Meet", office, "person", calls, rng)


def _booking(verb: str, office: Office, wanted: str, calls: int, rng: random.Random) -> str:
    day, hour = rng.choice(DAYS), f"{rng.choice(HOURS)}:00"
    if calls == 1 or rng.random() < 0.3:
        return f"{verb} {_subject(office, wanted, calls - 1, rng)} on {day}, {hour}."
    which = rng.choice(("first free hour", "last free hour", f"{hour} or later"))
    return f"{verb} {_subject(office, wanted, calls - 2, rng)} on {day}, {which}."


_GOALS: dict[str, Callable[[Office, int, random.Random], str]] = dict(
    zip(KINDS, (_lookup, _price, _book, _meet), strict=True)
)

__all__ = ["CALLS", "ENV_ID", "MOST_CALLS", "NUMBERS", "WRITTEN", "OfficeTasks", "build_task", "is_generated"]
__all__ += ["open_office", "solve", "task_ids"]
