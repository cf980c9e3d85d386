"""The metrics of an iteration: success, rewards, behavior, prediction accuracy, and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from roleagent.agents.evaluation.behavior import is_exact
from roleagent.agents.rollout import RolloutStats
from roleagent.config import Config
from roleagent.learners.advantages import ESTIMATORS
from roleagent.learners.credit import estimator_config, summary
from roleagent.learners.process_rewards import process_counters
from roleagent.learners.run.trajectory_log import ScoredGroup
from roleagent.timer import PARTS, Timer
from roleagent.types import Completion, Trajectory

NEVER_CALLED = ("malformed", "unknown_tool", "bad_arguments", "not_run")
"""Errors of calls that no tool has got."""
NGRAM = 4
"""Tokens of an n-gram that counts as repeated."""


def iteration_metrics(
    config: Config, scored: Sequence[ScoredGroup], stats: RolloutStats, sampler: Mapping[str, float]
) -> dict[str, float]:
    """The metrics of an iteration's episodes, with the effects of the mechanisms.

    Args:
        config: of the run.
        scored: the groups of all ranks.
        stats: of the rollout.
        sampler: the sampler's metrics.
    """
    groups = [one.group for one in scored]
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in episodes for turn in trajectory.turns]
    # Some names have a prefix; the others get one, because entropy is also a property of the policy.
    curriculum = {
        name if name.startswith(("curriculum_", "uniform_", "genenv_")) else f"curriculum_{name}": value
        for name, value in sampler.items()
    }
    rewards, named = estimator_config(config).rewards, config.estimator.rewards
    return {
        **summary(groups, estimator_config(config), [one.credit.states for one in scored]),
        "groups": float(len(groups)),
        "success": float(np.mean([trajectory.success for trajectory in episodes])),
        "reward": float(np.mean([trajectory.outcome for trajectory in episodes])),
        **success_by_type(episodes),
        "turns": float(np.mean([len(trajectory.turns) for trajectory in episodes])),
        "environment_steps": float(len(turns)),
        "format_errors": float(sum(turn.info.get("format_error") is not None for turn in turns)),
        "invalid_actions": float(sum(not turn.info.get("valid_action", True) for turn in turns)),
        **_process_counters(config, scored),
        **tool_metrics(episodes),
        **behavior_metrics(episodes),
        **prediction_accuracy(episodes),
        "action_tokens": float(stats.action_tokens),
        "prediction_tokens": float(stats.prediction_tokens),
        "crashed_episodes": float(stats.errors),
        "replaced_groups": float(len(groups) - config.rollout.num_groups),
        **{f"reward_{name}": float(sum(rewards.term(name, turn) for turn in turns)) / len(episodes) for name in named},
        **curriculum,
    }


def _process_counters(config: Config, scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """:func:`process_counters` of the groups that are trained on."""
    estimator, trained = estimator_config(config), [one for one in scored if not one.replaced]
    groups, earned = [one.group for one in trained], [one.credit.of_process for one in trained]
    outcomes = ESTIMATORS[config.estimator.kind].compares_outcomes
    return process_counters(groups, earned, estimator.rewards, estimator.gamma, outcomes)


def tool_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Counters of tool calls; empty if the environment has no tools.

    Returns:
        the sum of each of ``info["counters"]`` (:data:`roleagent.envs.tools.env.COUNTERS`); ``calls_per_episode``;
        ``answer_rate``, the share of episodes that ended with an answer; and for each tool that was called
        ``tool_calls/…`` (number), ``tool_success/…`` (share) and ``tool_seconds/…`` (mean of a call).
    """
    turns = [turn for episode in episodes for turn in episode.turns if "counters" in turn.info]
    if not turns:
        return {}
    sums: Counter[str] = Counter()
    made: dict[str, list[tuple[bool, float]]] = {}
    for turn in turns:
        sums.update(turn.info["counters"])
        for call in turn.info["calls"]:
            if call["error"] not in NEVER_CALLED:
                made.setdefault(call["name"], []).append((call["error"] is None, call["seconds"]))
    answered = sum(bool(episode.turns and episode.turns[-1].info.get("answer")) for episode in episodes)
    found = {name: float(count) for name, count in sums.items()}
    found |= {"calls_per_episode": sums["calls"] / len(episodes), "answer_rate": answered / len(episodes)}
    for name in sorted(made):
        successes, seconds = zip(*made[name], strict=True)
        found |= {
            f"tool_calls/{name}": float(len(successes)),
            f"tool_success/{name}": sum(successes) / len(successes),
            f"tool_seconds/{name}": sum(seconds) / len(seconds),
        }
    return found


def success_by_type(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Share of successful episodes by task type, as ``success/…``."""
    won: dict[str, list[bool]] = {}
    for trajectory in episodes:
        won.setdefault(trajectory.task.task_type, []).append(trajectory.success)
    return {f"success/{name}": sum(won[name]) / len(won[name]) for name in sorted(won)}


def time_metrics(timers: Sequence[Timer], stats: RolloutStats, seconds: float) -> dict[str, float]:
    """The wall-clock time of an iteration by part, of the slowest rank; the rest is ``other_seconds``."""
    spent = Timer.slowest(timers)
    sampling = spent.get("generation", 0.0) + spent.get("prediction", 0.0)
    return {
        **{f"{name}_seconds": spent.get(name, 0.0) for name in PARTS},
        "other_seconds": max(0.0, seconds - sum(spent.values())),
        "seconds": seconds,
        "tokens_per_second": (stats.action_tokens + stats.prediction_tokens) / max(sampling, 1e-9),
    }


def headlines(config: Config, metrics: Mapping[str, float]) -> dict[str, float | int | str]:
    """The metrics that the display shows."""
    groups = config.rollout.num_groups + metrics["replaced_groups"]
    return {
        "success": metrics["success"],
        "turns": metrics["turns"],
        "predictive reward": metrics["prediction_score"],
        "zero-variance groups": f"{metrics['zero_variance_groups']:.0f}/{groups:.0f}",
        "curriculum share": metrics.get("curriculum_share", 0.0),
        "analyses read": 1 - metrics.get("curriculum_reflections_fallback_share", 1.0),
        "entropy": metrics["entropy"],
        "tokens/s": round(metrics["tokens_per_second"]),
    }


def behavior_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Early signs of collapse, as shares in [0, 1]; a share of nothing is 0. They need no weights and no tokenizer.

    Returns:
        ``invalid_action_share``: of the turns, those whose command was malformed or had no effect.
        ``repeated_ngrams``: of the replies (actions and predictions), those that mostly repeat their n-grams.
        ``repeated_actions``: of the episodes, those that mostly repeat actions with the same result.
        ``cut_replies``, ``cut_predictions``: those that reached the token limit.
        ``max_steps_share``, ``context_share``: of the episodes, those truncated at the last step, or because the
        conversation exceeded the context.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    actions = [turn.completion for turn in turns]
    asked = [turn.prediction.completion for turn in turns if turn.prediction is not None]
    predictions = [completion for completion in asked if completion is not None]
    return {
        "invalid_action_share": _share(not turn.info.get("valid_action", True) for turn in turns),
        "repeated_ngrams": _share(
            is_repetitive(ngrams(completion.token_ids)) for completion in (*actions, *predictions)
        ),
        "repeated_actions": _share(
            is_repetitive([(turn.action, turn.observation) for turn in episode.turns]) for episode in episodes
        ),
        "cut_replies": _cut(actions),
        "cut_predictions": _cut(predictions),
        "max_steps_share": _share(episode.stop_reason == "max_steps" for episode in episodes),
        "context_share": _share(episode.stop_reason == "context" for episode in episodes),
    }


def prediction_accuracy(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """The share of exactly predicted next states, separately for valid and invalid actions.

    Returns:
        ``prediction_accuracy_valid`` and ``prediction_accuracy_invalid``: of the turns with a requested prediction and
        a known next state, those whose prediction one step ahead is that state. A missing prediction is wrong. A share
        of nothing is left out.
    """
    hits: dict[str, list[bool]] = {"valid": [], "invalid": []}
    for turn in (turn for episode in episodes for turn in episode.turns):
        state = turn.info.get("state", turn.observation)  # as predictions are scored
        if turn.prediction is not None and isinstance(state, str):
            name = "valid" if turn.info.get("valid_action", True) else "invalid"
            hits[name].append(is_exact(turn.prediction, state))
    return {f"prediction_accuracy_{name}": _share(found) for name, found in hits.items() if found}


def is_repetitive(items: Sequence[Hashable]) -> bool:
    """Whether at least half of the items, four or more, are repetitions.

    >>> is_repetitive("abab"), is_repetitive("abcabd"), is_repetitive("aa")
    (True, False, False)
    """
    return len(items) >= 4 and 2 * len(set(items)) <= len(items)


def ngrams(token_ids: Sequence[int], n: int = NGRAM) -> list[tuple[int, ...]]:
    """All n-grams of a sequence.

    >>> ngrams([1, 2, 3], n=2)
    [(1, 2), (2, 3)]
    """
    return [tuple(token_ids[start : start + n]) for start in range(len(token_ids) - n + 1)]


def _cut(completions: Sequence[Completion]) -> float:
    return _share(completion.finish_reason == "length" for completion in completions)


def _share(signs: Iterable[bool]) -> float:
    known = list(signs)
    return sum(known) / len(known) if known else 0.0
