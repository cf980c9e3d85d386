"""Learning curves: success over environment steps, from a run's own evaluations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Point(NamedTuple):
    """One evaluation: environment steps before it, and success in [0, 1]."""

    steps: float
    success: float


class Course(NamedTuple):
    """A run's learning curve; the first evaluation is before any step."""

    points: tuple[Point, ...]

    def steps_to(self, threshold: float) -> tuple[float, bool]:
        """Steps until success first reached a threshold (interpolated), and whether it did; otherwise all steps.

        >>> Course((Point(0, 0.1), Point(100, 0.3), Point(200, 0.5))).steps_to(0.4)
        (150.0, True)
        """
        before = self.points[0]
        for point in self.points:
            if point.success >= threshold:
                if point is before:
                    return 1.0, True
                share = (threshold - before.success) / (point.success - before.success)
                return before.steps + share * (point.steps - before.steps), True
            before = point
        return before.steps, False

    @property
    def mean(self) -> float:
        """Success averaged over the steps of the run."""
        pairs = zip(self.points, self.points[1:], strict=False)
        area = sum((later.steps - sooner.steps) * (sooner.success + later.success) / 2 for sooner, later in pairs)
        return area / self.points[-1].steps


def iterations_of(folder: Path) -> list[dict[str, Any]]:
    """The logged iterations of a run, in order; empty without a log."""
    file = folder / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row["stage"] == "train"]


def course(folder: Path, success: Callable[[Mapping[str, Any]], float] = lambda found: found["success"]) -> Course:
    """Reads a finished run's folder; ``success`` extracts the compared number of an evaluation's summary."""
    steps: dict[int, float] = {0: 0.0}
    for row in iterations_of(folder):
        steps[row["step"]] = steps[row["step"] - 1] + row["environment_steps"]
    last = max(steps)
    files = {int(path.stem.rpartition("-")[2]): path for path in folder.glob("iteration-*.json")}
    files = {0: folder / "before.json", **files, last: files.get(last, folder / "after.json")}
    found = {iteration: json.loads(path.read_text(encoding="utf-8")) for iteration, path in sorted(files.items())}
    return Course(tuple(Point(steps[iteration], success(summary)) for iteration, summary in found.items()))
