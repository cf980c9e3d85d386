"""Summaries of records: success per task type, measures, spread over repeats, token usage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roleagent.agents.evaluation import statistics
from roleagent.agents.evaluation.records import Record


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """Summarizes records over all tasks and per task type, with 95 % intervals.

    Intervals are over tasks (:mod:`roleagent.agents.evaluation.statistics`): Wilson's, or Student's for measures that
    leave [0, 1].
    Episodes without an outcome are counted in ``errors`` and are in no rate. An episode without a measure that others
    have counts 0 in it.

    Returns:
        ``n`` episodes of ``tasks`` tasks, ``success``, its ``interval``, mean ``steps`` and ``reward``, the share of
        ``invalid`` commands, ``metrics`` (``mean`` and ``interval`` by name), the mean ``prediction`` or None, and
        ``behavior`` (as ``metrics``; None without a policy's episodes), all of it over all episodes; ``by_type``
        likewise, and ``macro``, the mean of the types' success; ``repeats`` (each one's ``success``, their ``mean``,
        ``std`` and ``interval``) or None for a single one; ``by_trial``, the shares won within 1, 2, … trials, or None.
    """
    sound = [record for record in records if record.sound]
    by_type: dict[str, list[Record]] = defaultdict(list)
    for record in sound:
        by_type[record.task_type].append(record)
    names = sorted({name for record in sound for name in record.metrics})
    behavior = sorted({name for record in sound for name in record.behavior})
    predicted = [record.prediction for record in sound if record.prediction is not None]
    return {
        **_part(sound, names),
        "reward": _mean([record.reward for record in sound]),
        "prediction": _mean(predicted) if predicted else None,
        "behavior": _behavior(sound, behavior) if behavior else None,
        "errors": len(records) - len(sound),
        "repeats": _repeats(sound),
        "by_trial": _by_trial(sound),
        "macro": _mean([_mean([record.won for record in part]) for part in by_type.values()]),
        "by_type": {name: _part(by_type[name], names) for name in sorted(by_type)},
    }


def _part(records: Sequence[Record], metrics: Sequence[str]) -> dict[str, Any]:
    tasks = [record.task_id for record in records]
    success = statistics.rate([record.won for record in records], tasks)
    steps = sum(record.steps for record in records)
    return {
        "n": len(records),
        "tasks": len(set(tasks)),
        "success": success.value,
        "interval": [success.low, success.high],
        "steps": steps / len(records) if records else 0.0,
        "invalid": sum(record.invalid for record in records) / steps if steps else 0.0,
        "metrics": {name: _metric([record.metrics.get(name, 0.0) for record in records], tasks) for name in metrics},
    }


def _metric(values: Sequence[float], tasks: Sequence[str]) -> dict[str, Any]:
    found = statistics.mean(values, tasks)
    return {"mean": found.value, "interval": [found.low, found.high] if np.isfinite(found.low) else None}


def _behavior(records: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    tasks = [record.task_id for record in records]
    return {name: _metric([record.behavior.get(name, 0.0) for record in records], tasks) for name in names}


def _repeats(records: Sequence[Record]) -> dict[str, Any] | None:
    by_repeat: dict[int, list[bool]] = defaultdict(list)
    for record in records:
        by_repeat[record.repeat].append(record.won)
    success = [_mean(by_repeat[repeat]) for repeat in sorted(by_repeat)]
    found = statistics.spread(success)
    if found is None:
        return None
    std = float(np.std(success, ddof=1))
    return {"success": success, "mean": found.value, "std": std, "interval": [found.low, found.high]}


def _by_trial(records: Sequence[Record]) -> list[float] | None:
    most = max((record.trials for record in records), default=1)
    if most == 1:
        return None
    return [_mean([record.won and record.trials <= trial for record in records]) for trial in range(1, most + 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def spending(written: Sequence[Record], prices: tuple[float, float] | None = None) -> dict[str, Any] | None:
    """Token usage over all records of a file, failed attempts included; None without a model.

    Args:
        written: records with ``usage``.
        prices: money per million prompt and per million completion tokens.

    Returns:
        ``answers``, ``prompt_tokens``, ``completion_tokens``, ``estimated``, ``cut``, ``corrections``; where timed,
        ``seconds_per_answer`` and ``slow_seconds_per_answer`` (95 % of the episodes were answered faster on average);
        with prices, ``cost``.
    """
    asked = [record.usage for record in written if record.usage.get("answers")]
    if not asked:
        return None
    names = ("answers", "prompt_tokens", "completion_tokens", "estimated", "cut", "corrections")
    total: dict[str, Any] = {name: int(sum(usage.get(name, 0) for usage in asked)) for name in names}
    timed = [usage for usage in asked if "seconds" in usage]
    if timed:
        waits = [usage["seconds"] / usage["answers"] for usage in timed]
        total["seconds_per_answer"] = sum(u["seconds"] for u in timed) / sum(u["answers"] for u in timed)
        total["slow_seconds_per_answer"] = float(np.quantile(waits, 0.95))
    if prices is not None:
        total["cost"] = (total["prompt_tokens"] * prices[0] + total["completion_tokens"] * prices[1]) / 1e6
    return total


def result_rows(summaries: Mapping[str, Mapping[str, Any]], details: bool = False) -> list[list[str]]:
    """Table rows of summaries side by side: all tasks, then each task type.

    Args:
        summaries: by the name of their column, from :func:`summarize`.
        details: whether columns with the mean number of steps and with the measures, times a hundred, follow each.

    >>> result_rows({"random": summarize([Record("t", "heat", True, 1.0, 4, "won")])}, details=True)[1]
    ['heat', '100.0%  [20.7%, 100.0%]  n=1', '4.0']
    """
    names = sorted({name for summary in summaries.values() for name in summary["by_type"]})
    rows = []
    for label in ["all", *names]:
        row = [label]
        for summary in summaries.values():
            part = summary if label == "all" else summary["by_type"].get(label)
            low, high = part["interval"] if part else (0.0, 1.0)
            row.append(f"{part['success']:.1%}  [{low:.1%}, {high:.1%}]  n={part['n']}" if part else "–")
            if details:
                row.append(f"{part['steps']:.1f}" if part else "–")
                row += [f"{100 * part['metrics'][m]['mean']:.1f}" if part else "–" for m in summary["metrics"]]
        rows.append(row)
    return rows
