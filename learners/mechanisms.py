"""What the mechanisms of a run did over all its iterations, and a warning for those that did nothing."""

from __future__ import annotations

from collections.abc import Mapping

from roleagent.config import Config


def tally(counters: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Adds an iteration to what the mechanisms did over the whole run."""
    rewards = [name for name in metrics if name.startswith("reward_")]
    for name in ("predictions_scored", "returns_modulated", "dead_groups", "replaced_groups", *rewards):
        counters[name] = counters.get(name, 0.0) + metrics[name]
    for name in (
        *("sampled", "from_curriculum", "failures", "retrieved", "self_retrievals_total", "same_iteration_total"),
        *("reflections_fallback", "selections_fallback"),
    ):
        counters[f"curriculum_{name}"] = metrics.get(f"curriculum_{name}", 0.0)  # the sampler counts since the start


def idle_mechanisms(config: Config, counters: Mapping[str, float]) -> list[str]:
    """A warning for each mechanism that is switched on and did nothing."""
    expected = {}
    if config.wia:
        expected["predictions_scored"] = "wia is on, but no prediction was ever scored"
        if config.estimator.kind == "role_agent":
            expected["returns_modulated"] = "wia is on, but no prediction ever changed a return"
    if config.aiw:
        expected["curriculum_from_curriculum"] = "aiw is on, but no task was ever sampled from the failure library"
    if config.rollout.refills and counters.get("dead_groups"):
        expected["replaced_groups"] = "rollout.refills is on, but no group was ever replaced"
    for name, weight in config.estimator.rewards.items():
        if weight and name != "task":
            expected[f"reward_{name}"] = f"estimator.rewards weighs {name!r}, but no turn ever had such a reward"
    idle = [text for name, text in expected.items() if not counters.get(name)]
    failures = counters.get("curriculum_failures", 0.0)
    if failures and counters.get("curriculum_reflections_fallback") == failures:
        idle.append("none of the analyst's reflections could be read: tasks were chosen by text search alone")
    return idle
