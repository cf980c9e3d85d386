"""The tasks of a :class:`~roleagent.envs.tools.env.ToolEnv`: rows of a JSON-lines file, in three splits."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from roleagent.commands import nearest
from roleagent.options import shown, user_path
from roleagent.sharing import Opened
from roleagent.tasks.split import TaskSplit

SPLITS = ("train", "valid", "test")
ALL = "all"


class TaskError(ValueError):
    """Tasks that cannot be used; the message is one line."""


@dataclass(frozen=True, slots=True)
class ToolTask:
    """One task.

    Attributes:
        id: its name.
        prompt: the first observation.
        answer: what the judge compares with: a text, a number, a list of accepted ones, or what the judge expects. No
            tool and no agent sees it.
        state: the state at the beginning, an object; every episode has a copy.
        tools: names of the tools that are offered; empty: all.
        type: for the curriculum and reports.
        judge: of this task, a name of :data:`~roleagent.envs.tools.judges.JUDGES`; empty: the environment's.
        calls: calls that solve it, for the walkthrough: ``{"name": …, "arguments": {…}}``.
    """

    id: str
    prompt: str
    answer: Any = None
    state: Mapping[str, Any] | None = None
    tools: tuple[str, ...] = ()
    type: str = "task"
    judge: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, row: Any) -> ToolTask:
        """A task from a row.

        Raises:
            TaskError: the row has no id or prompt, an unknown key, or a value of the wrong type.
        """
        if not isinstance(row, Mapping):
            raise TaskError(f"a task is an object, not {shown(row)}")
        known = [field.name for field in fields(cls)]
        for key in row:
            if key not in known:
                raise TaskError(f"there is no key {shown(key)}{nearest(str(key), known)}; there are {', '.join(known)}")
        number = row.get("id")
        if isinstance(number, bool) or not isinstance(number, str | int) or not str(number).strip():
            raise TaskError(f"id must be a name or a number, not {shown(number)}: every task needs its own")
        if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise TaskError(f"prompt must be a text, not {shown(row.get('prompt'))}")
        if not isinstance(row.get("state"), Mapping | None):
            raise TaskError(f"state must be an object, not {shown(row['state'])}")
        lists = {key: row.get(key) or () for key in ("tools", "calls")}
        for key, kind in (("tools", str), ("calls", Mapping)):
            if not isinstance(lists[key], list | tuple) or not all(isinstance(one, kind) for one in lists[key]):
                raise TaskError(f"{key} must be a list of {'names' if kind is str else 'calls'}, not {shown(row[key])}")
        for call in lists["calls"]:
            if not isinstance(call.get("name"), str) or not isinstance(call.get("arguments", {}), Mapping):
                raise TaskError(f'a call of calls is {{"name": …, "arguments": {{…}}}}, not {shown(call)}')
        return cls(
            str(number),
            row["prompt"],
            row.get("answer"),
            row.get("state"),
            tuple(lists["tools"]),
            str(row.get("type") or "task"),
            str(row.get("judge") or ""),
            tuple(lists["calls"]),
        )


class Tasks(Opened):
    """The tasks of every split.

    Args:
        splits: by name, in the order of the rows.
        env_id: of the environment that plays them.

    Raises:
        TaskError: two tasks have one id.
    """

    def __init__(self, splits: Mapping[str, Sequence[ToolTask]], env_id: str):
        self.by_id: dict[str, ToolTask] = {}
        split_of: dict[str, str] = {}
        for name, tasks in splits.items():
            for task in tasks:
                if task.id in self.by_id:
                    raise TaskError(f"the id {task.id!r} occurs twice, in {name} and in {split_of[task.id]}")
                split_of[task.id] = name
                self.by_id[task.id] = task
        self.env_id = env_id
        self._splits = {name: tuple(task.id for task in tasks) for name, tasks in splits.items()}
        self._splits[ALL] = tuple(self.by_id)
        self._task_splits: dict[str, TaskSplit] = {}
        rows = "\n".join(repr(task) for task in self.by_id.values())
        self.digest = hashlib.sha256(rows.encode("utf-8", "replace")).hexdigest()[:16]  # type: ignore[misc]

    def ids(self, split: str) -> tuple[str, ...]:
        """The ids of a split; empty if there is none of that name."""
        return self._splits.get(split, ())

    def task_split(self, split: str) -> TaskSplit:
        """The ids of a split.

        Raises:
            TaskError: there is no such split, or it has no tasks.
        """
        if split not in self._splits:
            raise TaskError(f"there is no split {split!r}; there are {', '.join(self._splits)}")
        if not self._splits[split]:
            raise TaskError(
                f"the split {split!r} has no tasks: {len(self.by_id)} in all are too few; split={ALL} has them"
            )
        if split not in self._task_splits:
            self._task_splits[split] = TaskSplit(self.env_id, split, self._splits[split])
        return self._task_splits[split]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return super().__reduce__()
        splits = {name: [self.by_id[key] for key in ids] for name, ids in self._splits.items() if name != ALL}
        return Tasks, (splits, self.env_id)


def open_tasks(source: Any, env_id: str) -> Tasks:
    """Tasks from a JSON-lines file, a folder, rows, or a mapping from splits to these.

    A folder holds ``train.jsonl``, ``valid.jsonl`` and ``test.jsonl``, or some of them. Tasks without given splits are
    ordered by the hash of their ids: the first tenth is ``valid``, the next tenth ``test`` (at least one task each),
    the others are ``train``. The split ``all`` has every task.

    Raises:
        TaskError: a file or a row cannot be used; the message names the line.
    """
    if isinstance(source, Tasks):
        return source
    if isinstance(source, str | os.PathLike):
        path = str(user_path(source).resolve())
        return _open_path(path, env_id)
    return _from(source, env_id)


@lru_cache(maxsize=8)
def _open_path(path: str, env_id: str) -> Tasks:
    folder = Path(path)
    if folder.is_dir():
        files = {name: folder / f"{name}.jsonl" for name in SPLITS}
        there = {name: file for name, file in files.items() if file.is_file()}
        if not there:
            raise TaskError(f"{path} has none of {', '.join(file.name for file in files.values())}")
        tasks = _from(there, env_id)
    else:
        tasks = Tasks(_by_hash(list(_rows(path))), env_id)
    tasks.origin = (_open_path, (path, env_id))
    return tasks


def _from(source: Any, env_id: str) -> Tasks:
    if isinstance(source, Mapping):
        return Tasks({str(name): list(_rows(rows)) for name, rows in source.items()}, env_id)
    return Tasks(_by_hash(list(_rows(source))), env_id)


def _rows(source: Any) -> Iterator[ToolTask]:
    """The tasks of a file or of rows."""
    named = isinstance(source, str | os.PathLike)
    if not named and not isinstance(source, Iterable):
        raise TaskError(f"tasks are a JSON-lines file or a list of rows, not {shown(source)}")
    places: dict[str, int] = {}
    for place, row in _lines(user_path(source)) if named else enumerate(source, start=1):
        try:
            task = row if isinstance(row, ToolTask) else ToolTask.of(row)
            if places.setdefault(task.id, place) != place:
                raise TaskError(f"the id {task.id!r} occurs twice, first in {places[task.id]}")
            yield task
        except TaskError as error:
            raise TaskError(f"{f'{source}, line' if named else 'task'} {place}: {error}") from None
    if not places:
        raise TaskError(f"{f'{source} holds' if named else 'there are'} no tasks")


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    try:
                        yield number, json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise TaskError(f"{path}, line {number}: no JSON ({error})") from error
    except OSError as error:
        raise TaskError(f"cannot read the tasks {path}: {error.strerror or error}") from error


def _by_hash(tasks: list[ToolTask]) -> dict[str, list[ToolTask]]:
    """Train, valid and test, 80/10/10 by the hash of the id, each in the order of the rows."""
    order = sorted(
        range(len(tasks)), key=lambda place: hashlib.sha256(tasks[place].id.encode("utf-8", "replace")).digest()
    )
    tenth = max(1, len(tasks) // 10) if len(tasks) >= len(SPLITS) else 0
    parts = {"train": order[2 * tenth :], "valid": order[:tenth], "test": order[tenth : 2 * tenth]}
    return {name: [tasks[place] for place in sorted(parts[name])] for name in SPLITS}


__all__ = ["ALL", "SPLITS", "TaskError", "Tasks", "ToolTask", "open_tasks"]
