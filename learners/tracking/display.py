"""The display of a run: one live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from roleagent.slow_notice import duration


class Display:
    """The context manager of a run's display.

    Args:
        title: of the run, in a line.
        quiet: shows nothing (ranks other than the first).
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
        self._stage: Any = None
        self._inner: Any = None
        self._name, self._spoken = "", 0.0
        self._begun = 0
        self._plan: Mapping[str, float] = {}
        self._live = Live(self._render(), console=self.console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Display:
        self.say(self._title)
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.console.is_terminal:
            self._live.update(self._render(), refresh=True)
            self._live.stop()

    def plan(self, seconds: Mapping[str, float]) -> None:
        """Announces the estimated seconds of the coming stages, by name and in order."""
        self._plan = seconds
        each = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
        self.say(f"about {duration(sum(seconds.values()))} in all on this machine: {each}")

    def stage(self, name: str, total: int, done: int = 0) -> None:
        """Begins a stage of ``total`` steps.

        Args:
            name: of the stage.
            total: steps of the stage.
            done: steps done before.
        """
        for task in (self._stage, self._inner):
            if task is not None:
                self._progress.remove_task(task)
        self._inner = None
        self._stage = self._progress.add_task(name, total=total, completed=done)
        self._name, self._begun = name, done
        self._refresh()

    def advance(self, done: int, **numbers: Any) -> None:
        """Reports progress of the stage, and the newest numbers."""
        if self._inner is not None:
            self._progress.remove_task(self._inner)
            self._inner = None
        self._progress.update(self._stage, completed=done)
        self._numbers.update(numbers)
        self._refresh()
        total = self._progress.tasks[-1].total
        if not self.console.is_terminal and (numbers or time.monotonic() - self._spoken > 10 or done == total):
            self._spoken = time.monotonic()
            shown = "  ".join(f"{name} {_show(value)}" for name, value in numbers.items())
            self.console.print(f"{self._name} {done}/{int(total or 0)}{self._left(done)}  {shown}", soft_wrap=True)

    def _left(self, done: int) -> str:
        """The estimated time left in the stage, and in the run if it is planned."""
        stage = self._progress.tasks[-1]
        if done <= self._begun or done >= (total := stage.total or 0):
            return ""
        left = (stage.elapsed or 0.0) * (total - done) / (done - self._begun)
        names = [*self._plan]
        later = names[names.index(self._name) + 1 :] if self._name in self._plan else []
        in_all = f", {duration(left + sum(self._plan[name] for name in later))} in all" if later else ""
        return f", {duration(left)} left{in_all}"

    def inner(self, name: str, done: int, total: int) -> None:
        """Reports progress within a step of the stage."""
        if self._inner is None:
            self._inner = self._progress.add_task(f"  {name}", total=total)
        self._progress.update(self._inner, completed=done, total=total, description=f"  {name}")
        self._refresh()

    def say(self, text: str) -> None:
        """Prints a line."""
        self.console.print(text, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Prints a warning."""
        self.console.print(Text.assemble(("warning:", "yellow"), f" {text}"), soft_wrap=True)

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        """Prints a small table."""
        table = Table(*columns, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def _refresh(self) -> None:
        if self.console.is_terminal:
            self._live.update(self._render())

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 3))
        items = [Text.assemble((name, "bold"), f" {_show(value)}") for name, value in self._numbers.items()]
        for start in range(0, len(items), 4):
            table.add_row(*items[start : start + 4])
        return Group(self._progress, table)


def _show(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
