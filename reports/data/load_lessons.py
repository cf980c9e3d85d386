"""Loads which lessons of the failure library a run's episodes read, and how they went with and without them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from roleagent.agents.evaluation.statistics import student_mean
from roleagent.reports.data.load_trajectories import TrajectoryReader, complete
from roleagent.reports.data.run_schema import LessonUse

USES = 40
"""Most lessons in a report, the most frequent ones."""

_Stratum = tuple[int, str]
_Count = Counter[tuple[_Stratum, bool]]  # episodes by stratum and whether they were won


def training_episodes(reader: TrajectoryReader) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The logged episodes of a run, each with its iteration.

    Raises:
        RunDataError: a file is damaged.
    """
    for iteration, file in reader.files.items():
        with complete(file):
            for rows in reader.groups(iteration):
                yield from ((iteration, row) for row in rows)


def summarize_lessons(episodes: Iterable[tuple[int, Mapping[str, Any]]]) -> list[LessonUse] | None:
    """The lessons that episodes read: first ``""``, any lesson, then each; None if there was none.

    Success with and without a lesson is compared among episodes of the same iteration and task type, by the number of
    those with it. The difference has Student's interval over these pairs of iteration and type, since episodes of one
    task are alike. Lessons go to tasks that are like earlier failures, so without ``lessons.share`` the two differ in
    more than the lesson.

    Args:
        episodes: with the iteration of each.
    """
    everything: _Count = Counter()
    read: dict[str, _Count] = defaultdict(Counter)
    tasks: dict[str, set[str]] = defaultdict(set)
    for iteration, row in episodes:
        outcome = (iteration, row.get("task_type", "")), bool(row["won"])
        everything[outcome] += 1
        for lesson in ("", *row["lessons"]) if row.get("lessons") else ():
            read[lesson][outcome] += 1
            tasks[lesson].add(row["task_id"])
    order = sorted(read, key=lambda lesson: (lesson != "", -read[lesson].total(), lesson))
    return [_use(lesson, read[lesson], everything, len(tasks[lesson])) for lesson in order[: USES + 1]] or None


def _use(lesson: str, own: _Count, everything: _Count, tasks: int) -> LessonUse:
    strata = {stratum for stratum, _ in own}
    compared = {s: n for s in strata if (n := _episodes(own, s)) < _episodes(everything, s)}
    total = sum(compared.values())
    without = {s: (everything[s, True] - own[s, True]) / (_episodes(everything, s) - n) for s, n in compared.items()}
    gaps = {s: own[s, True] / n - without[s] for s, n in compared.items()}
    return {
        "lesson": lesson,
        "episodes": own.total(),
        "tasks": tasks,
        "success": sum(own[s, True] for s in strata) / own.total(),
        "compared": total,
        "success_with": sum(own[s, True] for s in compared) / total if total else None,
        "success_without": sum(n * without[s] for s, n in compared.items()) / total if total else None,
        "interval": _interval([*gaps.values()], [*compared.values()]),
    }


def _interval(gaps: Sequence[float], weights: Sequence[int]) -> tuple[float, float] | None:
    """Student's interval of a weighted mean of differences; None for less than two different ones."""
    if len({*gaps}) < 2:
        return None
    found = student_mean(np.repeat(gaps, weights), np.repeat(np.arange(len(gaps)), weights))
    return max(-1.0, found.low), min(1.0, found.high)


def _episodes(counts: _Count, stratum: _Stratum) -> int:
    return counts[stratum, True] + counts[stratum, False]


__all__ = ["USES", "summarize_lessons", "training_episodes"]
