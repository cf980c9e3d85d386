"""Measures both roles in a short run of the default games.

    python benchmarks/roles.py
    python benchmarks/roles.py --out runs/roles train.iterations=16 seed=1
    python benchmarks/roles.py --run runs/alfworld

``train.py`` runs in a folder under ``--out``: the tiny games of the default configuration, a weak policy, a few
iterations and the rule analyst. The same command does not train again. ``--run`` reads an existing run folder instead.
The figures come from the run's log; missing ones are null. The default size shows errors, such as self-retrievals or
advantages that ignore predictions. Use ``--run`` with a full run to compare success rates.

Agent-In-World:

``self_retrievals``
    Retrievals of the failing task itself, over all iterations. Expected: 0.
``same_iteration_share``
    Share of retrievals of failures of the same iteration, from the fourth iteration on, when the library has older
    ones.
``curriculum_zero_variance``, ``uniform_zero_variance``
    Share of zero-variance groups among the curriculum's and the uniformly drawn tasks.
``curriculum_success``, ``uniform_success``
    Success on the same two.

World-In-Agent:

``failure_recall_start``, ``failure_recall``
    Share of failed commands whose failure was predicted, in the first iteration and on average.
``failure_recall_before``
    The same in the evaluation before training, on held-out tasks; at temperature 1 if the run had that evaluation.
``prediction_information``
    Correlation of a turn's prediction score and the episode's success, within task and state.
``advantage_agreement``
    Correlation of the run's advantages with GiGPO's, over groups with variance. At 1 predictions have no effect.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from roleagent.config import ConfigError, load
from roleagent.config.settings import EstimatorOptions
from roleagent.experiments.runs import Run
from roleagent.files import read_json_lines
from roleagent.learners.advantages import standardize
from roleagent.options import user_path

SHORT = (
    *("warmstart.episodes=400", "warmstart.rounds=1", "warmstart.round_episodes=100"),
    *("env.eval_tasks=4", "curriculum.analyst=rule"),
    *("rollout.eval_sampled=0", "train.iterations=5", "rollout.num_groups=8", "rollout.group_size=4"),
)
YOUNG = 3  # first iterations, in which the library has few older failures

Rows = Sequence[Mapping[str, Any]]
"""The log of a run's iterations, line by line."""

Figure = Callable[[Rows, Path], "float | None"]
"""Computes a figure from log and run folder; None if the run lacks it."""


def self_retrievals(rows: Rows, folder: Path) -> float | None:
    """Retrievals of the failing task itself."""
    return rows[-1].get("curriculum_self_retrievals_total")


def same_iteration_share(rows: Rows, folder: Path) -> float | None:
    """Share of retrievals from the same iteration, after the first :data:`YOUNG` iterations."""
    first = rows[min(YOUNG, len(rows)) - 1]
    same, retrieved = (
        rows[-1].get(f"curriculum_{name}", 0.0) - first.get(f"curriculum_{name}", 0.0)
        for name in ("same_iteration_total", "retrieved")
    )
    return same / retrieved if retrieved else None


def zero_variance(kind: str) -> Figure:
    """Share of zero-variance groups of one kind."""

    def figure(rows: Rows, folder: Path) -> float | None:
        groups = rows[-1].get(f"{kind}_groups")
        return rows[-1][f"{kind}_zero_variance_groups"] / groups if groups else None

    return figure


def success(kind: str) -> Figure:
    """Mean success of the groups of one kind."""

    def figure(rows: Rows, folder: Path) -> float | None:
        counts = [row.get(f"{kind}_groups", 0.0) for row in rows]
        played = [count - before for count, before in zip(counts, [0.0, *counts], strict=False)]
        won = sum(row[f"{kind}_success"] * n for row, n in zip(rows, played, strict=True) if f"{kind}_success" in row)
        return won / sum(played) if sum(played) else None

    return figure


AGENT_IN_WORLD: dict[str, Figure] = {
    "self_retrievals": self_retrievals,
    "same_iteration_share": same_iteration_share,
    "curriculum_zero_variance": zero_variance("curriculum"),
    "uniform_zero_variance": zero_variance("uniform"),
    "curriculum_success": success("curriculum"),
    "uniform_success": success("uniform"),
}


def mean_of(name: str) -> Figure:
    """The mean of a number over the iterations that have it."""

    def figure(rows: Rows, folder: Path) -> float | None:
        known = [row[name] for row in rows if name in row]
        return sum(known) / len(known) if known else None

    return figure


def first(name: str) -> Figure:
    """A number of the first iteration, before any update."""
    return lambda rows, folder: rows[0].get(name)


def failure_recall_before(rows: Rows, folder: Path) -> float | None:
    """Predicted share of the failed commands of held-out tasks, before training; None without an evaluation of them."""
    for name in ("before-sampled.json", "before.json"):
        if (folder / name).exists():
            behavior = json.loads((folder / name).read_text("utf-8"))["behavior"] or {}
            failures = behavior.get("failures_with_prediction", {}).get("mean")
            if failures:
                return behavior["predicted_failures"]["mean"] / failures
    return None


def advantage_agreement(rows: Rows, folder: Path) -> float | None:
    """Correlation of the logged advantages with GiGPO's on the same groups; None without variance."""
    if not (folder / "config.yaml").exists() or (run := load(folder / "config.yaml")).method != "role_agent":
        return None
    logged, without = [], []
    for file in sorted((folder / "trajectories").glob("iteration-*.jsonl.gz")):
        groups: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for episode in read_json_lines(file):
            groups[episode["group"]].append(episode)
        for episodes in groups.values():
            if episodes[0]["replaced"]:  # nothing was learned from it
                continue
            ours = [turn["advantage"] for episode in episodes for turn in episode["turns"]]
            theirs = _gigpo(episodes, run.estimator)
            if np.ptp(ours) > 1e-9 or np.ptp(theirs) > 1e-9:
                logged += ours
                without += theirs
    return float(np.corrcoef(logged, without)[0, 1]) if np.ptp(logged or [0.0]) and np.ptp(without) else None


def _gigpo(episodes: Sequence[Mapping[str, Any]], options: EstimatorOptions) -> list[float]:
    """GiGPO's advantages of a logged group: Role-Agent's (Eq. 8) with unmodulated returns."""
    turns = [turn for episode in episodes for turn in episode["turns"]]
    values = [options.alpha * turn["advantage_outcome"] for turn in turns]
    returns = [turn["return_modulated"] - turn["return_task"] * (turn["return_predictive"] or 0.0) for turn in turns]
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, turn in enumerate(turns):
        if turn["state_group"] is not None:
            members[turn["state_group"]].append(number)
    for numbers in members.values():
        peers = standardize([returns[number] for number in numbers], options.norm)
        for number, value in zip(numbers, peers, strict=True):
            values[number] += value
    return values


WORLD_IN_AGENT: dict[str, Figure] = {
    "failure_recall_before": failure_recall_before,
    "failure_recall_start": first("failure_recall"),
    "failure_recall": mean_of("failure_recall"),
    "prediction_information": mean_of("prediction_information"),
    "advantage_agreement": advantage_agreement,
}


def measure(folder: Path) -> dict[str, float | None]:
    """All figures of a run.

    Raises:
        ConfigError: the folder has no iteration.
    """
    log = folder / "metrics.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    rows = [row for row in map(json.loads, lines) if row["stage"] == "train"]
    if not rows:
        raise ConfigError(f"{folder} has no iterations in metrics.jsonl: name the folder of a run that was trained")
    found = {name: figure(rows, folder) for name, figure in (AGENT_IN_WORLD | WORLD_IN_AGENT).items()}
    return {name: None if value is None else round(value, 4) for name, value in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=user_path, default=Path("configs/default.yaml"), help="default: %(default)s")
    parser.add_argument("--out", type=user_path, default=Path("runs/roles"), help="folder (default: %(default)s)")
    parser.add_argument("--run", type=user_path, help="read this run folder instead of training")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of train.py")
    options = parser.parse_intermixed_args(arguments)
    try:
        folder = options.run or options.out / "run"
        if options.run is None:
            Run(folder, options.config, [*SHORT, *options.overrides]).finish()
        figures = measure(folder)
    except ConfigError as error:
        print(f"roles.py: {error}", file=sys.stderr)
        return 2
    table = Table("figure", "value", title=f"the two roles in {folder}")
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), "–" if value is None else f"{value:g}")
    Console().print(table)
    print("RESULT", json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
