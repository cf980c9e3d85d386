"""The metrics of an iteration, and the counters that show whether its mechanisms had an effect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from roleagent.agents.evaluation.records import failure_predicted, is_exact
from roleagent.agents.rollout import RolloutStats
from roleagent.config import Config
from roleagent.learners.advantages import Estimator, States, by_state, return_terms, states_of
from roleagent.learners.method import Method, method_of
from roleagent.learners.rewards import has_zero_variance, process_counters, weighing
from roleagent.learners.run.trajectory_log import ScoredGroup
from roleagent.tasks.split import levels
from roleagent.timer import PARTS, ROLLOUT, Timer
from roleagent.types import Completion, Group, Trajectory

_IF_LOGGED = (
    *("calls", "groups", "process_nonzero", "process_only_groups", "returns_changed", "world_loss_share"),
    *("lessons_share", "turn_limit_share", "filtered_groups", "teacher_share"),
)
WINDOW = 5
"""Iterations that success and entropy are averaged over."""

INVALID_ACTIONS = 0.8
"""Share of the actions, in training and on held-out tasks, from which too many are invalid."""

_HELD_OUT_GAP = 0.4  # success in training minus success on held-out tasks
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


def idle_mechanisms(method: Method, counters: Mapping[str, float]) -> list[str]:
    """A warning for each mechanism that is switched on and had no effect, or taught what no task asks for.

    Args:
        method: of the run, with its configuration.
        counters: of the whole run.
    """
    config, expected = method.config, {}
    if config.wia:
        modulates = method.modulates
        if modulates or config.rollout.predicted_turns == "all":
            expected["predictions_scored"] = "wia is on, but no prediction was ever scored"
        if modulates:
            expected["returns_modulated"] = "wia is on, but no prediction ever changed a return"
        if config.loss.prediction_credit == "imitate":
            expected["imitated_tokens"] = "loss.prediction_credit=imitate, but no true state was ever imitated"
    if config.reads_failures and config.curriculum.epsilon:
        expected["curriculum_from_curriculum"] = "aiw is on, but no task was ever sampled from the failure library"
    if config.lessons.show != "none":
        expected["lessons_share"] = f"lessons.show={config.lessons.show}, but no episode ever read a lesson"
    if config.distill.teacher:
        expected["teacher_share"] = f"distill.teacher={config.distill.teacher}, but it never scored a token"
    if config.rollout.turns:
        expected["turn_limit_share"] = f"rollout.turns={[*config.rollout.turns]}, but no episode was ever so long"
    if config.rollout.keep_groups < 1:
        expected["filtered_groups"] = f"rollout.keep_groups={config.rollout.keep_groups:g} never left a group out"
    if config.rollout.dynamic_sampling_rounds and counters.get("zero_variance_groups"):
        expected["replaced_groups"] = "rollout.dynamic_sampling_rounds is on, but no group was ever replaced"
    for name, weight in config.estimator.rewards.items():
        if weight and name != "task":
            expected[f"reward_{name}"] = f"estimator.rewards has {name!r}, but no turn ever had such a reward"
    process = weighing(config.estimator.rewards)
    if any(counters.get(f"reward_{name}") for name in process):
        expected["returns_changed"] = f"{' and '.join(process)} weigh, but no process reward ever changed a return"
    if "calls" in counters and not config.agent.command:  # a program may have tools of its own
        expected["calls"] = "tools are offered, but none was ever called"
    for name in [name for name in counters if name.startswith("tool_calls/")]:
        tool = name.removeprefix("tool_calls/")
        expected[f"tool_success/{tool}"] = f"all {counters[name]:.0f} calls of the tool {tool} failed"
    idle = [text for name, text in expected.items() if not counters.get(name)]
    idle += method.idle(counters)
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


def held_out_metrics(evaluation: Mapping[str, Any] | None) -> dict[str, float]:
    """The metrics of an evaluation in the iteration that the same policy plays; empty without an evaluation."""
    if evaluation is None:
        return {}
    return {f"held_out_{name}": evaluation[name] for name in ("success", "invalid") if name in evaluation}


def held_out_gap(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Training succeeds where held-out tasks fail: by the newest evaluation and the iterations up to it."""
    for end in range(len(history), 0, -1):
        if (held_out := history[end - 1].get("held_out_success")) is None:
            continue
        played = [v for row in history[:end] if (v := row.get("success")) is not None][-WINDOW:]
        mean = sum(played) / len(played) if played else 0.0
        if mean - held_out < _HELD_OUT_GAP - 1e-9:
            return None
        return (
            f"success is {held_out:.0%}, but {mean:.0%} in training: the policy knows its training tasks, or the "
            "held-out tasks need what training never shows"
        )
    return None


def held_out_invalid(history: Sequence[Mapping[str, Any]]) -> str | None:
    """Nearly all commands fail on held-out tasks: by the newest evaluation."""
    shares = [share for row in history if (share := row.get("held_out_invalid")) is not None]
    if not shares or shares[-1] < INVALID_ACTIONS:
        return None
    return f"the share of invalid commands is {shares[-1]:.2f}, at or above {INVALID_ACTIONS:g}"


HELD_OUT = {"held_out_gap": held_out_gap, "held_out_invalid": held_out_invalid}
"""The signs that evaluations show, by name. They are no collapse: training itself may be sound."""


def held_out_signs(history: Sequence[Mapping[str, Any]], evaluation: Mapping[str, Any]) -> dict[str, str]:
    """Messages by sign about one evaluation.

    Args:
        history: the iterations up to the evaluation, or up to the one that its policy played next.
        evaluation: a summary with ``success`` and ``invalid``.
    """
    if not history:
        return {}
    measured = [*history[:-1], {**history[-1], **held_out_metrics(evaluation)}]
    return {name: text for name, sign in HELD_OUT.items() if (text := sign(measured))}


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
    rise, error = rise_of(success)
    if rise > error or (len(reward) >= FEWEST and np.greater(*rise_of(reward))):
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


def rise_of(values: Sequence[float]) -> tuple[float, float]:
    """The rise of a least-squares line over all values, and its standard error; both 0 for equal values.

    >>> rise_of([0.5] * 10)
    (0.0, 0.0)
    >>> [round(figure, 2) for figure in rise_of([0.1, 0.1, 0.4, 0.4])]
    [0.36, 0.13]
    """
    if min(values) == max(values):
        return 0.0, 0.0
    (slope, _), covariance = np.polyfit(range(len(values)), values, 1, cov=True)
    return float(slope) * (len(values) - 1), float(covariance[0, 0]) ** 0.5 * (len(values) - 1)


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
    replies = [length for turn in turns if (length := len(turn.completion.token_ids))]
    estimator, named = Estimator.of(config), config.estimator.rewards
    rewards, states = estimator.rewards, [one.estimated.states or [] for one in scored]
    replaced, left_out = float(len(groups) - config.rollout.num_groups), sum(one.replaced for one in scored)
    return {
        **summary(groups, estimator, states),
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
        **(program_metrics(episodes) if config.agent.command else {}),
        **lesson_metrics(config, episodes),
        **prediction_accuracy(episodes),
        "action_tokens": float(stats.action_tokens),
        "reply_tokens": float(np.mean(replies)) if replies else 0.0,
        "prediction_tokens": float(stats.prediction_tokens),
        "crashed_episodes": float(stats.errors),
        "replaced_groups": replaced,
        **({"filtered_groups": left_out - replaced} if config.rollout.keep_groups < 1 else {}),
        **{f"reward_{name}": float(sum(rewards.term(name, turn) for turn in turns)) / len(episodes) for name in named},
        **curriculum,
    }


def summary(groups: Sequence[Group], estimator: Estimator, states: Sequence[States] | None = None) -> dict[str, float]:
    """Counters that show whether the mechanisms had an effect in this batch.

    Args:
        groups: the episodes.
        estimator: options and rewards.
        states: of each group, if :func:`states_of` was computed already.

    Returns:
        ``zero_variance_groups``; ``returns_modulated`` (turns whose return their own prediction changed);
        ``state_group_size`` (mean number of turns per distinct state); ``state_group_share`` (turns that share their
        state with another turn, in [0, 1]); ``predictions_scored`` and ``predictions_absent`` (asked for and given,
        asked for and not given); ``prediction_score`` (mean over both, in [0, 1]: an absent prediction scores 0; left
        out if there is none of either); and the counters of :func:`prediction_counters`.
    """
    turns = modulated = comparable = 0
    sizes: list[int] = []
    for number, group in enumerate(groups):
        turns += sum(len(trajectory.turns) for trajectory in group.trajectories)
        terms = return_terms(group, estimator)
        for tasks, factors in zip(terms.task, terms.predictive, strict=True):
            modulated += sum(bool(task and factor) for task, factor in zip(tasks, factors, strict=True))
        shared = [*map(len, by_state(states[number] if states else states_of(group, estimator)))]
        sizes += shared
        comparable += sum(size for size in shared if size > 1)
    scores = [
        score
        for group in groups
        for trajectory in group.trajectories
        for turn in trajectory.turns
        if turn.prediction is not None
        for score in turn.prediction.scores
    ]
    absent = sum(score.absent for score in scores)
    return {
        "zero_variance_groups": float(sum(map(has_zero_variance, groups))),
        "returns_modulated": float(modulated),
        "state_group_size": sum(sizes) / len(sizes) if sizes else 0.0,
        "state_group_share": comparable / turns if turns else 0.0,
        "predictions_scored": float(len(scores) - absent),
        "predictions_absent": float(absent),
        **({"prediction_score": math.fsum(score.score for score in scores) / len(scores)} if scores else {}),
        **prediction_counters([trajectory for group in groups for trajectory in group.trajectories]),
    }


def prediction_counters(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """How predictions correlate with success, and how well they predict failed commands.

    A turn's score is the mean over its scored horizons.

    Returns:
        ``prediction_correlation``: of the score and the episode's success over all scored turns, in [-1, 1].
        ``prediction_correlation_episodes``: of an episode's mean score and its success, as in the paper's appendix B.2.
        ``prediction_information``: their correlation within each task and state, where A^S compares, in [-1, 1].
        ``prediction_information_action``: the same within each task, state and action: what is left is the sampling of
        the prediction. ``failure_recall``: of the turns with a prediction whose command failed (invalid, with a known
        state), the share whose prediction for the next state is exactly that state, in [0, 1]. What is undefined is
        left out: a correlation without spread in the scores or in success, a share of nothing.
    """
    rows, recalled = [], []
    whole: list[tuple[float, bool]] = []  # of each episode with scores
    states: dict[tuple[str, ...], int] = {}
    actions: dict[tuple[str, ...], int] = {}
    for trajectory in episodes:
        first = len(rows)
        for turn in trajectory.turns:
            if turn.prediction is None:
                continue
            if scores := turn.prediction.scores:
                at = (trajectory.task.task_id, turn.grouping_state or "")
                classes = states.setdefault(at, len(states)), actions.setdefault((*at, turn.action), len(actions))
                rows.append((math.fsum(score.score for score in scores) / len(scores), trajectory.success, *classes))
            if (known := failure_predicted(turn)) is not None:
                recalled.append(known)
        if means := [row[0] for row in rows[first:]]:
            whole.append((math.fsum(means) / len(means), trajectory.success))
    of_episodes, outcomes = np.array(whole, float).reshape(-1, 2).T
    scores, success, state, action = np.array(rows, float).reshape(-1, 4).T
    found = {
        "prediction_correlation": partial_correlation(scores, success, np.zeros(len(rows))),
        "prediction_correlation_episodes": partial_correlation(of_episodes, outcomes, np.zeros(len(whole))),
        "prediction_information": partial_correlation(scores, success, state),
        "prediction_information_action": partial_correlation(scores, success, action),
        "failure_recall": sum(recalled) / len(recalled) if recalled else math.nan,
    }
    return {name: value for name, value in found.items() if not math.isnan(value)}


def partial_correlation(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> float:
    """Correlation of x and y after subtracting the mean of their class in ``given``, in [-1, 1].

    For two classes this is the partial correlation; for one class the plain one.

    Args:
        x: numbers, shape [n].
        y: numbers, shape [n].
        given: the class of each, shape [n].

    Returns:
        NaN if it is undefined: x or y is constant within the classes.

    >>> x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])
    >>> round(partial_correlation(x, y, np.zeros(4)), 3), partial_correlation(x, y, y)
    (0.894, nan)
    """
    left = []
    for values in (x, y):
        rest = values.astype(float)
        for one in np.unique(given):
            rest[given == one] -= rest[given == one].mean()
        left.append(rest)
    lengths = [float(np.sqrt(rest @ rest)) for rest in left]
    if min(lengths) < 1e-9:
        return math.nan
    return float(np.clip(left[0] @ left[1] / (lengths[0] * lengths[1]), -1.0, 1.0))


def _process_counters(config: Config, scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """:func:`process_counters` of the groups that are trained on."""
    estimator, trained = Estimator.of(config), [one for one in scored if not one.replaced]
    groups, earned = [one.group for one in trained], [one.estimated.process for one in trained]
    outcomes = method_of(config).compares_outcomes
    return process_counters(groups, earned, estimator.rewards, estimator.options.gamma, outcomes)


def tool_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Counters of tool calls, over the episodes of environments that have tools; empty without any.

    Returns:
        the sum of each of ``info["counters"]`` (:data:`roleagent.envs.tools.env.COUNTERS`); ``calls_per_episode``;
        ``answer_rate``, the share of episodes that ended with an answer; and for each tool that was called
        ``tool_calls/…`` (number), ``tool_success/…`` (share) and ``tool_seconds/…`` (mean of a call).
    """
    own = [episode for episode in episodes if any("counters" in turn.info for turn in episode.turns)]
    if not own:
        return {}
    turns = [turn for episode in own for turn in episode.turns if "counters" in turn.info]
    sums: Counter[str] = Counter()
    made: dict[str, list[tuple[bool, float]]] = {}
    for turn in turns:
        sums.update(turn.info["counters"])
        for call in turn.info["calls"]:
            if call["error"] not in NEVER_CALLED:
                made.setdefault(call["name"], []).append((call["error"] is None, call["seconds"]))
    answered = sum(bool(episode.turns[-1].info.get("answer")) for episode in own)
    found = {name: float(count) for name, count in sums.items()}
    found |= {"calls_per_episode": sums["calls"] / len(own), "answer_rate": answered / len(own)}
    for name in sorted(made):
        successes, seconds = zip(*made[name], strict=True)
        found |= {
            f"tool_calls/{name}": float(len(successes)),
            f"tool_success/{name}": sum(successes) / len(successes),
            f"tool_seconds/{name}": sum(seconds) / len(seconds),
        }
    return found


def success_by_type(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Share of successful episodes by task type, and by environment where there are several, as ``success/…``."""
    won: dict[str, list[bool]] = {}
    for trajectory in episodes:
        for name in levels(trajectory.task.task_type):
            won.setdefault(name, []).append(trajectory.success)
    return {f"success/{name}": sum(won[name]) / len(won[name]) for name in sorted(won)}


def time_metrics(
    timers: Sequence[Timer], stats: RolloutStats, seconds: float, flop: float, peak: float | None
) -> dict[str, float]:
    """The wall-clock time of an iteration by part, of the slowest rank, and speeds; the rest is ``other_seconds``.

    Args:
        timers: of all ranks.
        stats: of the rollout.
        seconds: of the iteration.
        flop: floating-point operations of the update, on all ranks; 0: unknown.
        peak: of a rank's GPU, in TFLOP/s; None: unknown.
    """
    spent = Timer.slowest(timers)
    playing = stats.seconds or sum(spent.get(part, 0.0) for part in ROLLOUT)
    speed = flop / 1e12 / len(timers) / max(spent.get("update", 0.0), 1e-9)
    return {
        **{f"{name}_seconds": spent.get(name, 0.0) for name in PARTS},
        "other_seconds": max(0.0, seconds - sum(spent.values())),
        "seconds": seconds,
        "tokens_per_second": (stats.action_tokens + stats.prediction_tokens) / max(playing, 1e-9),
        **({"update_tflop_per_second": speed} if flop else {}),
        **({"mfu": speed / peak} if flop and peak else {}),
    }


def headlines(config: Config, metrics: Mapping[str, float]) -> dict[str, float | int | str]:
    """The metrics that the display shows."""
    groups = config.rollout.num_groups + metrics["replaced_groups"]
    read, curriculum = metrics.get("curriculum_reflections_fallback_share"), metrics.get("curriculum_share")
    predicted, entropy = metrics.get("prediction_score"), metrics.get("entropy")
    return {
        "success": metrics["success"],
        "turns": metrics["turns"],
        **({} if predicted is None else {"predictive reward": predicted}),
        "zero-variance groups": f"{metrics['zero_variance_groups']:.0f}/{groups:.0f}",
        **({} if curriculum is None else {"curriculum share": curriculum}),
        **({} if read is None else {"analyses read": 1 - read}),
        **({} if entropy is None else {"entropy": entropy}),
        "tokens/s": round(metrics["tokens_per_second"]),
        **({"MFU": f"{mfu:.0%}"} if (mfu := metrics.get("mfu")) else {}),
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
    actions = [turn.completion for turn in turns if turn.completion.token_ids]  # a program may step twice
    asked = [turn.prediction.completion for turn in turns if turn.prediction is not None]
    predictions = [completion for completion in asked if completion is not None]
    return {
        "invalid_action_share": _share(not turn.info.get("valid_action", True) for turn in turns if turn.played),
        "repeated_ngrams": _share(
            is_repetitive(ngrams(completion.token_ids)) for completion in (*actions, *predictions)
        ),
        "repeated_actions": _share(
            is_repetitive([(turn.action, turn.observation) for turn in episode.turns if turn.played])
            for episode in episodes
        ),
        "cut_replies": _cut(actions),
        "cut_predictions": _cut(predictions),
        "max_steps_share": _share(episode.stop_reason == "max_steps" for episode in episodes),
        "context_share": _share(episode.stop_reason == "context" for episode in episodes),
    }


def program_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """What became of agent programs.

    Returns:
        ``agent_crashed``, ``agent_timeout``, ``agent_gave_up``: episodes that ended with the program, and before the
        task did: it failed, took too long, or left without a reward.
        ``agent_conversations``: of an episode, the mean; more than 1 if programs fork or change them.
    """
    ends = Counter(episode.stop_reason for episode in episodes)
    forks = [1 + max((turn.info.get("conversation", 0) for turn in episode.turns), default=0) for episode in episodes]
    return {
        **{f"agent_{end}": float(ends[end]) for end in ("crashed", "timeout", "gave_up")},
        "agent_conversations": float(np.mean(forks)),
    }


def turn_limit_metrics(limit: int | None, scored: Sequence[ScoredGroup]) -> dict[str, float]:
    """The limit of ``rollout.turns``, and the share of the episodes that it ended; empty without a limit."""
    if limit is None:
        return {}
    episodes = [episode for one in scored for episode in one.group.trajectories]
    ended = (episode.stop_reason == "max_steps" and len(episode.turns) == limit for episode in episodes)
    return {"turn_limit": float(limit), "turn_limit_share": _share(ended)}


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


def lesson_metrics(config: Config, episodes: Sequence[Trajectory]) -> dict[str, float]:
    """What lessons were read in an iteration; empty without lessons.

    Returns:
        ``lessons_share`` of the episodes that read any, ``lessons_distinct`` (number of different ones), and the
        success with and without, ``lessons_success`` and ``lessons_without_success``, where there are such episodes.
        Which episodes read lessons is drawn at random with ``lessons.share`` below 1; else it depends on the task.
    """
    if config.lessons.show == "none":
        return {}
    read = [episode.lessons for episode in episodes]
    won: dict[bool, list[bool]] = {}
    for lessons, episode in zip(read, episodes, strict=True):
        won.setdefault(bool(lessons), []).append(episode.success)
    names = {True: "lessons_success", False: "lessons_without_success"}
    return {
        "lessons_share": len(won.get(True, ())) / len(episodes),
        "lessons_distinct": float(len({lesson for lessons in read for lesson in lessons})),
        **{names[kind]: float(np.mean(outcomes)) for kind, outcomes in won.items()},
    }
