"""Evaluates the policies of finished runs with ``evaluate.py``, or reads the run's last evaluation."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from parts.experiment_plan import Evaluation, Plan
from parts.training_runs import ROOT, Run

from roleagent.config import ConfigError


def records_of(folder: Path, evaluation: Evaluation) -> Path:
    """The records file of an evaluation in a run folder."""
    return folder / ("after.json" if evaluation.in_training else f"split-temperature-{evaluation.temperature:g}.jsonl")


def _result_of(folder: Path, evaluation: Evaluation) -> Path:
    records = records_of(folder, evaluation)
    return records if evaluation.in_training else records.with_suffix(".result.json")


def is_finished(folder: Path, plan: Plan) -> bool:
    """Whether a run is finished and evaluated."""
    ends = (_result_of(folder, evaluation) for evaluation in plan.evaluations)
    return all(path.exists() for path in (folder / "result.json", *ends))


def measure(run: Run, plan: Plan) -> list[dict[str, Any]]:
    """Runs the missing evaluations of the plan; returns all results in order.

    Raises:
        ConfigError: an evaluation failed.
    """
    results = []
    for evaluation in plan.evaluations:
        result = _result_of(run.folder, evaluation)
        if not result.exists():
            records = records_of(run.folder, evaluation)
            command = [sys.executable, str(ROOT / "evaluate.py"), "--agent", str(run.folder), "--out", str(records)]
            command += ["--temperature", f"{evaluation.temperature:g}", "--repeats", str(evaluation.repeats)]
            status = run.carry_out(command)
            if status:
                raise ConfigError(f"measuring {run.folder} ended with status {status} (see {run.log})")
        results.append({"temperature": evaluation.temperature, **json.loads(result.read_text(encoding="utf-8"))})
    return results
