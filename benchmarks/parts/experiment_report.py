"""The report of an experiment: Markdown with pictures, from the run folders alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from parts.experiment_figures import (
    Arm,
    difference,
    efficiency,
    finished,
    growth,
    origins,
    prediction_correlation,
    success,
    task_split_of,
    time_shares,
    written_tasks,
)
from parts.experiment_pictures import draw
from parts.experiment_plan import SUCCESS, Evaluation, Plan
from parts.training_runs import ROOT

from roleagent.agents.evaluation.statistics import Estimate
from roleagent.config import ConfigError


def write_report(plan: Plan, out: Path) -> dict[str, Any]:
    """Writes ``report.md`` into the experiment's folder, of what is finished; the figures of its last line.

    Raises:
        ConfigError: nothing is, or the environment knows no such measure.
    """
    arms = finished(plan, out)
    if not arms:
        raise ConfigError(f"no run in {out} is finished and measured yet: there is nothing to report")
    known = (SUCCESS, *success(arms[0], plan.evaluations[0])["metrics"])
    if plan.measure not in known:
        raise ConfigError(f"no episode has a measure {plan.measure!r}; there are {', '.join(known)}")
    file = out / "report.md"
    pictures = draw(arms, file.parent / "pictures", file.stem)
    text = "\n".join(_pages(plan, arms, {what: path.relative_to(file.parent) for what, path in pictures.items()}))
    file.write_text(text.rstrip() + "\n", encoding="utf-8")
    first = plan.evaluations[0]
    return {
        "task_split": task_split_of(arms[0], first)["digest"],
        "success": {arm.name: round(success(arm, first)["all"].value, 4) for arm in arms},
        "seeds": {arm.name: sorted(arm.runs) for arm in arms},
    }


def _pages(plan: Plan, arms: Sequence[Arm], pictures: dict[str, Path]) -> Iterator[str]:
    task_split = task_split_of(arms[0], plan.evaluations[0])
    file = os.path.relpath(plan.source, ROOT) if plan.source else "FILE"
    but = f", except {' and '.join(plan.apart)}, which have their own" if plan.apart else ""
    yield f"# {plan.title}\n"
    yield f"```bash\npython benchmarks/experiment.py --config {file}\n```\n"
    tasks, split, env_id, digest = (task_split[name] for name in ("tasks", "split", "env_id", "digest"))
    yield (
        f"This command writes this page from the run folders. Split: {tasks} tasks of `{split}` of `{env_id}` (digest "
        f"{digest}). All arms of a seed start from the same warm start{but}. Intervals are 95 % intervals.\n"
    )
    if plan.note:
        yield plan.note.strip() + "\n"
    for evaluation in plan.evaluations:
        yield f"## Success at temperature {evaluation.temperature:g}\n"
        yield from _success(arms, evaluation)
        for measure in dict.fromkeys((SUCCESS, plan.measure)):
            yield from _differences(plan, arms, evaluation, measure)
    trained = [arm for arm in arms if any(arm.logs.values())]
    if not trained:
        return
    yield "## During training\n"
    title = f"{plan.measure.capitalize()} on the split over environment steps, one line per arm"
    yield from _picture(pictures, "success", title)
    yield from _efficiency(plan, trained)
    yield "## Mechanisms\n"
    yield from _mechanisms(trained)
    yield from _picture(pictures, "prediction_score", "Predictive reward by iteration")
    yield from _prediction_correlation(plan, trained)
    yield from _picture(pictures, "zero_variance_groups", "Zero-variance groups by iteration")
    yield from _origins(trained)
    yield from _library(trained)
    yield from _picture(pictures, "library", "Tasks in the failure library by failure mode and iteration")
    yield from _written_tasks(trained)
    yield "## Time per part\n"
    yield from _times(trained)


def _success(arms: Sequence[Arm], evaluation: Evaluation) -> Iterator[str]:
    found = {arm.name: success(arm, evaluation) for arm in arms}
    types = sorted({name for one in found.values() for name in one["by_type"]})
    metrics = sorted({name for one in found.values() for name in one["metrics"]})
    over_seeds = f"{arms[0].measure} by seed, %"
    yield _row("arm", "seeds", "success, %", over_seeds, *metrics, *(name.replace("_", " ") for name in types))
    yield _row(*("---",) * (4 + len(metrics) + len(types)))
    for name, one in found.items():
        spread = one["over_seeds"]
        yield _row(
            name,
            str(len(one["seeds"])),
            _percent(one["all"]),
            ", ".join(f"{100 * value:.1f}" for value in one["seeds"])
            + (f" (mean {_percent(spread)})" if spread else ""),
            *(f"{100 * one['metrics'][metric]:.1f}" for metric in metrics),
            *(f"{100 * one['by_type'][kind].value:.1f}" if kind in one["by_type"] else "–" for kind in types),
        )
    yield (
        f"\nEpisodes per task: {evaluation.repeats}. Intervals of *success* are over tasks (Wilson, with the effective "
        "number of episodes). Intervals *by seed* are Student's over the seeds.\n"
    )


def _differences(plan: Plan, arms: Sequence[Arm], evaluation: Evaluation, measure: str) -> Iterator[str]:
    by_name = {arm.name: arm for arm in arms}
    rows = []
    for first, second in plan.pairs:
        if first in by_name and second in by_name:
            found = difference(by_name[first], by_name[second], evaluation, measure)
            if found is not None:
                alone = "–" if found["alone"] is None else f"{found['alone'][1]} : {found['alone'][0]}"
                p = "–" if found["mcnemar"] is None else f"{found['mcnemar']:.2g}"
                gaps = ", ".join(f"{100 * gap:+.1f}" for gap in found["gaps"])
                seeds = found["over_seeds"]
                rows.append(
                    _row(
                        f"{second} over {first}",
                        str(len(found["seeds"])),
                        _points(found["over_tasks"]),
                        _points(seeds) if seeds else "–",
                        gaps,
                        "–" if found["detectable"] is None else f"{100 * found['detectable']:.1f}",
                        alone,
                        p,
                    )
                )
    if rows:
        title = f"difference in {measure}, points"
        yield _row(title, "seeds", "over tasks", "over seeds", "by seed", "detectable", "alone", "McNemar's p")
        yield _row(*("---",) * 8)
        yield from rows
        yield (
            "\nPaired by seed and task. *Over tasks*: bootstrap over tasks for these seeds. *Over seeds*: Student's "
            "interval of the differences by seed, which covers other seeds. *Detectable*: the difference that as many "
            "seeds with this spread would detect with a power of 80 %. *Alone*: episodes that only the first or only "
            "the second arm solved. *McNemar's p*: with one seed; pairs of a task in several seeds depend on each "
            "other.\n"
        )


def _efficiency(plan: Plan, arms: Sequence[Arm]) -> Iterator[str]:
    yield _row(
        *("arm", f"environment steps to a {plan.measure} of {100 * plan.threshold:.0f} %", "reached by"),
        f"{plan.measure} averaged over the steps",
    )
    yield _row("---", "---", "---", "---")
    for arm in arms:
        found = efficiency(arm, plan.threshold)
        steps = ", ".join(f"{'' if reached else '> '}{value:,.0f}" for value, reached in found["steps"].values())
        yield _row(arm.name, steps, f"{found['reached']} of {len(arm.runs)}", f"{100 * found['mean']:.1f} %")
    yield "\nMeasured on the split during training, one episode per task; interpolated between measurements.\n"


_LOGGED = (
    ("prediction_score", "predictive reward"),
    ("failure_recall", "failures predicted"),
    ("prediction_accuracy_valid", "other next states predicted"),
    ("returns_modulated", "modulated returns per iteration"),
    ("state_group_share", "turns in a shared state"),
    ("state_group_size", "turns per state"),
    ("zero_variance_groups", "zero-variance groups"),
    ("curriculum_share", "share of tasks from the curriculum"),
    ("curriculum_success", "success of the curriculum's tasks"),
    ("uniform_success", "success of uniform tasks"),
    ("curriculum_zero_variance_share", "zero-variance groups of the curriculum"),
    ("uniform_zero_variance_share", "zero-variance groups of uniform tasks"),
    ("curriculum_self_retrievals", "self-retrievals per iteration"),
    ("curriculum_same_iteration_share", "retrievals from the iteration itself"),
    ("invalid_action_share", "invalid actions"),
    ("entropy", "entropy, nats"),
    ("mismatch", "mismatch, nats"),
)


def _mechanisms(arms: Sequence[Arm]) -> Iterator[str]:
    columns = {title: [arm.mean(name) for arm in arms] for name, title in _LOGGED}
    columns["largest mismatch of a token"] = [arm.mean("mismatch_max", max) for arm in arms]
    columns = {title: cells for title, cells in columns.items() if any(cell is not None for cell in cells)}
    yield _row("mean over iterations", *columns)
    yield _row(*("---",) * (1 + len(columns)))
    for arm, *cells in zip(arms, *columns.values(), strict=True):
        yield _row(arm.name, *map(_number, cells))
    yield ""


def _prediction_correlation(plan: Plan, arms: Sequence[Arm]) -> Iterator[str]:
    rows = []
    for arm in arms:
        for evaluation in plan.evaluations:
            found = prediction_correlation(arm, evaluation)
            if found is not None:
                r = found["r"]
                rows.append(
                    _row(
                        arm.name,
                        f"{evaluation.temperature:g}",
                        str(found["n"]),
                        f"{r.value:+.2f} [{r.low:+.2f}, {r.high:+.2f}]",
                        f"{found['above']:.3f}",
                        f"{found['below']:.3f}",
                        *(_number(arm.mean(f"prediction_{name}")) for name in ("correlation", "information")),
                    )
                )
    if rows:
        by_success = plan.measure == SUCCESS
        kind = "Point-biserial correlation" if by_success else "Correlation"
        what, halves = ("outcome", ("won", "lost")) if by_success else (plan.measure, ("above its mean", "below"))
        yield f"{kind} of an episode's mean prediction score and {what}:\n"
        turns = "r of training turns", "given validity"
        yield _row("arm", "temperature", "episodes", "r", *(f"prediction score, {half}" for half in halves), *turns)
        yield _row(*("---",) * 8)
        yield from rows
        yield (
            "\nThe interval is a bootstrap over tasks. Published, of outcomes: 0.41 over 200 rollouts. The last two "
            "columns are means over training iterations: the correlation of a turn's score and its episode's success, "
            "plain and given whether the command was valid.\n"
        )


def _origins(arms: Sequence[Arm]) -> Iterator[str]:
    rows = [(arm.name, chosen, found) for arm in arms for chosen, found in origins(arm).items()]
    if not rows:
        return
    yield "Groups chosen by the curriculum, and uniformly drawn groups:\n"
    yield _row("arm", "chosen by", "groups", "reward, %", "zero variance, %", "never won, %")
    yield _row(*("---",) * 6)
    for name, chosen, found in rows:
        shares = (f"{100 * share:.0f}" for share in (found.reward, found.zero_variance, found.never_won))
        yield _row(name, chosen, str(found.groups), *shares)
    yield ""


def _written_tasks(arms: Sequence[Arm]) -> Iterator[str]:
    found = [(arm.name, rows) for arm in arms if (rows := written_tasks(arm))]
    if not found:
        return

    def by_seed(rows: Mapping[int, Mapping[str, float]], name: str, form: Callable[[float], str]) -> str:
        values = {seed: row[name] for seed, row in rows.items() if name in row}
        if not values:
            return "–"
        mean = f" (mean {form(sum(values.values()) / len(values))})" if len(values) > 1 else ""
        return ", ".join(form(value) for value in values.values()) + mean

    yield "## Written tasks\n"
    names = {
        **{"initial_live": "live, initial simulator, %", "present_live": "live, present simulator, %"},
        **{"live_ratio": "ratio", "fresh_success": "fresh: success, %", "fresh_in_band": "fresh in band, %"},
        **{"base_in_band": "base in band, %", "forgetting": "forgetting, points"},
    }
    yield _row("arm", *names.values())
    yield _row(*("---",) * (1 + len(names)))
    for arm, rows in found:
        cells = (by_seed(rows, name, _ratio if name == "live_ratio" else _share) for name in names)
        yield _row(arm, *cells)
    yield (
        "\nBy seed. *Live* tasks are neither always nor never solved: means over the probes, in which the same weights "
        "play tasks of both simulators. The rest are means over the last third of the iterations. *Forgetting* is the "
        "success that was lost on tasks first played eight iterations ago or earlier.\n"
    )


def _share(value: float) -> str:
    return f"{100 * value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _library(arms: Sequence[Arm]) -> Iterator[str]:
    grown = [(arm, modes) for arm in arms if (modes := growth(arm))]
    if not grown:
        return
    names = sorted({mode for _, modes in grown for mode in modes})
    yield "Tasks in the failure library at the end, by failure mode, mean over seeds:\n"
    yield _row("failure mode", *(arm.name for arm, _ in grown))
    yield _row(*("---",) * (1 + len(grown)))
    for mode in names:
        cells = []
        for arm, modes in grown:
            ends = [rows[-1] for rows in modes.get(mode, {}).values()]
            cells.append(f"{sum(ends) / len(arm.runs):.0f}")
        if set(cells) != {"0"}:
            yield _row(mode.replace("_", " "), *cells)
    yield ""


def _times(arms: Sequence[Arm]) -> Iterator[str]:
    found = {arm.name: time_shares(arm) for arm in arms}
    parts = [name for name in next(iter(found.values())) if name != "seconds"]
    yield _row("arm", "seconds per iteration", *parts)
    yield _row(*("---",) * (2 + len(parts)))
    for name, shares in found.items():
        yield _row(name, f"{shares['seconds']:.1f}", *(f"{100 * shares[part]:.0f} %" for part in parts))
    yield ""


def _picture(pictures: dict[str, Path], what: str, text: str) -> Iterator[str]:
    if what in pictures:
        yield f"![{text}]({pictures[what].as_posix()})\n"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(found: Estimate) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _points(found: Estimate) -> str:
    return f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _number(found: Estimate | float | None) -> str:
    if found is None:
        return "–"
    if isinstance(found, Estimate):
        return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"
    return f"{found:.3g}"
