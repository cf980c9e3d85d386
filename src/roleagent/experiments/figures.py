"""The figures of an experiment, computed from its run folders."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roleagent.agents.evaluation import statistics
from roleagent.agents.evaluation.comparison import EvalRecords, compare
from roleagent.agents.evaluation.records import Record
from roleagent.agents.evaluation.statistics import Estimate
from roleagent.commands import nearest
from roleagent.config import ConfigError
from roleagent.config.settings import EnvConfig
from roleagent.curricula import suite
from roleagent.curricula.library import FailureLibrary
from roleagent.experiments.plan import SUCCESS, Branch, Evaluation, Plan
from roleagent.experiments.runs import begun_at, iterations_of
from roleagent.learners.run.folder import read_config
from roleagent.learners.run.metrics import partial_correlation
from roleagent.reports.data.load_trajectories import TrajectoryReader
from roleagent.tasks.split import is_of, levels
from roleagent.timer import PARTS
from roleagent.types import is_flat

Key = int | Branch
"""A seed, or of forks a branch."""


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
                    return point.steps, True
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


def course(folder: Path, measure: str = SUCCESS) -> Course:
    """The learning curve of a finished run, on the tasks that all its evaluations have."""
    steps: dict[int, float] = {0: 0.0}
    for row in iterations_of(folder):
        steps[row["step"]] = steps[row["step"] - 1] + row["environment_steps"]
    last = max(steps)
    files = {int(path.stem.rpartition("-")[2]): path for path in folder.glob("iteration-*.json")}
    files = {0: folder / "before.json", **files, last: files.get(last, folder / "after.json")}
    played = {
        iteration: [Record(**row) for row in json.loads(path.read_text(encoding="utf-8"))["records"]]
        for iteration, path in sorted(files.items())
    }
    common = set.intersection(*({record.task_id for record in records if record.sound} for records in played.values()))

    def reached(records: Sequence[Record]) -> float:
        shared = [record for record in records if record.sound and record.task_id in common]
        return float(np.mean([outcome(record, measure) for record in concerned(shared, measure)]))

    return Course(tuple(Point(steps[iteration], reached(records)) for iteration, records in played.items()))


@dataclass(frozen=True)
class ArmRuns:
    """The finished runs of an arm.

    Attributes:
        runs: their folders, by seed; of forks by branch.
        measure: the compared measure, ``success`` or a metric of the environment.
    """

    name: str
    runs: Mapping[Key, Path]
    measure: str = SUCCESS

    @cached_property
    def logs(self) -> dict[Key, list[dict[str, Any]]]:
        """The logged iterations of each run; of a fork its own ones."""
        return {seed: iterations_of(folder, own=True) for seed, folder in self.runs.items()}

    @cached_property
    def courses(self) -> dict[Key, Course]:
        """The learning curve of each run."""
        return {seed: course(folder, self.measure) for seed, folder in self.runs.items()}

    def measured(self, evaluation: Evaluation, seeds: Sequence[Key] = ()) -> list[EvalRecords]:
        """The policies' evaluations, of some seeds or all."""
        chosen = [folder for seed, folder in self.runs.items() if not seeds or seed in seeds]
        return [EvalRecords.read(evaluation.records(folder)) for folder in chosen]

    def records(self, evaluation: Evaluation) -> list[Record]:
        """All episodes of an evaluation that have an outcome."""
        return [record for one in self.measured(evaluation) for record in one.records if record.sound]

    def mean(self, name: str, of: Callable[[Sequence[float]], float] = np.mean) -> Estimate | float | None:
        """A logged number, aggregated over iterations by ``of`` and averaged over seeds, with Student's interval over
        several seeds (:func:`independent`)."""
        columns = {key: [row[name] for row in rows if name in row] for key, rows in self.logs.items()}
        known = {key: float(of(row)) for key, row in columns.items() if row}
        values = independent([*known.values()], [*known]) if known else []
        if not values or not all(map(math.isfinite, values)):
            return None
        return statistics.spread(values) or values[0]


def finished(plan: Plan, out: Path) -> list[ArmRuns]:
    """The arms with finished and measured runs, in the report's order."""
    found = {
        arm: {seed: folder for seed, folder in folders.items() if plan.is_finished(folder)}
        for arm, folders in plan.folders(plan.jobs(), out).items()
    }
    return [ArmRuns(name, found[name], plan.measure) for name in plan.reported if found.get(name)]


def success(arm: ArmRuns, evaluation: Evaluation) -> dict[str, Any]:
    """An arm's success on the split: over all and by task type with intervals over tasks; its measure by seed."""
    records = arm.records(evaluation)
    measured = arm.measured(evaluation)
    by_seed = [
        float(np.mean([outcome(r, arm.measure) for r in concerned(one.records, arm.measure) if r.sound]))
        for one in measured
    ]
    spread = statistics.spread(independent(by_seed, [*arm.runs]))
    types = sorted({name for record in records for name in levels(record.task_type)})
    metrics = sorted({name for record in records for name in record.metrics})
    return {
        "episodes": len(records),
        "all": _rate(records),
        "by_type": {name: _rate([r for r in records if name in levels(r.task_type)]) for name in types},
        "metrics": {name: float(np.mean([outcome(r, name) for r in concerned(records, name)])) for name in metrics},
        "seeds": by_seed,
        "over_seeds": spread and Estimate(spread.value, max(0.0, spread.low), min(1.0, spread.high)),  # as measures are
    }


def behavior(records: Sequence[Record]) -> dict[str, float]:
    """Mean ``steps`` of an episode, and of the policy's ``behavior``: loops by length, revisions and false alarms."""
    names = sorted({name for record in records for name in record.behavior})
    steps = {"steps": float(np.mean([record.steps for record in records]))}
    return steps | {name: float(np.mean([record.behavior.get(name, 0.0) for record in records])) for name in names}


def _rate(records: Sequence[Record]) -> Estimate:
    return statistics.rate([record.won for record in records], [record.task_id for record in records])


@dataclass(frozen=True)
class Difference:
    """The gain of one arm over another in one evaluation, over their common seeds, in [-1, 1].

    Attributes:
        arm: the second side.
        over: the first side.
        seeds: the common ones; of forks the common branches.
        over_tasks: bootstrap over tasks for these seeds.
        gaps: one per seed.
        alone: episodes that only the first and only the second side won; None where the measure is no success.
        mcnemar: p value of these pairs, if each task was played once in all. Over several seeds pairs of the same task
            depend on each other, and the test would call too much significant.
    """

    arm: str
    over: str
    evaluation: Evaluation
    measure: str
    seeds: tuple[Key, ...]
    over_tasks: Estimate
    gaps: tuple[float, ...]
    alone: tuple[int, int] | None
    mcnemar: float | None

    @property
    def independent(self) -> list[float]:
        """The gaps that are draws of their own: :func:`independent`."""
        return independent(self.gaps, self.seeds)

    @property
    def over_seeds(self) -> Estimate | None:
        """The mean of the independent gaps with Student's interval; None where they have none."""
        return statistics.spread(self.independent)

    @property
    def mean(self) -> Estimate:
        """The mean of the independent gaps, with bounds that are NaN where they have no interval."""
        return self.over_seeds or Estimate(float(np.mean(self.independent)), math.nan, math.nan)

    @property
    def detectable(self) -> float | None:
        """What so many gaps with this spread detect: :func:`detectable`."""
        return detectable(self.independent)


def difference(first: ArmRuns, second: ArmRuns, evaluation: Evaluation, measure: str = SUCCESS) -> Difference | None:
    """The gain of the second arm over the first; None without common seeds."""
    seeds = tuple(seed for seed in first.runs if seed in second.runs)
    if not seeds:
        return None
    ours, theirs = (
        [replace(one, records=concerned(one.records, measure)) for one in side.measured(evaluation, seeds)]
        for side in (second, first)
    )
    found = compare(ours, theirs, np.random.default_rng(0))
    cell = found[SUCCESS] if is_success(measure) else found["metrics"][measure]
    pairs, gaps = [], []
    for one, other in zip(theirs, ours, strict=True):
        outcomes = [{r.attempt: outcome(r, measure) for r in side.records if r.sound} for side in (one, other)]
        matched = [(outcomes[0][key], outcomes[1][key]) for key in outcomes[0] if key in outcomes[1]]
        pairs += matched
        gaps.append(float(np.mean([gained - given for given, gained in matched])))
    return Difference(
        arm=second.name,
        over=first.name,
        evaluation=evaluation,
        measure=measure,
        seeds=seeds,
        over_tasks=Estimate(cell["difference"], *cell["interval"]),
        gaps=tuple(gaps),
        alone=(pairs.count((1.0, 0.0)), pairs.count((0.0, 1.0))) if is_success(measure) else None,
        mcnemar=cell.get("p"),
    )


def independent(gaps: Sequence[float], keys: Sequence[Key]) -> list[float]:
    """Gaps that are draws of their own: of forks from several runs the mean of each run.

    >>> independent([0.1, 0.3, 0.5], [Branch(0, 20, 0), Branch(0, 40, 0), Branch(1, 20, 0)])
    [0.2, 0.5]
    """
    seeds = [key.seed if isinstance(key, Branch) else key for key in keys]
    if len({*seeds}) == 1:
        return list(gaps)
    by_seed = {seed: [gap for gap, own in zip(gaps, seeds, strict=True) if own == seed] for seed in seeds}
    return [float(np.mean(values)) for values in by_seed.values()]


def differences(plan: Plan, arms: Sequence[ArmRuns]) -> list[Difference]:
    """All compared arms of a plan, evaluation by evaluation: success, then the plan's measure if it is another one."""
    by_name = {arm.name: arm for arm in arms}
    return [
        found
        for evaluation in plan.evaluations
        for measure in dict.fromkeys((SUCCESS, plan.measure))
        for first, second in plan.pairs
        if first in by_name
        and second in by_name
        and (found := difference(by_name[first], by_name[second], evaluation, measure)) is not None
    ]


class Gain(NamedTuple):
    """What a change gained in the forks that begin after one iteration.

    Attributes:
        task_type: of the tasks; empty: all of them.
        tasks: how many.
        gained: in [-1, 1], with its interval over these tasks.
    """

    at: int
    task_type: str
    tasks: int
    gained: Estimate


def ledger(first: ArmRuns, second: ArmRuns, evaluation: Evaluation) -> list[Gain]:
    """Success of the second arm over that of the first along the run, over all tasks and by type."""
    found = []
    common = [key for key in first.runs if key in second.runs and isinstance(key, Branch)]
    for at in sorted({key.at for key in common}):
        keys = [key for key in common if key.at == at]
        ours, theirs = (side.measured(evaluation, keys) for side in (second, first))
        cells = compare(ours, theirs, np.random.default_rng(0))
        for name, cell in {"": cells["success"], **cells["by_type"]}.items():
            found.append(Gain(at, name, cell["tasks"], Estimate(cell["difference"], *cell["interval"])))
    return found


class TaskGain(NamedTuple):
    """What a change gained on training tasks of one kind, in the forks that begin after one iteration.

    Attributes:
        by: ``type`` of the tasks; ``mode`` of their newest failure in the library at the checkpoint; ``origin``,
            whether a curriculum chose them or chance.
        name: of the kind.
        tasks: how many both sides played.
        gained: in [-1, 1], with its interval over these tasks.
    """

    at: int
    by: str
    name: str
    tasks: int
    gained: Estimate


NO_FAILURE = "no failure yet"
"""The mode of tasks that the library does not have."""


def task_ledger(first: ArmRuns, second: ArmRuns) -> list[TaskGain]:
    """Success of the second arm over that of the first in training, on tasks that both sides of a fork played."""
    found = []
    common = [key for key in first.runs if key in second.runs and isinstance(key, Branch)]
    for at in sorted({key.at for key in common}):
        gaps: dict[tuple[str, str], dict[str, list[float]]] = {}
        for key in (key for key in common if key.at == at):
            theirs, ours = _played(first.runs[key]), _played(second.runs[key])
            modes = _modes(at, first.runs[key], second.runs[key])
            both = [task_id for task_id in theirs if task_id in ours]
            sought = {task_id for task_id in both if any(theirs[task_id].chosen + ours[task_id].chosen)}
            for task_id in both:
                kinds = [("type", name) for name in levels(theirs[task_id].task_type)]
                kinds += [("mode", modes.get(task_id, NO_FAILURE))] if modes else []
                kinds += [("origin", "curriculum" if task_id in sought else "chance")] if sought else []
                gap = float(np.mean(ours[task_id].won)) - float(np.mean(theirs[task_id].won))
                for kind in kinds:
                    gaps.setdefault(kind, {}).setdefault(task_id, []).append(gap)
        for by, name in sorted(gaps):
            values = np.array([np.mean(own) for own in gaps[by, name].values()])
            found.append(TaskGain(at, by, name, len(values), statistics.difference(values, np.random.default_rng(0))))
    return found


class _Played(NamedTuple):
    task_type: str
    won: list[bool]
    chosen: list[bool]  # by a curriculum


def _played(folder: Path) -> dict[str, _Played]:
    """The training tasks of a fork's own iterations."""
    recorded, found = TrajectoryReader(folder), dict[str, _Played]()
    for iteration in (number for number in recorded.files if number > begun_at(folder)):
        for row in (row for rows in recorded.groups(iteration) for row in rows):
            task = found.setdefault(row["task_id"], _Played(row["task_type"], [], []))
            task.won.append(row["won"])
            task.chosen.append(_chooser(row) == "curriculum")
    return found


def _modes(at: int, *folders: Path) -> dict[str, str]:
    """The modes of tasks at a checkpoint, by the library of a side that has one."""
    for folder in (folder for folder in folders if (folder / "failures.db").exists()):
        library = FailureLibrary(folder / "failures.db", read_only=True)
        try:
            known = library.newest_modes(at)
        finally:
            library.close()
        several = read_config(folder).env
        if isinstance(several, EnvConfig):
            return {task_id: mode for (_, task_id), mode in known.items()}
        # The library knows an environment by its id, and by its name where another one has that id, too.
        of_id = {one.id: one.name for one in several} | {f"{one.name}:{one.id}": one.name for one in several}
        return {f"{of_id[env_id]}/{task_id}": mode for (env_id, task_id), mode in known.items() if env_id in of_id}
    return {}


class Spread(NamedTuple):
    """How much a difference of two arms varies, by what the two runs have in common.

    Attributes:
        shared: in words.
        pairs: of runs.
        deviation: standard deviation of their differences, in [0, 1].
    """

    shared: str
    pairs: int
    deviation: float


def spreads(first: ArmRuns, second: ArmRuns, evaluation: Evaluation, measure: str = SUCCESS) -> list[Spread]:
    """The variation of the second arm over the first: of pairs, and of the same forks put together in other ways.

    Two forks of different runs share nothing but the iteration: so much would arms vary that have warm starts of their
    own, and have differed since the checkpoint alone.
    """
    reached = []
    for arm in (first, second):
        means = (
            float(np.mean([outcome(r, measure) for r in concerned(one.records, measure) if r.sound]))
            for one in arm.measured(evaluation)
        )
        reached.append({key: mean for key, mean in zip(arm.runs, means, strict=True) if isinstance(key, Branch)})
    ways: dict[str, Callable[[Branch, Branch], bool]] = {
        "checkpoint and random numbers": lambda a, b: a == b,
        "checkpoint": lambda a, b: a[:2] == b[:2] and a != b,
        "nothing": lambda a, b: a.seed != b.seed and a.at == b.at,
    }
    found = []
    for shared, fit in ways.items():
        gaps = [theirs - ours for a, ours in reached[0].items() for b, theirs in reached[1].items() if fit(a, b)]
        if len(gaps) > 1:
            found.append(Spread(shared, len(gaps), float(np.std(gaps, ddof=1))))
    return found


def zeros(first: ArmRuns, second: ArmRuns, evaluation: Evaluation) -> tuple[int, int]:
    """Of how many forks the interval over tasks holds 0, and how many there are."""
    held = []
    for key in (key for key in first.runs if key in second.runs):
        ours, theirs = (side.measured(evaluation, [key]) for side in (second, first))
        low, high = compare(ours, theirs, np.random.default_rng(0))["success"]["interval"]
        held.append(low <= 0 <= high)
    return sum(held), len(held)


class Parting(NamedTuple):
    """How far the two sides of forks have parted after some iterations.

    Attributes:
        iterations: since the checkpoint.
        forks: how many.
        alike: share of the tasks with the same outcome on both sides.
        deviation: standard deviation of the differences in success, in [0, 1].
    """

    iterations: int
    forks: int
    alike: float
    deviation: float


def partings(first: ArmRuns, second: ArmRuns) -> list[Parting]:
    """How soon random numbers in common stop to help, by the evaluations during training."""
    found: dict[int, list[tuple[float, float]]] = {}
    for key in (key for key in first.runs if key in second.runs):
        folders, at = (first.runs[key], second.runs[key]), begun_at(first.runs[key])
        for file in sorted(folders[0].glob("iteration-*.json")):
            iterations, other = int(file.stem.rpartition("-")[2]) - at, folders[1] / file.name
            if iterations < 1 or not other.exists():
                continue
            ours, theirs = (suite.outcomes(json.loads(path.read_text(encoding="utf-8"))) for path in (file, other))
            gaps = np.array([float(theirs[task]) - float(ours[task]) for task in ours if task in theirs])
            if not gaps.size:
                continue
            found.setdefault(iterations, []).append((float(np.mean(gaps == 0)), float(gaps.mean())))
    return [
        Parting(iterations, len(rows), float(np.mean([row[0] for row in rows])), float(np.std(gaps, ddof=1)))
        for iterations, rows in sorted(found.items())
        if len(gaps := [row[1] for row in rows]) > 1
    ]


def outcome(record: Record, measure: str) -> float:
    """The value of a measure for an episode that it concerns."""
    return float(record.won) if is_success(measure) else record.metrics.get(measure, 0.0)


def is_success(measure: str) -> bool:
    """Whether a measure is success, of all tasks or some."""
    return measure == SUCCESS or type_of(measure) is not None


def type_of(measure: str) -> str | None:
    """The type or the pattern of task ids whose success is measured; None: the measure is of all tasks.

    >>> type_of("success/cool"), type_of("success")
    ('cool', None)
    """
    name, found, kind = measure.partition("/")
    return kind if found and name == SUCCESS else None


def check_measure(measure: str, records: Sequence[Record]) -> None:
    """Refuses a measure that no episode has.

    Raises:
        ConfigError: one line with those that there are.
    """
    metrics = {name for record in records for name in record.metrics}
    known = [
        SUCCESS,
        *sorted(f"{SUCCESS}/{kind}" for kind in {kind for record in records for kind in levels(record.task_type)}),
        *sorted(metrics),
    ]
    if measure not in known and not (type_of(measure) and concerned(records, measure)):
        raise ConfigError(
            f"no episode has a measure {measure!r}{nearest(measure, known)}; there are {', '.join(known)}"
        )


def concerned(records: Sequence[Record], measure: str) -> list[Record]:
    """The episodes that a measure is about."""
    kind = type_of(measure)
    if kind is not None:
        return [record for record in records if is_of(kind, record.task_id, record.task_type)]
    return (
        [*records]
        if measure == SUCCESS
        else statistics.having(records, statistics.measured_in(records).get(measure, ()))
    )


def detectable(gaps: Sequence[float]) -> float | None:
    """The true difference that a paired t test at 5 % detects with a power of about 80 % (77 % with three seeds); None
    where the gaps have no :func:`~roleagent.agents.evaluation.statistics.spread`."""
    if statistics.spread(gaps) is None:
        return None
    freedom = len(gaps) - 1
    quantiles = statistics.student(freedom) + statistics.student(freedom, tail=0.2)
    return quantiles * float(np.std(gaps, ddof=1)) / math.sqrt(len(gaps))


def prediction_correlation(arm: ArmRuns, evaluation: Evaluation) -> dict[str, Any] | None:
    """Correlation of an episode's mean prediction score and the arm's measure; point-biserial for success.

    Both are taken as deviations from the mean of their seed: policies that win more often may predict better, too, and
    that says nothing of an episode.

    Returns:
        ``n`` episodes; ``r`` with a bootstrap interval over tasks; ``above`` and ``below``, the mean scores of episodes
        above and not above the mean of the measure (for success: won and lost). None if scores or outcomes do not vary.
    """
    by_seed = [
        [r for r in concerned(one.records, arm.measure) if r.sound and r.prediction is not None]
        for one in arm.measured(evaluation)
    ]
    records = [record for own in by_seed for record in own]
    came_to = np.array([outcome(record, arm.measure) for record in records])
    scores = np.array([record.prediction for record in records], float)
    seeds = np.repeat(np.arange(len(by_seed)), [*map(len, by_seed)])
    r = partial_correlation(scores, came_to, seeds)
    if len(records) < 3 or math.isnan(r):
        return None
    _, task = np.unique([record.task_id for record in records], return_inverse=True)
    rng, members = np.random.default_rng(0), [np.flatnonzero(task == number) for number in range(task.max() + 1)]
    draws = []
    for _ in range(1000):
        chosen = np.concatenate([members[number] for number in rng.integers(len(members), size=len(members))])
        draws.append(partial_correlation(scores[chosen], came_to[chosen], seeds[chosen]))
    low, high = np.nanquantile(draws, [0.025, 0.975])
    above = came_to > came_to.mean()
    halves = {"above": float(scores[above].mean()), "below": float(scores[~above].mean())}
    return {"n": len(records), "r": Estimate(r, float(low), float(high)), **halves}


def efficiency(arm: ArmRuns, threshold: float) -> dict[str, Any]:
    """Environment steps by seed until the measure reached a threshold, and the number of seeds that reached it."""
    found = {seed: one.steps_to(threshold) for seed, one in arm.courses.items()}
    mean = float(np.mean([one.mean for one in arm.courses.values()]))
    return {"steps": found, "reached": sum(reached for _, reached in found.values()), "mean": mean}


def growth(arm: ArmRuns) -> dict[str, dict[Key, list[int]]]:
    """Entries of the failure libraries, by mode and seed, after each iteration of the runs."""
    new: dict[Key, dict[str, dict[int, int]]] = {}
    for seed, folder in arm.runs.items():
        path = folder / "failures.db"
        if not path.exists():
            continue
        library = FailureLibrary(path, read_only=True)
        try:
            new[seed] = {}
            for row in library.growth():
                new[seed].setdefault(row["mode"], {})[row["iteration"]] = row["new_entries"]
        finally:
            library.close()
    modes = dict.fromkeys(mode for of_seed in new.values() for mode in of_seed)
    found: dict[str, dict[Key, list[int]]] = {mode: {} for mode in modes}
    for seed, of_seed in new.items():
        steps = [row["step"] for row in iterations_of(arm.runs[seed])]
        last = max([*steps, *(number for entries in of_seed.values() for number in entries)], default=0)
        for mode in modes:
            entries = of_seed.get(mode, {})
            found[mode][seed] = [*accumulate(entries.get(number, 0) for number in range(1, last + 1))]
    return found


@dataclass(frozen=True)
class Origin:
    """Statistics of the groups whose task had one origin.

    Attributes:
        groups: how many.
        reward: mean over their episodes.
        zero_variance: share of groups whose episodes all have the same reward.
        never_won: share of groups without a won episode.
    """

    groups: int
    reward: float
    zero_variance: float
    never_won: float


def origins(arm: ArmRuns) -> dict[str, Origin]:
    """The groups by the origin of their task: ``curriculum``, ``simulator`` (GenEnv's) or ``chance``; empty if it was
    always chance."""
    outcomes: dict[str, list[list[tuple[float, bool]]]] = {"curriculum": [], "simulator": [], "chance": []}
    for folder in arm.runs.values():
        recorded = TrajectoryReader(folder)
        for iteration in (number for number in recorded.files if number > begun_at(folder)):
            for rows in recorded.groups(iteration):
                outcomes[_chooser(rows[0])].append([(row["reward"], row["won"]) for row in rows])
    found = {}
    for name, groups in outcomes.items():
        rewards = [[reward for reward, _ in group] for group in groups]
        if groups:
            found[name] = Origin(
                len(groups),
                float(np.mean([np.mean(group) for group in rewards])),
                float(np.mean([is_flat(group) for group in rewards])),
                float(np.mean([not any(won for _, won in group) for group in groups])),
            )
    return {} if [*found] == ["chance"] else found


def _chooser(row: Mapping[str, Any]) -> str:
    """What chose the task of a logged episode."""
    return {None: "chance", "fresh": "simulator", "replayed": "simulator"}.get(row["chosen_because"], "curriculum")


def written_tasks(arm: ArmRuns) -> dict[Key, dict[str, float]]:
    """How the tasks of a simulator fit the agent, by seed; without a simulator nothing.

    Returns:
        ``initial_live`` and ``present_live``: means over the probes, and their ratio ``live_ratio``; over the last
        third of the iterations the means ``fresh_success``, ``fresh_in_band``, ``base_in_band`` and ``forgetting``.
        What was never measured is left out.
    """
    found: dict[Key, dict[str, float]] = {}
    for seed, rows in arm.logs.items():
        late = rows[-math.ceil(len(rows) / 3) :]
        wanted = {f"{name}_live": (rows, f"genenv_probe_{name}_live") for name in ("initial", "present")}
        late_names = ("fresh_success", "fresh_in_band", "base_in_band", "forgetting")
        wanted |= {name: (late, f"genenv_{name}") for name in late_names}
        own = {name: [row[key] for row in part if key in row] for name, (part, key) in wanted.items()}
        means = {name: float(np.mean(values)) for name, values in own.items() if values}
        if means.get("initial_live") and "present_live" in means:
            means["live_ratio"] = means["present_live"] / means["initial_live"]
        if means:
            found[seed] = means
    return found


def time_shares(arm: ArmRuns) -> dict[str, float]:
    """Time per part as shares, and the mean ``seconds`` of an iteration."""
    rows = [row for log in arm.logs.values() for row in log]
    whole = sum(row["seconds"] for row in rows)
    parts = {name: sum(row.get(f"{name}_seconds", 0.0) for row in rows) / whole for name in (*PARTS, "other")}
    return {**parts, "seconds": whole / len(rows)}


def along(arm: ArmRuns, name: str) -> tuple[list[int], list[float]]:
    """A logged number by iteration, mean over seeds; empty if no run of the arm has it."""
    values: dict[int, list[float]] = {}
    for rows in arm.logs.values():
        for row in rows:
            if name in row:
                values.setdefault(row["step"], []).append(row[name])
    return sorted(values), [float(np.mean(values[step])) for step in sorted(values)]


def task_split_of(arm: ArmRuns, evaluation: Evaluation) -> Mapping[str, Any]:
    """The split that the arm was measured on: ``env_id``, ``split``, number of ``tasks``, ``digest``."""
    first = next(iter(arm.runs))
    return arm.measured(evaluation, [first])[0].task_split
