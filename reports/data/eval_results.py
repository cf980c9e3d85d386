"""Evaluations of a run on held-out tasks, and the gain between the first and the last."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.evaluation.comparison import EvalRecords, compare
from roleagent.reports.data.curves import number
from roleagent.reports.data.run_schema import Gain


def load_evaluations(run: Path, notes: list[str], suffix: str = "") -> dict[str, dict[str, Any]]:
    """The evaluations of a run by name, with records, in order.

    Args:
        notes: gets a line about each damaged file.
        suffix: ``-sampled`` for those at ``rollout.eval_sampled``.
    """
    between = sorted([*run.glob("iteration-*.json"), *run.glob("revision/after-*.json")])  # one of them is empty
    paths = [run / f"before{suffix}.json", *(between if not suffix else ()), run / f"after{suffix}.json"]
    found = {path.stem.removesuffix(suffix): json_file(path, notes) for path in paths}
    return {name: summary for name, summary in found.items() if summary and number(summary.get("success")) is not None}


def json_file(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """A JSON object; None if the file is missing, or damaged, which adds a note."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        notes.append(f"{path.name} is damaged, and left out")
        return None
    return value


def measure_gain(evaluations: Mapping[str, Mapping[str, Any]]) -> Gain | None:
    """The gain from ``before`` to the last evaluation, paired by task.

    None without two evaluations, or without records of the same tasks.
    """
    names = list(evaluations)
    if len(names) < 2 or names[0] != "before":
        return None
    try:
        before, last = (EvalRecords.of(name, evaluations[name]) for name in (names[0], names[-1]))
        found = compare([last], [before], np.random.default_rng(0))
        return {"until": names[-1], "all": _cell(found["success"]), "by_type": _by_type(found["by_type"])}
    except (KeyError, TypeError, ValueError, AttributeError):  # no records, or records of another version
        return None


def _by_type(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: _cell(cell) for name, cell in cells.items()}


def _cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    names = {"tasks": "tasks", "difference": "difference", "interval": "interval"}
    names |= {"only_first": "only_last", "only_second": "only_before"}
    return {called: cell[name] for name, called in names.items() if name in cell}
