"""Threads and an event loop for functions that may never return.

Both leave behind what exceeds its time. The threads are daemons, so that a tool that hangs does not keep the program
from ending.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

GRACE = 1.0  # seconds that a blocked event loop gets beyond the longest timeout


@dataclass(eq=False, slots=True)
class Job:
    """A function with a time limit, and its result.

    Attributes:
        function: takes no arguments. In an :class:`EventLoop` it returns an awaitable.
        timeout: seconds from its start, > 0.
        value: what it returned.
        error: what it raised.
        late: whether it exceeded its time; ``value`` and ``error`` are then None.
        seconds: wall-clock time that it took; the timeout if it was late.
        started: monotonic time of its start; None: it is queued.
        finished: whether it has returned or is late.
        awaited: whether a thread waits for this job.
    """

    function: Callable[[], Any]
    timeout: float
    value: Any = None
    error: BaseException | None = None
    late: bool = False
    seconds: float = 0.0
    started: float | None = None
    finished: bool = False
    awaited: bool = False

    def give_up(self) -> None:
        """Marks the job as late; its result is dropped."""
        self.finished = self.late = True
        self.seconds = self.timeout

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Stores the function's result or exception, unless the job was given up."""
        if not self.finished:
            self.value, self.error, self.finished = value, error, True
            self.seconds = time.monotonic() - (self.started or 0.0)


class Threads:
    """At most ``limit`` daemon threads. A thread whose job is late is replaced."""

    def __init__(self, limit: int):
        self._limit = limit
        lock = threading.Lock()
        self._queued, self._done = threading.Condition(lock), threading.Condition(lock)
        self._queue: deque[Job] = deque()
        self._idle = self._alive = 0

    def start(self, jobs: Sequence[Job]) -> None:
        """Starts the jobs, in their order."""
        with self._queued:
            self._queue.extend(jobs)
            self._add_threads()
            self._queued.notify(len(jobs))

    def wait(self, jobs: Sequence[Job]) -> None:
        """Waits until each of the jobs has finished or is late."""
        with self._done:
            for job in jobs:  # the first that is not finished is the one to wait for
                while not job.finished:
                    job.awaited = True
                    self._done.wait(self._give_up_late(jobs))

    def _give_up_late(self, jobs: Sequence[Job]) -> float:
        """Gives up what is late; returns the seconds after which the next job can be late."""
        now, nearest = time.monotonic(), math.inf
        for job in jobs:
            if not job.finished:
                remaining = job.timeout if job.started is None else job.started + job.timeout - now
                if remaining <= 0:
                    job.give_up()
                    self._alive -= 1
                    self._add_threads()
                nearest = min(nearest, max(0.0, remaining))
        return nearest

    def _add_threads(self) -> None:
        """Starts threads for the queue, as far as the limit allows."""
        for _ in range(min(len(self._queue) - self._idle, self._limit - self._alive)):
            self._alive += 1
            threading.Thread(target=self._work, daemon=True, name="roleagent-tool").start()

    def _work(self) -> None:
        while True:
            with self._queued:
                while not self._queue:
                    self._idle += 1
                    self._queued.wait()
                    self._idle -= 1
                job = self._queue.popleft()
                job.started = time.monotonic()
            value, error = None, None
            try:
                value = job.function()
            except BaseException as caught:  # SystemExit as well: it would end the thread, not the program
                error = caught
            with self._done:
                if job.late:
                    return  # another thread has taken this one's place
                job.finish(value, error)
                if job.awaited:
                    self._done.notify_all()


class EventLoop:
    """An event loop in a daemon thread."""

    def __init__(self, name: str = "roleagent-loop"):
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True, name=name).start()

    def submit(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Runs a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start(self, jobs: Sequence[Job]) -> Future[Any]:
        """Starts all jobs; :meth:`wait` returns their results."""
        return self.submit(_all(jobs))

    def wait(self, future: Future[Any], jobs: Sequence[Job]) -> bool:
        """Waits until each of the jobs has finished or is late; False if a job blocks the loop itself."""
        try:
            future.result(max(job.timeout for job in jobs) + GRACE)
        except FutureTimeout:  # the built-in TimeoutError from Python 3.11 on
            for job in jobs:
                if not job.finished:
                    job.give_up()
            return False
        return True


async def _all(jobs: Sequence[Job]) -> None:
    await asyncio.gather(*map(_one, jobs))


async def _one(job: Job) -> None:
    task, remaining = asyncio.ensure_future(_awaited(job)), job.timeout
    while remaining > 0 and not task.done():  # wait_for would also wait for the end of a cancelled task
        await asyncio.wait([task], timeout=remaining)
        remaining = job.timeout if job.started is None else job.started + job.timeout - time.monotonic()
    if not task.done():
        job.give_up()
        task.cancel()
        return
    error = asyncio.CancelledError() if task.cancelled() else task.exception()
    job.finish(None if error else task.result(), error)


async def _awaited(job: Job) -> Any:
    job.started = time.monotonic()  # another job may have blocked the loop until now
    return await job.function()
