"""Statistics of episodes with intervals (rates, means, differences), and summaries of records: success per task type,
measures, spread over repeats, token usage.

Episodes of one task are no independent draws: a task that is hard is hard every time. So tasks, not episodes, are what
is sampled here. An episode comes with the number of its task, and all intervals hold for other tasks of the same kind.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roleagent.agents.evaluation.records import Record
from roleagent.tasks.split import levels, wilson

FEW = 10
"""Tasks of which a bootstrap says little."""
_DRAWS = 1 << 22  # of a bootstrap that are held at the same time

Numbers = npt.ArrayLike


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def rate(won: Numbers, task: Numbers) -> Estimate:
    """A share of successes with Wilson's interval over tasks.

    Where tasks were played more than once, Wilson's formula is given the *effective* number of episodes: p(1 - p)
    divided by the variance of the share with tasks as clusters. It lies between the number of tasks, as if repeats were
    nothing new, and that of episodes, as if they were other tasks. With every task played once it is plain Wilson.

    Args:
        won: ``(n,)``, 0 or 1.
        task: ``(n,)``, which task each episode played, in any naming.

    >>> rate([1, 0, 1, 1], [0, 1, 2, 3]) == (0.75, *wilson(3, 4))
    True
    >>> rate([1, 1, 0, 0], [0, 0, 1, 1]) == (0.5, *wilson(1, 2))  # repeats that always agree count once
    True
    """
    values = np.asarray(won, float)
    return _wilson_over_tasks(values, task, most=float(values.size))


def mean(values: Numbers, task: Numbers) -> Estimate:
    """A mean with an interval from the variance between tasks.

    Values that all lie in [0, 1] get Wilson's interval, which stays in there, by their effective number as in
    :func:`rate` (but scores that hardly differ may count more than once each). Others get Student's; a single task has
    none, (-∞, ∞).

    Args:
        values: ``(n,)``.
        task: ``(n,)``, which task each episode played.

    >>> [round(x, 3) for x in mean([1.0, 2.0, 3.0], [0, 1, 2])]
    [2.0, -0.484, 4.484]
    >>> mean([1, 0, 1, 1], [0, 1, 2, 3]) == rate([1, 0, 1, 1], [0, 1, 2, 3])
    True
    """
    numbers = np.asarray(values, float)
    if numbers.size and numbers.min() >= 0 and numbers.max() <= 1:
        return _wilson_over_tasks(numbers, task, most=math.inf)
    return student_mean(numbers, task)


def student_mean(values: Numbers, task: Numbers) -> Estimate:
    """A mean with Student's interval from the variance between tasks; a single task has none, (-∞, ∞).

    Args:
        values: ``(n,)``.
        task: ``(n,)``, which task each belongs to.
    """
    numbers = np.asarray(values, float)
    center = float(numbers.mean()) if numbers.size else 0.0
    variance, tasks = _variance_of_mean(numbers - center, task)
    if tasks < 2:
        return Estimate(center, -math.inf, math.inf)
    half = student(tasks - 1) * math.sqrt(variance)
    return Estimate(center, center - half, center + half)


def _wilson_over_tasks(values: npt.NDArray[np.float64], task: Numbers, most: float) -> Estimate:
    if not values.size:
        return Estimate(0.0, *wilson(0, 0))
    p = float(values.mean())
    variance, tasks = _variance_of_mean(values - p, task)
    if tasks < 2:
        effective = 1.0  # nothing is known of other tasks
    elif variance > 1e-15:
        effective = p * (1 - p) / variance * (1.96 / student(tasks - 1)) ** 2  # few tasks say little of the variance
    else:  # tasks do not differ; where episodes do not either there is nothing to go by but how many tasks there are
        effective = float(values.size if np.ptp(values) else tasks)
    effective = min(max(effective, float(tasks)), most)
    low, high = wilson(p * effective, effective)
    return Estimate(p, min(low, p), max(high, p))  # at 0 and 1 rounding may leave p out


def _variance_of_mean(deviations: npt.NDArray[np.float64], task: Numbers) -> tuple[float, int]:
    """Of a mean with these deviations from it, where tasks are drawn (the ratio estimator's); how many there are."""
    names, place = np.unique(np.asarray(task), return_inverse=True)
    sums, tasks = np.bincount(place, deviations), len(names)
    return float(sums @ sums) / max(1, deviations.size) ** 2 * (tasks / (tasks - 1) if tasks > 1 else 1.0), tasks


def difference(values: Numbers, rng: np.random.Generator, draws: int = 10_000, shares: bool = True) -> Estimate:
    """The mean of paired differences, with the bootstrap's expanded percentile interval over tasks.

    The percentiles alone are those of the normal distribution with a variance that is too small by 1/T; both sides are
    stretched as Student's interval is longer than that one (Hesterberg 2015, "What teachers should know about the
    bootstrap"): by 1 % for 200 tasks and by 22 % for ten.

    Differences of less than :data:`FEW` tasks, or that are all alike, have nothing to draw from. The interval of shares
    is then Bonett's and Price's (2012): that of the normal distribution, with one task more that was gained, and one
    that was lost. Others get Student's; a single task has none, (-∞, ∞).

    To draw tasks with replacement is to draw how often each *value* occurs, and where tasks are won or lost few values
    are different: ten thousand draws of a split of fifty thousand tasks take 2 ms (``scipy.stats.bootstrap``: 3 s).

    Args:
        values: ``(T,)``, one difference per task.
        rng: of the draws.
        draws: resampled splits.
        shares: whether they are of values in [0, 1].

    >>> [round(x, 2) for x in difference([1.0], np.random.default_rng(0))]
    [1.0, -0.73, 1.0]
    >>> [round(x, 2) for x in difference([0.0] * 200, np.random.default_rng(0))]
    [0.0, -0.01, 0.01]
    """
    numbers = np.asarray(values, float)
    if not numbers.size:
        return Estimate(0.0, -math.inf, math.inf)
    few = numbers.size < FEW or np.ptp(numbers) == 0.0
    if few and not shares:
        return spread(numbers) or Estimate(float(numbers[0]), -math.inf, math.inf)
    if few:
        more, value = np.array([*numbers, 1.0, -1.0]), float(numbers.mean())
        half = 1.96 * float(more.std()) / math.sqrt(more.size)
        low, high = max(-1.0, float(more.mean()) - half), min(1.0, float(more.mean()) + half)
        return Estimate(value, min(low, value), max(high, value))
    different, counts = np.unique(numbers, return_counts=True)
    at_once, means = max(1, _DRAWS // numbers.size), []
    for start in range(0, draws, at_once):
        some = min(at_once, draws - start)
        if 16 * len(different) < numbers.size:
            drawn = rng.multinomial(numbers.size, counts / numbers.size, size=some) @ different / numbers.size
        else:
            drawn = numbers[rng.integers(numbers.size, size=(some, numbers.size))].mean(axis=1)
        means.append(drawn)
    value, tasks = float(numbers.mean()), numbers.size
    stretched = student(tasks - 1) / 1.96 * math.sqrt(tasks / (tasks - 1))
    low, high = value + stretched * (np.quantile(np.concatenate(means), [0.025, 0.975]) - value)
    least, most = (-1.0, 1.0) if shares else (-math.inf, math.inf)
    return Estimate(value, max(least, float(low)), min(most, float(high)))


def signed(bound: float, digits: int) -> str:
    """A bound of an interval with its sign; where it would read 0 and is not, with more digits: a reader must see
    whether an interval excludes 0.

    >>> signed(4.98, 1), signed(0.016, 1), signed(-0.4, 0), signed(0.0, 0)
    ('+5.0', '+0.02', '-0.4', '+0')
    """
    while round(bound, digits) == 0 and abs(bound) > 1e-9:
        digits += 1
    return f"{bound:+.{digits}f}"


def mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's exact test: the p-value of so uneven a split, were both agents equally good.

    Args:
        only_first: tasks that the first agent alone solved.
        only_second: tasks that the second one alone solved.

    >>> round(mcnemar(1, 9), 6), mcnemar(5, 5)
    (0.021484, 1.0)
    """
    from scipy import stats  # here: it takes half a second

    n = only_first + only_second
    return float(stats.binomtest(only_first, n).pvalue) if n else 1.0


def spread(values: Numbers) -> Estimate | None:
    """The mean over repeats or seeds with Student's interval; None for less than two, or where all are equal: a few
    equal values do not say that others would be.

    >>> [round(x, 2) for x in spread([35.0, 31.5, 52.0])]
    [39.5, 12.26, 66.74]
    """
    numbers = np.asarray(values, float)
    if numbers.size < 2 or _alike(numbers):
        return None
    half = student(numbers.size - 1) * float(numbers.std(ddof=1)) / math.sqrt(numbers.size)
    return Estimate(float(numbers.mean()), float(numbers.mean()) - half, float(numbers.mean()) + half)


def spread_difference(first: Numbers, second: Numbers) -> Estimate | None:
    """The difference of two means over seeds (first minus second), by Welch; None where a side has less than two, or
    where neither varies.

    >>> [round(x, 3) for x in spread_difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])]
    [2.0, -0.267, 4.267]
    """
    a, b = np.asarray(first, float), np.asarray(second, float)
    if min(a.size, b.size) < 2:
        return None
    if _alike(a) and _alike(b):
        return None
    from scipy import stats  # here: it takes half a second

    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return Estimate(float(a.mean() - b.mean()), float(interval.low), float(interval.high))


def _alike(numbers: npt.NDArray[np.float64]) -> bool:
    """Whether values differ by rounding alone."""
    return bool(np.ptp(numbers) <= 1e-12 * max(1.0, float(np.abs(numbers).max())))


def student(freedom: float, tail: float = 0.025) -> float:
    """An upper quantile of Student's t distribution.

    Args:
        freedom: degrees of freedom, > 0.
        tail: probability above it; the default is that of a 95 % interval.

    >>> [round(student(freedom), 3) for freedom in (1, 2, 10, 1000)]
    [12.706, 4.303, 2.228, 1.962]
    """
    from scipy import stats  # here: it takes half a second

    return float(stats.t.isf(tail, freedom))


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """Summarizes records over all tasks and per task type, with 95 % intervals.

    Intervals are over tasks (:mod:`roleagent.agents.evaluation.statistics`): Wilson's, or Student's for measures that
    leave [0, 1].
    Episodes without an outcome are counted in ``errors`` and are in no rate. An episode without a measure that others
    of its environment have counts 0 in it; an environment without the measure is left out.

    Returns:
        ``n`` episodes of ``tasks`` tasks, ``success``, its ``interval``, mean ``steps`` and ``reward``, the share of
        ``invalid`` commands, ``metrics`` (``mean`` and ``interval`` by name), the mean ``prediction`` or None, and
        ``behavior`` (as ``metrics``; None without a policy's episodes), all of it over all episodes; ``by_type``
        likewise, and ``macro``, the mean of the types' success; ``repeats`` (each one's ``success``, their ``mean``,
        ``std`` and ``interval``, None where all are equal) or None for a single one; ``at_k`` (:func:`at_k`);
        ``by_trial``, the shares won within 1, 2, … trials, or None.
    """
    sound = [record for record in records if record.sound]
    by_type: dict[str, list[Record]] = defaultdict(list)
    for record in sound:
        for name in levels(record.task_type):
            by_type[name].append(record)
    own, measured = {record.task_type for record in sound}, measured_in(sound)
    behavior = sorted({name for record in sound for name in record.behavior})
    predicted = [record.prediction for record in sound if record.prediction is not None]
    return {
        **_part(sound, measured),
        "prediction": _mean(predicted) if predicted else None,
        "behavior": _behavior(sound, behavior) if behavior else None,
        "errors": len(records) - len(sound),
        "repeats": _repeats(sound),
        "at_k": at_k(sound),
        "by_trial": _by_trial(sound),
        "macro": _mean([_mean([record.won for record in by_type[name]]) for name in by_type if name in own]),
        "by_type": {name: _part(by_type[name], measured) for name in sorted(by_type)},
    }


Environment = tuple[str, ...]
"""The level of one of several environments; () where there is one."""


def measured_in(records: Sequence[Record]) -> dict[str, set[Environment]]:
    """The environments that have each measure."""
    found: dict[str, set[Environment]] = defaultdict(set)
    for record in records:
        for name in record.metrics:
            found[name].add(levels(record.task_type)[:-1])
    return found


def having(records: Sequence[Record], environments: Collection[Environment]) -> list[Record]:
    """The records of environments that have a measure: elsewhere its absence is no 0."""
    return [record for record in records if levels(record.task_type)[:-1] in environments]


def _part(records: Sequence[Record], measured: Mapping[str, Collection[Environment]]) -> dict[str, Any]:
    """The figures of some episodes of an evaluation.

    Args:
        measured: the environments that have each measure.
    """
    tasks = [record.task_id for record in records]
    success = rate([record.won for record in records], tasks)
    steps = sum(record.steps for record in records)
    metrics = {}
    for name in sorted(measured):
        if concerned := having(records, measured[name]):
            values = [record.metrics.get(name, 0.0) for record in concerned]
            metrics[name] = _metric(values, [record.task_id for record in concerned])
    return {
        "n": len(records),
        "tasks": len(set(tasks)),
        "success": success.value,
        "interval": [success.low, success.high],
        "reward": _mean([record.reward for record in records]),
        "steps": steps / len(records) if records else 0.0,
        "invalid": sum(record.invalid for record in records) / steps if steps else 0.0,
        "metrics": metrics,
    }


def _metric(values: Sequence[float], tasks: Sequence[str]) -> dict[str, Any]:
    return _cell(mean(values, tasks))


def _cell(found: Estimate) -> dict[str, Any]:
    return {"mean": found.value, "interval": [found.low, found.high] if np.isfinite(found.low) else None}


def _behavior(records: Sequence[Record], names: Sequence[str]) -> dict[str, Any]:
    tasks = [record.task_id for record in records]
    return {name: _metric([record.behavior.get(name, 0.0) for record in records], tasks) for name in names}


def _repeats(records: Sequence[Record]) -> dict[str, Any] | None:
    by_repeat: dict[int, list[bool]] = defaultdict(list)
    for record in records:
        by_repeat[record.repeat].append(record.won)
    success = [_mean(by_repeat[repeat]) for repeat in sorted(by_repeat)]
    if len(success) < 2:
        return None
    found = spread(success)
    interval = [max(0.0, found.low), min(1.0, found.high)] if found else None
    return {"success": success, "mean": _mean(success), "std": float(np.std(success, ddof=1)), "interval": interval}


def at_k(records: Sequence[Record]) -> list[dict[str, Any]] | None:
    """pass@k and pass^k: the chances that one of k episodes of a task is won, and that all k are, means over tasks.

    Args:
        records: with an outcome, of one agent; its n episodes of a task stand for all k-subsets of them.

    Returns:
        For k = 1, 2, 4, … and the largest n: ``k``, ``tasks`` (those with at least k episodes), ``pass@k`` and
        ``pass^k`` (``mean`` and ``interval``, over tasks). None where each task was played once.

    >>> twice = [Record("a", "", won, 0.0, 1, "", repeat=r) for r, won in enumerate([True, False])]
    >>> [(row["k"], row["pass@k"]["mean"], row["pass^k"]["mean"]) for row in at_k(twice)]
    [(1, 0.5, 0.5), (2, 1.0, 0.0)]
    """
    by_task = defaultdict(list)
    for record in records:
        by_task[record.task_id].append(record.won)
    rows: list[dict[str, Any]] = []
    for k in ks(max(map(len, by_task.values()), default=0)):
        names = [name for name, won in by_task.items() if len(won) >= k]
        chances = [pass_chances(by_task[name], k) for name in names]
        # k episodes say of a rare event what one draw does, however little the tasks' chances differ.
        draws = float(sum(len(by_task[name]) // k for name in names))
        some, every = (
            _wilson_over_tasks(np.array([chance[part] for chance in chances]), names, draws) for part in (0, 1)
        )
        rows.append({"k": k, "tasks": len(names), "pass@k": _cell(some), "pass^k": _cell(every)})
    return rows or None


def ks(most: int) -> list[int]:
    """The k of pass@k for so many episodes of a task: 1, 2, 4, … and all of them; none for a single one.

    >>> ks(10), ks(1)
    ([1, 2, 4, 8, 10], [])
    """
    return sorted({most, *(1 << power for power in range(most.bit_length()))}) if most > 1 else []


def pass_chances(won: Sequence[bool], k: int) -> tuple[float, float]:
    """Unbiased estimates that at least one of k episodes of a task is won (arXiv 2107.03374), and that all k are
    (arXiv 2406.12045).

    Args:
        won: the outcomes of n ≥ k independent episodes.

    >>> pass_chances([True, True, False, False], 2) == (1 - 1 / 6, 1 / 6)
    True
    """
    subsets, wins = math.comb(len(won), k), sum(won)
    return 1.0 - math.comb(len(won) - wins, k) / subsets, math.comb(wins, k) / subsets


def _by_trial(records: Sequence[Record]) -> list[float] | None:
    most = max((record.trials for record in records), default=1)
    if most == 1:
        return None
    return [_mean([record.won and record.trials <= trial for record in records]) for trial in range(1, most + 1)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def spending(
    header: Mapping[str, Any], written: Sequence[Record], prices: tuple[float, float] | None = None
) -> dict[str, Any] | None:
    """Token usage over all records of a file, failed attempts included; None without a model.

    Args:
        header: of the file. Where a judge was asked again, nothing was played again: each attempt counts once.
        written: records with ``usage``.
        prices: money per million prompt and per million completion tokens.

    Returns:
        ``answers``, ``prompt_tokens``, ``completion_tokens``, ``estimated``, ``cut``, ``shortened``,
        ``corrections``, ``dropped_thoughts``; where timed, ``seconds_per_answer`` and ``slow_seconds_per_answer``
        (95 % of the episodes were answered faster on average); with prices, ``cost``.
    """
    counting = {record.attempt: record for record in written}.values() if "judge" in header else written
    asked = [record.usage for record in counting if record.usage.get("answers")]
    if not asked:
        return None
    counts = ("answers", "prompt_tokens", "completion_tokens", "estimated", "cut", "shortened")
    names = (*counts, "corrections", "dropped_thoughts")
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
                found = part["metrics"] if part else {}
                row += [f"{100 * found[m]['mean']:.1f}" if m in found else "–" for m in summary["metrics"]]
        rows.append(row)
    return rows
