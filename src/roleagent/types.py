"""The types shared by all parts of RoleAgent.

G agents play one :class:`Task`. Each episode is a :class:`Trajectory` of :class:`Turn`\\ s, and together they are a
:class:`Group`. An advantage estimator computes one number per turn of a group. A :class:`Segment` holds tokens, masks,
log-probabilities and advantages for the learner. An :class:`Analyst` writes a :class:`Reflection` for every failed
trajectory, and the :class:`Sampler` uses it to choose the next tasks.

This module imports no torch.

The keys of ``info``
--------------------
Every RoleAgent environment reports, on ``reset`` and on ``step`` (what another leaves out is filled in by
:class:`~roleagent.envs.wrappers.full_info.FullInfo`):

=====================  ===============================================================================================
``task_id``            the task's name: the same string in splits, logs, the failure library and reports
``goal``               the goal of the task, as text
``task_type``          the type of the task (``pick_and_place_simple``, a product category, a data set)
``split``              the split that the task belongs to
``admissible_actions`` commands with an effect in this state (a list; empty if they cannot be listed)
``won``                whether the task is solved
``valid_action``       whether the last command was valid and had an effect (True after ``reset``)
``state``              the observed state as text, which predictions are scored against; None if it cannot be known
``grouping_state``     the state for grouping turns: ``state``, or after a failed command the state before it. It
                       defaults to ``state``
``rewards``            the named reward terms of this step; empty after ``reset``. ``task`` is the step's reward
=====================  ===============================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.random import Generator


@dataclass(frozen=True, slots=True)
class Task:
    """One task of an environment. ``env_id`` is a Gymnasium id; ``task_id`` is unique within it."""

    env_id: str
    task_id: str
    split: str = ""
    goal: str = ""
    task_type: str = ""

    @classmethod
    def of(cls, env_id: str, task_id: str, info: Mapping[str, Any]) -> Task:
        """The task that an environment's ``info`` describes; what is missing there is ``""``."""
        return cls(env_id, task_id, *(info.get(key, "") for key in ("split", "goal", "task_type")))


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled reply: token ids and their log-probabilities at the sampling temperature.

    Attributes:
        token_ids: sampled tokens, the stop token included, length n.
        logprobs: natural-log probabilities of exactly those tokens, length n.
        finish_reason: ``"stop"`` (stop token) or ``"length"`` (token limit).
        policy_version: number of weight updates of the sampling policy.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    policy_version: int = 0

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.token_ids)} token ids but {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True)
class PredictionScore:
    """The similarity of one predicted state and the observed state (paper, Eq. 4).

    Attributes:
        turn: the turn that made the prediction, 0-based.
        horizon: number of steps ahead, 1..H.
        score: similarity in [0, 1]; 0 for a missing prediction.
        absent: whether the prediction is missing.
    """

    turn: int
    horizon: int
    score: float
    absent: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """The states that a turn predicted, with their tokens.

    Attributes:
        prompt_ids: the whole prompt of the follow-up question; empty for inline predictions.
        completion: the sampled prediction tokens; None for inline predictions, which are in the turn's completion.
        texts: predicted states for horizons 1..H, ``""`` for a missing one.
        scores: one per scored horizon.
    """

    prompt_ids: tuple[int, ...]
    completion: Completion | None
    texts: tuple[str, ...]
    scores: tuple[PredictionScore, ...] = ()


_AS_STATE: Any = object()


def grouping_state(info: Mapping[str, Any]) -> str | None:
    """The state for grouping turns (see the module's docstring); defaults to ``state``.

    >>> grouping_state({"state": "Nothing happens.", "grouping_state": "You are at desk 1."})
    'You are at desk 1.'
    """
    return info.get("grouping_state", info.get("state"))


def reward_terms(info: Mapping[str, Any], reward: float) -> dict[str, float]:
    """The named reward terms of a step; the reward is the term ``task`` where no other value has that name.

    >>> reward_terms({}, 1), reward_terms({"rewards": {"format": 0.5}}, 0)
    ({'task': 1.0}, {'task': 0.0, 'format': 0.5})
    """
    return {"task": float(reward), **info.get("rewards", {})}


def ending(info: Mapping[str, Any], terminated: bool, rewards: Mapping[str, float]) -> str:
    """Why an episode ended by itself or at its limit: ``"won"``, ``"lost"`` or ``"max_steps"``.

    Args:
        info: of the last step.
        terminated: whether it ended by itself.
        rewards: the terms of the last step. An environment that does not report ``won`` is won by an end with a reward.

    >>> ending({"won": False}, True, {"task": 1.0}), ending({}, True, {"task": 1.0}), ending({}, False, {"task": 1.0})
    ('lost', 'won', 'max_steps')
    """
    won = info.get("won", terminated and rewards["task"] > 0)
    return "won" if won else "lost" if terminated else "max_steps"


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of an episode: prompt, reply, action and observation.

    Attributes:
        prompt_ids: the whole prompt of this turn. Every turn owns its prompt, also with history windows.
        completion: the sampled reply.
        action: the bare command that reached the environment (``""`` for a malformed reply).
        observation: the text *after* the action.
        state: the state s_t before the action as text, or None if it cannot be known.
        grouping_state: that state for grouping turns (see the module's docstring), or None; defaults to ``state``.
        lessons: of earlier failures, which the prompt holds (:mod:`roleagent.curricula.lessons`).
        prediction: the turn's predictions, or None.
        rewards: named reward terms of this step.
        info: the environment's ``info`` after the action (see the module's docstring).
    """

    prompt_ids: tuple[int, ...]
    completion: Completion
    action: str
    observation: str
    state: str | None = None
    prediction: Prediction | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    grouping_state: str | None = _AS_STATE
    lessons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.grouping_state is _AS_STATE:
            object.__setattr__(self, "grouping_state", self.state)

    @property
    def next_state(self) -> str | None:
        """The state s_{t+1} after the action, which predictions are scored against, or None."""
        return self.info.get("state")

    @property
    def played(self) -> bool:
        """Whether the reply was one to the environment: no ``<revise>`` note, and no reply of an agent program that no
        command followed (``info["silent"]``)."""
        return not (self.info.get("revision") or self.info.get("silent"))


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode.

    Attributes:
        stop_reason: ``"won"``, ``"lost"``, ``"max_steps"``, ``"context"`` (the prompt outgrew the policy's context)
            or ``"error"`` (the environment failed; such an episode never enters a group).
        initial_observation: the text of ``reset``.
        initial_info: its ``info``.
    """

    task: Task
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    stop_reason: str
    initial_observation: str = ""
    initial_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> float:
        """R^E: the unmodulated sum of the ``task`` reward terms."""
        return float(sum(turn.rewards.get("task", 0.0) for turn in self.turns))

    @property
    def success(self) -> bool:
        """Whether the task was solved."""
        return self.stop_reason == "won"

    @property
    def lessons(self) -> tuple[str, ...]:
        """The lessons that its prompts held, each once."""
        return tuple(dict.fromkeys(lesson for turn in self.turns for lesson in turn.lessons))


UNSAMPLED = Completion((), (), "stop")
"""Stands for a reply whose tokens are not known: that of an expert, or of a model behind a server."""


class Recorder:
    """Takes in the steps of an episode, and gives its trajectory.

    Args:
        task: what is played.
        observation: of ``reset``.
        info: of ``reset``.

    Attributes:
        observation: the newest observation.
        info: the newest ``info`` of the environment.
        turns: what was done so far.
        scores: of the predictions so far, as they arrived.
        stop_reason: see :class:`Trajectory`; ``""`` until the episode ends.
    """

    def __init__(self, task: Task, observation: str, info: Mapping[str, Any]):
        self.task, self.initial_observation, self.initial_info = task, observation, info
        self.observation, self.info = observation, info
        self.turns: list[Turn] = []
        self.scores: list[PredictionScore] = []
        self.stop_reason = ""
        self._terminated = self._truncated = False
        self._state, self._grouping_state = info.get("state"), grouping_state(info)

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return bool(self.stop_reason)

    @property
    def won(self) -> bool:
        """Whether the last step solved the task."""
        return self.stop_reason == "won"

    def add(
        self,
        action: str,
        observation: str,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
        *,
        prompt_ids: tuple[int, ...] = (),
        completion: Completion = UNSAMPLED,
        prediction: Prediction | None = None,
        lessons: tuple[str, ...] = (),
    ) -> Turn:
        """Adds a step: the bare command, what ``step`` returned, what was sampled, and the lessons in its prompt."""
        rewards = reward_terms(info, reward)
        turn = Turn(
            prompt_ids,
            completion,
            action,
            observation,
            self._state,
            prediction,
            rewards,
            info,
            self._grouping_state,
            lessons,
        )
        self.turns.append(turn)
        self.scores += info.get("prediction_scores", ())
        self.observation, self.info = observation, info
        if not info.get("revision"):  # a note changes nothing
            self._state, self._grouping_state = info.get("state"), grouping_state(info)
        if terminated or truncated:
            self.end(ending(info, terminated, rewards), terminated, truncated)
        return turn

    def end(self, stop_reason: str, terminated: bool = False, truncated: bool = True) -> None:
        """Ends the episode."""
        self.stop_reason, self._terminated, self._truncated = stop_reason, terminated, truncated

    def trajectory(self) -> Trajectory:
        """The record; scores that arrived late are with the turns that made the predictions."""
        turns = []
        for number, turn in enumerate(self.turns):
            if turn.prediction is not None:
                scores = tuple(score for score in self.scores if score.turn == number)
                turn = replace(turn, prediction=replace(turn.prediction, scores=scores))
            turns.append(turn)
        ended = (self._terminated, self._truncated, self.stop_reason)
        return Trajectory(self.task, tuple(turns), *ended, self.initial_observation, self.initial_info)


ROUNDING = 1e-6
"""Of the size of rewards: smaller differences are rounding. A step of float32 is at most 1.2e-7."""


def is_flat(values: Sequence[float]) -> bool:
    """Whether rewards are equal up to rounding: comparing them teaches nothing.

    >>> is_flat([100.0, 100.00001]), is_flat([100.0, 100.1]), is_flat([])
    (True, False, True)
    """
    return not values or max(values) - min(values) <= 1e-9 + ROUNDING * max(map(abs, values))


@dataclass(frozen=True, slots=True)
class Group:
    """Trajectories of one task from the same initial state."""

    task: Task
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        for trajectory in self.trajectories:
            if trajectory.task.task_id != self.task.task_id:
                raise ValueError(
                    f"a group plays one task, but {trajectory.task.task_id!r} was put into the group of "
                    f"{self.task.task_id!r}"
                )


CONTEXT, ACTION, PREDICTION, TEXT = 0, 1, 2, 3
"""The kinds of tokens: read only, sampled as an action, sampled as a prediction, and the environment's text where it is
trained (in the warm start, and with an action mask off)."""


_COLUMNS = {"token_ids": np.int64, "token_kind": np.int8, "sampler_logprobs": np.float64, "advantages": np.float64}


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One training sequence. The columns have the same length T; any sequence of numbers is valid.

    Attributes:
        token_ids: int64 (T,): prompts, replies and observations, as they stood in the policy's context.
        token_kind: int8 (T,): one of the kinds above.
        sampler_logprobs: float64 (T,): log-probability under the policy that sampled the token; 0 elsewhere.
        advantages: float64 (T,): the advantage of the turn that sampled the token; 0 elsewhere.
        trajectory: index of the trajectory the segment belongs to, within its batch.
    """

    token_ids: np.ndarray
    token_kind: np.ndarray
    sampler_logprobs: np.ndarray
    advantages: np.ndarray
    trajectory: int = 0

    def __post_init__(self) -> None:
        for name, dtype in _COLUMNS.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        lengths = {len(getattr(self, name)) for name in _COLUMNS}
        if len(lengths) != 1:
            raise ValueError(f"the columns of a segment differ in length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Reflection:
    """The analysis of a failed trajectory (Agent-In-World, step 1).

    Attributes:
        mode: the dominant failure mode, a name of the environment's taxonomy or a new one.
        detail: a sentence about what happened.
        critical_step: the turn of the mistake, 0-based; None if unknown.
        lesson: what to do instead.
        query: a search text for similar failures.
        source: ``"rule"``, ``"model"``, ``"endpoint"``, or ``"fallback"`` for an unparsable reply.
        repaired: whether the reply had to be repaired to be read.
    """

    mode: str
    detail: str
    critical_step: int | None
    lesson: str
    query: str
    source: str = "rule"
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """An entry of the failure library: one task with one mode.

    Attributes:
        task: the task that failed.
        reflection: its newest analysis with this mode.
        count: number of such failures of this task.
        iteration: the training iteration of the newest such failure.
    """

    task: Task
    reflection: Reflection
    count: int = 1
    iteration: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates that an analyst selected for training (Agent-In-World, step 4).

    Attributes:
        indices: unique valid positions in the list of candidates, 0-based.
        reasons: one text per index; ``""`` for a missing one.
        dropped: number of invalid indices.
        source: ``"rule"``, ``"model"``, ``"endpoint"``, or ``"fallback"`` for an unparsable reply.
        repaired: whether the reply had to be repaired to be read.
    """

    indices: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    dropped: int = 0
    source: str = "rule"
    repaired: bool = False


@runtime_checkable
class Expert(Protocol):
    """A scripted agent with the observations of an agent, for demonstrations and as a baseline.

    :func:`roleagent.env_card.make_expert` gives an environment's own. Its attribute ``given_up``, if it has
    one, is true when it knows no way on.
    """

    def reset(self, goal: str, observation: str) -> None:
        """Starts an episode."""
        ...

    def act(self) -> str:
        """Returns the next command."""
        ...

    def observe(self, command: str, observation: str) -> None:
        """Receives the command that was played, which may differ from its own, and the observation."""
        ...


@runtime_checkable
class Analyst(Protocol):
    """The environment role: analyzes failed trajectories and selects similar earlier failures."""

    def reflect(self, trajectories: Sequence[Trajectory]) -> list[Reflection]:
        """Returns one reflection per failed trajectory, in order."""
        ...

    def select(self, reflections: Sequence[Reflection], candidates: Sequence[Sequence[Failure]]) -> list[Selection]:
        """Returns for each reflection the candidates that are worth training on; may be empty."""
        ...

    def costs(self) -> dict[str, float]:
        """Returns the costs since the last call, by name (tokens, seconds, requests); the names do not change."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Chooses the tasks of the next batch and observes their outcomes."""

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """Returns ``n`` task ids, drawn with ``rng`` or the sampler's own generator."""
        ...

    def choices(self) -> Mapping[str, tuple[str, str]]:
        """Returns the retrieved tasks since the last :meth:`observe`: by task id, the failure's mode and the reason."""
        ...

    def observe(self, groups: Sequence[Group]) -> Mapping[tuple[int, int], Reflection]:
        """Receives the outcomes of training groups. Never called with evaluation episodes.

        Returns:
            the reflections on failed episodes, by (group, episode).
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Returns numbers for the log, e.g. the share of tasks from the curriculum."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-serializable state for a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt for a policy.

    Attributes:
        prompt_ids: the whole prompt.
        slot: id of the conversation. A policy may cache a slot's computation and reuse the common prefix. Several
            requests of a call may have the same one.
        max_tokens: maximum number of sampled tokens.
        stop_ids: sampling ends after any of these tokens.
    """

    prompt_ids: tuple[int, ...]
    slot: int
    max_tokens: int
    stop_ids: frozenset[int]
