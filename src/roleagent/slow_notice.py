"""Notices about operations that take long, so that no program is silent for more than ten seconds.

    with waiting("the index of 100,000 products"):
        …

On a terminal, one line on stderr counts the seconds and disappears at the end. In logs and pipes, a line is printed
after two seconds, and then every ten. A quick operation costs microseconds and prints nothing. Nothing is written to
stdout.

A program with a display of its own (:class:`~roleagent.learners.run.display.Display`) is asked by :func:`watched`
whether it has something to say. :func:`count` and :func:`counting` count the work itself, such as sampled tokens, which
is the clearest sign of life of a slow model.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

AFTER = 2.0
"""Seconds before the first notice."""
EVERY = 10.0
"""Seconds between two notices in logs and pipes."""
_GLANCE = 0.5  # seconds between two checks


class Speaker(Protocol):
    """Prints what is under way, if it is due.

    Attributes:
        since: when it began to wait, or spoke last, on the monotonic clock.
    """

    since: float

    def glance(self) -> None:
        """Called twice a second, from another thread."""
        ...


class _Wait:
    """One operation in progress."""

    def __init__(self, what: str | Callable[[], str]):
        self.what, self.since, self.next, self.shown = what, time.monotonic(), AFTER, False
        self.work = Work()

    def glance(self) -> None:
        waited = time.monotonic() - self.since
        if waited >= self.next or (self.shown and _rewrites()):
            self.shown = True
            while self.next <= waited:
                self.next += EVERY
            what = self.what() if callable(self.what) else self.what
            work = f": {work}" if (work := str(self.work)) else ""
            _say(f"{_speaker()}waiting ({duration(waited)}) for {what}{work}")


_speakers: list[tuple[int, Speaker]] = []  # and their threads, the newest last
_lock = threading.RLock()
_woken = threading.Event()
_watch: threading.Thread | None = None


@contextmanager
def waiting(what: str | Callable[[], str], every: bool = False) -> Iterator[None]:
    """Prints a notice if the block takes long.

    Args:
        what: text after "waiting (5 s) for", or a function that returns it.
        every: whether every process prints notices; otherwise only the first one (``RANK``).
    """
    if not every and os.environ.get("RANK", "0") != "0":
        yield
        return
    wait = _Wait(what)
    try:
        with watched(wait):
            yield
    finally:
        if wait.shown:
            with _lock:
                _say("", over=True)


@contextmanager
def watched(speaker: Speaker) -> Iterator[None]:
    """Lets a speaker print during the block, unless another one begins in the same thread: the innermost speaks."""
    if sys.is_finalizing():  # a new thread would never run
        yield
        return
    entry = (threading.get_ident(), speaker)
    try:
        with _lock:
            _speakers.append(entry)
            _look_after_it()
        yield
    finally:
        with _lock:
            if entry in _speakers:  # Ctrl-C may come before
                _speakers.remove(entry)


# --- work -----------------------------------------------------------------------------------------------------------

_counts: dict[str, int] = {}
_pending: dict[str, int] = {}
_counting = threading.Lock()


def count(what: str, number: int = 1) -> None:
    """Counts finished work of this process, such as 16 ``tokens sampled``."""
    with _counting:
        _counts[what] = _counts.get(what, 0) + number


@contextmanager
def counting(what: str, number: int) -> Iterator[Callable[[int], None]]:
    """Counts the work of the block when it is finished, or a part of it when the block calls what it is given; until
    then it is pending."""
    left = number

    def finished(part: int) -> None:
        nonlocal left
        left -= part
        with _counting:
            _pending[what] -= part
        count(what, part)

    with _counting:
        _pending[what] = _pending.get(what, 0) + number
    try:
        yield finished
        finished(left)
    finally:
        with _counting:
            _pending[what] -= left


class Work:
    """The counted work since a moment."""

    def __init__(self) -> None:
        self.since, self._before = time.monotonic(), dict(_counts)

    def __str__(self) -> str:
        """In words, such as ``3,000 tokens being read, 96 tokens sampled (8/s)``; empty without work."""
        seconds = max(time.monotonic() - self.since, 1e-3)
        with _counting:
            pending = [(what, number) for what, number in _pending.items() if number]
            done = [(what, number - self._before.get(what, 0)) for what, number in _counts.items()]
        parts = [f"{number:,} {' being '.join(what.rsplit(' ', 1))}" for what, number in pending]
        parts += [f"{number:,} {what} ({_rate(number / seconds)}/s)" for what, number in done if number]
        return ", ".join(parts)


def _rate(value: float) -> str:
    """
    >>> _rate(1234.5), _rate(8.25), _rate(0.034)
    ('1,234', '8.2', '0.034')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Formats seconds for people.

    >>> duration(2.04), duration(75), duration(3720)
    ('2 s', '1 min 15 s', '1 h 2 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _look_after_it() -> None:
    """Starts the one thread that prints notices."""
    global _watch
    if _watch is None or not _watch.is_alive():
        _watch = threading.Thread(target=_look, name="slow_notice", daemon=True)
        try:
            _watch.start()
        except RuntimeError:  # too many threads: no notices
            _watch = None
    _woken.set()


def _look() -> None:
    while True:
        with _lock:
            if not _speakers:
                _woken.clear()
        _woken.wait()
        time.sleep(_GLANCE)
        with _lock:
            if _speakers:  # the innermost of each thread, and of these the one that has waited longest
                min(dict(_speakers).values(), key=lambda speaker: speaker.since).glance()


def _say(line: str, over: bool = False) -> None:
    """Writes one line; on a terminal it replaces the last one."""
    if sys.stderr is None:  # a process without stderr
        return
    try:
        if _rewrites():
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            sys.stderr.write(f"\r\x1b[2K{line[: columns - 1]}")
        elif not over:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # a closed stderr must not end the operation
        pass


def _rewrites() -> bool:
    """Whether a line can be overwritten: stderr is a terminal without a live display."""
    return sys.stderr is not None and sys.stderr is sys.__stderr__ and not sys.stderr.closed and sys.stderr.isatty()


def _speaker() -> str:
    """The rank of this process as a prefix; empty for rank 0."""
    rank = os.environ.get("RANK", "0")
    return "" if rank == "0" else f"rank {rank}: "


def _forked() -> None:
    """Resets locks and threads in a forked process."""
    global _watch, _lock, _woken, _counting
    _watch, _lock, _woken, _counting = None, threading.RLock(), threading.Event(), threading.Lock()
    _speakers[:] = [entry for entry in _speakers if entry[0] == threading.get_ident()]


os.register_at_fork(after_in_child=_forked)

__all__ = ["AFTER", "EVERY", "Speaker", "Work", "count", "counting", "duration", "waiting", "watched"]
