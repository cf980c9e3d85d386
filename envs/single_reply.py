"""Environments of a single reply: a prompt goes in, the reply is judged, and the episode is over."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import gymnasium

from roleagent.envs.tools.calls.shown_text import neutralize
from roleagent.options import user_path
from roleagent.sharing import Opened
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit, TaskSplitEnv


class SingleReplyTask(Protocol):
    """What a question has at least: its ``id``, its ``type``, and the ``prompt`` that the agent reads."""

    @property
    def id(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def prompt(self) -> str: ...


T = TypeVar("T", bound=SingleReplyTask)


class SingleReplyTasks(Opened, Generic[T]):
    """The questions of a benchmark.

    Args:
        tasks: in their order.
        env_id: of the environment that asks them.
        whole: name of the split that has all of them; the others are the types.

    Attributes:
        by_id: the tasks.
        splits: by name.
    """

    def __init__(self, tasks: Sequence[T], env_id: str, whole: str = "all"):
        self.by_id = {task.id: task for task in tasks}
        found: dict[str, list[str]] = {whole: [task.id for task in tasks]}
        for task in tasks:
            found.setdefault(task.type, []).append(task.id)
        self.splits = {name: TaskSplit(env_id, name, tuple(ids)) for name, ids in found.items()}
        self.digest = self.splits[whole].digest  # type: ignore[misc]


class SingleReplyEnv(TaskSplitEnv, Generic[T]):
    """One question per episode and one reply; a base class.

    Attributes:
        version: of the benchmark.

    Args:
        split: a type, or the name of the whole; None: the whole.
        data_dir: the published data: the archive, its folder, or the unpacked files.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: there is no such split, or a file is broken.
        FileNotFoundError: there are no such data.
    """

    max_steps = 1
    version: str

    def __init__(
        self,
        split: str | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        render_mode: str | None = None,
    ):
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.tasks = self.open_tasks(None if data_dir is None else str(user_path(data_dir).resolve()))
        self.task_split = self._find_task_split(next(iter(self.tasks.splits)) if split is None else split)
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._task: T | None = None
        self._text = ""

    def open_tasks(self, data_dir: str | None) -> SingleReplyTasks[T]:
        """The questions in a folder or an archive, whose path is absolute."""
        raise NotImplementedError

    def judge(self, task: T, action: Any) -> tuple[str, float, dict[str, Any]]:
        """The last observation, the reward, and what ``info`` has of the reply."""
        raise NotImplementedError

    def report(self, task: T) -> dict[str, Any]:
        """What ``info`` has of a task."""
        raise NotImplementedError

    @property
    def data_info(self) -> dict[str, str]:
        """The published questions."""
        return {"source": "official", "version": self.version}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Asks ``options["task_id"]``, or a question of the split drawn with ``np_random``.

        Raises:
            ValueError: the split has no such task.
        """
        super().reset(seed=seed)
        task_id = self.task_split.requested(options, self.np_random)
        self._task = task = self.tasks.by_id[self.task_split.require(task_id)]
        self._steps = 0
        self._text, _ = neutralize(task.prompt)
        return self._text, {**self.report(task), "rewards": {}, "state": self._text, "grouping_state": self._text}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judges the reply."""
        task = self._task
        if self._steps is None or task is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        self._steps = None
        self._text, reward, judged = self.judge(task, action)
        end = {"rewards": {"task": reward}, "state": None, "grouping_state": None}
        return self._text, reward, True, False, {**self.report(task), **end, **judged}

    def walkthrough(self) -> tuple[str, ...]:
        """A right reply."""
        if self._task is None:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        return (self.right_reply(self._task),)

    def right_reply(self, task: T) -> str:
        """A reply that wins."""
        raise NotImplementedError

    def task_type(self, task_id: str) -> str:
        """The type of a task, without asking it."""
        return self.tasks.by_id[task_id].type

    def _find_task_split(self, split: str) -> TaskSplit:
        if split not in self.tasks.splits:
            raise ValueError(f"unknown split {split!r}; there are {', '.join(self.tasks.splits)}")
        return self.tasks.splits[split]


def read_files(data_dir: str | None, archive: str, source: str) -> dict[str, bytes]:
    """The JSON files of a benchmark by their path, from its archive or from a folder.

    Args:
        data_dir: the archive, a folder that holds it, or the unpacked files.
        archive: the file name of the archive.
        source: where the data are published.

    Raises:
        FileNotFoundError: there are none; one line.
    """
    if data_dir is None:
        raise FileNotFoundError(f"no data: give data_dir, the folder of {archive} or of its files ({source})")
    path = Path(data_dir)
    packed = path if path.is_file() else path / archive
    if packed.is_file():
        return _unpacked(packed)
    files = [file for file in sorted(path.rglob("*.json*")) if file.is_file()]
    if not files:
        raise FileNotFoundError(f"{path} holds neither {archive} nor its files ({source})")
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def json_rows(files: Mapping[str, bytes], path: str) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file among those of :func:`read_files`; none where it is missing.

    Raises:
        ValueError: the file is broken.
    """
    try:
        return [json.loads(line) for line in files.get(path, b"").splitlines() if line.strip()]
    except ValueError as error:
        raise ValueError(f"{path} is broken: {error}") from error


def _unpacked(path: Path) -> dict[str, bytes]:
    """The files of an archive, read in memory: nothing is written."""
    try:
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as archive:
            members = [one for one in archive.getmembers() if one.isfile() and ".json" in one.name]
            return {one.name: archive.extractfile(one).read() for one in members}  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FileNotFoundError(f"{path} is no archive that can be read: {error}") from error


__all__ = ["SingleReplyEnv", "SingleReplyTask", "SingleReplyTasks", "json_rows", "read_files"]
