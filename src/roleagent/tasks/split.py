"""Task splits: fixed, hashed, disjoint lists of task ids.

A success rate needs the list of its tasks. A :class:`TaskSplit` is that list in a fixed order, with a digest for
reports.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np

from roleagent.commands import nearest
from roleagent.sharing import DataChanged, Immutable

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


@dataclass(frozen=True)
class TaskSplit(Immutable):
    """The tasks of one split of an environment, in a fixed order.

    >>> task_split = TaskSplit("RoleAgent/Toy-v0", "train", ("boil-egg-1", "boil-egg-2"))
    >>> len(task_split), "boil-egg-2" in task_split
    (2, True)
    """

    env_id: str
    split: str
    task_ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.task_ids:
            raise ValueError(f"the split {self.env_id}:{self.split} has no tasks")
        if len(set(self.task_ids)) != len(self.task_ids):
            raise ValueError(f"the split {self.env_id}:{self.split} names a task twice")

    def __len__(self) -> int:
        return len(self.task_ids)

    def __contains__(self, task_id: object) -> bool:
        return isinstance(task_id, str) and task_id in self._positions

    def position(self, task_id: str) -> int:
        """The place of a task in the split, from 0.

        Raises:
            KeyError: the split has no such task.
        """
        return self._positions[task_id]

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {task_id: position for position, task_id in enumerate(self.task_ids)}

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex, first 16 digits) of the ids in order."""
        return hashlib.sha256("\n".join(self.task_ids).encode()).hexdigest()[:16]

    def first(self, n: int, type_of: Callable[[str], str]) -> TaskSplit:
        """``n`` tasks in :func:`mixed` order: the first of every type, then as the order has them.

        So each type is in proportion to its size, and a rare one is there. All tasks are the split itself.

        >>> tasks = TaskSplit("RoleAgent/Toy-v0", "valid", ("boil-1", "boil-2", "boil-3", "boil-4", "boil-5", "heat-1"))
        >>> tasks.first(3, lambda task_id: task_id.split("-")[0]).task_ids
        ('boil-1', 'boil-2', 'heat-1')

        Raises:
            ValueError: ``n`` is not positive.
        """
        if n >= len(self):
            return self
        if n < 1:
            raise ValueError(f"{n} tasks are none: take at least 1")
        order = mixed(self.task_ids, type_of)
        heads: dict[str, int] = {}
        for place, task_id in enumerate(order):
            heads.setdefault(type_of(task_id), place)
        first = set(heads.values())
        chosen = sorted(range(len(order)), key=lambda place: (place not in first, place))[:n]
        return replace(self, task_ids=tuple(order[place] for place in sorted(chosen)))

    def requested(self, options: Mapping[str, Any] | None, rng: np.random.Generator) -> Any:
        """The id that ``reset`` is to play: ``options["task_id"]``, unchecked, or a uniform draw from the split."""
        task_id = (options or {}).get("task_id")
        return self.task_ids[int(rng.integers(len(self)))] if task_id is None else task_id

    def require(self, task_id: str) -> str:
        """The id itself.

        Raises:
            ValueError: the split has no such task; the message names the nearest ids.
        """
        if task_id in self:
            return task_id
        near = difflib.get_close_matches(str(task_id), self.task_ids, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"unknown task id {task_id!r} in {self.env_id}:{self.split} ({len(self)} tasks){hint}")

    def manifest(self) -> dict[str, object]:
        """The description of this split in reports: environment, split, size, digest."""
        return {"env_id": self.env_id, "split": self.split, "tasks": len(self), "digest": self.digest}


@dataclass(frozen=True)
class JointTaskSplit(TaskSplit):
    """The tasks of several environments, whose ids are ``name/task``.

    Attributes:
        members: the tasks of each environment, by name.
    """

    members: Mapping[str, TaskSplit]

    @classmethod
    def of(cls, members: Mapping[str, TaskSplit]) -> JointTaskSplit:
        """All tasks of the members.

        >>> boil = TaskSplit("RoleAgent/Toy-v0", "train", ("boil-1", "boil-2"))
        >>> both = JointTaskSplit.of({"toy": boil, "hard": boil})
        >>> both.env_id, both.task_ids[1:3], both.member_of("hard/boil-2")
        ('toy+hard', ('toy/boil-2', 'hard/boil-1'), ('hard', 'boil-2'))
        """
        ids = tuple(f"{name}/{task_id}" for name, one in members.items() for task_id in one.task_ids)
        splits = dict.fromkeys(one.split for one in members.values())
        return cls("+".join(members), "+".join(splits), ids, members)

    def __contains__(self, task_id: object) -> bool:
        name, slash, own = str(task_id).partition("/")
        return bool(slash) and name in self.members and own in self.members[name]

    def member_of(self, task_id: str) -> tuple[str, str]:
        """The name of the environment that has a task, and its id there."""
        name, _, own = task_id.partition("/")
        return name, own


class TaskSplitEnv(gymnasium.Env[str, str]):
    """An environment with a task split, whose observations are texts. Its pickle holds the split's digest.

    Attributes:
        task_split: the tasks of its split, in their fixed order.

    Raises:
        DataChanged: on loading, where the split has other tasks.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    task_split: TaskSplit
    _steps: int | None = None  # of this episode; None: reset comes first
    _text = ""  # the last observation

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        check_names(cls, arguments)
        return super().__new__(cls)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ends the episode, so that none continues if a reset fails. A subclass calls it first, then begins another."""
        self._steps = None
        return super().reset(seed=seed, options=options)  # type: ignore[return-value]

    def render(self) -> str | None:  # type: ignore[override]
        return self._text if self.render_mode == "ansi" else None

    def _find_task_split(self, split: str) -> TaskSplit:
        """The tasks of a split, by the other attributes."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"task_split": (self.task_split.split, self.task_split.digest)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        split, digest = state["task_split"]
        self.__dict__.update(state)
        self.task_split = self._find_task_split(split)
        if self.task_split.digest != digest:
            raise DataChanged(
                f"{self.task_split.env_id}:{split} has other tasks here than where the environment was pickled: "
                "bring the same data, or make a new environment"
            )


def check_names(cls: type, arguments: Iterable[str]) -> None:
    """Refuses an argument that a class does not have, also in ``gymnasium.make``, with the nearest that it has.

    Raises:
        TypeError: names the argument.
    """
    parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    known = [name for name in parameters if name != "self"]
    for name in arguments:
        if name not in known:
            hint = nearest(name, known) or f"; there are {', '.join(known)}"
            raise TypeError(f"{cls.__name__} has no argument {name}{hint}")


def data_of(env: gymnasium.Env) -> dict[str, str]:
    """What an environment plays, for reports: its attribute ``data_info``; empty where it has none.

    ``source`` is ``"official"``, ``"generated"``, ``"built in"`` or ``"own"``. Other keys differ by environment:
    ``version``, ``digest``, a size.

    >>> data_of(gymnasium.make("RoleAgent/Toy-v0"))
    {'source': 'built in'}
    """
    return {name: str(value) for name, value in getattr(env.unwrapped, "data_info", {}).items()}


def split_text(manifest: Mapping[str, Any]) -> str:
    """The tasks and data of a result in one line.

    Args:
        manifest: of :meth:`TaskSplit.manifest`, with :func:`data_of` as ``data`` where it is known.

    >>> split_text({"tasks": 140, "digest": "ef35bea9156a6c9b", "data": {"source": "official", "version": "2.1.1"}})
    '140 tasks, digest ef35bea9156a6c9b; official, version 2.1.1'
    """
    data = dict(manifest.get("data") or {})
    source = data.pop("source", "")
    parts = [*([source] if source else []), *(f"{name} {value}" for name, value in data.items())]
    return f"{manifest['tasks']} tasks, digest {manifest['digest']}{'; ' * bool(parts)}{', '.join(parts)}"


def first_tasks(env: gymnasium.Env, n: int) -> TaskSplit:
    """The first ``n`` tasks of an environment's split, of all types (:meth:`TaskSplit.first`).

    An environment that does not say the types of its tasks (``task_type(task_id)``) gives the start of its split.
    """
    base: Any = env.unwrapped
    return base.task_split.first(n, getattr(base, "task_type", lambda task_id: ""))


def mixed(items: Iterable[T], type_of: Callable[[T], str]) -> tuple[T, ...]:
    """The items with their types mixed evenly: any first part has each type in proportion to its size.

    Within a type they keep their order.

    >>> mixed(("a1", "a2", "a3", "a4", "b1", "b2"), lambda item: item[0])
    ('a1', 'b1', 'a2', 'a3', 'b2', 'a4')
    """
    items = tuple(items)
    types = [type_of(item) for item in items]
    sizes, counted = Counter(types), Counter[str]()
    shares = []
    for name in types:
        counted[name] += 1
        shares.append(counted[name] / (sizes[name] + 1))
    return tuple(items[place] for place in sorted(range(len(items)), key=shares.__getitem__))


def levels(task_type: str) -> tuple[str, ...]:
    """The task types that an episode counts in: its own, and of several environments the environment itself.

    >>> levels("heat"), levels("toy/heat")
    (('heat',), ('toy', 'toy/heat'))
    """
    name, slash, _ = task_type.partition("/")
    return (name, task_type) if slash else (task_type,)


def is_of(kind: str, task_id: str, task_type: str) -> bool:
    """Whether a task is of a type or an environment, or has an id that a pattern (``*``, ``?``, ``[…]``) describes.

    >>> is_of("heat", "heat-egg-1", "heat"), is_of("*-egg-*", "heat-egg-1", "heat"), is_of("egg", "heat-egg-1", "heat")
    (True, True, False)
    >>> is_of("toy", "toy/heat-egg-1", "toy/heat")
    True
    """
    return any(fnmatchcase(name, kind) for name in (*levels(task_type), task_id))


def assert_disjoint(task_splits: Iterable[TaskSplit], key: Callable[[str], str] = str) -> None:
    """Checks that no two splits share a task, or anything else that ``key`` reads from a task id (a scene, say).

    Raises:
        ValueError: names the first two splits that overlap and an example.
    """
    seen: dict[str, str] = {}
    for task_split in task_splits:
        for value in {key(task_id) for task_id in task_split.task_ids}:
            other = seen.setdefault(value, task_split.split)
            if other != task_split.split:
                raise ValueError(f"the splits {other} and {task_split.split} share {value!r}")


FEW_TASKS = 20


def few_tasks(split: str, tasks: int) -> str | None:
    """A warning of a split with less than 20 tasks, and what to do; None: it has more.

    >>> few_tasks("valid", 2).partition(".")[0], few_tasks("valid", 20)
    ('valid has 2 tasks: the 95 % interval of a success rate spans up to 81 points', None)
    """
    if tasks >= FEW_TASKS:
        return None
    low, high = wilson(tasks // 2, tasks)
    return (
        f"{split} has {tasks} tasks: the 95 % interval of a success rate spans up to {100 * (high - low):.0f} points. "
        f"{FEW_TASKS} and more are better: add tasks, or move some of the training tasks into this split"
    )


def wilson(successes: float, n: float, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion, 95 % by default.

    >>> low, high = wilson(90, 100)
    >>> round(low, 3), round(high, 3)
    (0.826, 0.945)
    """
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
    return max(0.0, center - half), min(1.0, center + half)


__all__ = [
    "JointTaskSplit",
    "TaskSplit",
    "TaskSplitEnv",
    "assert_disjoint",
    "data_of",
    "first_tasks",
    "mixed",
    "split_text",
    "wilson",
]
