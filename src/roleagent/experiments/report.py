"""The report of an experiment: Markdown with pictures, and its main tables as CSV and LaTeX, from the run folders."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from roleagent.agents.evaluation.statistics import Estimate, signed
from roleagent.config import to_dict
from roleagent.experiments.figures import (
    ArmRuns,
    Difference,
    behavior,
    check_measure,
    concerned,
    differences,
    efficiency,
    finished,
    growth,
    ledger,
    origins,
    outcome,
    partings,
    prediction_correlation,
    spreads,
    success,
    task_ledger,
    task_split_of,
    time_shares,
    written_tasks,
    zeros,
)
from roleagent.experiments.pictures import draw
from roleagent.experiments.plan import SUCCESS, Branch, Evaluation, PaperItem, Plan
from roleagent.experiments.runs import Run
from roleagent.learners.run.folder import read_config
from roleagent.options import ConfigError
from roleagent.reports.tables import csv_text, latex_table, latex_text, markdown_row
from roleagent.tasks.split import levels
from roleagent.timer import PARTS


def write_report(plan: Plan, out: Path, words: Sequence[str], given: Sequence[str] = ()) -> dict[str, Any]:
    """Writes the report of the finished runs into the experiment's folder; returns the main figures.

    The files are ``report.md``, ``success.csv``, ``differences.csv``, the same as ``.tex`` (booktabs), and
    ``pictures/`` with SVG and PNG.

    Args:
        words: the command, e.g. ``roleagent experiment`` and the name of the plan.
        given: the plan's options that are not in its file. Those that all runs have besides are read from the runs.

    Raises:
        ConfigError: no run is finished, or the environment has no such measure.
    """
    arms = finished(plan, out)
    if not arms:
        raise ConfigError(f"no run in {out} is finished and evaluated yet: there is nothing to report")
    check_measure(plan.measure, arms[0].records(plan.evaluations[0]))
    gains = differences(plan, arms)
    pictures = draw(arms, gains, out / "pictures")
    shown = {what: path.relative_to(out) for what, path in pictures.items()}
    found = options_of_runs(plan, out)
    lines = _pages(plan, arms, gains, shown, command_of(words, [*given, *found]), [*plan.options, *found])
    (out / "report.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    (out / "success.csv").write_text(csv_text(list(success_rows(plan, arms))), encoding="utf-8")
    (out / "differences.csv").write_text(csv_text([difference_row(one) for one in gains]), encoding="utf-8")
    (out / "success.tex").write_text(success_latex(plan, arms), encoding="utf-8")
    (out / "differences.tex").write_text(differences_latex(gains), encoding="utf-8")
    first = plan.evaluations[0]
    return {
        "report": str(out / "report.md"),
        "task_split": task_split_of(arms[0], first)["digest"],
        "success": {arm.name: round(success(arm, first)["all"].value, 4) for arm in arms},
        "seeds": {arm.name: sorted(arm.runs) for arm in arms},
    }


def command_of(words: Sequence[str], options: Sequence[str]) -> str:
    """The command that trains the runs.

    Args:
        words: that of a verb, and its arguments.

    >>> command_of(["roleagent experiment", "my plan.yaml"], ["optim.lr=0.1"])
    "roleagent experiment 'my plan.yaml' --set optim.lr=0.1"
    """
    verb, *arguments = words
    return f"{verb} {shlex.join([*arguments, *(['--set', *options] if options else [])])}"


def options_of_runs(plan: Plan, out: Path) -> list[str]:
    """Options that the finished runs have and the plan does not, as ``key=value``: those of an earlier ``--set``.

    An option that an arm sets itself may be missing in that arm.
    """
    jobs, found = plan.jobs() if not plan.fork else [], []
    folders = plan.folders(jobs, out)
    for job in jobs:
        folder = folders[job.arm][job.seed]
        if plan.is_finished(folder) and (folder / "config.yaml").exists():
            planned = _leaves(to_dict(Run(folder, plan.config, plan.options_of(job)).config))
            own = _leaves(to_dict(read_config(folder)))
            changed = {f"{name}={_yaml(value)}" for name, value in own.items() if value != planned.get(name)}
            found.append((changed, {option.partition("=")[0] for option in plan.arms[job.arm].options}))
    options = sorted(set().union(*(changed for changed, _ in found)))
    return [
        option
        for option in options
        if all(option in changed or option.partition("=")[0] in of_arm for changed, of_arm in found)
    ]


def _leaves(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The values of a nested mapping, by their paths."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        nested = isinstance(value, Mapping) and value
        found |= _leaves(value, f"{before}{name}.") if nested else {before + name: value}
    return found


def _yaml(value: Any) -> str:
    """A value in one line, as an option has it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()


def success_rows(plan: Plan, arms: Sequence[ArmRuns]) -> Iterator[dict[str, Any]]:
    """One row per arm, evaluation and seed: success and the environment's metrics, in [0, 1]."""
    for arm in arms:
        for evaluation in plan.evaluations:
            for seed, one in zip(arm.runs, arm.measured(evaluation), strict=True):
                sound = [record for record in one.records if record.sound]
                names = [SUCCESS, *sorted({name for record in sound for name in record.metrics})]
                values = {name: [outcome(record, name) for record in concerned(sound, name)] for name in names}
                yield {
                    **{"arm": arm.name, "temperature": evaluation.temperature, "seed": seed, "episodes": len(sound)},
                    **{name: sum(value) / len(value) for name, value in values.items()},
                }


def difference_row(one: Difference) -> dict[str, Any]:
    """A difference as plain numbers, in [-1, 1]; None where there is none. The interval is over ``seeds``, of forks the
    runs that they branch from (or the forks of a single one)."""
    mean, low, high = (None if math.isnan(x) else x for x in one.mean)
    return {
        **{"arm": one.arm, "over": one.over, "temperature": one.evaluation.temperature, "measure": one.measure},
        **({"forks": len(one.seeds)} if isinstance(one.seeds[0], Branch) else {}),
        **{"seeds": len(one.independent), "difference": mean, "low": low, "high": high},
        **{"tasks_low": one.over_tasks.low, "tasks_high": one.over_tasks.high, "detectable": one.detectable},
        "p": one.mcnemar,
    }


def success_latex(plan: Plan, arms: Sequence[ArmRuns]) -> str:
    """Success of every arm in every evaluation, in percent, with Wilson's interval over tasks; and the measure's mean
    over seeds with Student's interval."""
    rows = []
    for arm in arms:
        cells = []
        for evaluation in plan.evaluations:
            found = success(arm, evaluation)
            spread = found["over_seeds"] or Estimate(float(np.mean(found["seeds"])), math.nan, math.nan)
            cells += [*_latex_interval(found["all"], difference=False), *_latex_interval(spread, difference=False)]
        rows.append([latex_text(arm.name), str(len(arm.runs)), *cells])
    header = ["arm", "seeds"]
    for evaluation in plan.evaluations:
        title = f"success, temperature {evaluation.temperature:g}"
        header += [title, "95\\,\\% over tasks", f"{latex_text(plan.measure)} by seed", "95\\,\\% over seeds"]
    return latex_table(header, rows)


def differences_latex(found: Sequence[Difference]) -> str:
    """The differences in points, with Student's interval over seeds and the detectable difference."""
    rows = []
    for one in found:
        least = "--" if one.detectable is None else f"{100 * one.detectable:.1f}"
        names = (latex_text(one.arm), latex_text(one.over), latex_text(one.measure))
        at = f"{one.evaluation.temperature:g}"
        rows.append([*names, at, str(len(one.independent)), *_latex_interval(one.mean, difference=True), least])
    header = ["arm", "over", "measure", "temperature", "seeds", "points", "95\\,\\%", "detectable"]
    return latex_table(header, rows, left=3)


def _latex_interval(found: Estimate, difference: bool) -> tuple[str, str]:
    """The cells of a value and its interval, in percent or points."""
    value, low, high = (signed(100 * x, 1) if difference else f"{100 * x:.1f}" for x in found)
    return f"${value}$", "--" if math.isnan(found.low) else f"$[{low}, {high}]$"


def _pages(
    plan: Plan,
    arms: Sequence[ArmRuns],
    gains: Sequence[Difference],
    pictures: dict[str, Path],
    command: str,
    options: Sequence[str],
) -> Iterator[str]:
    task_split = task_split_of(arms[0], plan.evaluations[0])
    own = [arm for arm, given in plan.arms.items() if given.own_start]
    but = f", except {' and '.join(own)}, which have their own" if own else ""
    begin = f"All arms of a seed start from the same warm start{but}."
    if plan.fork:
        begin = "All arms of a fork begin at the same checkpoint, with the same random numbers."
    unit = "fork" if plan.fork else "seed"
    yield f"# {plan.title}\n"
    yield f"```bash\n{command}\n```\n"
    tasks, split, env_id, digest = (task_split[key] for key in ("tasks", "split", "env_id", "digest"))
    yield (
        f"This command writes this page from the run folders. Split: {tasks} tasks of `{split}` of `{env_id}` (digest "
        f"{digest}). {begin} Intervals are 95 % intervals.\n"
    )
    if options:
        yield f"Options of all runs, on top of `{plan.config}`: `{' '.join(options)}`.\n"
    if plan.note:
        yield plan.note.strip() + "\n"
    if plan.paper:
        yield "## Tables and figures of the paper\n"
        for item in plan.paper:
            yield f"### {item.title}\n"
            yield from _paper(plan, item, {arm.name: arm for arm in arms}, pictures)
    yield from _picture(pictures, "forest", f"Differences of the compared arms with 95 % intervals over {unit}s")
    for evaluation in plan.evaluations:
        yield f"## Success at temperature {evaluation.temperature:g}\n"
        yield from _success(arms, evaluation, unit)
        yield from _behavior(arms, evaluation)
        for measure in dict.fromkeys((SUCCESS, plan.measure)):
            found = [one for one in gains if (one.evaluation, one.measure) == (evaluation, measure)]
            yield from _differences(found, unit)
        if plan.fork:
            yield from _ledger(plan, arms, evaluation)
            yield from _spreads(plan, arms, evaluation)
    if plan.fork:
        yield from _task_ledger(plan, arms)
    trained = [arm for arm in arms if any(arm.logs.values())]
    if not trained:
        return
    yield "## During training\n"
    title = f"{plan.measure.capitalize()} on the split over environment steps, one line per arm"
    yield from _picture(pictures, "success", title)
    if not plan.fork:
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


_PICTURES = {
    "curves": ("success", "Success on the split over environment steps, one line per arm"),
    "predictions": ("prediction_score", "Predictive reward by iteration, one line per arm"),
    "failures": ("library", "Tasks in the failure library by failure mode and iteration"),
}


def _paper(plan: Plan, item: PaperItem, arms: Mapping[str, ArmRuns], pictures: dict[str, Path]) -> Iterator[str]:
    """A table or figure of a paper from these runs, with the published figures beside them."""
    if item.shows in _PICTURES:
        yield from _picture(pictures, *_PICTURES[item.shows])
        return
    rows = [arms[name] for name in item.arms or arms if name in arms]
    if item.shows == "seconds":
        yield from _seconds([arm for arm in rows if any(arm.logs.values())], item.published)
        return
    table = {arm.name: _by_type(arm, plan.evaluations[0]) for arm in rows}
    if item.shows == "correlation":
        table = {arm.name: _of_predictions(arm, plan.evaluations[0]) for arm in rows}
    names = list(dict.fromkeys(name for cells in table.values() for name in cells))
    beside = ["published"] if item.published else []
    yield markdown_row("arm", "seeds", *beside, *names)
    yield markdown_row(*("---",) * (2 + len(beside) + len(names)))
    for arm in rows:
        published = [f"{item.published[arm.name]:g}" if arm.name in item.published else "–" for _ in beside]
        cells = (table[arm.name].get(name, "–") for name in names)
        yield markdown_row(arm.name, str(len(arm.runs)), *published, *cells)
    yield ""


def _by_type(arm: ArmRuns, evaluation: Evaluation) -> dict[str, str]:
    """Success over all tasks and by type, in percent: mean ± standard deviation over seeds."""
    by_seed = [[record for record in one.records if record.sound] for one in arm.measured(evaluation)]
    types = sorted({name for records in by_seed for record in records for name in levels(record.task_type)})
    found = {}
    for kind in ("", *types):
        values = [
            100 * float(np.mean(won))
            for records in by_seed
            if (won := [record.won for record in records if not kind or kind in levels(record.task_type)])
        ]
        deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        found[kind.replace("_", " ") or "success, %"] = f"{np.mean(values):.1f}{deviation}"
    return found


def _of_predictions(arm: ArmRuns, evaluation: Evaluation) -> dict[str, str]:
    found = prediction_correlation(arm, evaluation)
    if found is None:  # it predicts nothing, or nothing varies
        return dict.fromkeys(("episodes", "correlation", "mean score, won", "mean score, lost"), "–")
    r = found["r"]
    scores = {f"mean score, {half}": f"{found[side]:.3f}" for side, half in (("above", "won"), ("below", "lost"))}
    return {"episodes": str(found["n"]), "correlation": f"{r.value:+.2f} [{r.low:+.2f}, {r.high:+.2f}]", **scores}


def _seconds(arms: Sequence[ArmRuns], published: Mapping[str, float]) -> Iterator[str]:
    found = {arm.name: time_shares(arm) for arm in arms}
    parts = [part for part in PARTS if part in published or any(shares[part] for shares in found.values())]
    yield markdown_row("seconds of an iteration", *parts, "in all")
    yield markdown_row(*("---",) * (2 + len(parts)))
    for name, shares in found.items():
        own = (shares[part] * shares["seconds"] for part in parts)
        yield markdown_row(name, *(f"{seconds:.2f}" for seconds in own), f"{shares['seconds']:.2f}")
    if published:
        theirs = (f"{published[part]:g}" if part in published else "–" for part in parts)
        yield markdown_row("published", *theirs, "–")
    yield ""


def _success(arms: Sequence[ArmRuns], evaluation: Evaluation, unit: str) -> Iterator[str]:
    found = {arm.name: success(arm, evaluation) for arm in arms}
    types = sorted({name for one in found.values() for name in one["by_type"]})
    metrics = sorted({name for one in found.values() for name in one["metrics"]})
    over_seeds = f"{arms[0].measure} by {unit}, %"
    yield markdown_row(
        "arm", f"{unit}s", "success, %", over_seeds, *metrics, *(name.replace("_", " ") for name in types)
    )
    yield markdown_row(*("---",) * (4 + len(metrics) + len(types)))
    for name, one in found.items():
        spread = one["over_seeds"]
        yield markdown_row(
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
        f"number of episodes). Intervals *by {unit}* are Student's over the {unit}s.\n"
    )


def _behavior(arms: Sequence[ArmRuns], evaluation: Evaluation) -> Iterator[str]:
    found = {arm.name: behavior(arm.records(evaluation)) for arm in arms}
    names = list(dict.fromkeys(name for one in found.values() for name in one))
    yield markdown_row("per episode", *(name.replace("_", " ") for name in names))
    yield markdown_row(*("---",) * (1 + len(names)))
    for arm, one in found.items():
        yield markdown_row(arm, *(f"{one.get(name, 0.0):.2f}" for name in names))
    yield (
        "\n*Loops n*: the most consecutive repetitions of one block of n commands. *False alarms*: revisions after a "
        "step without a mistake.\n"
    )


def _differences(found: Sequence[Difference], unit: str) -> Iterator[str]:
    if not found:
        return
    title = f"difference in {found[0].measure}, points"
    units = (f"{unit}s", "over tasks", f"over {unit}s", f"by {unit}")
    yield markdown_row(title, *units, "detectable", "alone", "McNemar's p")
    yield markdown_row(*("---",) * 8)
    for one in found:
        yield markdown_row(
            f"{one.arm} over {one.over}",
            str(len(one.seeds)),
            _points(one.over_tasks),
            _points(one.over_seeds) if one.over_seeds else "–",
            ", ".join(f"{100 * gap:+.1f}" for gap in one.gaps),
            "–" if one.detectable is None else f"{100 * one.detectable:.1f}",
            "–" if one.alone is None else f"{one.alone[1]} : {one.alone[0]}",
            "–" if one.mcnemar is None else f"{one.mcnemar:.2g}",
        )
    means = ", of several runs by the means of their forks" if unit == "fork" else ""
    yield (
        f"\nPaired by {unit} and task. *Over tasks*: bootstrap over tasks for these {unit}s, without the chance of the "
        f"training. *Over {unit}s*: Student's interval of the differences by {unit}{means}, which covers other "
        f"{unit}s. *Detectable*: the difference that as many {unit}s with this spread would detect with a power of "
        "about 80 %. *Alone*: episodes that only the first or only the second arm solved. *McNemar's p*: with one "
        f"{unit}; pairs of a task in several depend on "
        "each other. One interval in twenty excludes 0 by chance.\n"
    )


def compared(plan: Plan, arms: Sequence[ArmRuns]) -> list[tuple[ArmRuns, ArmRuns]]:
    """The pairs of compared arms that have runs."""
    by_name = {arm.name: arm for arm in arms}
    return [(by_name[a], by_name[b]) for a, b in plan.pairs if a in by_name and b in by_name]


def _ledger(plan: Plan, arms: Sequence[ArmRuns], evaluation: Evaluation) -> Iterator[str]:
    found = [(f"{b.name} over {a.name}", ledger(a, b, evaluation)) for a, b in compared(plan, arms)]
    if not any(gains for _, gains in found):
        return
    types = list(dict.fromkeys(gain.task_type for _, gains in found for gain in gains))
    yield "What each change gained along the run, in points:\n"
    yield markdown_row("change", "after iteration", *(name.replace("_", " ") or "all" for name in types))
    yield markdown_row(*("---",) * (2 + len(types)))
    for name, gains in found:
        for at in dict.fromkeys(gain.at for gain in gains):
            cells = {gain.task_type: _points(gain.gained) for gain in gains if gain.at == at}
            yield markdown_row(name, str(at), *(cells.get(kind, "–") for kind in types))
    yield "\nBy the type of a task, with bootstrap intervals over tasks for these forks.\n"


def _task_ledger(plan: Plan, arms: Sequence[ArmRuns]) -> Iterator[str]:
    """What each change gained on which training tasks."""
    found = [(f"{b.name} over {a.name}", task_ledger(a, b)) for a, b in compared(plan, arms)]
    after = sorted({gain.at for _, gains in found for gain in gains})
    if not after:
        return
    yield "## Training tasks\n"
    yield markdown_row("change", "tasks by", "", *(f"after iteration {at}" for at in after))
    yield markdown_row(*("---",) * (3 + len(after)))
    for name, gains in found:
        for by, kind in dict.fromkeys((gain.by, gain.name) for gain in gains):
            cells = {g.at: f"{_points(g.gained)} of {g.tasks}" for g in gains if (g.by, g.name) == (by, kind)}
            yield markdown_row(name, by, kind.replace("_", " "), *(cells.get(at, "–") for at in after))
    yield (
        "\nPoints of success in the iterations of a fork, on the training tasks that both sides played; behind *of* "
        "their number. *Mode*: of the newest failure in the library at the checkpoint. *Origin*: what chose the task, "
        "on either side. Bootstrap intervals over tasks for these forks.\n"
    )


def _spreads(plan: Plan, arms: Sequence[ArmRuns], evaluation: Evaluation) -> Iterator[str]:
    pairs = [(f"{b.name} over {a.name}", a, b) for a, b in compared(plan, arms)]
    rows = [(name, spread) for name, a, b in pairs for spread in spreads(a, b, evaluation, plan.measure)]
    if not rows:
        return
    parted = [(name, one) for name, a, b in pairs for one in partings(a, b)]
    if parted:
        yield "How soon the two sides part, by the evaluations during training:\n"
        yield markdown_row("difference", "iterations", "forks", "same outcome, %", "standard deviation, points")
        yield markdown_row(*("---",) * 5)
        for name, one in parted:
            cells = str(one.iterations), str(one.forks), f"{100 * one.alike:.0f}", f"{100 * one.deviation:.1f}"
            yield markdown_row(name, *cells)
        yield ""
    yield "Forks whose own interval over tasks holds 0, as 95 % of them must where a change changes nothing:\n"
    for name, a, b in pairs:
        held, forks = zeros(a, b, evaluation)
        yield f"- {name}: {held} of {forks}"
    yield ""
    yield "Does it pay to fork? How the difference varies, by what its two sides have in common:\n"
    yield markdown_row("difference", "in common", "pairs", "standard deviation, points")
    yield markdown_row(*("---",) * 4)
    for name, spread in rows:
        yield markdown_row(name, spread.shared, str(spread.pairs), f"{100 * spread.deviation:.1f}")
    yield (
        "\nSides with nothing in common are forks of different runs after the same iteration: arms with warm starts of "
        "their own vary so much. An interval of the same width needs forks in proportion to the square of the "
        "deviation.\n"
    )


def _efficiency(plan: Plan, arms: Sequence[ArmRuns]) -> Iterator[str]:
    yield markdown_row(
        *("arm", f"environment steps to a {plan.measure} of {100 * plan.threshold:.0f} %", "reached by"),
        f"{plan.measure} averaged over the steps",
    )
    yield markdown_row("---", "---", "---", "---")
    for arm in arms:
        found = efficiency(arm, plan.threshold)
        steps = ", ".join(f"{'' if reached else '> '}{value:,.0f}" for value, reached in found["steps"].values())
        yield markdown_row(arm.name, steps, f"{found['reached']} of {len(arm.runs)}", f"{100 * found['mean']:.1f} %")
    yield "\nMeasured on the split during training, one episode per task; interpolated between measurements.\n"


_LOGGED = (
    ("prediction_score", "predictive reward"),
    ("failure_recall", "failed commands predicted, of those with a prediction"),
    ("prediction_accuracy_valid", "other next states predicted, likewise"),
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


def _mechanisms(arms: Sequence[ArmRuns]) -> Iterator[str]:
    columns = {title: [arm.mean(name) for arm in arms] for name, title in _LOGGED}
    columns["largest mismatch of a token"] = [arm.mean("mismatch_max", max) for arm in arms]
    columns = {title: cells for title, cells in columns.items() if any(cell is not None for cell in cells)}
    yield markdown_row("mean over iterations", *columns)
    yield markdown_row(*("---",) * (1 + len(columns)))
    for arm, *cells in zip(arms, *columns.values(), strict=True):
        yield markdown_row(arm.name, *map(_number, cells))
    yield ""


def _prediction_correlation(plan: Plan, arms: Sequence[ArmRuns]) -> Iterator[str]:
    rows = []
    for arm in arms:
        for evaluation in plan.evaluations:
            found = prediction_correlation(arm, evaluation)
            if found is not None:
                r = found["r"]
                rows.append(
                    markdown_row(
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
        turns = "r of training turns", "within states"
        yield markdown_row(
            "arm", "temperature", "episodes", "r", *(f"prediction score, {half}" for half in halves), *turns
        )
        yield markdown_row(*("---",) * 8)
        yield from rows
        yield (
            "\n*r* is within seeds, whose means are taken off both. The interval is a bootstrap over tasks. Published, "
            "of outcomes: 0.41 over 200 rollouts. The last two columns are means over training iterations: the "
            "correlation of a turn's score and its episode's success, plain and within each task and state.\n"
        )


def _origins(arms: Sequence[ArmRuns]) -> Iterator[str]:
    rows = [(arm.name, chosen, found) for arm in arms for chosen, found in origins(arm).items()]
    if not rows:
        return
    yield "Groups by what chose their task; *chance* drew uniformly:\n"
    yield markdown_row("arm", "chosen by", "groups", "reward, %", "zero variance, %", "never won, %")
    yield markdown_row(*("---",) * 6)
    for name, chosen, found in rows:
        shares = (f"{100 * share:.0f}" for share in (found.reward, found.zero_variance, found.never_won))
        yield markdown_row(name, chosen, str(found.groups), *shares)
    yield ""


def _written_tasks(arms: Sequence[ArmRuns]) -> Iterator[str]:
    found = [(arm.name, rows) for arm in arms if (rows := written_tasks(arm))]
    if not found:
        return

    def by_seed(rows: Mapping[Any, Mapping[str, float]], name: str, form: Callable[[float], str]) -> str:
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
    yield markdown_row("arm", *names.values())
    yield markdown_row(*("---",) * (1 + len(names)))
    for arm, rows in found:
        cells = (by_seed(rows, name, _ratio if name == "live_ratio" else _share) for name in names)
        yield markdown_row(arm, *cells)
    yield (
        "\nBy seed. *Live* tasks are neither always nor never solved: means over the probes, in which the same weights "
        "play tasks of both simulators. The rest are means over the last third of the iterations. *Forgetting* is the "
        "success that was lost on tasks first played eight iterations ago or earlier.\n"
    )


def _share(value: float) -> str:
    return f"{100 * value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _library(arms: Sequence[ArmRuns]) -> Iterator[str]:
    grown = [(arm, modes) for arm in arms if (modes := growth(arm))]
    if not grown:
        return
    names = sorted({mode for _, modes in grown for mode in modes})
    yield "Tasks in the failure library at the end, by failure mode, mean over seeds:\n"
    yield markdown_row("failure mode", *(arm.name for arm, _ in grown))
    yield markdown_row(*("---",) * (1 + len(grown)))
    for mode in names:
        cells = []
        for arm, modes in grown:
            ends = [rows[-1] for rows in modes.get(mode, {}).values()]
            cells.append(f"{sum(ends) / len(arm.runs):.0f}")
        if set(cells) != {"0"}:
            yield markdown_row(mode.replace("_", " "), *cells)
    yield ""


def _times(arms: Sequence[ArmRuns]) -> Iterator[str]:
    found = {arm.name: time_shares(arm) for arm in arms}
    parts = [name for name in next(iter(found.values())) if name != "seconds"]
    yield markdown_row("arm", "seconds per iteration", *parts)
    yield markdown_row(*("---",) * (2 + len(parts)))
    for name, shares in found.items():
        yield markdown_row(name, f"{shares['seconds']:.1f}", *(f"{100 * shares[part]:.0f} %" for part in parts))
    yield ""


def _picture(pictures: dict[str, Path], what: str, text: str) -> Iterator[str]:
    if what in pictures:
        yield f"![{text}]({pictures[what].as_posix()})\n"


def _percent(found: Estimate) -> str:
    return f"{100 * found.value:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def _points(found: Estimate) -> str:
    return f"{100 * found.value:+.1f} [{signed(100 * found.low, 1)}, {signed(100 * found.high, 1)}]"


def _number(found: Estimate | float | None) -> str:
    if found is None:
        return "–"
    if isinstance(found, Estimate):
        return f"{found.value:.3g} [{found.low:.3g}, {found.high:.3g}]"
    return f"{found:.3g}"


__all__ = ["write_report"]
