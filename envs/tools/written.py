"""Tool tasks that are written for training (GenEnv): the id holds the row of the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roleagent.envs.tools.tasks import TaskError, ToolTask
from roleagent.tasks.free_form import decode


def task_of(task_id: str, row: Mapping[str, Any]) -> ToolTask:
    """The task of a written row. Its type is the number of its calls.

    Raises:
        TaskError: a value has the wrong type.
    """
    task = ToolTask.of({**row, "id": task_id})
    count = len(task.calls)
    return replace(task, type=f"{count} call{'s' * (count != 1)}")


def written_task(task_id: str) -> ToolTask:
    """The task of a written id.

    Raises:
        KeyError: it is none.
    """
    row = decode(task_id)
    if row is None:
        raise KeyError(task_id)
    return task_of(task_id, row)


def is_written(task_id: str) -> bool:
    """Whether an id is that of a written task."""
    try:
        return bool(written_task(task_id))
    except (KeyError, TaskError):
        return False


__all__ = ["is_written", "task_of", "written_task"]
