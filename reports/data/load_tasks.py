"""Loads the task log of a run with ``genenv=on``: what a simulator wrote, why it was refused, and how it was played."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from roleagent.files import read_json_lines
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.data.run_schema import FieldValue, Refusal, TaskLife, TaskPlay, WrittenTasks

LIVES, REFUSALS = 60, 100
"""Most tasks and refused proposals in a report."""


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
    """A refused proposal; ``reason`` is one of :data:`roleagent.tasks.grammar.REFUSALS`."""

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
            for row in read_json_lines(file):
                _add(log, row)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDataError(f"{file} is damaged: {' '.join(str(error).split())}") from error
    return log


def _add(log: TaskLog, row: dict[str, Any]) -> None:
    """Takes in one event (:meth:`roleagent.learners.run.folder.RunFolder.tasks`)."""
    iteration, kind = int(row["iteration"]), str(row["event"])
    if kind != "written":
        task = log.tasks.get(row["task_id"])
        if task is not None:
            task.plays.append(Play(iteration, kind, int(row["successes"]), max(1, int(row["attempts"]))))
        return
    line, varied = str(row["line"]), bool(row["varied"])
    if row.get("refused"):
        log.refused.append(RefusedLine(iteration, line, str(row["refused"]), varied))
    else:
        log.tasks[row["task_id"]] = WrittenTask(str(row["task_id"]), line, iteration, varied, int(row["plan"]))


def summarize_tasks(run: Path) -> WrittenTasks | None:
    """What a report shows of the written tasks; None if the run wrote none.

    Raises:
        RunDataError: a file is damaged; one line.
    """
    log = load_tasks(run)
    if not log.tasks and not log.refused:
        return None
    accepted = list(log.tasks.values())
    last = max(one.iteration for one in (*accepted, *log.refused))
    ends = [last * part // 3 for part in range(4)]
    thirds = [(begin + 1, end) for begin, end in pairwise(ends) if end > begin]
    return {
        "proposed": len(accepted) + len(log.refused),
        "accepted": len(accepted),
        "refused": dict(Counter(one.reason for one in log.refused).most_common()),
        "thirds": thirds,
        "fields": _fields(accepted, thirds),
        "lives": [_life(task) for task in sorted(accepted, key=lambda task: -len(task.plays))[:LIVES]],
        "refusals": [Refusal(iteration=one.iteration, line=one.line, reason=one.reason) for one in log.refused][
            -REFUSALS:
        ],
    }


def _fields(tasks: Sequence[WrittenTask], thirds: Sequence[tuple[int, int]]) -> list[FieldValue]:
    """Every value of every field, in alphabetical order within a field."""
    totals = [sum(begin <= task.iteration <= end for task in tasks) for begin, end in thirds]
    own: dict[tuple[str, str], list[WrittenTask]] = {}
    for task in tasks:
        for pair in task.line.split():
            name, _, value = pair.partition("=")
            own.setdefault((name.lower(), value), []).append(task)
    order = list(dict.fromkeys(name for name, _ in own))
    found: list[FieldValue] = []
    for (name, value), with_it in sorted(own.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        counts = [sum(begin <= task.iteration <= end for task in with_it) for begin, end in thirds]
        first = [task.plays[0].successes / task.plays[0].attempts for task in with_it if task.plays]
        found.append(
            {
                "field": name,
                "value": value,
                "shares": [count / total if total else None for count, total in zip(counts, totals, strict=True)],
                "success": statistics.fmean(first) if first else None,
                "tasks": len(with_it),
            }
        )
    return found


def _life(task: WrittenTask) -> TaskLife:
    plays: list[TaskPlay] = [
        {"iteration": one.iteration, "kind": one.kind, "successes": one.successes, "attempts": one.attempts}
        for one in task.plays
    ]
    return {
        "task_id": task.task_id,
        "line": task.line,
        "iteration": task.iteration,
        "varied": task.varied,
        "plan": task.plan,
        "plays": plays,
    }


__all__ = ["Play", "RefusedLine", "TaskLog", "WrittenTask", "load_tasks", "summarize_tasks"]
