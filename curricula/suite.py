"""A frozen suite: tasks that failed in training and were solved in a later iteration, with their failure modes.

A policy that learns from new failures may forget what it has learned from earlier ones. The tasks of a suite stay the
same, so every evaluation on it says what was forgotten, and what was regained.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from roleagent.files import read_json_lines, write_whole
from roleagent.options import ConfigError, shown

SOLVED = 0.5
"""Share of a task's episodes in an iteration that must be won."""
EVALUATIONS = f"suite-{'[0-9]' * 6}.json"
"""The names of a run's evaluations on suites; other files beside them are the user's."""


@dataclass(frozen=True)
class SuiteTask:
    """A task of a suite.

    Attributes:
        modes: how it failed before it was solved, the first way first.
        failed: the iteration of its first failure.
        solved: the first iteration after it that won at least :data:`SOLVED` of its episodes.
    """

    task_id: str
    task_type: str
    modes: tuple[str, ...]
    failed: int
    solved: int


@dataclass(frozen=True)
class Suite:
    """The tasks of one split, in the order in which they were solved."""

    env_id: str
    split: str
    tasks: tuple[SuiteTask, ...]

    @classmethod
    def of_run(cls, run: Path, env_id: str, split: str, limit: int) -> Suite:
        """The solved failures in the recorded episodes of a run.

        Args:
            limit: most tasks; each failure mode in turn gives its newest.

        Raises:
            ConfigError: there are none.
        """
        found: dict[str, SuiteTask] = {}
        modes: dict[str, dict[str, None]] = {}
        begun: dict[str, int] = {}
        for file in sorted(run.glob("trajectories/iteration-*.jsonl*")):
            iteration = int(file.name[len("iteration-") :].partition(".")[0])
            played: dict[str, list[Mapping[str, Any]]] = {}
            for row in read_json_lines(file):
                played.setdefault(row["task_id"], []).append(row)
            for task_id, rows in played.items():
                if task_id in found:
                    continue
                failed = [row["analysis"]["mode"] for row in rows if row["analysis"]]
                won = sum(row["won"] for row in rows) / len(rows)
                if task_id in begun and won >= SOLVED:
                    ways = tuple(modes[task_id])
                    found[task_id] = SuiteTask(task_id, rows[0]["task_type"], ways, begun[task_id], iteration)
                elif failed:
                    begun.setdefault(task_id, iteration)
                    modes.setdefault(task_id, {}).update(dict.fromkeys(failed))
        if not found:
            raise ConfigError(f"{run} has solved no failure yet: no analyzed task (aiw=on) was won in later iterations")
        return cls(env_id, split, tuple(_limited([*found.values()], limit)))

    @classmethod
    def read(cls, path: Path) -> Suite:
        """A suite from its file.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            tasks = tuple(SuiteTask(**{**row, "modes": tuple(row["modes"])}) for row in tree["tasks"])
            if not tasks:
                raise ValueError("it has no tasks")
            return cls(str(tree["env_id"]), str(tree["split"]), tasks)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if isinstance(error, FileNotFoundError):
                reason = "there is no such file"
            elif isinstance(error, KeyError):
                reason = f"it has no {shown(error.args[0])}"
            else:
                reason = "its form is another" if isinstance(error, TypeError) else str(error)
            raise ConfigError(
                f"{path} is no frozen suite ({reason}): `roleagent failures freeze RUN` writes one"
            ) from error

    def write(self, path: Path) -> None:
        """Writes the suite as JSON."""
        write_whole(path, json.dumps(asdict(self), indent=1) + "\n")

    @property
    def modes(self) -> dict[str, int]:
        """The number of tasks by mode, the largest first; a task with several modes counts in each."""
        return dict(Counter(mode for task in self.tasks for mode in task.modes).most_common())

    def changes(self, before: Mapping[str, bool], now: Mapping[str, bool]) -> dict[str, dict[str, int]]:
        """What an evaluation shows, by mode: ``tasks``, ``solved``, ``forgotten`` and ``regained``.

        Args:
            before: the :func:`outcomes` of the evaluation before.
            now: those of this one. A task without an outcome counts nowhere.

        >>> tasks = (SuiteTask("a", "heat", ("loop",), 1, 2), SuiteTask("b", "heat", ("loop", "lost"), 1, 3))
        >>> Suite("Toy", "train", tasks).changes({"a": True, "b": False}, {"b": True})["loop"]
        {'tasks': 1, 'solved': 1, 'forgotten': 0, 'regained': 1}
        """
        found = {}
        for mode in self.modes:
            own = [task.task_id for task in self.tasks if mode in task.modes and task.task_id in now]
            pairs = [(before.get(task_id), now[task_id]) for task_id in own]
            found[mode] = {
                "tasks": len(own),
                "solved": sum(now[task_id] for task_id in own),
                "forgotten": pairs.count((True, False)),
                "regained": pairs.count((False, True)),
            }
        return found


def _limited(tasks: list[SuiteTask], limit: int) -> list[SuiteTask]:
    """Takes the modes in turn, so that a rare one is there."""
    by_mode: dict[str, list[SuiteTask]] = {}
    for task in tasks:  # the newest last
        by_mode.setdefault(task.modes[-1], []).append(task)
    kept: list[SuiteTask] = []
    while len(kept) < min(limit, len(tasks)):
        for mode in sorted(by_mode):
            if by_mode[mode] and len(kept) < limit:
                kept.append(by_mode[mode].pop())
    return sorted(kept, key=tasks.index)


def evaluations(run: Path, tasks: Iterable[str] = ()) -> dict[int, dict[str, Any]]:
    """The evaluations of a run on one suite, by iteration.

    Args:
        tasks: of the suite; none: those of the newest evaluation.
    """
    files = sorted(run.glob(EVALUATIONS))
    found = {int(file.stem.removeprefix("suite-")): json.loads(file.read_text(encoding="utf-8")) for file in files}
    played = {iteration: {record["task_id"] for record in one["records"]} for iteration, one in found.items()}
    asked = {*tasks} or (played[max(played)] if played else set())
    return {iteration: one for iteration, one in found.items() if played[iteration] == asked}


def outcomes(evaluation: Mapping[str, Any]) -> dict[str, bool]:
    """Whether each task of an evaluation was won; those whose environment failed are left out."""
    return {record["task_id"]: record["won"] for record in evaluation["records"] if record["stop_reason"] != "error"}


def matrix(run: Path) -> dict[str, dict[int, dict[str, int]]]:
    """Of a run's newest suite by failure mode and iteration: ``tasks``, ``solved``, ``forgotten`` and ``regained``.

    The first mode, ``all``, has the tasks and the solved ones alone. Empty if the run has played no suite.
    """
    found: dict[str, dict[int, dict[str, int]]] = {}
    for iteration, evaluation in evaluations(run).items():
        won = outcomes(evaluation)
        every = {"tasks": len(won), "solved": sum(won.values())}
        # The modes are missing if the run was killed between the two.
        for mode, row in {"all": every, **evaluation.get("modes", {})}.items():
            found.setdefault(mode, {})[iteration] = row
    return found


__all__ = ["EVALUATIONS", "Suite", "SuiteTask", "evaluations", "matrix", "outcomes"]
