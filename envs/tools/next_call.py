"""Evaluations of the next call: a prompt and descriptions of functions go in, calls come out, nothing is run."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium

from roleagent.envs.tools.calls.command import answer_command, call_command, read_command
from roleagent.envs.tools.calls.shown_text import neutralize
from roleagent.envs.tools.calls.step_calls import call_record, task_report
from roleagent.envs.tools.definition.function_tool import DescribedTool, function_schema
from roleagent.options import user_path
from roleagent.sharing import Opened
from roleagent.spaces import Unicode, check_render_mode
from roleagent.tasks.split import TaskSplit, TaskSplitEnv
from roleagent.tools import Call

MOST_CALLS = 64
"""Calls of a reply that are judged."""
DONE = "The calls were taken."


@dataclass(frozen=True)
class CallTask:
    """One question.

    Attributes:
        id: of the task.
        type: its category.
        prompt: what the agent reads.
        tools: that are offered.
        wanted: for the check; no agent sees it.
        gold: calls that are right; empty: none is.
    """

    id: str
    type: str
    prompt: str
    tools: tuple[DescribedTool, ...]
    wanted: Any
    gold: tuple[Call, ...] = ()


class CallTasks(Opened):
    """The questions of a benchmark.

    Args:
        tasks: in their order.
        env_id: of the environment that asks them.

    Attributes:
        by_id: the tasks.
        splits: ``all``, and every category.
    """

    def __init__(self, tasks: Sequence[CallTask], env_id: str):
        self.by_id = {task.id: task for task in tasks}
        found: dict[str, list[str]] = {"all": [task.id for task in tasks]}
        for task in tasks:
            found.setdefault(task.type, []).append(task.id)
        self.splits = {name: TaskSplit(env_id, name, tuple(ids)) for name, ids in found.items()}
        self.digest = self.splits["all"].digest  # type: ignore[misc]


class NextCallEnv(TaskSplitEnv):
    """One question per episode, one reply, judged without running anything; a base class.

    A command is that of :class:`~roleagent.envs.tools.env.ToolEnv`: one JSON line with calls, or with an answer. Reward
    1 on this only step if the calls are right. ``info["malformed"]`` is 1.0 for a reply that is malformed, or has a
    malformed call, and 0.0 otherwise; evaluations report its mean.

    Attributes:
        version: of the benchmark.

    Args:
        split: ``"all"`` or a category.
        data_dir: the published data: the archive, its folder, or the unpacked files.
        render_mode: ``"ansi"`` renders the last observation.

    Raises:
        ValueError: there is no such split.
        FileNotFoundError: there are no such data.
    """

    max_steps, max_calls, tools_by_task = 1, MOST_CALLS, True
    version: str

    def __init__(
        self,
        split: str = "all",
        data_dir: str | os.PathLike[str] | None = None,
        render_mode: str | None = None,
    ):
        self.render_mode = check_render_mode(render_mode, self.metadata)
        self.tasks = self.open_tasks(None if data_dir is None else str(user_path(data_dir).resolve()))
        self.task_split = self._find_task_split(split)
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._task: CallTask | None = None
        self._text = ""

    def open_tasks(self, data_dir: str | None) -> CallTasks:
        """The questions in a folder or an archive, whose path is absolute."""
        raise NotImplementedError

    def problem(self, task: CallTask, calls: Sequence[Call | str]) -> str | None:
        """Why the calls of a reply are wrong, in a few words; None: they are right.

        Args:
            calls: in order; a text in place of a call explains why it is malformed.
        """
        raise NotImplementedError

    @property
    def data_info(self) -> dict[str, str]:
        """The published questions."""
        return {"source": "official", "version": self.version}

    @property
    def tools(self) -> tuple[DescribedTool, ...]:
        """The tools of the current task."""
        return self._task.tools if self._task else ()

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
        return self._text, self._info({}, state=self._text, grouping_state=self._text)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judges the calls of a reply."""
        task = self._task
        if self._steps is None or task is None:
            raise gymnasium.error.ResetNeeded("the episode is over or has not begun: call reset() before step()")
        self._steps = None
        read = read_command(action)
        malformed = read.error is not None or len(read.readable) < len(read.calls)
        problem = self.problem(task, read.calls)
        won = problem is None
        self._text = DONE if read.error is None else read.error
        calls = [
            call_record(Call("", {}), call, call) if isinstance(call, str) else call_record(call) for call in read.calls
        ]
        report = {"won": won, "valid_action": not malformed, "calls": calls, "answer": read.answer or ""}
        counters = {"calls": len(calls), "malformed": int(malformed)}
        report |= {"counters": counters, "malformed": float(malformed), "problem": problem or ""}
        info = self._info({"task": float(won)}, **report)
        return self._text, float(won), True, False, info

    def walkthrough(self) -> tuple[str, ...]:
        """The right calls in one command."""
        if self._task is None:
            raise gymnasium.error.ResetNeeded("there is no task yet: call reset() before walkthrough()")
        return (call_command(self._task.gold) if self._task.gold else answer_command("no call"),)

    def task_type(self, task_id: str) -> str:
        """The category of a task, without asking it."""
        return self.tasks.by_id[task_id].type

    def _find_task_split(self, split: str) -> TaskSplit:
        if split not in self.tasks.splits:
            raise ValueError(f"unknown split {split!r}; there are {', '.join(self.tasks.splits)}")
        return self.tasks.splits[split]

    def _info(self, rewards: dict[str, float], **report: Any) -> dict[str, Any]:
        task = self._task
        assert task is not None
        tools = [function_schema(tool) for tool in task.tools]
        known = task_report(task, self.task_split.split, tools, ("calls", "malformed"))
        return {**known, "rewards": rewards, "state": None, "grouping_state": None, "problem": "", **report}


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


__all__ = ["CallTask", "CallTasks", "NextCallEnv", "json_rows", "read_files"]
