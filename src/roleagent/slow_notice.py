"""Nothing waits in silence: what takes longer than two seconds is named on stderr, with how long it has taken.

    with waiting("the index of 100,000 products"):
        …

On a terminal one line counts the seconds and goes when the waiting is over. Elsewhere (logs, pipes) a line is said
once, and again only when the waiting has become ten times as long. What is quick costs microseconds and says nothing;
stdout, which programs read, is never touched.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

AFTER = 2.0
"""Seconds that may pass in silence."""
_GLANCE = 0.5  # seconds between two looks at what is being waited for


class _Wait:
    """One thing that is being waited for."""

    def __init__(self, what: str | Callable[[], str]):
        self.what, self.since, self.next, self.shown = what, time.monotonic(), AFTER, False
        self.thread = threading.get_ident()

    def line(self) -> str:
        what = self.what() if callable(self.what) else self.what
        return f"{_speaker()}waiting ({duration(time.monotonic() - self.since)}) for {what}"


_waits: list[_Wait] = []  # of all threads, the newest last
_lock = threading.RLock()
_woken = threading.Event()
_watch: threading.Thread | None = None


@contextmanager
def waiting(what: str | Callable[[], str], every: bool = False) -> Iterator[None]:
    """Names what the block waits for, if that takes long.

    Args:
        what: in words that go on from "waiting (5 s) for"; a function is asked whenever there is something to say.
        every: whether every process of a run speaks; else only the first one does (``RANK``), because what they wait
            for is the same.
    """
    quiet = not every and os.environ.get("RANK", "0") != "0"
    if quiet or sys.is_finalizing():  # a thread that is started then never comes
        yield
        return
    wait = _Wait(what)
    try:
        with _lock:
            _waits.append(wait)
            _look_after_it()
        yield
    finally:
        with _lock:
            if wait in _waits:  # Ctrl-C may come before
                _waits.remove(wait)
            if wait.shown:
                _say("", over=True)


def duration(seconds: float) -> str:
    """A time as a person says it.

    >>> duration(2.04), duration(75), duration(3720)
    ('2 s', '1 min 15 s', '1 h 2 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _look_after_it() -> None:
    """Has a thread look on: one for all."""
    global _watch
    if _watch is None or not _watch.is_alive():
        _watch = threading.Thread(target=_look, name="patience", daemon=True)
        try:
            _watch.start()
        except RuntimeError:  # there are too many: then it is waited in silence
            _watch = None
    _woken.set()


def _look() -> None:
    while True:
        with _lock:
            if not _waits:
                _woken.clear()
        _woken.wait()
        time.sleep(_GLANCE)
        with _lock:
            if _waits:
                # Within a thread the innermost, since those around it would only repeat it; of many threads the one
                # that has waited longest, since others may come and go beside one that is stuck.
                innermost = {wait.thread: wait for wait in _waits}
                _glance(min(innermost.values(), key=lambda wait: wait.since))


def _glance(wait: _Wait) -> None:
    """Says what there is to say of a wait, if it is time."""
    waited = time.monotonic() - wait.since
    if waited >= wait.next or (wait.shown and _rewrites()):
        wait.shown = True
        while wait.next <= waited:
            wait.next *= 10
        _say(wait.line())


def _say(line: str, over: bool = False) -> None:
    """One line; on a terminal in the place of the last one."""
    if sys.stderr is None:  # the process was started without one
        return
    try:
        if _rewrites():
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(f"\r\x1b[2K{line[: columns - 1]}")
        elif not over:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody reads it any more; that must not end what is being waited for
        pass


def _rewrites() -> bool:
    """Whether a line can be overwritten: a terminal, of which nobody else (a live display) has taken charge."""
    return sys.stderr is not None and sys.stderr is sys.__stderr__ and not sys.stderr.closed and sys.stderr.isatty()


def _speaker() -> str:
    """Which of a run's processes speaks, unless it is the first."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "


def _forked() -> None:
    """A forked process has one thread, and perhaps locks that nobody will ever open."""
    global _watch, _lock, _woken
    _watch, _lock, _woken = None, threading.RLock(), threading.Event()
    _waits[:] = [wait for wait in _waits if wait.thread == threading.get_ident()]


os.register_at_fork(after_in_child=_forked)

__all__ = ["AFTER", "duration", "waiting"]
