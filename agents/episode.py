"""An episode: one task in one environment, its record, and the loop that plays it.

:func:`play_episode` is the loop of every kind of agent; what they differ in is how they decide. A local policy decides
by sampling tokens (:mod:`roleagent.agents.rollout`), a prompting agent by asking a chat model
(:mod:`roleagent.agents.prompting.plain`), an agent of one's own by its function
(:mod:`roleagent.agents.evaluation.play`).

An episode is a coroutine that awaits two things: a step of its environment (:class:`Step`), and an answer of a model or
an agent (:class:`Ask`). :class:`Scheduler` plays many side by side. Only the thread that iterates over
:meth:`Scheduler.run` touches environments and coroutines, so neither has to be thread-safe. A :class:`Backend` answers:
a local policy takes the requests of all live episodes in one batch (:class:`Batch`); a server, or an agent that thinks
for itself, takes each as soon as it is ready (:class:`Threads`), so that no episode waits for another.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from roleagent.agents.chat.types import OVERLONG, Answer, Message, OverlongError, Prompt
from roleagent.envs.pool import EnvPool, Outcome
from roleagent.timer import Timer
from roleagent.types import UNSAMPLED, Completion, Prediction, Recorder, Task, Turn

UNANSWERED = "the model did not answer"
_OF_CALLS = ("name", "arguments", "error", "result", "reward")


class EpisodeFailed(Exception):
    """The episode has no outcome; the message is the reason in one line. Agents do not catch it."""


class EnvError(EpisodeFailed):
    """The environment failed."""


class NoAnswerError(EpisodeFailed):
    """The model did not answer."""


@dataclass(frozen=True, slots=True)
class Action:
    """What is played in a step.

    Attributes:
        reply: for the environment, in the form that its outermost wrapper takes.
        command: the bare command in it; None: the reply is one.
        prompt_ids: the tokens that it was sampled from.
        completion: the sampled tokens.
        prediction: of the states after it.
        lessons: that the prompt holds.
    """

    reply: Any
    command: str | None = None
    prompt_ids: tuple[int, ...] = ()
    completion: Completion = UNSAMPLED
    prediction: Prediction | None = None
    lessons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """The costs of an episode's answers.

    Attributes:
        answers: number of the model's answers.
        prompt_tokens: read; each prompt is the whole conversation so far.
        completion_tokens: written.
        estimated: answers whose tokens were not counted but estimated.
        cut: answers that ended at the token limit.
        shortened: answers to a conversation that the server cut without saying so.
        dropped_thoughts: answers to a conversation from which the server's chat template dropped earlier thoughts.
        seconds: waited for answers; those of concurrent episodes overlap.
    """

    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: int = 0
    cut: int = 0
    shortened: int = 0
    dropped_thoughts: int = 0
    seconds: float = 0.0

    def plus(self, answer: Answer, seconds: float) -> Usage:
        """With one more answer.

        >>> Usage().plus(Answer("look", "stop", 20, 2, estimated=False), 0.5).prompt_tokens
        20
        """
        return replace(
            self,
            answers=self.answers + 1,
            prompt_tokens=self.prompt_tokens + answer.prompt_tokens,
            completion_tokens=self.completion_tokens + answer.completion_tokens,
            estimated=self.estimated + answer.estimated,
            cut=self.cut + (answer.finish_reason == "length"),
            shortened=self.shortened + answer.shortened,
            seconds=self.seconds + seconds,
        )


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """The result of an episode without tokens: of a prompting agent, or of one without a model.

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
        turns: of all trials, in the keys of :mod:`roleagent.agents.evaluation.transcripts`.
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
    """One task in one environment of a pool. An agent sees ``observation`` and ``info``.

    Args:
        pool: has the environment.
        slot: its number there.
        task_id: the task.
        env_id: the Gymnasium id, for the record.

    Attributes:
        record: of the current trial; None before the first.
        trials: how often :meth:`begin` was called.
        corrections: replies without a command; the agent counts them here.
        usage: of all answers.
    """

    def __init__(self, pool: EnvPool, slot: int, task_id: str, env_id: str = ""):
        self._pool, self.slot, self.task_id, self._env_id = pool, slot, task_id, env_id
        self.record: Recorder | None = None
        self.trials, self.corrections, self.usage = 0, 0, Usage()
        self._messages: tuple[Message, ...] = ()  # of the last conversation
        self._initial_observation = ""
        self._turns: list[tuple[int, Turn]] = []  # of all trials
        self._heard: list[list[tuple[Answer, float]]] = [[]]  # answers before each of these turns, and after the last

    @property
    def observation(self) -> str:
        """The newest observation."""
        return self.record.observation if self.record else ""

    @property
    def info(self) -> Mapping[str, Any]:
        """The newest ``info`` of the environment."""
        return self.record.info if self.record else {}

    @property
    def turns(self) -> Sequence[Turn]:
        """The turns of the current trial."""
        return self.record.turns if self.record else ()

    @property
    def over(self) -> bool:
        """Whether the current trial is over, or none has begun."""
        return self.record is None or self.record.over

    @property
    def won(self) -> bool:
        """Whether the last trial was won."""
        return self.record is not None and self.record.won

    @property
    def stop_reason(self) -> str:
        """Why the current trial ended; ``""`` while it goes on."""
        return self.record.stop_reason if self.record else ""

    @property
    def task_type(self) -> str:
        """The task type that the environment reports, or an empty text."""
        return str(self.info.get("task_type", ""))

    @property
    def share(self) -> float:
        """The share of the current trial that is played if it becomes as long as it can, in [0, 1]."""
        return self._pool.share(self.slot, len(self.turns))

    def at(self, slot: int) -> Episode:
        """The same episode, which is to be played in another environment of the pool."""
        self.slot = slot
        return self

    def begin(self) -> None:
        """Resets the environment to the task: the first trial, or a further one.

        Raises:
            EnvError: the environment failed.
            ValueError: its split has no such task.
        """
        self.trials += 1
        outcome = self._checked(self._pool.reset(self.slot, self.task_id))
        task = Task.of(self._env_id, self.task_id, outcome.info)
        self.record = Recorder(task, outcome.observation, outcome.info)
        self._initial_observation = self._initial_observation or outcome.observation

    async def step(self, action: Action | Any) -> None:
        """Plays an action, or a bare command.

        Raises:
            EnvError: the environment failed.
            TypeError, ValueError: a mistake of the agent: no command, or an episode that is over or has not begun.
        """
        if not isinstance(action, Action):
            action = Action(action)
        if isinstance(action.reply, Answer) or action.reply is None:
            raise TypeError(f"episode.step takes a command, such as answer.text, and not {type(action.reply).__name__}")
        if self.record is None or self.record.over:
            when = "after its end" if self.record else "before episode.begin()"
            raise ValueError(f"the agent plays on in an episode {when}: step while episode.over is false")
        outcome = self._checked(await Step(action.reply))
        command = action.reply if action.command is None else action.command
        turn = self.record.add(
            outcome.info.get("command", command),  # of a view: the environment's own, for detectors and reports
            outcome.observation,
            outcome.reward,
            outcome.terminated,
            outcome.truncated,
            outcome.info,
            prompt_ids=action.prompt_ids,
            completion=action.completion,
            prediction=action.prediction,
            lessons=action.lessons,
        )
        self._turns.append((self.trials, turn))
        self._heard.append([])

    async def ask(self, messages: Sequence[Message]) -> Answer:
        """The chat model's answer to a conversation.

        Raises:
            OverlongError: the messages do not fit the model's context. An agent that does not catch it ends there.
            NoAnswerError: there is none.
        """
        prompt = Prompt(messages)  # a copy: the agent may go on changing its list
        self._messages, began = prompt, time.monotonic()
        answer: Answer | None = await Ask(prompt)
        seconds = time.monotonic() - began
        if answer is None:
            raise NoAnswerError(UNANSWERED)
        if answer.finish_reason == OVERLONG:
            raise OverlongError("the conversation does not fit the model's context")
        self.usage = self.usage.plus(answer, seconds)
        self._heard[-1].append((answer, seconds))
        calls = {"tool_calls": list(answer.tool_calls)} if answer.tool_calls else {}
        self._messages = (*prompt, {"role": "assistant", "content": answer.text, **calls})
        return answer

    def result(self, stop_reason: str = "", error: str = "") -> EpisodeResult:
        """The result of an episode that is over; with an ``error`` it has no outcome."""
        result = EpisodeResult(
            self.task_id,
            self.task_type,
            stop_reason="error" if error else stop_reason or self.stop_reason or "gave_up",
            corrections=self.corrections,
            usage=self.usage,
            error=error,
            goal=str(self.info.get("goal", "")),
            initial_observation=self._initial_observation,
            turns=tuple(self._lines()),
        )
        if error:
            return result
        return replace(
            result,
            won=self.won,
            reward=float(sum(turn.rewards.get("task", 0.0) for turn in self.turns)),
            steps=len(self.turns),
            trials=self.trials,
            invalid=sum(not turn.info.get("valid_action", True) for turn in self.turns),
            info=self.info,
            messages=self._messages,
        )

    def _lines(self) -> list[dict[str, Any]]:
        """The turns of all trials, each with what the model wrote since the one before."""
        lines = []
        for played, heard in zip_longest(self._turns, self._heard):
            if played is None and not heard:
                break
            trial, turn = played or (self.trials, Turn((), UNSAMPLED, "", ""))  # written after the last command
            line = {"action": turn.action, "trial": trial, **after_step(turn.observation, turn.info, turn.rewards)}
            if heard:
                usage = Usage()
                for answer, seconds in heard:
                    usage = usage.plus(answer, seconds)
                line["reply"] = "\n\n".join(answer.text for answer, _ in heard)
                line["thoughts"] = "\n\n".join(answer.thoughts for answer, _ in heard if answer.thoughts) or None
                line["usage"] = asdict(usage)
            lines.append(line)
        return lines

    @staticmethod
    def _checked(outcome: Outcome) -> Outcome:
        if outcome.error is not None:
            raise EnvError(outcome.error)
        return outcome


Decide = Callable[[Episode], Awaitable[Action | Any | None]]
"""Chooses what is played next: an action, a bare command, or None to leave the episode."""


async def play_episode(episode: Episode, decide: Decide) -> None:
    """Plays a trial from its beginning to its end.

    Raises:
        EpisodeFailed: it has no outcome.
        ValueError: the environment's split has no such task.
    """
    episode.begin()
    while not episode.over:
        action = await decide(episode)
        if action is None:
            return
        await episode.step(action)


class PromptingAgent(Protocol):
    """An agent that plays by prompting a chat model."""

    async def play(self, episode: Episode) -> None:
        """Plays the episode from its beginning to its end: awaits ``episode.ask(messages)`` for the model's answers and
        ``episode.step(command)`` for those of the environment, or :func:`play_episode`."""
        ...


def after_step(observation: str, info: Mapping[str, Any], rewards: Mapping[str, float]) -> dict[str, Any]:
    """What an environment answered to a command, as transcripts and logs have it."""
    of_tools = {name: info[name] for name in ("calls", "answer") if info.get(name)}
    if "calls" in of_tools:
        of_tools["calls"] = [{name: call.get(name) for name in _OF_CALLS} for call in of_tools["calls"]]
    return {
        "format_error": info.get("format_error"),
        "valid": bool(info.get("valid_action", True)),
        "observation": observation,
        **of_tools,
        **({} if info.get("state") == observation else {"state": info.get("state")}),
        "rewards": {name: short(value) for name, value in rewards.items()},
    }


def short(value: float) -> float:
    """A number as it is logged."""
    return round(float(value), 4) + 0.0  # no -0.0


R = TypeVar("R")
THREAD_NAME = "episode"


@dataclass(frozen=True, slots=True)
class Step:
    """Awaits the :class:`~roleagent.envs.pool.Outcome` of an action."""

    action: Any

    def __await__(self) -> Generator[Step, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True)
class Ask:
    """Awaits an answer.

    Attributes:
        content: what is asked, in the terms of the backend.
        kind: what for, as :class:`~roleagent.timer.Timer` names it.
        later: whether it waits until nothing else is asked by any episode.
    """

    content: Any
    kind: str = "generation"
    later: bool = False

    def __await__(self) -> Generator[Ask, Any, Any]:
        return (yield self)


class Backend(Protocol):
    """Who answers."""

    def submit(self, slot: int, ask: Ask) -> None:
        """Takes in a request; a slot has one at a time."""
        ...

    def wait(self) -> list[tuple[int, Any]]:
        """Waits until there are answers; returns them with their slots."""
        ...

    def close(self) -> None:
        """Nothing more is asked."""
        ...


class Batch:
    """Answers all requests in one call, in the order of their slots, once every episode waits for an answer.

    Attributes:
        calls: their number.
    """

    def __init__(self, answer: Callable[[Sequence[Ask]], Sequence[Any]]):
        self._answer, self.calls = answer, 0
        self._asked: dict[int, Ask] = {}

    def submit(self, slot: int, ask: Ask) -> None:
        self._asked[slot] = ask

    def wait(self) -> list[tuple[int, Any]]:
        self.calls += 1
        later = all(ask.later for ask in self._asked.values())
        slots = sorted(slot for slot, ask in self._asked.items() if ask.later == later)
        return list(zip(slots, self._answer([self._asked.pop(slot) for slot in slots]), strict=True))

    def close(self) -> None:
        pass


class Threads:
    """Answers each request at once, in a thread of its slot.

    Args:
        build: builds what answers; called in each thread, so that a slot may have an agent of its own.
    """

    def __init__(self, build: Callable[[], Callable[[Any], Any]]):
        self._build = build
        self._asked: dict[int, SimpleQueue[Ask | None]] = {}
        self._answers: SimpleQueue[tuple[int, Any, BaseException | None]] = SimpleQueue()

    def submit(self, slot: int, ask: Ask) -> None:
        if slot not in self._asked:
            self._asked[slot] = SimpleQueue()
            threading.Thread(target=self._work, args=(slot,), name=f"{THREAD_NAME}-{slot}", daemon=True).start()
        self._asked[slot].put(ask)

    def wait(self) -> list[tuple[int, Any]]:
        slot, answer, error = self._answers.get()
        if error is not None:
            raise error
        return [(slot, answer)]

    def close(self) -> None:
        for queue in self._asked.values():
            queue.put(None)

    def _work(self, slot: int) -> None:
        try:
            answer = self._build()
            while (ask := self._asked[slot].get()) is not None:
                self._answers.put((slot, answer(ask.content), None))
        except BaseException as error:
            self._answers.put((slot, None, error))


@dataclass
class _Live(Generic[R]):
    index: int
    coroutine: Coroutine[Any, Any, R]
    awaited: Step | Ask | None = None
    share: float = 0.0  # that is played


class Scheduler(Generic[R]):
    """A fixed number of slots, each with an environment, and the episodes that run in them.

    Args:
        backend: answers.
        step: steps several environments, by slot, as :meth:`roleagent.envs.pool.EnvPool.step_many` does.
        start: makes the coroutine of an episode from its number and its slot.
        episodes: their number.
        slots: most episodes at the same time; None: all.
        progress: called after every answer and step with (finished, all) episodes; an unfinished one counts as the
            share of it that is played.
        share: that share of the episode of a number, in [0, 1].
        watch: books the time of waiting for answers as ``generation``.
    """

    def __init__(
        self,
        backend: Backend,
        step: Callable[[Mapping[int, Any]], Mapping[int, Any]],
        start: Callable[[int, int], Coroutine[Any, Any, R]],
        episodes: int,
        slots: int | None = None,
        progress: Callable[[float, int], None] | None = None,
        share: Callable[[int], float] = lambda index: 0.0,
        watch: Timer | None = None,
    ):
        self._backend, self._step, self._start, self._episodes = backend, step, start, episodes
        self._progress, self._share, self._watch = progress, share, watch or Timer()
        self._free = list(range(min(slots or episodes, episodes)))
        self._live: dict[int, _Live[R]] = {}  # by slot
        self._started, self._played = 0, 0.0

    def run(self) -> Iterator[tuple[int, R]]:
        """Plays all episodes; yields the number and the result of each as it ends.

        Raises:
            Exception: what a coroutine or the backend raises; the others are closed.
        """
        try:
            while True:
                while self._free and self._started < self._episodes:
                    slot, index = self._free.pop(0), self._started
                    self._started += 1
                    self._live[slot] = _Live(index, self._start(index, slot))
                    yield from self._resume(slot, None)
                if not self._live:
                    return
                # Steps before answers: a batch then has a request of every live episode.
                actions = {slot: live.awaited.action for slot, live in self._live.items() if type(live.awaited) is Step}
                if actions:
                    answers = list(self._step(actions).items())
                else:
                    with self._watch("generation"):
                        answers = self._backend.wait()
                for slot, answer in answers:
                    yield from self._resume(slot, answer)
                if self._progress is not None:
                    for slot, _ in answers:
                        if slot in self._live:
                            self._live[slot].share = self._share(self._live[slot].index)
                    # A further trial of an episode begins at 0 again; what is shown does not go back.
                    under_way = sum(live.share for live in self._live.values())
                    self._played = max(self._played, self._started - len(self._live) + under_way)
                    self._progress(self._played, self._episodes)
        finally:
            with ExitStack() as closing:  # all of them, whatever one raises
                closing.callback(self._backend.close)
                for live in self._live.values():
                    closing.callback(_closed, live.coroutine)

    def _resume(self, slot: int, value: Any) -> Iterator[tuple[int, R]]:
        live = self._live[slot]
        live.awaited = None
        try:
            live.awaited = live.coroutine.send(value)
        except StopIteration as end:
            del self._live[slot]
            self._free.append(slot)
            yield live.index, end.value
            return
        if isinstance(live.awaited, Ask):
            self._backend.submit(slot, live.awaited)
        elif not isinstance(live.awaited, Step):
            raise TypeError("an agent awaits only episode.ask and episode.step: libraries of asyncio have no loop here")


def _closed(coroutine: Coroutine[Any, Any, Any]) -> None:
    with suppress(RuntimeError):  # it awaits something even now
        coroutine.close()
