"""Success on the held-out panel, before and after, and what a run reports in the end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from roleagent.agents.evaluation import evaluate_policy, result_rows, summarise
from roleagent.agents.hf import HFPolicy
from roleagent.agents.session import World
from roleagent.learners.run import Run


def measure(run: Run, world: World, policy: HFPolicy, name: str) -> dict[str, Any]:
    """Success on a panel; kept in the run folder as ``<name>.json``, so that it is measured once."""
    known = run.folder.read_json(f"{name}.json")
    # A run that has gone on since then is measured again; what was before stays as it was.
    if known is not None and (name == "before" or known["policy_version"] == policy.version):
        return known
    options, panel = run.config.rollout, world.panel
    policy.generator.manual_seed(int(run.stream(6).integers(2**62)))
    run.display.stage(f"evaluate {name}", len(panel))
    records = list(
        evaluate_policy(
            world.rollout(policy),
            panel.task_ids,
            options.eval_temperature,
            options.eval_batch,
            lambda done, total: run.display.advance(done),
        )
    )
    result = {
        "panel": panel.manifest(),
        "policy_version": policy.version,
        **summarise(records),
        "records": [asdict(record) for record in records],
    }
    run.folder.write_json(f"{name}.json", result)
    return result


def report(run: Run, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Shows and keeps the result."""
    panel = before["panel"]
    run.display.table(
        f"success on {panel['split']} ({panel['tasks']} tasks, panel {panel['digest']}), 95 % intervals",
        ["task type", "before", "after"],
        result_rows({"before": before, "after": after}),
    )
    gain = after["success"] - before["success"]
    result = {
        "before": before["success"],
        "after": after["success"],
        "gain": gain,
        "counters": run.progress.counters,
    }
    run.folder.write_json("result.json", result)
    run.display.say(f"gain {100 * gain:+.1f} points; everything is in {run.folder.path}")
    return result
