"""Plays many episodes side by side. An episode is a coroutine that awaits two things: a step of its environment
(:class:`Step`), and an answer of a model or an agent (:class:`Ask`).

Only the thread that iterates over :meth:`Scheduler.run` touches environments and coroutines, so neither has to be
thread-safe. A :class:`Backend` answers: a local policy takes the requests of all live episodes in one batch
(:class:`Batch`); a server, or an agent that thinks for itself, takes each as soon as it is ready (:class:`Threads`), so
that no episode waits for another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from roleagent.timer import Timer

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
