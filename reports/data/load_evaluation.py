"""Loads a record file of ``evaluate.py``, and the transcripts beside it, as the data of a report."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from roleagent.agents.evaluation.records import read_records
from roleagent.agents.evaluation.statistics import spending, summarize
from roleagent.agents.evaluation.transcripts import read_transcripts
from roleagent.learners.run.trackers import flat, without_secrets
from roleagent.reports.data.load_lessons import summarize_lessons
from roleagent.reports.data.load_trajectories import RunDataError, complete, episode_card
from roleagent.reports.data.run_schema import Curve, EpisodeCard, RunData
from roleagent.tasks.split import mixed

_SPLIT = ("env_id", "split", "tasks", "digest", "data")


def load_evaluation(path: Path, episodes: int) -> RunData:
    """Everything a report shows about an evaluation.

    Args:
        path: the record file.
        episodes: at most so many episodes, won and lost ones of all task types.

    Raises:
        RunDataError: it is no record file, has no outcome, or its transcripts are damaged.
    """
    try:
        header, written, _ = read_records(path)
        played = read_transcripts(path)
    except (OSError, ValueError) as error:
        raise RunDataError(f"{path} cannot be shown: {' '.join(str(error).split())}") from error
    records = sorted({record.attempt: record for record in written}.values(), key=lambda record: record.attempt)
    if not any(record.sound for record in records):
        raise RunDataError(f"{path} holds no episode with an outcome")
    with complete(path):
        agent, split = header["agent"], {name: header[name] for name in _SPLIT if name in header}
        attempts = header["tasks"] * (1 + max(record.repeat for record in records))
        config = without_secrets(flat({name: value for name, value in header.items() if name not in _SPLIT}))
        measured = {**summarize(records), "task_split": split, "usage": spending(header, written)}
    cards = [_card(path, row) for row in played]
    notes = [] if played else ["no transcripts: it was made with --no-transcripts, or by an older version"]
    nothing: Curve = {"step": [], "values": {}}
    return {
        "kind": "evaluation",
        "name": path.name.removesuffix(".jsonl"),
        "path": str(path.resolve()),
        "method": str(agent["name"]),
        "env_id": str(header["env_id"]),
        "seed": int(header["seed"]),
        "state": "finished" if sum(record.sound for record in records) == attempts else "stopped",
        "steps": (0, 0),
        "seconds": 0.0,
        "imitation_seconds": 0.0,
        "config": {name: value if isinstance(value, str) else json.dumps(value) for name, value in config.items()},
        "differing": list(config),
        "warmstart": nothing,
        "training": nothing,
        "success_by_type": nothing,
        "time": nothing,
        "modes": nothing,
        "mode_failures": nothing,
        "written_tasks": None,
        "lessons": summarize_lessons((0, row) for row in played if not row["error"]),
        "suite": None,
        "revisions": None,
        "evaluations": {"after": measured},
        "gain": None,
        "counters": {},
        "alarms": [],
        "idle": None,
        "episodes": sorted(
            mixed(cards, lambda card: f"{card['won']} {card['task_type']}")[:episodes],
            key=lambda card: (card["member"], card["group"]),
        ),
        "episodes_recorded": len(cards),
        "notes": notes,
    }


def _card(path: Path, row: dict[str, Any]) -> EpisodeCard:
    with complete(path):
        return episode_card(0, row["member"], row, Counter())
