"""Failures on the terminal. Text of a model is shown without markup and control characters."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from roleagent.curricula.archive import Filed, ModeCount
from roleagent.curricula.library import Retrieval

_BARS = "▁▂▃▄▅▆▇█"
_CURVE_WIDTH = 40  # characters
_MOST_RETRIEVALS = 20  # shown of one failure


def plain(text: object) -> Text:
    """Any text, harmless to a terminal.

    >>> plain("[red]an\\x1b[2J egg").plain
    '[red]an�[2J egg'
    """
    return Text("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in str(text)))


def sparkline(values: Sequence[float], width: int = _CURVE_WIDTH) -> str:
    """A curve of at most ``width`` characters from 0 to its own highest value, which is positive.

    >>> sparkline([0, 1, 2, 4]), sparkline([1] * 99, 3)
    ('▁▂▄█', '███')
    """
    if len(values) > width:
        values = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    return "".join(_BARS[int(value / max(values) * (len(_BARS) - 1))] for value in values)


def console() -> Console:
    """The terminal, or wide lines for a program that reads them."""
    return Console(width=None if sys.stdout.isatty() else 160)


def show_list(entries: Sequence[Filed]) -> None:
    """A line per entry."""
    table = Table("id", "iteration", "failure mode", "times", "kind of task", "task", "lesson")
    for column in table.columns[:4]:
        column.no_wrap = True
    table.columns[-2].overflow = "fold"  # an id is there to be copied
    table.columns[-1].no_wrap = True
    for filed in entries:
        failure = filed.failure
        task, reflection = failure.task, failure.reflection
        numbers = str(filed.id), str(failure.iteration), plain(reflection.mode), str(failure.count)
        table.add_row(*numbers, plain(task.task_type), plain(task.task_id), plain(reflection.lesson))
    console().print(table)


def show_failure(
    filed: Filed,
    story: Sequence[Mapping[str, Any]],
    followed: Sequence[Retrieval],
    chosen: Sequence[Retrieval],
) -> None:
    """One failure in full.

    Args:
        filed: the failure.
        story: its trajectory.
        followed: what was chosen because of it.
        chosen: because of what its task was chosen.
    """
    task, reflection, out = filed.failure.task, filed.failure.reflection, console()
    facts = Table.grid(padding=(0, 2))
    source = f"{reflection.source} (iteration {filed.failure.iteration}, policy version {filed.policy_version})"
    rows = {
        "task": f"{task.task_id} of {task.env_id} {task.split}".rstrip(),
        "goal": task.goal,
        "kind": task.task_type,
        "mode": f"{reflection.mode}, {filed.failure.count} times",
        "what happened": reflection.detail,
        "lesson": reflection.lesson,
        "query": reflection.query,
        "written by": source,
        "run": filed.run,
    }
    for name, value in rows.items():
        if value:
            facts.add_row(name, plain(value))
    out.print(Panel(facts, title=f"failure {filed.id}"))
    for number, exchange in enumerate(story):  # the first has the initial observation alone
        critical = number > 0 and number - 1 == reflection.critical_step
        if number:
            mark = "   ◀ critical step" if critical else ""
            out.print(Text(f"{number:>3}> ").append_text(plain(exchange.get("action", ""))).append(mark))
        out.print(Text("     ").append_text(plain(str(exchange.get("observation", "")).replace("\n", "\n     "))))
    _show_retrievals(out, "because of it, these tasks were chosen:", followed, "chosen_task_id")
    _show_retrievals(out, "its task was chosen because of these failures:", chosen, "task_id")


def _show_retrievals(out: Console, title: str, retrievals: Sequence[Retrieval], named: str) -> None:
    if not retrievals:
        return
    out.print(f"\n{title}")
    for retrieval in retrievals[-_MOST_RETRIEVALS:]:
        line = f"  iteration {retrieval.iteration}: {getattr(retrieval, named)} ({retrieval.mode})"
        out.print(plain(line + (f": {retrieval.reason}" if retrieval.reason else "")))
    if len(retrievals) > _MOST_RETRIEVALS:
        out.print(f"  and {len(retrievals) - _MOST_RETRIEVALS} before these")


def show_modes(counts: Sequence[ModeCount]) -> None:
    """A line per mode, and a summary."""
    several = len({count.env_id for count in counts}) > 1
    table = Table(
        *(["environment"] if several else []), "failure mode", "tasks", "failures", "share", "newest iteration"
    )
    for count in counts:
        mode = plain(count.mode if count.known else f"{count.mode} *")
        numbers = str(count.tasks), str(count.failures), f"{count.share:.1%}", str(count.newest)
        table.add_row(*([count.env_id] if several else []), mode, *numbers)
    console().print(table)
    if not all(count.known for count in counts):
        print("* not in the taxonomy: named by the analyst")
    failures, entries = sum(count.failures for count in counts), sum(count.tasks for count in counts)
    modes = len({count.mode for count in counts})
    print(f"{failures} failed episodes, {entries} entries under {modes} mode{'s' * (modes != 1)}")


def show_growth(rows: Sequence[Mapping[str, Any]]) -> None:
    """A curve per mode: its entries up to each iteration; those that grew most come first."""
    curves: dict[str, list[int]] = {}
    for row in rows:
        curves.setdefault(row["mode"], []).append(row["entries"])
    first, last = rows[0]["iteration"], rows[-1]["iteration"]
    table = Table("failure mode", f"entries, iterations {first} to {last}", "now")
    for mode, values in sorted(curves.items(), key=lambda item: -item[1][-1]):
        table.add_row(plain(mode), sparkline(values), str(values[-1]))
    console().print(table)
    print("every curve has its own scale; --csv and --json give the numbers")
