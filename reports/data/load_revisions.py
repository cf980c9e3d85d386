"""Loads what Agent-R left in a run: counts per iteration, and spliced paths with the answers of the world."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from roleagent.files import read_json_lines
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.data.run_schema import Revisions, SplicedPath

PATHS = 40
"""Most spliced paths in a report, the newest iterations first."""


def summarize_revisions(run: Path) -> Revisions | None:
    """The counts of all iterations and some spliced paths; None without any.

    Raises:
        RunDataError: a file is damaged; one line.
    """
    files = sorted(run.glob("revision/iteration-[0-9]*.json"))
    counts = [
        {"iteration": int(path.stem.rpartition("-")[2]), **{k: v for k, v in _json(path).items() if _is_number(v)}}
        for path in files
    ]
    if not counts:
        return None
    paths: list[SplicedPath] = []
    for row in reversed(counts):
        for example in _revisions(run, int(row["iteration"])):
            if len(paths) < PATHS:
                paths.append(_path(example, int(row["iteration"])))
    return {"counts": counts, "paths": paths}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDataError(f"{path} is damaged: {error}") from error
    if not isinstance(found, dict):
        raise RunDataError(f"{path} is damaged: it holds no counts")
    return found


def _revisions(run: Path, iteration: int) -> Iterator[dict[str, Any]]:
    for path in sorted(run.glob(f"revision/iteration-{iteration:03d}/batch-*.jsonl.gz")):
        try:
            for row in read_json_lines(path):
                yield from (one for one in row["examples"] if one["part"] == "revision")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunDataError(f"{path} is damaged: {error}") from error


def _path(example: dict[str, Any], iteration: int) -> SplicedPath:
    """The path as a report shows it; steps before ``shared`` are those of the good path, too."""
    cut, shared = int(example["cut"]), int(example["shared"])
    steps: list[tuple[str, str, str]] = []
    for number, (command, observation, imitated) in enumerate(example["steps"]):
        if number < shared:
            part = "shared"
        elif number < cut:
            part = "mistake" if number == cut - 1 else "bad"
        else:
            said = number == cut and (command.startswith("revise[") or command == "wait")
            part = "signal" if said else "good" if imitated else "unread"
        steps.append((part, str(command), str(observation)))
    return {
        "iteration": iteration,
        "task_id": str(example["task_id"]),
        "cut": cut,
        "bad_steps": int(example["bad_steps"]),
        "bad_outcome": float(example["bad_outcome"]),
        "outcome": float(example["outcome"]),
        "truth": str(example["truth"]),
        "judge": str(example["judge"]),
        "reason": str(example["reason"]),
        "first": str(example["first"]),
        "steps": steps,
    }


__all__ = ["PATHS", "summarize_revisions"]
