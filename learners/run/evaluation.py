"""Success on the held-out split before and after training, and the result of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.evaluation.comparison import EvalRecords, by_task, compare
from roleagent.agents.evaluation.play import evaluate_policy
from roleagent.agents.evaluation.statistics import Estimate, signed, summarize
from roleagent.agents.policies.protocol import Policy
from roleagent.config import ConfigError
from roleagent.curricula.suite import Suite, evaluations, outcomes
from roleagent.learners.lessons import evaluation_lessons
from roleagent.learners.run.display import chart
from roleagent.learners.run.metrics import held_out_signs, not_learning
from roleagent.learners.run.run import Run
from roleagent.learners.run.watchdog import logged_iterations
from roleagent.tasks.split import split_text


def evaluate_split(run: Run, split: EnvSplit, policy: Policy, name: str, sampled: bool = False) -> dict[str, Any]:
    """Success on a split that the ranks share; kept in the run folder as ``<name>.json``, so that it is measured once.

    Args:
        sampled: whether to sample at ``rollout.eval_sampled`` instead of ``rollout.eval_temperature``; the file is
            ``<name>-sampled.json``.

    Returns:
        the result, on every rank.

    Raises:
        ConfigError: the environment, or the agent program, failed in every episode.
    """
    suffix = "-sampled" if sampled else ""
    known = run.ranks.once(lambda: _known(run, split, policy, name, suffix))
    if known is not None:
        return _remembered(run, policy, known, sampled)
    options, task_split = run.config.rollout, split.task_split
    name += suffix
    policy.reseed(int(run.own_stream("evaluation").integers(2**62)))
    task_ids = run.ranks.share(task_split.task_ids)
    run.display.stage(f"evaluate {name}", len(task_ids))
    rollout = split.reading(evaluation_lessons(run, split)).rollout(policy)
    temperature = options.eval_sampled if sampled else options.eval_temperature
    with contextlib.closing(rollout.pool):  # environments may have processes
        played = evaluate_policy(rollout, task_ids, temperature, options.eval_batch, lambda done, _: run.advance(done))
        records = run.ranks.collect([*played])

    def result() -> dict[str, Any]:
        summary = summarize(records)
        if not summary["n"]:
            raise ConfigError(f"every episode of the evaluation {name!r} failed, the first with: {records[0].error}")
        found = {
            "task_split": split.manifest(),
            "policy_version": policy.version,
            **summary,
            "records": [asdict(record) for record in records],
        }
        run.folder.write_json(f"{name}.json", found)
        low, high = summary["interval"]
        tasks = f"{summary['tasks']} tasks of {task_split.split}"
        run.display.say(f"{name}: success {summary['success']:.1%} ({low:.0%} to {high:.0%}), {tasks}")
        if summary["errors"]:
            first = next(record.error for record in records if not record.sound)
            run.display.warn(
                f"{summary['errors']} episodes of {name!r} failed and are in no rate, the first with: {first}"
            )
        if not summary["steps"] and not run.config.agent.command:
            run.display.warn(
                f"no episode of {name!r} had a turn: a prompt and rollout.action_tokens={options.action_tokens} are "
                f"more than the context, {policy.context_length} tokens: raise policy.context, or lower the other"
            )
        for callback in run.callbacks:
            callback.on_evaluate(name, found)
        return found

    return _remembered(run, policy, run.ranks.once(result), sampled)


def _remembered(run: Run, policy: Policy, found: dict[str, Any], sampled: bool) -> dict[str, Any]:
    """The result, which the next iteration logs for the watchdog if the present policy plays it."""
    if not sampled and found["policy_version"] == policy.version:
        run.held_out = found
    return found


def evaluate_stage(run: Run, split: EnvSplit, policy: Policy, name: str) -> dict[str, dict[str, Any]]:
    """The evaluations before or after training, by name: at one temperature, or two with ``rollout.eval_sampled``."""
    found = {name: evaluate_split(run, split, policy, name)}
    if run.config.rollout.eval_sampled:
        found[f"{name}-sampled"] = evaluate_split(run, split, policy, name, sampled=True)
    return found


def _known(run: Run, split: EnvSplit, policy: Policy, name: str, suffix: str) -> dict[str, Any] | None:
    """The saved result of this policy on this split, if there is one."""
    tasks = json.loads(json.dumps(split.manifest()))  # as a file has it

    def holds(found: dict[str, Any]) -> bool:
        return (found["policy_version"], found["task_split"]) == (policy.version, tasks)

    found = run.folder.read_json(f"{name}{suffix}.json")
    # A run that has learned since then is evaluated again; "before" stays.
    if found is not None and (name == "before" or holds(found)):
        return found
    for other in ("before", f"iteration-{run.progress.step:06d}"):  # the policy was not updated since
        found = run.folder.read_json(f"{other}{suffix}.json")
        if found is not None and holds(found):
            run.folder.write_json(f"{name}{suffix}.json", found)
            return found
    return None


def evaluate_periodically(run: Run, split: EnvSplit, policy: Policy, begins: bool = False) -> None:
    """Evaluates on ``train.evaluate_tasks`` after every ``train.evaluate_every`` iterations, unless the result is
    saved already.

    Args:
        begins: whether no iteration was played yet, in this process: a suite without an earlier evaluation is played.
    """
    options, step = run.config.train, run.progress.step
    due = bool(options.evaluate_every and step and step % options.evaluate_every == 0)
    if due:
        evaluate_split(run, split.first(options.evaluate_tasks), policy, f"iteration-{step:06d}")
    new = begins and bool(options.suite) and run.ranks.once(lambda: _suite_is_new(run))
    if options.suite and (due or new):
        evaluate_suite(run, split, policy)
    if due or new:
        run.show(options.last)  # show the stage again


def _suite_is_new(run: Run) -> bool:
    """Whether the run has not played the suite before this iteration: a killed run may have, in this one."""
    ids = [task.task_id for task in Suite.read(Path(run.config.train.suite)).tasks]
    return all(iteration >= run.progress.step for iteration in evaluations(run.folder.path, ids))


class Regression(RuntimeError):
    """A run has lost too much of its frozen suite; the message is one line."""


def evaluate_suite(run: Run, split: EnvSplit, policy: Policy) -> None:
    """Plays the frozen suite as the held-out tasks are played, and reports what was forgotten and regained.

    Raises:
        Regression: more is lost than ``train.stop_on_regression`` allows.
    """
    options, held_out, name = run.config.train, run.held_out, f"suite-{run.progress.step:06d}"
    suite = Suite.read(Path(options.suite))
    ids = [task.task_id for task in suite.tasks]
    tasks = EnvSplit.training(run.config).only(ids)
    found = evaluate_split(run, tasks if split.horizon else tasks.without_predictions(), policy, name)
    run.held_out = held_out  # which the suite is not
    past = run.ranks.once(lambda: [outcomes(one) for one in evaluations(run.folder.path, ids).values()])
    *earlier, now = past
    changes = suite.changes(earlier[-1] if earlier else now, now)
    for mode, row in changes.items():
        if row["forgotten"] or row["regained"]:
            run.display.say(
                f"suite, {mode}: {row['solved']} of {row['tasks']} solved, {row['forgotten']} forgotten, "
                f"{row['regained']} regained"
            )
    run.ranks.once(lambda: run.folder.write_json(f"{name}.json", {**found, "modes": changes}))
    solved = sum(now.values())
    best = max([sum(won for task_id, won in one.items() if task_id in now) for one in earlier], default=0)
    if options.stop_on_regression and best - solved > options.stop_on_regression * len(ids):
        worst = max(changes, key=lambda mode: changes[mode]["tasks"] - changes[mode]["solved"])
        raise Regression(
            f"regression at iteration {run.progress.step}: {solved} of {len(now)} tasks of {options.suite} are "
            f"solved, after {best}; most are lost to {worst}. `roleagent failures suite {run.folder.path}` shows them"
        )


def report(run: Run, found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Shows and saves the result: success by task type, the curve of the evaluations, and what each stage brought.

    Args:
        run: the run.
        found: evaluations by name: ``before`` and ``after``, and both with ``-sampled`` if there are any.
    """
    gains = _gains(found)
    success = {name.replace("-", "_"): one["success"] for name, one in found.items()}
    intervals = {f"{name}_interval": [low, high] for name, (_, low, high) in gains.items()}
    differences = {name: one.value for name, one in gains.items()}
    result = {name.replace("-", "_"): value for name, value in (success | differences | intervals).items()}
    result |= {"invalid": found["after"]["invalid"], "counters": run.progress.counters}
    result |= {"stopped": run.stopped} if run.stopped else {}
    run.ranks.once(lambda: run.folder.write_json("result.json", result))
    run.tracking.result(result)
    if run.ranks.first:
        show(run, found, gains)
    return result


def show_again(run: Run) -> None:
    """Prints the result of a finished run once more."""
    names = [f"{name}{suffix}" for name in ("before", "after") for suffix in ("", "-sampled")]
    found = {name: one for name in names if (one := run.folder.read_json(f"{name}.json")) is not None}
    if run.ranks.first and "before" in found and "after" in found:
        show(run, found, _gains(found))


def _gains(found: Mapping[str, dict[str, Any]]) -> dict[str, Estimate]:
    """What training brought, by name."""
    before = [name for name in found if name.startswith("before")]
    return {
        name.replace("before", "gain"): gain(found[name], found[name.replace("before", "after")]) for name in before
    }


def gain(before: Mapping[str, Any], after: Mapping[str, Any]) -> Estimate:
    """The difference of success between two evaluations of the same tasks, paired by task."""
    start, end = EvalRecords.of("before", before), EvalRecords.of("after", after)
    found = compare([end], [start], np.random.default_rng(0))["success"]
    return Estimate(found["difference"], *found["interval"])


def show(run: Run, found: Mapping[str, dict[str, Any]], gains: Mapping[str, Estimate]) -> None:
    """Prints the result of a run."""
    display, task_split, history = run.display, found["before"]["task_split"], logged_iterations(run)
    for message in held_out_signs(history, found["after"]).values():
        display.warn(f"held-out tasks: {message}")
    # A curriculum that finds harder tasks hides in training what held-out tasks show.
    gained = any(one.low > 0 for one in gains.values())
    if not gained and (warning := not_learning(history, run.config)):
        display.warn(f"{warning}; roleagent doctor {run.folder.path} looks for the cause")
    manner = {"": "greedy" if run.config.rollout.eval_temperature == 0 else "", "-sampled": "sampled"}
    columns = [
        f"{name.removesuffix('-sampled')}\n{manner[name.removeprefix('before').removeprefix('after')]}"
        for name in found
    ]
    display.table(
        f"success on {task_split['split']} ({split_text(task_split)})",
        ["task type", "n", *columns],
        success_rows(found),
    )
    curve = held_out_curve(run, found)
    if len(curve) > 2:
        limit, tasks = run.config.train.evaluate_tasks, found["before"]["tasks"]
        of = f"{limit} of these tasks" if 0 < limit < tasks else "all of these tasks"
        display.say(f"held-out success over the iterations ({of})")
        for line in chart(curve):
            display.say(line)
    display.say(f"run folder: {run.folder.path}")
    reached, changed = [], []
    for name, (added, low, high) in gains.items():
        suffix = name.removeprefix("gain")
        start, how = found[f"before{suffix}"], f" {manner[suffix]}" if manner[suffix] else ""
        bottom, top = start["interval"]
        reached.append(f"{start['success']:.1%}{how} ({bottom:.0%} to {top:.0%})")
        points = "" if changed else " points"
        changed.append(f"{100 * added:+.1f}{points}{how} ({signed(100 * low, 0)} to {signed(100 * high, 0)})")
    learned = "imitation" if run.config.warmstart.episodes and not run.config.policy.path else "start"
    display.say("what each stage brought, with 95 % intervals:")
    display.say(f"{learned:<13}  {', '.join(reached)}")
    display.say(f"{run.method.label:<13}  {', '.join(changed)}")


def success_rows(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Table rows of evaluations side by side: all tasks with their 95 % interval, then each task type."""
    whole = next(iter(found.values()))
    rows = [["all", str(whole["n"]), *(f"{one['success']:.1%}" for one in found.values())]]
    rows.append(["95 % interval", "", *("{:.0%}–{:.0%}".format(*one["interval"]) for one in found.values())])
    for label in sorted(whole["by_type"]):
        parts = [one["by_type"].get(label) for one in found.values()]
        rows.append([label, str(parts[0]["n"]), *(f"{part['success']:.1%}" if part else "–" for part in parts)])
        if any(other.startswith(f"{label}/") for other in whole["by_type"]):  # an environment
            rows.append(["95 % interval", "", *("{:.0%}–{:.0%}".format(*part["interval"]) for part in parts)])
    return rows


def held_out_curve(run: Run, found: Mapping[str, dict[str, Any]]) -> list[tuple[int, float]]:
    """Iteration and success of all evaluations of a run, on the tasks that all of them have."""
    kept = {0: found["before"], run.progress.step: found["after"]}
    for path in sorted(run.folder.path.glob("iteration-*.json")):
        number = int(path.stem.removeprefix("iteration-"))
        if number < run.progress.step and (evaluation := run.folder.read_json(path.name)):
            kept[number] = evaluation
    played = {number: by_task([EvalRecords.of(str(number), kept[number])]) for number in sorted(kept)}
    common = set.intersection(*map(set, played.values()))
    won = {number: [record.won for task in common for record in rows[task]] for number, rows in played.items()}
    return [(number, sum(each) / max(1, len(each))) for number, each in won.items()]
