"""An episode played by a prompting agent: the agent loop, the episode's state and its result.

A :class:`PromptingAgent` plays an episode as an *agent loop*: a generator that yields messages, receives the model's
:class:`~roleagent.agents.chat.types.Answer`, and steps the :class:`Episode` with commands.
:mod:`roleagent.agents.chat.rollout` plays many episodes side by side.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from roleagent.agents.chat.types import Answer, Message
from roleagent.envs.pool import EnvPool, Outcome

AgentLoop = Generator[Sequence[Message], Answer, None]
"""Yields messages, receives the model's answer, and ends when the episode is over.

If the messages do not fit the model's context, :class:`~roleagent.agents.chat.types.OverlongError` is raised at the
``yield``. A loop that does not catch it ends there."""


_OF_CALLS = ("name", "arguments", "error", "result", "reward")


class EnvError(Exception):
    """The environment failed; the message is its error in one line. Agent loops do not catch it."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The costs of an episode's answers.

    Attributes:
        answers: number of the model's answers.
        prompt_tokens: read; each prompt is the whole conversation so far.
        completion_tokens: written.
        estimated: answers whose tokens were not counted but estimated.
        cut: answers that ended at the token limit.
        seconds: waited for answers; those of concurrent episodes overlap.
    """

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    cut: int = 0
    seconds: float = 0.0

    def plus(self, answer: Answer, seconds: float) -> Usage:
        """With one more answer.

        >>> Usage().plus(Answer("look", "stop", 20, 2, estimated=False), 0.5)
        Usage(answers=1, prompt_tokens=20, completion_tokens=2, estimated=0, cut=0, seconds=0.5)
        """
        return Usage(
            self.answers + 1,
            self.prompt_tokens + answer.prompt_tokens,
            self.completion_tokens + answer.completion_tokens,
            self.estimated + answer.estimated,
            self.cut + (answer.finish_reason == "length"),
            self.seconds + seconds,
        )


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of an episode.

    Attributes:
        reward: sum of the ``task`` terms of the last trial.
        steps: commands of the last trial.
        stop_reason: ``"won"``, ``"lost"``, ``"max_steps"``, ``"context"`` (the conversation outgrew the model's
            context), ``"gave_up"`` (the agent ended it) or ``"error"`` (the environment failed, or the model did not
            answer: no outcome of the task).
        trials: attempts at the task; an episode that was won was won in the last of them.
        corrections: replies in which no command could be found, over all trials.
        invalid: commands of the last trial that the environment did not understand.
        info: the environment's last report.
        messages: the last conversation, with the model's last reply.
        goal: of the task.
        initial_observation: of the first trial.
        turns: of all trials (:attr:`Episode.turns`).
        error: what went wrong, where the stop reason is ``"error"``.
    """

    task_id: str
    task_type: str = ""
    won: bool = False
    reward: float = 0.0
    steps: int = 0
    stop_reason: str = "error"
    trials: int = 1
    corrections: int = 0
    invalid: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    usage: Usage = Usage()
    error: str = ""
    goal: str = ""
    initial_observation: str = ""
    turns: tuple[Mapping[str, Any], ...] = ()


class Episode:
    """One task in one environment, with its counters. An agent sees ``observation`` and ``info``.

    Attributes:
        observation: the newest observation.
        info: the newest ``info`` of the environment.
        over: whether the current trial is over, or none has begun.
        won: whether it was won.
        trials: how often :meth:`begin` was called.
        corrections: replies without a command; the agent counts them here.
        initial_observation: of the first trial.
        turns: what was done, in the keys of :mod:`roleagent.agents.evaluation.transcripts`.
    """

    def __init__(self, pool: EnvPool, slot: int, task_id: str):
        self._pool, self._slot, self.task_id = pool, slot, task_id
        self.observation, self.info = "", dict[str, Any]()
        self.over, self.won, self.stop_reason = True, False, ""
        self.reward, self.steps, self.trials, self.corrections, self.invalid = 0.0, 0, 0, 0, 0
        self.initial_observation, self.turns = "", list[dict[str, Any]]()
        self._answers: list[Answer] = []
        self._usage = Usage()  # of these answers

    @property
    def task_type(self) -> str:
        """The task type that the environment reports, or an empty text."""
        return str(self.info.get("task_type", ""))

    @property
    def share(self) -> float:
        """The share of the current trial that is played if it becomes as long as it can, in [0, 1]."""
        return self._pool.share(self._slot, self.steps)

    def begin(self) -> None:
        """Resets the environment to the task: the first trial, or a further one.

        Raises:
            EnvError: the environment failed.
            ValueError: its split has no such task.
        """
        self.trials += 1
        self._checked(self._pool.reset(self._slot, self.task_id))
        self.initial_observation = self.initial_observation or self.observation
        self.over, self.won, self.stop_reason = False, False, ""
        self.reward, self.steps, self.invalid = 0.0, 0, 0

    def hear(self, answer: Answer, seconds: float) -> None:
        """Takes an answer of the model for the next turn."""
        self._answers.append(answer)
        self._usage = self._usage.plus(answer, seconds)

    def step(self, command: Any, action: str | None = None) -> None:
        """Plays one command.

        Args:
            command: for the environment; a reply, where its wrapper reads replies.
            action: the bare command in a reply.

        Raises:
            EnvError: the environment failed.
        """
        outcome = self._checked(self._pool.step(self._slot, command))
        rewards = outcome.info.get("rewards", {"task": outcome.reward})
        self._add_turn(command if action is None else action, outcome.observation, outcome.info, rewards)
        self.steps += 1
        self.reward += outcome.info.get("rewards", {}).get("task", outcome.reward)
        self.invalid += not outcome.info.get("valid_action", True)
        if outcome.terminated or outcome.truncated:
            self.over = True
            self.won = bool(outcome.info.get("won", outcome.terminated and self.reward > 0))
            self.stop_reason = "won" if self.won else ("lost" if outcome.terminated else "max_steps")

    def end(self, reason: str, usage: Usage = Usage(), error: str = "") -> EpisodeResult:
        """The result of an episode that is over; with an ``error`` it has no outcome.

        Args:
            reason: the stop reason.
            usage: of all answers.
        """
        if self._answers:  # after the last command
            self._add_turn("", "", {}, {})
        result = EpisodeResult(
            self.task_id,
            self.task_type,
            stop_reason=reason,
            corrections=self.corrections,
            usage=usage,
            error=error,
            goal=str(self.info.get("goal", "")),
            initial_observation=self.initial_observation,
            turns=tuple(self.turns),
        )
        if error:
            return result
        return replace(
            result,
            won=self.won,
            reward=self.reward,
            steps=self.steps,
            trials=self.trials,
            invalid=self.invalid,
            info=self.info,
        )

    def _add_turn(self, action: str, observation: str, info: Mapping[str, Any], rewards: Mapping[str, float]) -> None:
        """Adds a turn, with what the model wrote since the one before."""
        thoughts = "\n\n".join(answer.thoughts for answer in self._answers if answer.thoughts)
        turn = {"action": action, "trial": self.trials, **after_step(observation, info, rewards)}
        if self._answers:
            turn["reply"] = "\n\n".join(answer.text for answer in self._answers)
            turn |= {"thoughts": thoughts or None, "usage": asdict(self._usage)}
        self.turns.append(turn)
        self._answers, self._usage = [], Usage()

    def _checked(self, outcome: Outcome) -> Outcome:
        if outcome.error is not None:
            raise EnvError(outcome.error)
        self.observation, self.info = outcome.observation, outcome.info
        return outcome


def after_step(observation: str, info: Mapping[str, Any], rewards: Mapping[str, float]) -> dict[str, Any]:
    """What an environment answered to a command."""
    found = {name: info[name] for name in ("calls", "answer") if info.get(name)}
    if "calls" in found:
        found["calls"] = [{name: call.get(name) for name in _OF_CALLS} for call in found["calls"]]
    return {
        "format_error": info.get("format_error"),
        "valid": bool(info.get("valid_action", True)),
        "observation": observation,
        **found,
        **({} if info.get("state") == observation else {"state": info.get("state")}),
        "rewards": {name: short(value) for name, value in rewards.items()},
    }


def short(value: float) -> float:
    """A number as it is logged."""
    return round(float(value), 4) + 0.0  # no -0.0


class PromptingAgent(Protocol):
    """An agent that plays by prompting a chat model."""

    def play(self, episode: Episode) -> AgentLoop:
        """Begins the episode and plays it to its end."""
        ...
