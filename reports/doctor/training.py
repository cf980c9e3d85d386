"""``roleagent doctor RUN``: why reinforcement does not learn, from the files of a run in any state.

Nothing here imports torch. The page docs/not_learning.md describes every cause. The thresholds below separate recorded
runs that learn from runs that do not (tests/reports/doctor/recorded).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from roleagent.agents.evaluation.statistics import signed
from roleagent.config import Config
from roleagent.curricula.suite import outcomes
from roleagent.learners.method import known_class, known_method
from roleagent.learners.run.metrics import (
    FEWEST,
    HELD_OUT,
    INVALID_ACTIONS,
    WINDOW,
    held_out_signs,
    idle_mechanisms,
    not_learning,
)
from roleagent.learners.run.watchdog import SOLVED, SUCCESS_LEAST, Watchdog, entropy_rose, penalties, signs_of
from roleagent.reports.data.load_run import step_of
from roleagent.reports.doctor.findings import Finding
from roleagent.reports.doctor.run_log import Log

ONE_SIDED = 0.5
"""Share of the groups that are all lost, or all won, from which the start is too weak or too strong; and share of
zero-variance groups from which they are named."""
NO_GRADIENT = 0.9
"""Share of zero-variance groups above which no rate would move the policy."""
UNMOVED = 2e-4
"""Nats per token that the updates of an iteration move the policy; runs that learn have 0.002 to 0.02."""
CLIPPED = 0.1
"""Share of clipped tokens from which the rate is too high; runs that learn have at most 0.03."""
IDENTICAL = 0.02
"""Nats of entropy below which the episodes of a group are nearly identical; runs that learn have 0.06 and more."""
SAMPLED_GAP = 0.3
"""Greedy success minus success at the sampling temperature from which the temperature is too high."""
FAILED, UNFINISHED = 0.1, 0.2
"""Share of the episodes without an outcome, and of those that the context or the agent program ended, that are too
many."""
CUT, MALFORMED = 0.1, 0.2
"""Share of replies cut at the token limit, and of replies without a command, that are too many."""
MISMATCH = 0.1, 0.02
"""Nats per token: a problem (other weights), and a note (bfloat16 has 0.006)."""
CROWDED = 0.5
"""Share of the trained tokens that are observed states, from which they may outweigh the actions."""
FORGOTTEN = 0.15
"""Loss of success on held-out tasks that is no chance, from which the policy has forgotten what it could."""
SMALL_GAIN = 0.05
"""The gain for which the number of evaluation tasks is advised."""


def episodes(log: Log) -> Iterator[Finding]:
    """Episodes that have no outcome, or that something else than their task ended."""
    config, crashed = log.config, log.total("crashed_episodes")
    played = max(1.0, log.total("groups") * config.rollout.group_size - crashed)
    if crashed >= FAILED * (crashed + played):
        text = f"{crashed:.0f} episodes failed beside {played:.0f} that were played, and are left out"
        yield Finding("failed episodes", "problem", text, "the run's warnings say with what: repair the environment")
    stopped, late = log.total("agent_crashed"), log.total("agent_timeout")
    if stopped + late >= UNFINISHED * played:
        text = f"of {played:.0f} episodes the program ended {stopped:.0f} by an error and {late:.0f} by its time limit"
        longer = f", or agent.timeout={2 * config.agent.timeout:g}" if late else ""
        yield Finding("agent program", "problem", text, f"{log.path / 'agent.log'} has its last words{longer}")
    if (share := _at_start(log, "context_share")) >= UNFINISHED:
        text = f"{share:.0%} of the episodes in the first iteration ended because the context was full"
        advice = f"policy.context={2 * config.policy.context} (now {config.policy.context}), or prompt.style=window"
        yield Finding("short context", "problem", text, advice)


def mismatch(log: Log) -> Iterator[Finding]:
    """Learner and sampler have different weights, or the episodes are of old ones."""
    gap, stale = log.mean("mismatch"), log.mean("staleness")
    if (synced := log.mean("sync_mismatch")) >= MISMATCH[0]:
        gap, stale = synced, 0.0
    if gap < MISMATCH[1]:
        return
    grade = "problem" if gap >= MISMATCH[0] else "note"
    text = f"learner and sampler differ by {gap:.2g} nats per token (mean of the run)"
    if stale:
        text += f"; episodes are {stale:.1f} optimizer steps old"
        yield Finding("stale weights", grade, text, "rollout.async_level=0, or a lower optim.lr")
    else:
        advice = "rollout.backend=local shows whether the sampler is at fault; loss.old_logprobs=learner corrects it"
        yield Finding("mismatch", grade, text, advice)


def replies(log: Log) -> Iterator[Finding]:
    """Replies that are cut, or hold no command, at the start: what a collapse does to them is no cause."""
    limits, share = log.config.rollout, _at_start(log, "cut_replies")
    useless = (_at_start(log, "invalid_action_share") - share) / max(1e-9, 1 - share)
    if share >= CUT and useless < INVALID_ACTIONS:  # else the policy babbles: whole replies are no better
        text = f"{share:.0%} of the replies reached the limit of {limits.action_tokens} tokens in the first iteration"
        yield Finding("cut replies", "problem", text, f"rollout.action_tokens={2 * limits.action_tokens}")
    if (share := _at_start(log, "cut_predictions")) >= CUT:
        text = f"{share:.0%} reached the limit of {limits.prediction_tokens} tokens in the first iteration"
        yield Finding("cut predictions", "note", text, f"rollout.prediction_tokens={2 * limits.prediction_tokens}")
    shares = [row["format_errors"] / row["environment_steps"] for row in log.rows[:1] if row.get("environment_steps")]
    if shares and shares[0] >= MALFORMED and _at_start(log, "cut_replies") < CUT:
        text = f"{shares[0]:.0%} of the replies held no command in the first iteration"
        yield Finding("format", "problem", text, f"imitate the form first: {_stronger(log.config)}")


def start(log: Log) -> Iterator[Finding]:
    """Most groups are lost entirely, or won entirely. Either share is at least what success leaves room for."""
    success = log.mean("success")
    lost, won = log.alike - success, log.alike - (1 - success)
    figures = f"{log.alike:.0%} of the groups had zero variance at success {success:.0%}"
    if lost >= ONE_SIDED and log.start < ONE_SIDED:
        text = f"{figures}: at least {lost:.0%} lost every episode and teach nothing"
        yield Finding("start too weak", "problem", text, f"imitate more first: {_stronger(log.config)}")
    elif won >= ONE_SIDED or log.start >= SOLVED:
        text = f"{figures}, {log.start:.0%} in the first iteration: hardly anything is left to learn"
        yield Finding("start too strong", "problem", text, _harder(log.config))


def variance(log: Log) -> Iterator[Finding]:
    """Most groups have zero variance, of either kind."""
    if log.idle >= ONE_SIDED:
        text = f"{log.idle:.0%} of the groups that were trained on had zero variance: they teach nothing"
        yield Finding("zero variance", "problem", text, _more_variance(log.config))


def costs(log: Log) -> Iterator[Finding]:
    """Penalties cost an episode more than its task gives."""
    weights = {name: weight for name, weight in log.config.estimator.rewards.items() if weight < 0}
    messages = [message for row in log.rows if "reward" in row and (message := penalties(weights)([row]))]
    if 2 * len(messages) >= max(1, len(log.rows)):
        text = f"in {len(messages)} of {len(log.rows)} iterations; in the last of them {messages[-1].partition(':')[0]}"
        advice = " ".join(f"estimator.rewards.{name}={weight / 10:g}" for name, weight in weights.items())
        yield Finding("penalties", "problem", text, f"{advice}, or none: estimator.rewards={{}}")


def rate(log: Log) -> Iterator[Finding]:
    """The updates move the policy too much, or hardly at all."""
    lr, clipped, norm = log.config.optim.lr, log.mean("clip_fraction"), log.values("grad_norm")
    rose = entropy_rose(log.rows)
    if clipped >= CLIPPED or rose or (log.collapsed and not list(costs(log))):
        text = f"success {log.start:.0%} → {log.end:.0%}; an iteration moved the policy by up to "
        text += f"{max(log.values('logprob_gap'), default=0.0):.2g} nats per token, {clipped:.0%} of them clipped"
        text += f"; largest grad_norm {max(norm):.2g} (first: {norm[0]:.2g})" if norm else ""
        text += f"; {rose}" if rose else ""
        yield Finding("rate too high", "problem", text, f"optim.lr={lr / 10:g} (now {lr:g})")
    elif log.moved is not None and log.moved < UNMOVED and log.idle < NO_GRADIENT:
        text = f"the updates of an iteration moved the policy by {log.moved:.1g} nats per token, {clipped:.0%} clipped"
        yield Finding("rate too low", "problem", text, f"optim.lr={lr * 10:g} (now {lr:g}), then ten times that")


def forgetting(log: Log) -> Iterator[Finding]:
    """Held-out tasks that the start solved are lost. Success in training hides it: each iteration draws other tasks."""
    held_out, before = log.values("held_out_success"), log.evaluations.get("before", {})
    between = [one for name, one in log.evaluations.items() if name.startswith("iteration")]  # of fewer tasks
    if not before or len(held_out) < 2:
        return
    common = outcomes(between[-1] if between else before)
    solved = [won for task_id, won in outcomes(before).items() if task_id in common]
    if not solved:
        return
    tasks, first, last = len(solved), sum(solved) / len(solved), held_out[-1]
    chance = 1.96 * math.sqrt((first * (1 - first) + last * (1 - last)) / tasks)
    if first - last < max(FORGOTTEN, chance):
        return
    text = f"success on {tasks} held-out tasks fell from {first:.0%} to {last:.0%}"
    by_type = {name: log.values(name) for row in log.rows for name in row if name.startswith("success/")}
    lost = sorted(name.partition("/")[2] for name, won in by_type.items() if max(won) > 0 == won[-1])
    text += f"; at the end no episode of {', '.join(lost)} was won" if lost else ""
    entropy = log.values("entropy")
    text += f"; entropy {entropy[0]:.2g} → {entropy[-1]:.2g} nats" if entropy else ""
    lr = log.config.optim.lr
    advice = f"optim.lr={lr / 5:g} (now {lr:g}), loss.kl=0.04, more episodes per update"
    yield Finding("forgetting", "problem", text, f"{advice}, or a start of more updates (warmstart.epochs)")


def temperature(log: Log) -> Iterator[Finding]:
    """Sampling gives identical episodes, or much worse ones than greedy play."""
    now, before = log.config.rollout.temperature, log.evaluations.get("before", {}).get("success")
    entropy = [row["entropy"] for row in log.rows if row.get("tokens") and "entropy" in row]
    mean = math.fsum(entropy) / len(entropy) if entropy else IDENTICAL
    if mean < IDENTICAL and log.alike >= ONE_SIDED and log.end < SOLVED:
        text = (
            f"entropy is {mean:.2g} nats, and {log.alike:.0%} of the groups had zero variance: episodes are identical"
        )
        advice = f"rollout.temperature=1 (now {now:g})" if now < 1 else "a lower optim.lr, or fewer warmstart.epochs"
        yield Finding("temperature low", "problem", text, advice)
    sampled = log.values("success")[:WINDOW]
    worse = (before or 0.0) - math.fsum(sampled) / max(1, len(sampled))
    if worse >= SAMPLED_GAP and not log.collapsed and now > log.config.rollout.eval_temperature == 0:
        text = f"success is {before:.0%} greedily, and {before - worse:.0%} in the first iterations, sampled at {now:g}"
        yield Finding("temperature high", "problem", text, f"rollout.temperature={1 if now > 1 else 0.7 * now:g}")


def predictions(log: Log) -> Iterator[Finding]:
    """The imitation of observed states outweighs the actions."""
    imitated, tokens = log.total("imitated_tokens"), log.total("tokens")
    if imitated and imitated / (imitated + tokens) >= CROWDED and log.start >= SUCCESS_LEAST and not log.collapsed:
        seconds = log.total("prediction_seconds") / max(1e-9, log.total("seconds"))
        text = (
            f"{imitated / (imitated + tokens):.0%} of the trained tokens are observed states, at "
            f"{log.mean('prediction_loss'):.2g} nats each; predictions took {seconds:.0%} of the time"
        )
        yield Finding("predictions", "problem", text, "loss.imitated_turns=1, or loss.prediction_credit=none")


def held_out(log: Log) -> Iterator[Finding]:
    """Training succeeds where held-out tasks fail."""
    name, newest = next(reversed(log.evaluations.items()), ("before", {}))
    step = step_of(name, int(log.rows[-1]["step"]))
    signs = held_out_signs([row for row in log.rows if row["step"] <= step + 1], newest)
    if "held_out_gap" in signs:
        advice = "more training tasks, or an env.eval_split like env.train_split"
        yield Finding("held-out tasks", "problem", signs["held_out_gap"], advice)


def conduct(log: Log) -> Iterator[Finding]:
    """Alarms of the watchdog that no cause above explains, and mechanisms without an effect."""
    invalid = log.mean("invalid_action_share")
    if invalid >= INVALID_ACTIONS / 2:
        grade = "problem" if invalid >= INVALID_ACTIONS else "note"
        text = f"{invalid:.0%} of the actions had no effect"
        yield Finding("invalid actions", grade, text, f"look at episodes in roleagent report; {_stronger(log.config)}")
    watchdog, raised = Watchdog(signs=signs_of(log.config)), {}
    for row in log.rows:
        watchdog.observe(row)
        raised |= watchdog.alarms
    for name in raised.keys() - HELD_OUT.keys():
        yield Finding("alarm", "note", f"{name}: {raised[name]}", "docs/monitoring.md describes the alarms")
    counters = (log.result or {}).get("counters")
    for text in idle_mechanisms(known_method(log.config), counters) if counters else ():
        yield Finding("no effect", "note", text, "switch it off, or see docs/monitoring.md")


def evidence(log: Log) -> Iterator[Finding]:
    """What the run can show: too few tasks to measure a gain, too few iterations for a trend."""
    whole = log.gain["all"] if log.gain else {"interval": (1.0, 1.0)}
    low, high = whole["interval"]
    if low <= 0 <= high and (high - low) / 2 > SMALL_GAIN:
        # With a power of 80 %, as detectable differences elsewhere: an interval that is as wide as the gain excludes 0
        # in half of the runs.
        needed = math.ceil(whole["tasks"] * ((1 + 0.84 / 1.96) * (high - low) / 2 / SMALL_GAIN) ** 2)
        text = f"{whole['tasks']} tasks cannot show a gain of {100 * SMALL_GAIN:g} points; about {needed} can"
        limited = any(one.env.eval_tasks for one in log.config.environments.values())
        option = (
            f"env.eval_tasks={needed}" if "" in log.config.environments else f"env.0.eval_tasks, …: {needed} in all"
        )
        more = option if limited else "an env.eval_split with more tasks"
        yield Finding("few eval tasks", "note", text, f"{more}, or several seeds")
    if len(log.rows) < 2 * FEWEST and not log.learned:
        text = f"{len(log.rows)} iterations; a trend needs {2 * FEWEST} or more"
        yield Finding(
            "short run", "note", text, f"--resume {log.path} train.iterations={max(2 * FEWEST, 2 * len(log.rows))}"
        )


Rule = Callable[[Log], Iterator[Finding]]
CAUSES: tuple[Rule, ...] = (
    episodes,
    mismatch,
    forgetting,
    temperature,
    replies,
    costs,
    start,
    rate,
    predictions,
    held_out,
)
"""From the causes that bring about others to those that are brought about."""
SYMPTOMS: tuple[Rule, ...] = (variance, conduct, evidence)
"""What every cause brings about, too: named only if no cause is."""
BROUGHT_ABOUT = {
    "short context": ("start too weak",),
    "failed episodes": ("start too weak",),
    "agent program": ("start too weak",),
    "cut replies": ("start too weak",),
    "format": ("start too weak",),
    "penalties": ("rate too high",),
    "forgetting": ("temperature high", "held-out tasks"),
    "rate too high": ("forgetting",),
    "temperature low": ("start too strong", "start too weak", "rate too low"),
    "temperature high": ("cut replies", "cut predictions", "format", "start too weak"),
}
"""Causes that look like another one in the figures."""


def diagnose(run: Path) -> list[Finding]:
    """The findings about a run, the most likely cause first; causes of a run that learned are notes.

    Raises:
        ConfigError: it is no run, or its configuration is damaged or of another version.
        RunDataError: its log is damaged.
    """
    log = Log(run)
    if not log.rows:
        reinforces = known_class(log.config).reinforces
        reason = "no iteration is logged yet" if reinforces else "no reinforcement in this run"
        return [Finding("iterations", "note", reason, "roleagent report shows imitation")]
    found = [finding for cause in CAUSES for finding in cause(log)]
    hidden = {name for finding in found for name in BROUGHT_ABOUT.get(finding.name, ())}
    found = [finding for finding in found if finding.name not in hidden]
    if not any(finding.grade == "problem" for finding in found):
        found += [finding for symptom in SYMPTOMS for finding in symptom(log)]
    if log.learned:
        found = [replace(finding, grade="note") for finding in found]
    elif not any(finding.grade == "problem" for finding in found):
        figures = [dict(row) for row in log.rows]
        if text := not_learning(figures, log.config):
            found.append(Finding("unknown cause", "problem", text.partition(";")[0], text.partition("; ")[2]))
    return [_outcome(log), *sorted(found, key=lambda finding: finding.grade != "problem")]


def _outcome(log: Log) -> Finding:
    """What came of the run."""
    success = f"success in training {log.start:.0%} → {log.end:.0%} in {len(log.rows)} iterations"
    if not log.gain:
        return Finding(
            "training", "good" if log.learned else "note", f"{success}; held-out tasks: no gain measured yet"
        )
    whole, sampled = log.gain["all"], log.gain_sampled and log.gain_sampled["all"]
    low, high = whole["interval"]
    text = f"{_points(whole)} on {whole['tasks']} held-out tasks"
    if sampled:
        text += f", {_points(sampled)} at temperature {log.config.rollout.eval_sampled:g}"
        low, high = max(low, sampled["interval"][0]), max(high, sampled["interval"][1])
    return Finding("gain", "good" if low > 0 else "problem" if high < 0 else "note", f"{text}; {success}")


def _points(cell: Mapping[str, Any]) -> str:
    low, high = (100 * bound for bound in cell["interval"])
    return f"{100 * cell['difference']:+.1f} points ({signed(low, 1)} to {signed(high, 1)})"


def _at_start(log: Log, name: str) -> float:
    return log.rows[0].get(name, 0.0)


def _stronger(config: Config) -> str:
    """Options of a stronger start."""
    if config.warmstart.rounds:
        return f"warmstart.rounds={config.warmstart.rounds + 2}"
    return f"warmstart.rounds=2 warmstart.episodes={max(200, 4 * config.warmstart.episodes)}"


def _harder(config: Config) -> str:
    return "a harder env.id, env.train_split or env.kwargs, or less imitation (warmstart.rounds, warmstart.episodes)"


def _more_variance(config: Config) -> str:
    if not config.rollout.dynamic_sampling_rounds:
        return "rollout.dynamic_sampling_rounds=4 replaces them; aiw=on prefers tasks that failed"
    return f"rollout.group_size={2 * config.rollout.group_size}"
