"""The chat rollout: many episodes side by side, as many as the model takes.

A local model gets the prompts of all live episodes in one call. A server, whose answers take unequal times, gets each
prompt as soon as it is ready. Only the thread that iterates over the results touches environments and agents, so
neither has to be thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue

import gymnasium

from roleagent.agents.chat.episode import EnvError, Episode, EpisodeResult, PromptingAgent, Usage
from roleagent.agents.chat.models import ChatModel
from roleagent.agents.chat.types import OVERLONG, Answer, EndpointError, Message, OverlongError, Prompt
from roleagent.envs.pool import EnvPool

UNANSWERED = "the model did not answer"
THREAD_NAME = "chat-rollout"
_Ask = Callable[[Sequence[Sequence[Message]]], list[Answer | None]]


def play_all(
    agent: PromptingAgent,
    model: ChatModel,
    make: Callable[[], gymnasium.Env],
    task_ids: Sequence[str],
    *,
    max_tokens: int = 512,
    temperature: float = 0.0,
    progress: Callable[[float, int], None] | None = None,
) -> Iterator[tuple[int, EpisodeResult]]:
    """Plays every task, ``model.concurrency`` at a time; yields each task's index in ``task_ids`` and its result.

    Episodes come as they finish. A failed environment or an unanswered prompt ends its own episode only.

    Args:
        make: builds a base environment, which takes bare commands.
        task_ids: tasks; one may occur several times.
        max_tokens: most tokens of an answer.
        temperature: of sampling.
        progress: called after every answer with (finished, all) tasks; an unfinished one counts
            as the share of its steps that is played.

    Raises:
        EndpointError: the server cannot be used as it is configured, or has stopped answering.
        ValueError: the environment's split has no such task.
    """

    def ask(conversations: Sequence[Sequence[Message]]) -> list[Answer | None]:
        return model.chat(conversations, max_tokens=max_tokens, temperature=temperature)

    scheduler = _Scheduler(agent, make, task_ids, min(model.concurrency, len(task_ids)), progress)
    try:
        yield from scheduler.in_lockstep(ask) if model.lockstep else scheduler.in_threads(ask)
    finally:
        scheduler.close()


class _LiveEpisode:
    """One episode and its agent loop; ``result`` is set when it is over."""

    def __init__(self, agent: PromptingAgent, index: int, slot: int, episode: Episode):
        self.index, self.slot, self.episode = index, slot, episode
        self.loop = agent.play(episode)
        self.prompt: Sequence[Message] = ()
        self.reply: tuple[Message, ...] = ()
        self.usage = Usage()
        self.result: EpisodeResult | None = None
        self._advance(lambda: next(self.loop))

    def receive(self, answer: Answer | None, seconds: float) -> None:
        """Continues the episode with an answer; None ends it."""
        if answer is None:
            self._end("error", UNANSWERED)
        elif answer.finish_reason == OVERLONG:
            self._advance(lambda: self.loop.throw(OverlongError("the conversation does not fit the model's context")))
        else:
            self.usage = self.usage.plus(answer, seconds)
            self.episode.hear(answer, seconds)
            calls = {"tool_calls": list(answer.tool_calls)} if answer.tool_calls else {}
            self.reply = ({"role": "assistant", "content": answer.text, **calls},)
            self._advance(lambda: self.loop.send(answer))

    def _advance(self, move: Callable[[], Sequence[Message]]) -> None:
        try:
            prompt = move()
        except StopIteration:
            if not self.episode.trials:
                raise ValueError(
                    "the agent did not begin the episode: play(episode) must call episode.begin()"
                ) from None
            self._end(self.episode.stop_reason or "gave_up")
        except EnvError as error:
            self._end("error", str(error))
        except OverlongError:
            self._end("context")
        else:
            self.prompt, self.reply = Prompt(prompt), ()  # a copy: the agent may go on changing its list

    def _end(self, reason: str, error: str = "") -> None:
        self.loop.close()
        self.result = self.episode.end(reason, self.usage, error)
        if not error:
            self.result = replace(self.result, messages=(*self.prompt, *self.reply))


class _Scheduler:
    """A fixed number of slots, each with an environment, and the episodes that run in them."""

    def __init__(
        self,
        agent: PromptingAgent,
        make: Callable[[], gymnasium.Env],
        task_ids: Sequence[str],
        slots: int,
        progress: Callable[[float, int], None] | None,
    ):
        self._agent, self._pool = agent, EnvPool(make)
        self._tasks, self._progress = len(task_ids), progress
        self._waiting = deque(enumerate(task_ids))
        self._free = deque(range(slots))
        self._live: list[_LiveEpisode] = []
        self._unanswered, self._most_unanswered = 0, max(3, slots)

    def in_lockstep(self, ask: _Ask) -> Iterator[tuple[int, EpisodeResult]]:
        """Sends the prompts of all live episodes in one call."""
        while True:
            for live in self._begin():
                yield from self._finished(live)
            if not self._live:
                return
            asking = list(self._live)
            began = time.monotonic()
            answers = ask([live.prompt for live in asking])
            seconds = time.monotonic() - began
            for live, answer in zip(asking, answers, strict=True):
                self._receive(live, answer, seconds)
                yield from self._finished(live)

    def in_threads(self, ask: _Ask) -> Iterator[tuple[int, EpisodeResult]]:
        """Continues each episode as soon as its own answer arrives: for servers."""
        prompts: SimpleQueue[_LiveEpisode | None] = SimpleQueue()
        answers: SimpleQueue[tuple[_LiveEpisode, Answer | BaseException | None, float]] = SimpleQueue()

        def work() -> None:
            while (live := prompts.get()) is not None:
                began = time.monotonic()
                try:
                    answer: Answer | BaseException | None = ask([live.prompt])[0]
                except BaseException as error:
                    answer = error
                answers.put((live, answer, time.monotonic() - began))

        workers = [threading.Thread(target=work, name=THREAD_NAME, daemon=True) for _ in self._free]  # one per slot
        for worker in workers:
            worker.start()
        try:
            while True:
                for live in self._begin():
                    if live.result is None:
                        prompts.put(live)
                    yield from self._finished(live)
                if not self._live:
                    return
                live, answer, seconds = answers.get()
                if isinstance(answer, BaseException):
                    raise answer
                self._receive(live, answer, seconds)
                if live.result is None:
                    prompts.put(live)
                yield from self._finished(live)
        finally:
            for _ in workers:
                prompts.put(None)

    def close(self) -> None:
        """Ends all episodes and closes the environments."""
        for live in self._live:
            live.loop.close()
        self._pool.close()

    def _begin(self) -> Iterator[_LiveEpisode]:
        """Starts waiting tasks in the free slots."""
        while self._free and self._waiting:
            slot, (index, task_id) = self._free.popleft(), self._waiting.popleft()
            live = _LiveEpisode(self._agent, index, slot, Episode(self._pool, slot, task_id))
            self._live.append(live)
            yield live

    def _receive(self, live: _LiveEpisode, answer: Answer | None, seconds: float) -> None:
        self._unanswered = 0 if answer is not None else self._unanswered + 1
        if self._unanswered > self._most_unanswered:
            raise EndpointError(
                f"{self._unanswered} prompts in a row had no answer; the warning above gives the reason"
            )
        live.receive(answer, seconds)
        if self._progress is not None:
            going = [other.episode.share for other in self._live if other.result is None]
            self._progress(self._tasks - len(self._waiting) - len(going) + sum(going), self._tasks)

    def _finished(self, live: _LiveEpisode) -> Iterator[tuple[int, EpisodeResult]]:
        """The result of an episode that is over; its slot is free again."""
        if live.result is not None:
            self._live.remove(live)
            self._free.append(live.slot)
            yield live.index, live.result
