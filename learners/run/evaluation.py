"""Success on the held-out split before and after training, and the result of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from roleagent.agents.builders import EnvSplit
from roleagent.agents.evaluation.play import evaluate_policy
from roleagent.agents.evaluation.statistics import result_rows, summarize
from roleagent.agents.policies.protocol import Policy
from roleagent.learners.run.metrics import held_out_signs
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
    """
    suffix = "-sampled" if sampled else ""
    known = run.ranks.once(lambda: _known(run, policy, name, suffix))
    if known is not None:
        return _remembered(run, policy, known, sampled)
    options, task_split = run.config.rollout, split.task_split
    name += suffix
    policy.reseed(int(run.own_stream("evaluation").integers(2**62)))
    task_ids = run.ranks.share(task_split.task_ids)
    run.display.stage(f"evaluate {name}", len(task_ids))
    rollout, temperature = split.rollout(policy), options.eval_sampled if sampled else options.eval_temperature
    with contextlib.closing(rollout.pool):  # environments may have processes
        played = evaluate_policy(rollout, task_ids, temperature, options.eval_batch, lambda done, _: run.advance(done))
        records = run.ranks.collect([*played])

    def result() -> dict[str, Any]:
        found = {
            "task_split": split.manifest(),
            "policy_version": policy.version,
            **summarize(records),
            "records": [asdict(record) for record in records],
        }
        run.folder.write_json(f"{name}.json", found)
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


def _known(run: Run, policy: Policy, name: str, suffix: str) -> dict[str, Any] | None:
    """The saved result of this policy, if there is one."""
    found = run.folder.read_json(f"{name}{suffix}.json")
    # A run that has learned since then is evaluated again; "before" stays.
    if found is not None and (name == "before" or found["policy_version"] == policy.version):
        return found
    before = run.folder.read_json(f"before{suffix}.json")
    if before is None or before["policy_version"] != policy.version:
        return None
    run.folder.write_json(f"{name}{suffix}.json", before)  # the policy was not updated
    return before


def evaluate_periodically(run: Run, split: EnvSplit, policy: Policy) -> None:
    """Evaluates after every ``train.evaluate_every`` iterations, unless the result is saved already."""
    every, step = run.config.train.evaluate_every, run.progress.step
    if every and step and step % every == 0:
        evaluate_split(run, split, policy, f"iteration-{step:06d}")
        run.show(run.config.train.iterations)  # show the stage again


def report(run: Run, found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Shows and saves the result.

    Args:
        run: the run.
        found: evaluations by name: ``before`` and ``after``, and both with ``-sampled`` if there are any.
    """
    task_split = found["before"]["task_split"]
    greedy = run.config.rollout.eval_temperature == 0
    names = {"before": "before, greedy" if greedy else "before", "after": "after, greedy" if greedy else "after"}
    run.display.table(
        f"success on {task_split['split']} ({split_text(task_split)}), 95 % intervals",
        ["task type", *(names.get(name, name.replace("-", ", ")) for name in found)],
        result_rows(found),
    )
    success = {name.replace("-", "_"): one["success"] for name, one in found.items()}
    gain = success["after"] - success["before"]
    result = {**success, "gain": gain, "invalid": found["after"]["invalid"], "counters": run.progress.counters}
    run.ranks.once(lambda: run.folder.write_json("result.json", result))
    run.tracking.result(result)
    if run.ranks.first:
        for message in held_out_signs(logged_iterations(run), found["after"]).values():
            run.display.warn(f"held-out tasks: {message}")
    run.display.say(f"gain {100 * gain:+.1f} points; run folder: {run.folder.path}")
    return result
