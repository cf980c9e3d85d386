"""An early end of a run: ``train.stop_after`` is over, or SIGUSR1 came, as SLURM sends it before a job's limit."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds_of(duration: str) -> float:
    """The seconds of ``train.stop_after``; infinite for ``""``.

    >>> seconds_of("20m"), seconds_of("90s"), seconds_of("")
    (1200.0, 90.0, inf)
    """
    return float(int(duration[:-1]) * _SECONDS[duration[-1]]) if duration else float("inf")


class Stopping:
    """Knows whether the process should begin no further iteration; as a context it listens to SIGUSR1.

    The signal is blocked in the main thread, and looked for among those that wait. SLURM sends it to every process of a
    job step, whom it would end: workers of environments and engines of vLLM, which the main thread starts, inherit the
    block. A handler is there for threads that ran before the block.

    Args:
        after: ``train.stop_after``, counted from now.
    """

    def __init__(self, after: str):
        self._after, self._end = after, time.monotonic() + seconds_of(after)
        self._signalled = False
        self._handler: Any = None

    @property
    def reason(self) -> str:
        """Why the run should end; ``""`` if it should not."""
        if self._handler is not None:
            # Where another thread got the signal, Python may call the handler late, or here: this call looks for it.
            signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if self._signalled or (self._handler is not None and signal.SIGUSR1 in signal.sigpending()):
            return "SIGUSR1"
        return f"train.stop_after={self._after}" if time.monotonic() >= self._end else ""

    def __enter__(self) -> Stopping:
        # A user's program may train in a thread, which can set no handler.
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGUSR1, self._note) or signal.SIG_DFL
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
            signal.signal(signal.SIGUSR1, self._handler)
            self._handler = None

    def _note(self, *_: object) -> None:
        self._signalled = True
