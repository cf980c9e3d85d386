"""Does Agent-In-World's curriculum help? Environment steps to learn a kind of task that is rare, with it and without.

    python benchmarks/curriculum.py
    python benchmarks/curriculum.py --seeds 5 --threshold 0.5
    python benchmarks/curriculum.py --analyst model

In the world of ``configs/toy_rare.yaml`` the tasks of one kind are few, and the warm start hardly shows them. For every
seed two runs of the real ``train.py`` go on from the very same warm start: one draws its tasks uniformly (``aiw=off``),
one by the curriculum. Every other iteration both are measured on all tasks of the held-out panel. The same command,
given again, skips what is finished and resumes what is not; seeds take about twelve minutes each on one core.

``steps_ratio`` is what the comparison is about: environment steps that the curriculum needed until the share of solved
rare tasks first reached the threshold (between two measurements, interpolated), over those needed without, as the
geometric mean over seeds with a 95 % interval (Student's t on the logarithms). A run that never reaches the threshold
counts with all the steps it took, which makes the ratio a bound: ``reached`` says how many runs did.
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
from training_runs import ROOT, Run

from roleagent.config import ConfigError

# Student's t: the 97.5 % quantile for 1, 2, … degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


class Point(NamedTuple):
    """One measurement: environment steps until then, and success on the rare kind and on all tasks, in [0, 1]."""

    steps: float
    rare: float
    all: float


class Course(NamedTuple):
    """How one run went.

    Attributes:
        points: measurements, the first before any step.
        drawn: of the tasks it trained on, the share of the rare kind.
    """

    points: list[Point]
    drawn: float

    def steps_to(self, threshold: float) -> tuple[float, bool]:
        """Steps until the rare kind's success first reached a threshold, and whether it ever did."""
        before = self.points[0]
        for point in self.points:
            if point.rare >= threshold:
                if point is before:
                    return 1.0, True
                share = (threshold - before.rare) / (point.rare - before.rare)
                return before.steps + share * (point.steps - before.steps), True
            before = point
        return before.steps, False

    @property
    def mean_rare(self) -> float:
        """Success on the rare kind, averaged over the steps of the run."""
        pairs = zip(self.points, self.points[1:], strict=False)
        area = sum((later.steps - sooner.steps) * (sooner.rare + later.rare) / 2 for sooner, later in pairs)
        return area / self.points[-1].steps


def course(run: Run, kind: str) -> Course:
    """Reads a finished run's folder."""
    rows = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    steps: dict[int, float] = {0: 0.0}
    for row in rows:
        if row["stage"] == "train":
            steps[row["step"]] = steps[row["step"] - 1] + row["environment_steps"]
    files = {0: run.folder / "before.json"}
    files |= {int(path.stem.rpartition("-")[2]): path for path in run.folder.glob("iteration-*.json")}
    points = []
    for iteration, path in sorted(files.items()):
        measured = json.loads(path.read_text())
        points.append(Point(steps[iteration], measured["by_type"][kind]["success"], measured["success"]))
    played = [
        json.loads(line)["task_id"]
        for path in (run.folder / "trajectories").iterdir()
        for line in path.read_text().splitlines()
    ]
    return Course(points, sum(name.startswith(f"{kind}-") for name in played) / len(played))


def compare(options: argparse.Namespace, seed: int) -> tuple[Course, Course]:
    """One seed's two runs, the uniform one first."""
    base = [*options.overrides, f"seed={seed}", f"curriculum.analyst={options.analyst}"]
    # A policy that is its own analyst learns that in the warm start, which both runs share: there the uniform one has
    # all of Agent-In-World but its effect.
    off, on = ("aiw=off", "aiw=on") if options.analyst == "rule" else ("curriculum.epsilon=0", "curriculum.epsilon=0.5")
    uniform = Run(options.out / f"seed{seed}", options.config, [*base, off])
    uniform.finish()
    curriculum = uniform.control("curriculum", on)
    curriculum.finish()
    return course(uniform, options.kind), course(curriculum, options.kind)


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval of a mean (Student's t); of a single value without bounds.

    >>> interval([1.0, 2.0, 3.0])
    (2.0, -0.48, 4.48)
    """
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = _T[min(len(values) - 2, len(_T) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, round(mean - half, 2), round(mean + half, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds 0 … N-1 (default: %(default)s)")
    parser.add_argument("--threshold", type=float, default=0.5, help="success on the rare kind (default: %(default)s)")
    parser.add_argument("--kind", default="cool", help="the rare kind of task (default: %(default)s)")
    parser.add_argument("--analyst", choices=("rule", "model"), default="rule", help="default: %(default)s")
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "toy_rare.yaml", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/curriculum"), help="folder (default: %(default)s)")
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


def report(pairs: Sequence[tuple[Course, Course]], threshold: float, kind: str) -> dict[str, Any]:
    """Shows a table, and returns the figures."""
    table = Table(
        *("seed", "", "before", f"steps to {100 * threshold:.0f} %", "mean", "after", "all tasks after", "drawn"),
        title=f"{kind} tasks, success in %: without the curriculum and with it",
    )
    for seed, pair in enumerate(pairs):
        for name, run in zip(("uniform", "curriculum"), pair, strict=True):
            steps, reached = run.steps_to(threshold)
            told = f"{'' if reached else '> '}{steps:,.0f}"
            shares = (run.mean_rare, run.points[-1].rare, run.points[-1].all, run.drawn)
            before = f"{100 * run.points[0].rare:.1f}"
            table.add_row(str(seed), name, before, told, *(f"{100 * share:.1f}" for share in shares))
    Console().print(table)
    found = [[run.steps_to(threshold) for run in pair] for pair in pairs]
    mean, low, high = interval([math.log(curriculum[0] / uniform[0]) for uniform, curriculum in found])
    gains = [curriculum.mean_rare - uniform.mean_rare for uniform, curriculum in pairs]
    return {
        "steps_ratio": round(math.exp(mean), 3),
        "interval": [round(math.exp(low), 3), round(math.exp(high), 3)],
        "reached": {"uniform": sum(one[0][1] for one in found), "curriculum": sum(one[1][1] for one in found)},
        "seeds": len(pairs),
        "steps": [[round(steps) for steps, _ in one] for one in found],
        "mean_rare_gain": [round(value, 3) for value in interval(gains)],
        "drawn": [round(statistics.mean(pair[place].drawn for pair in pairs), 3) for place in (0, 1)],
        "all_after": [round(statistics.mean(pair[place].points[-1].all for pair in pairs), 3) for place in (0, 1)],
    }


if __name__ == "__main__":
    sys.exit(main())
