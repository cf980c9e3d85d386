"""Loads the task log of a run with ``genenv=on``: what a simulator wrote, why it was refused, and how it was played."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roleagent.reports.data.load_trajectories import RunDataError


@dataclass(frozen=True, slots=True)
class Play:
    """One group of episodes of a task: ``kind`` is ``"fresh"`` or ``"replayed"``."""

    iteration: int
    kind: str
    successes: int
    attempts: int


@dataclass(slots=True)
class WrittenTask:
    """An accepted task.

    Attributes:
        task_id: its id.
        line: the task as the simulator wrote it.
        iteration: in which it was accepted.
        varied: whether it changes one field of a recent task.
        plan: commands of its plan.
        plays: in order.
    """

    task_id: str
    line: str
    iteration: int
    varied: bool
    plan: int
    plays: list[Play] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A refused proposal; ``reason`` is one of :data:`roleagent.task_grammar.REFUSALS`."""

    iteration: int
    line: str
    reason: str
    varied: bool


@dataclass(frozen=True, slots=True)
class TaskLog:
    """The accepted tasks by id, and the refused proposals, in order."""

    tasks: dict[str, WrittenTask]
    refused: list[RefusedLine]


def load_tasks(run: Path) -> TaskLog:
    """Reads the task log of a run folder; empty without one.

    Raises:
        RunDataError: a file is damaged; one line.
    """
    log = TaskLog({}, [])
    for file in sorted(run.glob("tasks/iteration-*.jsonl.gz")):
        if not re.fullmatch(r"iteration-\d+\.jsonl\.gz", file.name):
            continue
        try:
            for row in _rows(file):
                _add(log, row)
        except (OSError, EOFError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunDataError(f"{file} is damaged: {' '.join(str(error).split())}") from error
    return log


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _add(log: TaskLog, row: dict[str, Any]) -> None:
    """Takes in one event (:meth:`roleagent.learners.run.folder.RunFolder.tasks`)."""
    iteration, kind = int(row["iteration"]), str(row["event"])
    if kind != "written":
        task = log.tasks.get(row["task_id"])
        if task is not None:
            task.plays.append(Play(iteration, kind, int(row["successes"]), int(row["attempts"])))
        return
    line, varied = str(row["line"]), bool(row["varied"])
    if row.get("refused"):
        log.refused.append(RefusedLine(iteration, line, str(row["refused"]), varied))
    else:
        log.tasks[row["task_id"]] = WrittenTask(str(row["task_id"]), line, iteration, varied, int(row["plan"]))


__all__ = ["Play", "RefusedLine", "TaskLog", "WrittenTask", "load_tasks"]
