"""Warnings about a run: mechanisms without effect or with a bad one, no learning, failure on held-out tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from roleagent.learners.advantages import ESTIMATORS
from roleagent.learners.process_rewards import weighing
from roleagent.tasks.grammar import REFUSALS

if TYPE_CHECKING:
    from roleagent.config import Config
    from roleagent.config.settings import WatchdogConfig

_IF_LOGGED = ("calls", "groups", "process_nonzero", "process_only_groups", "returns_changed", "world_loss_share")
_GENENV = (
    *("genenv_proposed", "genenv_accepted", "genenv_wanted", "genenv_fallback", "genenv_fresh", "genenv_replayed"),
    "genenv_records_in_band",
)
_SMALL_KL = 1e-4  # nats
FEWEST = 10
"""Least number of iterations in the second half of a run for a statement about its trend."""


def add_counters(counters: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Adds an iteration's metrics to the counters of the run."""
    rewards = [name for name in metrics if name.startswith("reward_")]
    for name in ("predictions_scored", "returns_modulated", "zero_variance_groups", "replaced_groups", *rewards):
        counters[name] = counters.get(name, 0.0) + metrics[name]
    tools = [name for name in metrics if name.startswith("tool_calls/")]
    for name in (*_IF_LOGGED, *tools):
        if name in metrics:
            counters[name] = counters.get(name, 0.0) + metrics[name]
    for calls in tools:
        success = calls.replace("tool_calls/", "tool_success/")
        counters[success] = counters.get(success, 0.0) + metrics[calls] * metrics[success]  # a number, not a share
    counters["imitated_tokens"] = counters.get("imitated_tokens", 0.0) + metrics.get("imitated_tokens", 0.0)
    for name in (
        *("sampled", "from_curriculum", "failures", "retrieved", "self_retrievals_total", "same_iteration_total"),
        *("reflections_fallback", "selections_fallback"),
    ):
        counters[f"curriculum_{name}"] = metrics.get(f"curriculum_{name}", 0.0)  # the sampler counts since the start
    if "genenv_proposed" in metrics:
        for name in (*_GENENV, *(f"genenv_refused_{reason}" for reason in REFUSALS)):
            counters[name] = counters.get(name, 0.0) + metrics[name]
        for name, happened in (
            ("genenv_unequal_weights", metrics.get("genenv_weight_spread", 1.0) > 1),
            ("genenv_moved", metrics.get("genenv_kl", 0.0) >= _SMALL_KL),
        ):
            counters[name] = counters.get(name, 0.0) + happened
        counters["genenv_pool"] = metrics["genenv_pool"]


def idle_mechanisms(config: Config, counters: Mapping[str, float]) -> list[str]:
    """A warning for each mechanism that is switched on and had no effect, or taught what no task asks for."""
    expected = {}
    if config.wia:
        expected["predictions_scored"] = "wia is on, but no prediction was ever scored"
        estimator = ESTIMATORS.get(config.estimator.kind)  # None: a plug-in's that is not loaded here
        if estimator is not None and estimator.modulates:
            expected["returns_modulated"] = "wia is on, but no prediction ever changed a return"
        if config.loss.prediction_credit == "imitate" and config.loss.prediction_weight:
            expected["imitated_tokens"] = "loss.prediction_credit=imitate, but no true state was ever imitated"
    if config.aiw:
        expected["curriculum_from_curriculum"] = "aiw is on, but no task was ever sampled from the failure library"
    if config.rollout.dynamic_sampling_rounds and counters.get("zero_variance_groups"):
        expected["replaced_groups"] = "rollout.dynamic_sampling_rounds is on, but no group was ever replaced"
    for name, weight in config.estimator.rewards.items():
        if weight and name != "task":
            expected[f"reward_{name}"] = f"estimator.rewards has {name!r}, but no turn ever had such a reward"
    process = weighing(config.estimator.rewards)
    if any(counters.get(f"reward_{name}") for name in process):
        expected["returns_changed"] = f"{' and '.join(process)} weigh, but no process reward ever changed a return"
    if "calls" in counters:
        expected["calls"] = "tools are offered, but none was ever called"
    for name in [name for name in counters if name.startswith("tool_calls/")]:
        tool = name.removeprefix("tool_calls/")
        expected[f"tool_success/{tool}"] = f"all {counters[name]:.0f} calls of the tool {tool} failed"
    expected |= _idle_simulator(config, counters) if config.genenv else {}
    idle = [text for name, text in expected.items() if not counters.get(name)]
    if config.genenv and 2 * counters.get("genenv_fallback", 0.0) > counters.get("genenv_wanted", 0.0):
        idle.append("more than half of the tasks that genenv wanted could not be written: base tasks took their place")
    failures = counters.get("curriculum_failures", 0.0)
    if failures and counters.get("curriculum_reflections_fallback") == failures:
        idle.append("none of the analyst's reflections could be read: tasks were chosen by text search alone")
    alone, groups = counters.get("process_only_groups", 0.0), counters.get("groups", 0.0)
    if config.estimator.process_gate == "none" and 2 * alone > groups:
        idle.append(
            f"in {alone / groups:.0%} of the groups only process rewards differed and taught calls for their own sake: "
            "estimator.process_gate=live leaves them out there"
        )
    if config.loss.action_mask and counters.get("world_loss_share"):
        idle.append("tokens of the world have weight in the loss, although loss.action_mask is on")
    return idle


def _idle_simulator(config: Config, counters: Mapping[str, float]) -> dict[str, str]:
    """For each counter of GenEnv that must not be 0, the warning if it is."""
    options = config.simulator
    if not options.fresh:
        return {}
    if not counters.get("genenv_accepted"):
        reasons = {reason: counters.get(f"genenv_refused_{reason}", 0.0) for reason in REFUSALS}
        why = ", ".join(f"{reason} {number:.0f}" for reason, number in reasons.items() if number)
        return {"genenv_accepted": f"genenv is on, but no task of simulator.kind={options.kind} was accepted ({why})"}
    if not counters.get("genenv_fresh"):
        return {"genenv_fresh": "genenv is on, but no written task was played"}
    expected = {"genenv_pool": "genenv is on, but the pool of written tasks is empty"}
    if options.replay:
        expected["genenv_replayed"] = "simulator.replay is on, but no written task was ever played again"
    if options.kind in ("base", "static", "endpoint"):
        return expected
    expected["genenv_records_in_band"] = "genenv is on, but no written task was ever in the band: nothing was learned"
    if counters.get("genenv_records_in_band"):
        expected["genenv_unequal_weights"] = "all records of written tasks had equal weights: beta does nothing"
        expected["genenv_moved"] = f"the simulator never moved {_SMALL_KL:g} nats from where it began"
    return expected


def held_out_metrics(evaluation: Mapping[str, Any] | None) -> dict[str, float]:
    """The metrics of an evaluation in the iteration that the same policy plays; empty without an evaluation."""
    if evaluation is None:
        return {}
    return {f"held_out_{name}": evaluation[name] for name in ("success", "invalid") if name in evaluation}


def held_out_gap(history: Sequence[Mapping[str, Any]], options: WatchdogConfig) -> str | None:
    """Training succeeds where held-out tasks fail: by the newest evaluation and the iterations up to it."""
    for end in range(len(history), 0, -1):
        if (held_out := history[end - 1].get("held_out_success")) is None:
            continue
        played = [v for row in history[:end] if (v := row.get("success")) is not None][-options.window :]
        mean = sum(played) / len(played) if played else 0.0
        if mean - held_out < options.held_out_gap - 1e-9:
            return None
        return (
            f"success is {held_out:.0%}, but {mean:.0%} in training: the policy knows its training tasks, or the "
            "held-out tasks need what training never shows"
        )
    return None


def held_out_invalid(history: Sequence[Mapping[str, Any]], options: WatchdogConfig) -> str | None:
    """Nearly all commands fail on held-out tasks: by the newest evaluation."""
    shares = [share for row in history if (share := row.get("held_out_invalid")) is not None]
    if not shares or shares[-1] < options.invalid_actions:
        return None
    return f"the share of invalid commands is {shares[-1]:.2f}, at or above {options.invalid_actions:g}"


HELD_OUT = {"held_out_gap": held_out_gap, "held_out_invalid": held_out_invalid}
"""The signs that evaluations show, by name. They are no collapse: training itself may be sound."""


def held_out_signs(
    history: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Any], options: WatchdogConfig
) -> dict[str, str]:
    """Messages by sign about one evaluation.

    Args:
        history: the iterations up to the evaluation, or up to the one that its policy played next.
        evaluation: a summary with ``success`` and ``invalid``.
        options: thresholds.
    """
    if not history:
        return {}
    measured = [*history[:-1], {**history[-1], **held_out_metrics(evaluation)}]
    return {name: text for name, sign in HELD_OUT.items() if (text := sign(measured, options))}


def not_learning(history: Sequence[Mapping[str, Any]], config: Config) -> str | None:
    """A warning for a finished run that did not learn although it could have; None otherwise.

    The warning needs two signs in the run's second half. At least half of the groups had different outcomes, and
    neither success nor reward rose by more than the standard error of the rise (of a least-squares line).

    Args:
        history: all iterations; values may be missing or None.
        config: of the run.
    """
    late = history[len(history) // 2 :]
    replaced, groups, alike = (
        sum(row.get(name) or 0.0 for row in late) for name in ("replaced_groups", "groups", "zero_variance_groups")
    )
    groups, alike = groups - replaced, alike - replaced
    success, reward = ([v for row in late if (v := row.get(name)) is not None] for name in ("success", "reward"))
    if len(success) < FEWEST or groups <= 0 or 2 * alike > groups:
        return None
    rise, error = _rise(success)
    if rise > error or (len(reward) >= FEWEST and np.greater(*_rise(reward))):
        return None
    if config.wia and config.prompt.style == "transcript" and config.prompt.predictions == "followup":
        usual = (
            f"predictions stay in the transcript (prompt.predictions={config.prompt.predictions}): "
            "runs that learn usually have prompt.predictions=detached"
        )
    else:
        usual = "compare with a run at another optim.lr"
    return (
        f"no sign of learning: in the last {len(late)} iterations success changed by {rise:+.2f} ± {error:.2f}, though "
        f"{(groups - alike) / groups:.0%} of the groups had episodes that ended differently; {usual}"
    )


def _rise(values: Sequence[float]) -> tuple[float, float]:
    """The rise of a least-squares line over all values, and its standard error; both 0 for equal values.

    >>> _rise([0.5] * 10)
    (0.0, 0.0)
    >>> [round(figure, 2) for figure in _rise([0.1, 0.1, 0.4, 0.4])]
    [0.36, 0.13]
    """
    if min(values) == max(values):
        return 0.0, 0.0
    (slope, _), covariance = np.polyfit(range(len(values)), values, 1, cov=True)
    return float(slope) * (len(values) - 1), float(covariance[0, 0]) ** 0.5 * (len(values) - 1)
