"""The data of a report: plain dictionaries, as the page gets them in JSON.

Every list of numbers has the length of its ``step``; None means that nothing was logged.
"""

from __future__ import annotations

from typing import Any, TypedDict

PROMPT, ACTION, PREDICTION, WORLD = 0, 1, 2, 3
"""Kinds of tokens, as in :class:`roleagent.types.Segment`: prompt, sampled action, sampled prediction, and observation
tokens that are trained (only without action mask)."""


class Prediction(TypedDict):
    """One predicted state and the actual one.

    ``actual`` and ``score`` (similarity in [0, 1], Eq. 4) are None if the episode ended earlier or the state is
    unknown.
    """

    horizon: int  # steps ahead, 1..H
    text: str  # "" if absent
    actual: str | None
    score: float | None


class ToolCall(TypedDict):
    """One call of a tool."""

    name: str
    arguments: dict[str, Any]
    error: str | None  # why it failed, in a word; None: it succeeded
    result: str  # what the agent read
    reward: float | None  # the tool's own; None: none


class TurnCard(TypedDict):
    """One exchange of an episode, with its advantage."""

    action: str  # the bare command; "" for a reply without one
    reply: str | None  # the full reply, if it is more than the command
    thoughts: str | None  # that a server returned beside the reply
    usage: dict[str, float] | None  # of a prompted model: answers, tokens, seconds; None: not recorded
    trial: int  # of several at the task, from 1
    format_error: str | None
    valid: bool | None  # whether the command had an effect; None: not recorded
    observation: str  # of the environment
    calls: list[ToolCall]  # of tools, in order; empty without any
    answer: str  # to a task that is solved with tools; "" without one
    rewards: dict[str, float]  # by name, as the environment gave them
    reward: dict[str, float]  # the terms that were trained, weighted; their sum is the turn's reward
    predictions: list[Prediction]
    return_task: float | None  # R_task(a_t) (Eq. 5, left)
    return_predictive: float | None  # R_pre(a_t) (Eq. 5, right)
    return_others: float | None  # the discounted return of all terms but the task's
    return_modulated: float | None  # R_t = R_task·(1 + R_pre) + R_others (Eq. 6); None if the estimator has none
    state_group: int | None  # number of the turn's state within its group; None: unknown state
    state_group_size: int | None  # turns in this state, over all episodes of the group
    grouping_state: str | None  # the state used for grouping, if it is not the previous observation; else None
    advantage_state: float | None  # A^S (Eq. 8); None if the estimator has none
    advantage_outcome: float | None  # A^E (Eq. 1)
    advantage_estimate: float | None  # before whitening
    advantage: float | None  # the advantage of the turn's tokens; None: of an evaluation
    tokens: list[tuple[str, int, float]] | None  # text, kind, log-probability (0: not sampled); None: not recorded


class Analysis(TypedDict):
    """The analysis of a failed episode (Agent-In-World)."""

    mode: str
    detail: str
    critical_step: int | None  # 0-based turn
    lesson: str
    query: str
    source: str  # rule, model, endpoint or fallback
    repaired: bool


class EpisodeCard(TypedDict):
    """One episode of training, or of an evaluation.

    Of an evaluation the iteration is 0, the group is the place of the task in the split, the member is the repeat.
    """

    id: str  # "iteration/group/member"
    iteration: int
    group: int
    member: int
    task_id: str
    task_type: str
    goal: str
    stop_reason: str
    won: bool
    reward: float  # R^E, unmodulated
    replaced: bool  # whether its group was not trained on: dynamic sampling replaced it, or it was filtered out
    chosen_because: str | None  # the failure mode for which the curriculum chose the task; None: drawn uniformly
    chosen_reason: str | None  # the analyst's words for that choice
    lessons: list[str]  # of earlier failures, which its prompts held
    usage: dict[str, float] | None  # of a prompted model, over all turns
    initial_observation: str
    analysis: Analysis | None
    whitening: tuple[float, float] | None  # mean and deviation of the batch's advantages; None: not whitened
    turns: list[TurnCard]


class Curve(TypedDict):
    """Numbers along a run, by name, all as long as ``step``."""

    step: list[int]
    values: dict[str, list[float | None]]


class FieldValue(TypedDict):
    """How often a value of a task field was written, and how such tasks were played."""

    field: str
    value: str
    shares: list[float | None]  # of the tasks that were written in each third of the run; None: none was
    success: float | None  # mean over groups of these tasks when they were first played; None: not played
    tasks: int  # written with this value


class TaskPlay(TypedDict):
    """One group of episodes of a written task."""

    iteration: int
    kind: str  # "fresh", or "replayed"
    successes: int
    attempts: int


class TaskLife(TypedDict):
    """A written task and how it was played."""

    task_id: str
    line: str  # as the simulator wrote it
    iteration: int  # in which it was accepted
    varied: bool  # whether it changes one field of a recent task
    plan: int  # commands
    plays: list[TaskPlay]


class Refusal(TypedDict):
    """A proposed task that was refused."""

    iteration: int
    line: str
    reason: str  # one of roleagent.tasks.grammar.REFUSALS


class WrittenTasks(TypedDict):
    """The tasks that a simulator wrote (GenEnv)."""

    proposed: int
    accepted: int
    refused: dict[str, int]  # by reason
    thirds: list[tuple[int, int]]  # first and last iteration of each third of the run
    fields: list[FieldValue]
    lives: list[TaskLife]  # the tasks that were played most often
    refusals: list[Refusal]  # the newest


class SplicedPath(TypedDict):
    """A revision trajectory of Agent-R: a bad path up to its mistake, the signal, and good steps."""

    iteration: int
    task_id: str
    cut: int  # steps up to and including the mistake
    bad_steps: int  # of the whole bad path
    bad_outcome: float
    outcome: float
    truth: str  # the replay of the splice: same, valid, false, searched
    judge: str
    reason: str
    first: str  # the first observation
    steps: list[tuple[str, str, str]]  # part (shared, bad, mistake, signal, good, unread), command, observation


class Revisions(TypedDict):
    """What Agent-R searched, spliced and imitated."""

    counts: list[dict[str, Any]]  # of each iteration, with its number
    paths: list[SplicedPath]  # the newest


class LessonUse(TypedDict):
    """A lesson of the failure library in the prompts of training episodes (reports.data.load_lessons)."""

    lesson: str  # "": any
    episodes: int  # that read it
    tasks: int  # of these episodes
    success: float  # share of them that were won
    compared: int  # those with others of their iteration and task type that did not read it
    success_with: float | None  # of the compared ones
    success_without: float | None  # of the others, weighted by the compared ones
    interval: tuple[float, float] | None  # of their difference


class Gain(TypedDict):
    """The gain on held-out tasks between the first evaluation and a later one, over the tasks of both.

    Each part has ``tasks``, the ``difference`` of the shares won, its 95 % ``interval`` over pairs
    (:func:`roleagent.agents.evaluation.comparison.compare`), and, if every task was played once, the numbers
    of tasks won ``only_before`` and ``only_last``.
    """

    until: str  # name of the later evaluation
    all: dict[str, Any]
    by_type: dict[str, dict[str, Any]]


class RunGroup(TypedDict):
    """Runs that differ in nothing but their seed."""

    name: str
    runs: list[int]  # places in the report's list of runs
    seeds: list[int]  # of each


class RunData(TypedDict):
    """Everything a report shows about a run.

    ``alarms`` are the watchdog's, each with its first and last iteration: ``{"name", "step", "until"}``. ``notes`` name
    files that could not be read, one line each.
    """

    kind: str  # "training", or "evaluation": a record file of evaluate.py
    name: str
    path: str
    method: str  # of an evaluation: the agent
    env_id: str
    seed: int
    state: str  # "warm start", "training", "measuring", "finished" or "stopped" (no process writes to the folder)
    steps: tuple[int, int]  # iterations done, iterations wanted
    seconds: float  # of all iterations
    imitation_seconds: float  # of the warm start
    config: dict[str, str]  # dotted option: value as text
    differing: list[str]  # options that are not the defaults
    warmstart: Curve  # of metrics.jsonl, warm start
    training: Curve  # of metrics.jsonl, iterations
    success_by_type: Curve  # share of won training episodes, by task type
    time: Curve  # seconds per iteration, by part (roleagent.timer.PARTS and "other")
    modes: Curve  # entries of the failure library after each iteration, by failure mode
    mode_failures: Curve  # failures recorded in each iteration, by failure mode
    written_tasks: WrittenTasks | None  # with genenv=on
    revisions: Revisions | None  # with method=agent_r or eto
    evaluations: dict[str, Any]  # by name (before, iteration-000010, …, after): agents.evaluation's summary
    lessons: list[LessonUse] | None  # with lessons.show
    suite: dict[str, dict[int, dict[str, int]]] | None  # by failure mode and iteration: curricula.suite.matrix
    gain: Gain | None  # between the first and the last evaluation; None: no results per task
    counters: dict[str, float]
    alarms: list[dict[str, Any]]
    idle: list[str] | None  # messages about mechanisms that are on but had no effect; None: not known (yet)
    episodes: list[EpisodeCard]
    episodes_recorded: int | None  # episodes in the run folder; None: not known
    notes: list[str]
