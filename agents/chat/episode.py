"""An episode played by a prompting agent: the agent loop, the episode's state and its result.

A :class:`PromptingAgent` plays an episode as an *agent loop*: a generator that yields messages, receives the model's
:class:`~roleagent.agents.chat.types.Answer`, and steps the :class:`Episode` with commands.
:mod:`roleagent.agents.chat.rollout` plays many episodes side by side.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from roleagent.agents.chat.types import Answer, Message
from roleagent.envs.pool import EnvPool, Outcome

AgentLoop = Generator[Sequence[Message], Answer, None]
"""Yields messages, receives the model's answer, and ends when the episode is over.

If the messages do not fit the model's context, :class:`~roleagent.agents.chat.types.OverlongError` is raised at the
``yield``. A loop that does not catch it ends there."""


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


class Episode:
    """One task in one environment, with its counters. An agent sees ``observation`` and ``info``.

    Attributes:
        observation: the newest observation.
        info: the newest ``info`` of the environment.
        over: whether the current trial is over, or none has begun.
        won: whether it was won.
        trials: how often :meth:`begin` was called.
        corrections: replies without a command; the agent counts them here.
    """

    def __init__(self, pool: EnvPool, slot: int, task_id: str):
        self._pool, self._slot, self.task_id = pool, slot, task_id
        self.observation, self.info = "", dict[str, Any]()
        self.over, self.won, self.stop_reason = True, False, ""
        self.reward, self.steps, self.trials, self.corrections, self.invalid = 0.0, 0, 0, 0, 0

    @property
    def task_type(self) -> str:
        """The task type that the environment reports, or an empty text."""
        return str(self.info.get("task_type", ""))

    def begin(self) -> None:
        """Resets the environment to the task: the first trial, or a further one.

        Raises:
            EnvError: the environment failed.
            ValueError: its split has no such task.
        """
        self.trials += 1
        self._checked(self._pool.reset(self._slot, self.task_id))
        self.over, self.won, self.stop_reason = False, False, ""
        self.reward, self.steps, self.invalid = 0.0, 0, 0

    def step(self, command: str) -> None:
        """Plays one command.

        Raises:
            EnvError: the environment failed.
        """
        outcome = self._checked(self._pool.step(self._slot, command))
        self.steps += 1
        self.reward += outcome.info.get("rewards", {}).get("task", outcome.reward)
        self.invalid += not outcome.info.get("valid_action", True)
        if outcome.terminated or outcome.truncated:
            self.over = True
            self.won = bool(outcome.info.get("won", outcome.terminated and self.reward > 0))
            self.stop_reason = "won" if self.won else ("lost" if outcome.terminated else "max_steps")

    def _checked(self, outcome: Outcome) -> Outcome:
        if outcome.error is not None:
            raise EnvError(outcome.error)
        self.observation, self.info = outcome.observation, outcome.info
        return outcome


class PromptingAgent(Protocol):
    """An agent that plays by prompting a chat model."""

    def play(self, episode: Episode) -> AgentLoop:
        """Begins the episode and plays it to its end."""
        ...
