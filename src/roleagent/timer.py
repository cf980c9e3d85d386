"""Time per part of an iteration."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

PARTS = (
    *("generation", "prediction", "environment", "scoring", "grouping", "analysis", "simulator", "probe", "update"),
    "sync",
)
"""What an iteration is made of: sampling replies, sampling predictions, stepping the worlds, scoring predictions,
finding groups of states, reading failures, writing tasks, playing the probe of task simulators, updating the policy,
and sending the new weights to the sampler."""

ROLLOUT = ("generation", "prediction", "environment", "scoring")
"""The parts in which episodes are played."""


class Timer:
    """Sums of seconds by name.

    A part that runs within another takes its time off it, so that the parts add up to the whole.

    Args:
        clock: gives seconds; wall-clock time by default.

    >>> watch = Timer()
    >>> with watch("update"):
    ...     pass
    >>> list(watch.seconds)
    ['update']
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Books the time of a block under ``name``."""
        self._book()
        self._running.append(name)
        try:
            yield
        finally:
            self._book()
            self._running.pop()

    @property
    def part(self) -> str:
        """The running part; empty if none runs."""
        return self._running[-1] if self._running else ""

    def move(self, seconds: float, name: str) -> None:
        """Books seconds that another clock measured, and that the running part must not count, under ``name``."""
        self.seconds[name] += seconds
        if self._running:
            self.seconds[self._running[-1]] -= seconds

    def _book(self) -> None:
        now = self._clock()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now

    @staticmethod
    def slowest(parts: Sequence[Timer]) -> dict[str, float]:
        """The largest seconds of each part over ranks that worked at the same time."""
        names = {name for part in parts for name in part.seconds}
        return {name: max(part.seconds.get(name, 0.0) for part in parts) for name in sorted(names)}


def shares(rows: Sequence[Mapping[str, float]]) -> str:
    """The shares of time in some logged iterations, the largest first; parts below half a percent are left out.

    >>> shares([{"update_seconds": 3.0, "sync_seconds": 0.001, "other_seconds": 0.999, "seconds": 4.0}])
    'update 75 %, other 25 %'
    """
    whole = sum(row.get("seconds", 0.0) for row in rows)
    spent = {name: sum(row.get(f"{name}_seconds", 0.0) for row in rows) for name in (*PARTS, "other")}
    ranked = sorted(spent.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in ranked if 200 * part >= whole > 0)
