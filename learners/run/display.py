"""The display of a run: one live panel on a terminal, plain lines elsewhere.

In logs and pipes no ten seconds pass without a line: if nothing else was printed, it describes what is under way.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from roleagent import slow_notice
from roleagent.slow_notice import Work, duration, watched


class Display:
    """The context manager of a run's display.

    Args:
        title: of the run, in a line.
        quiet: shows nothing (ranks other than the first).

    Attributes:
        since: when the last line was printed, on the monotonic clock.
        part: gives the part of a step that is under way, such as ``analysis``, or what has been found; or an empty
            text.
    """

    def __init__(self, title: str, quiet: bool = False):
        self.console = Console(quiet=quiet, highlight=False, markup=False)  # texts may contain [brackets]
        self._progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            speed_estimate_period=3600,  # of an iteration longer than this no time left is known
        )
        self._numbers: dict[str, Any] = {}
        self._title = title
        self._stage: Task | None = None
        self._inner: Task | None = None
        self._steps = 0  # of the stage that the inner work consists of
        self._first: dict[str, tuple[float, int]] = {}  # when a stage was shown first, and what was done then
        self._plan: Mapping[str, float] = {}
        self._opened = self.since = time.monotonic()
        self.part: Callable[[], str] = lambda: ""
        self._work = deque(
            [Work()], maxlen=2
        )  # a panel shows the last ten to twenty seconds, a line those since the last
        # A panel is redrawn: a terminal that cannot, and a pipe that is to have colors, get lines.
        console = self.console
        self._draws = console.is_terminal and not console.is_dumb_terminal and console.file.isatty()
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4)
        self._watched = contextlib.ExitStack()

    def __enter__(self) -> Display:
        self.say(self._title)
        if not self.console.quiet:
            self._watched.enter_context(warnings.catch_warnings())
            warnings.showwarning = lambda message, *_: self.warn(str(message))
        if self._draws:
            self._live.start()
        elif not self.console.quiet:
            self._watched.enter_context(watched(self))
        return self

    def __exit__(self, *error: Any) -> None:
        self._watched.close()
        if self._draws:
            self._live.stop()

    def glance(self) -> None:
        """Prints what is under way if nothing was printed for ten seconds."""
        if time.monotonic() - self.since > slow_notice.EVERY:
            with contextlib.suppress(OSError, ValueError):  # a closed output ends the work, not the watch
                self._print_progress("")

    def plan(self, seconds: Mapping[str, float]) -> None:
        """Announces the estimated seconds that the present and the coming stages still take, by name and in order."""
        self._plan = seconds
        each = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
        in_all = time.monotonic() - self._opened + sum(seconds.values())
        self.say(f"about {duration(in_all)} in all on this machine: {each}")

    def stage(self, name: str, total: int, done: int = 0) -> None:
        """Begins a stage of ``total`` steps.

        Args:
            name: of the stage.
            total: steps of the stage.
            done: steps done before.
        """
        self._end_inner()
        if self._stage is not None:
            self._progress.remove_task(self._stage.id)
        self._stage = self._add_task(name, total, done)
        # Shown again behind an evaluation, it continues: what it takes has the evaluations between in it.
        if done <= self._first.get(name, (0.0, done))[1]:
            self._first[name] = self._progress.get_time(), done

    def advance(self, done: float, **numbers: Any) -> None:
        """Reports progress of the stage, with the fraction of a step under way, and the newest numbers."""
        assert self._stage is not None
        self._end_inner()
        ends = self._stage.completed < done == self._stage.total  # late work may report the whole again
        self._progress.update(self._stage.id, completed=done)
        self._numbers = {**self._numbers, **numbers}
        if not self._draws and (numbers or ends):
            self._print_progress("  ".join(f"{name} {_show(value)}" for name, value in numbers.items()))

    def inner(self, name: str, done: float, total: int, steps: int = 0) -> None:
        """Reports progress within a step of the stage, or within several.

        Args:
            done: parts of the inner work, with fractions.
            total: all of its parts.
            steps: of the stage, if the inner work is all that they consist of.
        """
        if self._inner is None:
            self._inner = self._add_task(f"  {name}", total)
        self._steps = steps
        self._progress.update(self._inner.id, completed=done, total=total, description=f"  {name}")

    def _add_task(self, name: str, total: int, done: int = 0) -> Task:
        number = self._progress.add_task(name, total=total, completed=done)
        return next(task for task in self._progress.tasks if task.id == number)

    def _end_inner(self) -> None:
        if self._inner is not None:
            self._progress.remove_task(self._inner.id)
        self._inner, self._steps = None, 0

    def _print_progress(self, numbers: str) -> None:
        """Prints a line: the stage, and its newest numbers or the work since the last line."""
        stage, inner, work = self._stage, self._inner, str(self._work[-1])
        if stage is None:
            line = f"{duration(time.monotonic() - self._opened)} so far"
        else:
            so_far = "" if numbers else f", {duration(stage.elapsed or 0.0)} so far"
            line = f"{stage.description} {int(stage.completed)}/{int(stage.total or 0)}{self._left(stage) or so_far}"
        if not numbers and (part := self.part()):
            line += f"; {part}"
        if inner is not None and inner.completed < (inner.total or 0):
            line += f"; {inner.description.strip()} {int(inner.completed)}/{int(inner.total or 0)}"
            left = _left(inner.elapsed or 0.0, inner.completed, (inner.total or 0) - inner.completed)
            if not self._steps and left is not None:
                line += f", {duration(left)} left"
        shown = f"  {numbers}" if numbers else f": {work}" if work else ""
        self.console.print(f"{line}{shown}", soft_wrap=True)
        self.since = time.monotonic()
        self._work.append(Work())

    def _left(self, stage: Task) -> str:
        """The estimated time left in the stage, and in the run if it is planned; empty if nothing is known."""
        done = stage.completed
        if done >= (stage.total or 0):
            return ""
        inner = self._inner  # another thread asks, too
        if inner is not None and inner.total:
            done += self._steps * inner.completed / inner.total
        since, begun = self._first[stage.description]
        left = _left(self._progress.get_time() - since, done - begun, (stage.total or 0) - done)
        if left is None and stage.description in self._plan:
            left = max(0.0, self._plan[stage.description] - (stage.elapsed or 0.0))
        if left is None:
            return ""
        names = [*self._plan]
        later = names[names.index(stage.description) + 1 :] if stage.description in self._plan else []
        to_end = f", {duration(left + sum(self._plan[name] for name in later))} to the end of the run" if later else ""
        return f", {duration(left)} left{to_end}"

    def say(self, text: str) -> None:
        """Prints a line."""
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Prints a warning."""
        self.console.print(Text.assemble(("warning:", "yellow"), f" {text}"), soft_wrap=True)

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """Prints a small table; the names in its first column take several lines where the terminal is narrow.

        Its figures do not: a table that is still too wide is printed as wide as it is.
        """
        self.say(title)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for place, column in enumerate(columns):
            table.add_column(column, no_wrap=place > 0, min_width=None if place else _NAMES, overflow="fold")
        for row in rows:
            table.add_row(*row)
        figures = [
            max(cell_len(line) for cell in column for line in cell.split("\n"))
            for column in zip(columns, *rows, strict=True)
        ]
        least = min(_NAMES, figures[0]) + sum(figures[1:]) + 2 * len(columns)
        wide = Console(width=max(least, self.console.width), force_terminal=self.console.is_terminal)
        with wide.capture() as drawn:
            wide.print(table)
        self.console.print(Text.from_ansi(drawn.get()), soft_wrap=True)

    def _render(self) -> Group:
        if time.monotonic() - self._work[-1].since > slow_notice.EVERY:
            self._work.append(Work())
        table = Table.grid(padding=(0, 3))
        items = [Text.assemble((name, "bold"), f" {_show(value)}") for name, value in self._numbers.items()]
        for start in range(0, len(items), 4):
            table.add_row(*items[start : start + 4])
        now = (text for text in (self.part(), str(self._work[0])) if text)
        return Group(self._progress, table, Text(": ".join(now)))


_NAMES = 12  # columns of the terminal that the names of a table's rows have at least
BARS = 22
"""Most bars of a chart: they fit a terminal of 80 columns."""


def chart(points: Sequence[tuple[int, float]], height: int = 5) -> list[str]:
    """A small bar chart of shares over the iterations, as lines of text.

    Args:
        points: iteration and share in [0, 1], at least one; of more than :data:`BARS` some are left out.
        height: in lines.

    >>> print(*chart([(0, 0.5), (10, 0.7), (20, 0.9)], height=2), sep="\\n")
       90%        ██
       50%  ▁▁ ██ ██
            0     20
    >>> print(*chart([(0, 1.0), (10, 1.0)], height=2), sep="\\n")
      100%  ██ ██
       90%  ██ ██
            0  10
    """
    points = [*points[: -1 : math.ceil(len(points) / BARS)], points[-1]]
    shares = [share for _, share in points]
    low, high = math.floor(10 * min(shares)) / 10, math.ceil(10 * max(shares)) / 10
    if low == high:  # all alike, a tenth
        low, high = max(0.0, high - 0.1), max(0.1, high)
    lines = []
    for line in range(height, 0, -1):
        bottom, least = (line - 1) / height, int(line == 1)
        bars = [max(least, min(8, round(8 * height * ((one - low) / (high - low) - bottom)))) for one in shares]
        label = f"{high:.0%}" if line == height else f"{low:.0%}" if line == 1 else ""
        lines.append(f"{label:>6}  " + " ".join(2 * " ▁▂▃▄▅▆▇█"[bar] for bar in bars))
    first, last = points[0][0], points[-1][0]
    return [*lines, f"{'':8}{first:<{3 * len(points) - 3}}{last}"]


def _left(seconds: float, done: float, rest: float) -> float | None:
    """The seconds that the rest takes, if it is as fast as what is done; None if nothing is done."""
    return seconds * rest / done if done > 0 else None


def _show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
