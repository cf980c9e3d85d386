"""Runs the tool calls of many episodes together (Agent-R1, arXiv 2511.14460, ``batch_execute``).

A rollout is lockstep, so all calls of a turn are known at once. Calls of one tool go through its ``batch_execute``.
Async tools run in one event loop, other tools in threads. The results come in the order of the calls, whichever
finished first.

An environment with tools has ``prepare(action)``, which returns the calls of a step without running them, and
``finish(results)``, which takes their results: the step that follows uses these instead of running the calls again.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from typing import Any, Literal

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from roleagent.envs.tools.calls.workers import EventLoop, Job, Threads
from roleagent.options import shown
from roleagent.tools import CallTimeout, EpisodeError, Result, Tool, ToolError

Failure = Literal["refused", "error", "timeout"]
_SAME_ACTION = (OrderEnforcing, PassiveEnvChecker, TimeLimit)  # wrappers that pass the action on as it is
_MOST = 300  # characters of an error that the agent reads


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that has passed the schema and is ready to run.

    Attributes:
        tool: what runs. Its attribute ``timeout``, in seconds, takes precedence over the environment's.
        arguments: by parameter name.
        state: the episode's own state.
        timeout: seconds, > 0.
    """

    tool: Tool
    arguments: Mapping[str, Any]
    state: Any = None
    timeout: float = 10.0

    @property
    def limit(self) -> float:
        """Seconds that the call may take."""
        own = getattr(self.tool, "timeout", None)
        return self.timeout if own is None else float(own)


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call that was run.

    Attributes:
        result: what the tool returned, or an unsuccessful result whose text gives the reason.
        failure: why the tool returned nothing: it refused, raised another error or took too long; None: it returned.
        seconds: wall-clock time of the call; of a batch, its share.
        shared: whether an equal call of the same turn ran in its place.
        fatal: what ends the episode as an error; None: nothing.
    """

    result: Result
    failure: Failure | None = None
    seconds: float = 0.0
    shared: bool = False
    fatal: EpisodeError | None = None


def prepared_calls(env: gymnasium.Env, action: Any) -> list[PreparedCall] | None:
    """The calls that a step would run; None where the environment, or a wrapper around it, has no ``prepare``.

    A wrapper that changes the action has a ``prepare`` of its own, which ends with this function for its inner
    environment. Through any other wrapper the action cannot be followed.
    """
    while isinstance(env, _SAME_ACTION):
        env = env.env
    prepare = getattr(env, "prepare", None)
    return None if prepare is None else prepare(action)


def as_result(value: Any) -> Result:
    """A tool's return value as a :class:`~roleagent.tools.Result`; of a tool that returns nothing, "done".

    The fields of a result that a tool has made itself are checked, so that later readers can rely on their types.

    Raises:
        TypeError: the value is neither a result nor text nor JSON, or the images are no tuple or list.
        ValueError: the reward is no finite number.

    >>> as_result([1, "é"]).text
    '[1, "é"]'
    """
    if isinstance(value, Result):
        if not isinstance(value.images, tuple | list):
            raise TypeError(f"its images are no tuple: {shown(value.images)}")
        if value.reward is not None and not (isinstance(value.reward, int | float) and math.isfinite(value.reward)):
            raise ValueError(f"its reward is no finite number: {shown(value.reward)}")
        text = value.text if isinstance(value.text, str) else repr(value.text)
        return replace(value, text=text, success=bool(value.success))
    if value is None:
        return Result("done")
    return Result(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


class Broker:
    """Runs calls together.

    An episode's calls run in their order; only neighbors that are all ``read_only`` run at the same time. Calls of
    different episodes run at the same time. A call that exceeds its timeout fails and blocks no other call. Its thread
    cannot be stopped: a tool should have time limits of its own.

    Args:
        workers: most threads that run tools at once, ≥ 1.
    """

    def __init__(self, workers: int = 16):
        if workers < 1:
            raise ValueError(f"workers is a number of threads, at least 1, not {workers}")
        self.workers = workers
        self._begin()

    def _begin(self) -> None:
        self._pid, self._threads, self._loop = os.getpid(), Threads(self.workers), EventLoop()

    def run(self, episodes: Sequence[Sequence[PreparedCall]]) -> list[list[CallResult]]:
        """Runs the calls of a turn. An exception of a tool becomes a result.

        Args:
            episodes: per episode its calls, in order.

        Returns:
            Per episode one result per call, in the same order.
        """
        if self._pid != os.getpid():  # threads do not survive a fork
            self._begin()
        results: list[list[CallResult]] = [[] for _ in episodes]
        while wave := [
            (number, call)
            for number, calls in enumerate(episodes)
            for call in _independent(calls[len(results[number]) :])
        ]:
            for (number, _), result in zip(wave, self._run_once([call for _, call in wave]), strict=True):
                results[number].append(result)
        return results

    def _run_once(self, calls: Sequence[PreparedCall]) -> list[CallResult]:
        """Runs independent calls; equal read-only ones once."""
        places: dict[Any, int] = {}  # place of a call among those that run, by what makes calls equal
        unique: list[PreparedCall] = []
        chosen: list[tuple[int, bool]] = []
        for number, call in enumerate(calls):
            key = _sharing_key(call) or number
            shared = key in places
            if not shared:
                places[key] = len(unique)
                unique.append(call)
            chosen.append((places[key], shared))
        results = self._run_all(unique)
        return [
            replace(results[place], seconds=0.0, shared=True) if shared else results[place] for place, shared in chosen
        ]

    def _run_all(self, calls: Sequence[PreparedCall]) -> list[CallResult]:
        """Runs independent calls; calls of one tool are a batch where it has ``batch_execute``."""
        by_tool: dict[int, list[int]] = {}
        for place, call in enumerate(calls):
            by_tool.setdefault(id(call.tool), []).append(place)
        units: list[tuple[list[int], Job, bool]] = []  # places, job, whether it runs in the loop
        for places in by_tool.values():
            tool = calls[places[0]].tool
            if len(places) > 1 and hasattr(tool, "batch_execute"):
                units.append((places, *self._batch([calls[place] for place in places])))
            else:
                units += [([place], *self._single(calls[place])) for place in places]
        in_loop = [job for _, job, awaited in units if awaited]
        in_threads = [job for _, job, awaited in units if not awaited]
        future = self._loop.start(in_loop) if in_loop else None
        self._threads.start(in_threads)
        self._threads.wait(in_threads)
        if future is not None and not self._loop.wait(future, in_loop):
            self._loop = EventLoop()  # a tool blocks the old one
        results: dict[int, CallResult] = {}
        for places, job, _ in units:
            results |= zip(places, _results(job, len(places)), strict=True)
        return [results[place] for place in range(len(calls))]

    def _single(self, call: PreparedCall) -> tuple[Job, bool]:
        start = getattr(call.tool, "start", None) if getattr(call.tool, "is_async", False) else None
        return self._job(start or call.tool.execute, (call.arguments, call.state), call.limit, start is not None)

    def _batch(self, calls: Sequence[PreparedCall]) -> tuple[Job, bool]:
        method = getattr(calls[0].tool, "batch_execute")  # noqa: B009 - not in the protocol
        together = ([call.arguments for call in calls], [call.state for call in calls])
        return self._job(method, together, max(call.limit for call in calls))

    def _job(
        self, method: Callable[..., Any], arguments: tuple[Any, Any], limit: float, awaited: bool = False
    ) -> tuple[Job, bool]:
        """A job, and whether it runs in the event loop."""
        function = partial(method, *arguments)
        if awaited or inspect.iscoroutinefunction(method):
            return Job(function, limit), True
        return Job(partial(self._finished, function, limit), limit), False

    def _finished(self, function: Callable[[], Any], timeout: float) -> Any:
        """What a function returns, in a thread; an awaitable is awaited in the loop."""
        value = function()
        return self._loop.submit(_awaited(value)).result(timeout) if inspect.isawaitable(value) else value


@cache
def shared_broker() -> Broker:
    """The broker of this process, for environments and pools that are given none."""
    return Broker()


def _independent(calls: Sequence[PreparedCall]) -> Sequence[PreparedCall]:
    """The first call, or the first calls if all of them only read."""
    reading = takewhile(lambda call: getattr(call.tool, "read_only", False), calls)
    return list(reading) or calls[:1]


def _sharing_key(call: PreparedCall) -> Any:
    """What equal calls have in common; None for a call that must run itself.

    A read-only tool may depend on the episode's state. Its calls are equal only where there is no state, or where the
    tool declares ``takes_state = False``.
    """
    tool = call.tool
    if not getattr(tool, "read_only", False) or getattr(tool, "random", False):
        return None
    if getattr(tool, "takes_state", True) and call.state is not None and call.state != {}:
        return None
    try:
        return id(tool), json.dumps(call.arguments, sort_keys=True)
    except (TypeError, ValueError):
        return None


def _results(job: Job, count: int) -> list[CallResult]:
    """One result per call of a job that has ended."""
    values: Sequence[Any] = [job.error] * count
    if job.late:
        values = [TimeoutError(f"the tool took longer than {job.timeout:g} s")] * count
    elif job.error is None:
        values = [job.value] if count == 1 else _values_of_batch(job.value, count)
    return [_result(value, job.late, job.seconds / count) for value in values]


def _values_of_batch(value: Any, count: int) -> Sequence[Any]:
    if isinstance(value, Sequence) and not isinstance(value, str | bytes) and len(value) == count:
        return value
    found = f"{len(value)} values" if isinstance(value, Sequence) else type(value).__name__
    return [TypeError(f"batch_execute returned {found} for {count} calls")] * count


def _result(value: Any, late: bool, seconds: float) -> CallResult:
    """The result of a call that returned or raised ``value``."""
    if not isinstance(value, BaseException):
        try:
            return CallResult(as_result(value), None, seconds)
        except Exception as error:  # the value is an object of the tool's, whose methods may do anything
            value = error
    text = _message(value)
    if isinstance(value, EpisodeError):
        return CallResult(Result(text, success=False), "error", seconds, fatal=value)
    if isinstance(value, ToolError):
        failure: Failure = "timeout" if isinstance(value, CallTimeout) else "refused"
        return CallResult(Result(text, success=False), failure, seconds)
    if late:
        return CallResult(Result(text, success=False), "timeout", seconds)
    reason = " ".join(f"the tool failed: {type(value).__name__}: {text}".split())[:_MOST]
    return CallResult(Result(reason, success=False), "error", seconds)


def _message(error: BaseException) -> str:
    """The text of an exception; of one that has none, nothing."""
    try:
        return str(error)
    except Exception:
        return ""


async def _awaited(value: Any) -> Any:
    return await value


__all__ = ["Broker", "CallResult", "PreparedCall", "as_result", "prepared_calls", "shared_broker"]
