"""Compares two agents on one split, task by task.

A *side* is one agent, measured once or several times (record files of several seeds). Its word on a task is the mean
over all its episodes there; what is compared are these pairs. That takes the differences between tasks, the greatest
part of the noise, out of the interval.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from roleagent.agents.evaluation import statistics
from roleagent.agents.evaluation.records import PROTOCOL, Record, read_records
from roleagent.options import differing
from roleagent.tasks.split import levels, split_text

_SPLIT_KEYS = ("env_id", "split", "tasks", "digest")
_ELSEWHERE = ("batch", "seed", "task_split", "data", *_SPLIT_KEYS)
_IGNORED = ("agent", *_ELSEWHERE)
"""Header keys that may differ: the agent, and what is compared elsewhere."""
OF_ONE_AGENT = ("protocol", "versions", "judge", "lessons", *_ELSEWHERE)
"""Header keys that may differ between evaluations of one agent, judge and lessons, whose episodes belong together."""


@dataclass(frozen=True)
class EvalRecords:
    """The records of one evaluation.

    Attributes:
        task_split: environment, split, number of tasks and digest, and the data where the file names them.
        settings: everything else in the header.
        records: the newest of each attempt.
    """

    path: Path
    task_split: Mapping[str, Any]
    settings: Mapping[str, Any]
    records: Sequence[Record]

    @classmethod
    def read(cls, path: Path) -> EvalRecords:
        """Reads a record file of ``evaluate.py``, a run folder (its ``after.json``), or such a JSON file itself.

        Raises:
            ValueError: the path is none of them, has no outcomes, or was written by a newer version.
        """
        if path.is_dir():
            path = path / "after.json"
            if not path.exists():
                raise ValueError(f"{path.parent} has no after.json: the run has not been measured at its end yet")
        if not path.exists():
            raise ValueError(f"no record file {path}")
        found = _measured_in_training(path) if path.suffix == ".json" and not _has_header(path) else _measured(path)
        if found.settings.get("protocol", 0) > PROTOCOL:
            raise ValueError(f"{path} was written by a newer version of roleagent: use that version")
        if not any(record.sound for record in found.records):
            raise ValueError(f"{path} holds no episode with an outcome")
        if absent := [name for name in _SPLIT_KEYS if found.task_split[name] is None]:
            raise ValueError(f"{path} does not say on which tasks it was measured ({', '.join(absent)} missing)")
        return found

    @property
    def agent(self) -> str:
        """The agent's name; of an evaluation during training, the run folder's."""
        return str(self.settings["agent"]["name"] if "agent" in self.settings else self.path.resolve().parent.name)

    @classmethod
    def of(cls, name: str, summary: Mapping[str, Any]) -> EvalRecords:
        """Those of an evaluation of a training run (``before.json``, …), without its settings."""
        return cls(Path(name), summary["task_split"], {}, [Record(**row) for row in summary["records"]])


def _has_header(path: Path) -> bool:
    """Whether a file begins with the header of a record file, in a line of its own."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            head = json.loads(lines.readline())
    except (ValueError, OSError):
        return False
    return isinstance(head, dict) and "protocol" in head and "records" not in head


def _measured(path: Path) -> EvalRecords:
    header, records, _ = read_records(path)
    task_split = _task_split(header)
    latest = {record.attempt: record for record in records}
    # Headers have these only where they are; against none they are a difference worth a line.
    absent = dict.fromkeys(("judge", "lessons", "program", "files", "sampler"))
    return EvalRecords(path, task_split, {**absent, **header}, tuple(latest.values()))


def _task_split(header: Mapping[str, Any]) -> dict[str, Any]:
    return {name: header.get(name) for name in (*_SPLIT_KEYS, "data")}


def _measured_in_training(path: Path) -> EvalRecords:
    """An evaluation of a training run; its settings are in the run's configuration."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
        if isinstance(found["records"], str):
            raise ValueError(f"{path} is a result; compare wants the records, {found['records']}")
        records = tuple(Record(**row) for row in found["records"])
        task_split = _task_split(found["task_split"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} holds no records of an evaluation") from error
    config = path.parent / "config.yaml"
    return EvalRecords(path, task_split, _settings_of_run(config, path.stem) if config.exists() else {}, records)


def _settings_of_run(config: Path, evaluation: str) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(config.read_text(encoding="utf-8-sig"))
        env, lessons = tree["env"], tree.get("lessons", {})
        if lessons.get("show", "none") == "none" or not lessons["evaluate"]:
            lessons = {}
        return {
            "kwargs": env["kwargs"] if isinstance(env, Mapping) else {one["name"]: one["kwargs"] for one in env},
            "agent": {"name": config.resolve().parent.name, "evaluation": evaluation},
            "temperature": tree["rollout"][f"eval_{'sampled' if evaluation.endswith('-sampled') else 'temperature'}"],
            "prompt": tree["prompt"],
            "lessons": {name: lessons[name] for name in ("show", "most", "tokens")} if lessons else None,
        }
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{config} is damaged: it does not say how the run was measured") from error


def compare(first: Sequence[EvalRecords], second: Sequence[EvalRecords], rng: np.random.Generator) -> dict[str, Any]:
    """The first side minus the second.

    Args:
        first, second: each one agent's evaluations, at least one.
        rng: of the bootstrap.

    Returns:
        ``task_split``; ``first`` and ``second``, the files; ``difference``, in words; ``differs``: settings that are
        not the same, with both values; ``left_out``: tasks without an outcome in a file; ``success`` over all tasks,
        ``by_type``, and ``steps`` and the ``metrics`` that both sides have, each with ``tasks``, both values, the
        ``difference`` (first minus second) and its ``interval``; of success also ``only_first``, ``only_second`` and
        McNemar's ``p`` where each task was played once; ``seeds``: the difference and its interval over
        evaluations, where both sides have several (``paired``: the same runs, measured twice);
        ``at_k``: ``pass@k`` and ``pass^k`` for each ``k``, where both sides played tasks repeatedly.

    Raises:
        ValueError: they were not measured on the same tasks, or with other data; a file is named twice on a side.
    """
    for side in (first, second):
        files = [one.path.resolve() for one in side]
        if twice := next((one.path for one, file in zip(side, files, strict=True) if files.count(file) > 1), None):
            raise ValueError(f"{twice} is named twice: a side's files are different seeds")
    task_split = first[0].task_split
    for other in (*first, *second):
        if other.task_split != task_split:
            raise ValueError(
                f"{first[0].path} was measured on {_named(first[0].task_split)} and {other.path} on "
                f"{_named(other.task_split)}: only success on the same tasks and data can be compared"
            )
    sides = [by_task(side) for side in (first, second)]
    each = [[by_task([one]) for one in side] for side in (first, second)]
    # A task that one file lacks would have the mean of other seeds there, and the difference that of the seeds.
    common = [task_id for task_id in sides[0] if all(task_id in played for side in each for played in side)]
    if not common:
        raise ValueError(f"no task has an outcome in {' and in '.join(str(one.path) for one in (*first, *second))}")
    by_type: dict[str, list[str]] = defaultdict(list)
    for task_id in common:
        for name in levels(sides[0][task_id][0].task_type):
            by_type[name].append(task_id)
    # A measure that one side lacks, such as the scores of a judge, is no difference.
    metrics = sorted(
        set.intersection(*({m for part in side.values() for r in part for m in r.metrics} for side in sides))
    )

    played = [record for part in sides[0].values() for record in part]
    measured = statistics.measured_in(played)
    concerned = {name: {record.task_id for record in statistics.having(played, measured[name])} for name in metrics}

    def of_task(side: Sequence[Mapping[str, Sequence[Record]]], task: str, value: Callable[[Record], float]) -> float:
        """The mean over a side's evaluations, whose policies differ, however often each played the task."""
        return float(np.mean([np.mean([*map(value, played[task])]) for played in side]))

    def cell(tasks: Sequence[str], value: Callable[[Record], float]) -> dict[str, Any]:
        return _paired([[of_task(side, task, value) for side in each] for task in tasks], rng)

    def success(tasks: Sequence[str]) -> dict[str, Any]:
        found = cell(tasks, lambda record: float(record.won))
        if all(len(side[task]) == 1 for side in sides for task in tasks):
            outcomes = [tuple(side[task][0].won for side in sides) for task in tasks]
            alone = outcomes.count((True, False)), outcomes.count((False, True))
            found |= {"only_first": alone[0], "only_second": alone[1], "p": statistics.mcnemar(*alone)}
        return found

    return {
        "task_split": dict(task_split),
        "first": [str(one.path) for one in first],
        "second": [str(one.path) for one in second],
        "difference": "first minus second",
        "differs": _differences(first, second),
        "left_out": int(task_split["tasks"]) - len(common),
        "success": success(common),
        "by_type": {name: success(by_type[name]) for name in sorted(by_type)},
        "metrics": {
            name: cell([task for task in common if task in concerned[name]], lambda r, n=name: r.metrics.get(n, 0.0))
            for name in metrics
        },
        "steps": cell(common, lambda record: float(record.steps)),
        "seeds": _over_seeds(first, second, set(common)),
        "at_k": _at_k(each, common, rng),
    }


def _paired(values: Sequence[Sequence[Any]], rng: np.random.Generator) -> dict[str, Any]:
    """The difference of two sides' values, one pair per task."""
    pairs = np.array(values, float)
    shares = bool(pairs.size and pairs.min() >= 0 and pairs.max() <= 1)
    found, means = statistics.difference(pairs[:, 0] - pairs[:, 1], rng, shares=shares), pairs.mean(axis=0)
    sides = {"first": float(means[0]), "second": float(means[1])}
    return {"tasks": len(pairs), **sides, "difference": found.value, "interval": [found.low, found.high]}


def _at_k(
    sides: Sequence[Sequence[Mapping[str, Sequence[Record]]]], common: Sequence[str], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """pass@k and pass^k of both sides; a task's value is the mean over a side's evaluations, whose policies differ."""
    rows: list[dict[str, Any]] = []
    for k in statistics.ks(min(max(map(len, played.values())) for side in sides for played in side)):
        tasks = [task for task in common if all(len(played[task]) >= k for side in sides for played in side)]
        if not tasks:
            continue
        chances = [
            [
                np.mean([statistics.pass_chances([r.won for r in played[task]], k) for played in side], axis=0)
                for side in sides
            ]
            for task in tasks
        ]
        some, every = (_paired([[side[part] for side in pair] for pair in chances], rng) for part in (0, 1))
        rows.append({"k": k, "pass@k": some, "pass^k": every})
    return rows


def by_split(side: Sequence[EvalRecords]) -> dict[str, list[EvalRecords]]:
    """Evaluations by the tasks and the data that they were measured on, in the order of their first file."""
    found: dict[str, list[EvalRecords]] = defaultdict(list)
    for one in side:
        found[json.dumps(one.task_split, sort_keys=True)].append(one)
    return dict(found)


def compare_all(
    first: Sequence[EvalRecords], others: Sequence[Sequence[EvalRecords]], seed: int
) -> list[dict[str, Any]]:
    """The first side minus each other one, on each split: a result of :func:`compare` for each.

    Raises:
        ValueError: a side was measured on a split that the other one was not.
    """
    found = []
    for other in others:
        ours, theirs = by_split(first), by_split(other)
        for split in {**ours, **theirs}:
            if split not in ours or split not in theirs:
                (alone, *_), others = (ours[split], other) if split in ours else (theirs[split], first)
                splits = ", ".join(dict.fromkeys(_named(one.task_split) for one in others))
                raise ValueError(
                    f"{alone.path} was measured on {_named(alone.task_split)} and the other side on {splits}: only "
                    "success on the same tasks and data can be compared"
                )
            found.append(compare(ours[split], theirs[split], np.random.default_rng(seed)))
    return found


def by_task(side: Sequence[EvalRecords]) -> dict[str, list[Record]]:
    """The episodes of a side that have an outcome, by task."""
    found: dict[str, list[Record]] = defaultdict(list)
    for one in side:
        for record in one.records:
            if record.sound:
                found[record.task_id].append(record)
    return found


def _over_seeds(first: Sequence[EvalRecords], second: Sequence[EvalRecords], common: set[str]) -> dict[str, Any] | None:
    # One run before and after: its seed is the same on both sides.
    folders = [[one.path.resolve().parent for one in side] for side in (first, second)]
    paired = sorted(folders[0]) == sorted(folders[1]) and len({*folders[0]}) == len(first)
    if paired:
        second = [second[folders[1].index(folder)] for folder in folders[0]]
    shares = [
        [float(np.mean([r.won for r in one.records if r.sound and r.task_id in common])) for one in side]
        for side in (first, second)
    ]
    if paired:
        found = statistics.spread(np.subtract(*shares))
    else:
        found = statistics.spread_difference(*shares)
    if found is None:
        return None
    interval = [found.low, found.high]
    return {
        "first": shares[0],
        "second": shares[1],
        "difference": found.value,
        "interval": interval,
        "paired": paired,
    }


def _differences(first: Sequence[EvalRecords], second: Sequence[EvalRecords]) -> dict[str, list[Any]]:
    """Settings that differ between evaluations: the values on each side."""
    return {
        name: [sorted({json.dumps(setting(one, name)) for one in side}) for side in (first, second)]
        for name in differing_settings((*first, *second))
    }


def differing_settings(evaluations: Sequence[EvalRecords], ignored: Collection[str] = _IGNORED) -> list[str]:
    """The dotted names of settings that are not the same in all evaluations, but for ``ignored`` beginnings. A training
    run records fewer settings; a missing one does not differ."""
    trees = [{key: value for key, value in one.settings.items() if key not in ignored} for one in evaluations]
    names = sorted({name for tree in trees for name in differing(trees[0], tree)})
    return [name for name in names if all(name.split(".")[0] in tree for tree in trees)]


def setting(one: EvalRecords, name: str) -> Any:
    """The value of a setting by its dotted name; None without it."""
    tree: Any = one.settings
    for part in name.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _named(task_split: Mapping[str, Any]) -> str:
    return f"{task_split['env_id']}:{task_split['split']} ({split_text(task_split)})"
