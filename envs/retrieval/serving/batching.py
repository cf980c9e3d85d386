"""Batches the queries of concurrent callers, and searches equal queries once.

One call with 32 queries takes a fraction of the time of 32 calls. So all queries go into one queue. Those that arrive
within two milliseconds of the first share its call, in one worker thread; later ones form the next batch. The rollouts
of a group ask equal questions: results are cached (least recently used ones are dropped first), and a query in progress
is not searched again.

All state belongs to the event loop's thread; only :meth:`Batcher._search` runs in the worker.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from roleagent.envs.retrieval.retriever import Hit, RetrievalError, Retriever

Key = tuple[str, int]  # query, k: an answer must not depend on how many hits another client wanted
Outcome = list[Hit] | RetrievalError


class Overloaded(Exception):
    """The queue is full: come back later."""


class Late(Exception):
    """The answer was not ready in time; it is cached for the next request."""


@dataclass
class Tally:
    """Counters since the start."""

    queries: int = 0
    cached: int = 0  # answered from memory
    joined: int = 0  # answered by a search that another request had begun
    searched: int = 0
    failed: int = 0
    batches: int = 0
    busy_seconds: float = 0.0  # of the worker


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sleep_between_searches() -> None:
    """Keeps idle OpenMP threads from spinning; has an effect before FAISS and torch are loaded.

    On cores that others use too, as rollouts on the same machine do, threads that spin while they wait for each other
    took ten times the CPU: 45 ms a query instead of 4, with two threads.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def limit_threads(count: int) -> None:
    """Gives the calling thread ``count`` threads: FAISS and torch both keep that number per thread, not per process."""
    if faiss := sys.modules.get("faiss"):
        faiss.omp_set_num_threads(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


class Batcher:
    """The queue, the worker and the memory between an event loop and a retriever.

    Args:
        retriever: is called from one thread only, with up to ``batch`` queries.
        batch: most queries of one call.
        window: seconds that the first query of a call waits for company.
        cache: number of answers that are kept; 0 keeps none.
        queue: most queries that may wait.
        threads: of the worker (default: one per core).
    """

    def __init__(
        self,
        retriever: Retriever,
        *,
        batch: int = 64,
        window: float = 0.002,
        cache: int = 20_000,
        queue: int = 8192,
        threads: int | None = None,
    ) -> None:
        self.retriever = retriever
        self.tally = Tally()
        self._batch, self._window, self._room, self._longest = batch, window, cache, queue
        self._cache: OrderedDict[Key, list[Hit]] = OrderedDict()
        self._pending: dict[Key, asyncio.Future[Outcome]] = {}  # waiting or being searched
        self._queue: deque[Key] = deque()
        self._arrived = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, "retrieval", limit_threads, (threads or cores(),))
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Queries in the queue."""
        return len(self._queue)

    @property
    def kept(self) -> int:
        """Answers in memory."""
        return len(self._cache)

    async def start(self, warm_up: str = "warm up") -> None:
        """Makes a first search, so that no client pays for what is loaded on first use.

        Raises:
            RetrievalError: the retriever does not work.
        """
        (first,) = await asyncio.get_running_loop().run_in_executor(self._worker, self._search, [(warm_up, 1)])
        if isinstance(first, RetrievalError):
            raise first
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """Answers what was asked, then ends the worker."""
        if self._pending:
            await asyncio.wait(self._pending.values())
        if self._task is not None:
            self._task.cancel()
        self._worker.shutdown(wait=True)

    async def ask(self, queries: Sequence[str], k: int, seconds: float | None = None) -> list[list[Hit]]:
        """The best ``k`` hits of every query.

        Args:
            seconds: how long to wait for the answer.

        Raises:
            Overloaded: there is no room for these queries in the queue; none of them was taken.
            Late: the time is over.
            RetrievalError: the retriever failed on one of these queries.
        """
        found: dict[str, Outcome] = {}
        awaited: dict[str, asyncio.Future[Outcome]] = {}
        new: list[str] = []
        for query in dict.fromkeys(queries):
            key = query, k
            if key in self._cache:
                self._cache.move_to_end(key)
                found[query] = self._cache[key]
            elif key in self._pending:
                awaited[query] = self._pending[key]
            else:
                new.append(query)
        if len(self._queue) + len(new) > self._longest:
            raise Overloaded
        self.tally.queries += len(queries)
        self.tally.cached += len(found)
        self.tally.joined += len(queries) - len(found) - len(new)
        if new:
            loop = asyncio.get_running_loop()
            for query in new:
                awaited[query] = self._pending[query, k] = loop.create_future()
                self._queue.append((query, k))
            self._arrived.set()
        if awaited:
            # Unlike gather and wait_for, wait cancels nothing when this caller goes away: others may wait for the same.
            _, unfinished = await asyncio.wait(awaited.values(), timeout=seconds)
            if unfinished:
                raise Late
            found.update((query, future.result()) for query, future in awaited.items())
        answers = []
        for query in queries:
            outcome = found[query]
            if isinstance(outcome, RetrievalError):
                raise RetrievalError(str(outcome))  # a new one: several callers may raise it
            answers.append(outcome)
        return answers

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if len(self._queue) < self._batch:
                await asyncio.sleep(self._window)
            keys = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            if not self._queue:
                self._arrived.clear()
            began = time.perf_counter()
            outcomes = await loop.run_in_executor(self._worker, self._search, keys)
            self.tally.busy_seconds += time.perf_counter() - began
            self.tally.batches += 1
            self.tally.searched += len(keys)
            for key, outcome in zip(keys, outcomes, strict=True):
                if isinstance(outcome, RetrievalError):
                    self.tally.failed += 1
                elif self._room:
                    self._cache[key] = outcome
                    if len(self._cache) > self._room:
                        self._cache.popitem(last=False)
                self._pending.pop(key).set_result(outcome)

    def _search(self, keys: Sequence[Key]) -> list[Outcome]:
        """One outcome per key; never raises: a worker that dies would leave all clients waiting."""
        outcomes: dict[Key, Outcome] = {}
        for k in dict.fromkeys(k for _, k in keys):
            queries = [query for query, wanted in keys if wanted == k]
            found = self._try(queries, k)
            if isinstance(found[0], RetrievalError) and len(queries) > 1:
                # One of them may be the reason, and the others those of other clients: each alone.
                found = [self._try([query], k)[0] for query in queries]
            outcomes.update(zip(((query, k) for query in queries), found, strict=True))
        return [outcomes[key] for key in keys]

    def _try(self, queries: list[str], k: int) -> list[Outcome]:
        try:
            found = self.retriever.retrieve(queries, k)
            if len(found) != len(queries):
                raise RetrievalError(f"{self.retriever.name} answered {len(queries)} queries with {len(found)} answers")
            return list(found)
        except RetrievalError as error:
            return [error] * len(queries)
        except Exception as error:  # whatever a model or an index raises; its text may quote the query
            return [RetrievalError(f"{self.retriever.name} failed with {type(error).__name__}")] * len(queries)


__all__ = ["Batcher", "Late", "Overloaded", "Tally", "cores", "limit_threads", "sleep_between_searches"]
