"""Compares learning of a rare task type with and without Agent-In-World's curriculum, in environment steps.

    python benchmarks/curriculum.py
    python benchmarks/curriculum.py --seeds 5 --threshold 0.5
    python benchmarks/curriculum.py --analyst model

In ``configs/toy_rare.yaml`` one task type is rare and hardly demonstrated. For every seed, two runs of ``train.py``
start from the same warm start: one draws tasks uniformly (``aiw=off``), one with the curriculum. Both are evaluated on
all held-out tasks at every other iteration. The same command skips finished runs and resumes others. A seed takes about
twelve minutes on one core.

``steps_ratio`` is the number of environment steps with the curriculum until the success on rare tasks first reached the
threshold (interpolated), over the number without: the geometric mean over seeds with a 95 % interval (Student's t on
the logarithms). A run that never reaches the threshold counts with all its steps, so the ratio is then a bound.
``reached`` counts the runs that reached it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from roleagent.agents.evaluation.statistics import spread
from roleagent.config import ConfigError
from roleagent.experiments.figures import Course, course
from roleagent.experiments.runs import Run
from roleagent.options import user_path
from roleagent.reports.data.load_trajectories import TrajectoryReader


class Learnt(NamedTuple):
    """How one run went.

    Attributes:
        rare: its success on the rare kind.
        after: success on all tasks in the end.
        drawn: of the episodes it trained on, the share of the rare kind.
    """

    rare: Course
    after: float
    drawn: float


def learnt(run: Run, kind: str) -> Learnt:
    """Reads a finished run's folder."""
    episodes = TrajectoryReader(run.folder)
    played = [card["task_type"] == kind for iteration in episodes.files for card in episodes.cards(iteration)]
    rare = course(run.folder, lambda found: found["by_type"][kind]["success"])
    return Learnt(rare, course(run.folder).points[-1].success, sum(played) / len(played))


def compare(options: argparse.Namespace, seed: int) -> tuple[Learnt, Learnt]:
    """One seed's two runs, the uniform one first."""
    base = [*options.overrides, f"seed={seed}", f"curriculum.analyst={options.analyst}"]
    # A policy that is its own analyst learns that in the warm start, which both runs share: there the uniform one has
    # all of Agent-In-World but its effect.
    off, on = ("aiw=off", "aiw=on") if options.analyst == "rule" else ("curriculum.epsilon=0", "curriculum.epsilon=0.5")
    uniform = Run(options.out / f"seed{seed}", options.config, [*base, off])
    uniform.finish()
    curriculum = uniform.control("curriculum", on)
    curriculum.finish()
    return learnt(uniform, options.kind), learnt(curriculum, options.kind)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of a mean (Student's t); of a single value without bounds."""
    return spread(values) or (values[0], -math.inf, math.inf)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 … N-1 (default: %(default)s)")
    parser.add_argument("--threshold", type=float, default=0.5, help="success on the rare kind (default: %(default)s)")
    parser.add_argument("--kind", default="cool", help="the rare kind of task (default: %(default)s)")
    parser.add_argument("--analyst", choices=("rule", "model"), default="rule", help="default: %(default)s")
    parser.add_argument("--config", type=user_path, default=Path("configs/toy_rare.yaml"), help="default: %(default)s")
    parser.add_argument("--out", type=user_path, default=Path("runs/curriculum"), help="folder (default: %(default)s)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of train.py")
    options = parser.parse_intermixed_args(arguments)
    if options.seeds < 1 or not 0 < options.threshold <= 1:
        parser.error("--seeds must be at least 1, and --threshold in (0, 1]")
    try:
        pairs = [compare(options, seed) for seed in range(options.seeds)]
    except ConfigError as error:
        print(f"curriculum.py: {error}", file=sys.stderr)
        return 2
    print("RESULT", json.dumps(report(pairs, options.threshold, options.kind)))
    return 0


def report(pairs: Sequence[tuple[Learnt, Learnt]], threshold: float, kind: str) -> dict[str, Any]:
    """Shows a table, and returns the figures."""
    table = Table(
        *("seed", "", "before", f"steps to {100 * threshold:.0f} %", "mean", "after", "all tasks after", "drawn"),
        title=f"{kind} tasks, success in %: without the curriculum and with it",
    )
    for seed, pair in enumerate(pairs):
        for name, run in zip(("uniform", "curriculum"), pair, strict=True):
            steps, reached = run.rare.steps_to(threshold)
            steps_text = f"{'' if reached else '> '}{steps:,.0f}"
            shares = (run.rare.mean, run.rare.points[-1].success, run.after, run.drawn)
            before = f"{100 * run.rare.points[0].success:.1f}"
            table.add_row(str(seed), name, before, steps_text, *(f"{100 * share:.1f}" for share in shares))
    Console().print(table)
    found = [[run.rare.steps_to(threshold) for run in pair] for pair in pairs]
    mean, low, high = interval([math.log(curriculum[0] / uniform[0]) for uniform, curriculum in found])
    gains = [curriculum.rare.mean - uniform.rare.mean for uniform, curriculum in pairs]
    return {
        "steps_ratio": round(math.exp(mean), 3),
        "interval": [round(math.exp(low), 3), round(math.exp(high), 3)],
        "reached": {"uniform": sum(one[0][1] for one in found), "curriculum": sum(one[1][1] for one in found)},
        "seeds": len(pairs),
        "steps": [[round(steps) for steps, _ in one] for one in found],
        "mean_rare_gain": [round(value, 3) for value in interval(gains)],
        "drawn": [round(statistics.mean(pair[place].drawn for pair in pairs), 3) for place in (0, 1)],
        "all_after": [round(statistics.mean(pair[place].after for pair in pairs), 3) for place in (0, 1)],
    }


if __name__ == "__main__":
    sys.exit(main())
