"""The verbs of ``roleagent failures``, a function each. None changes a library."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from roleagent.curricula import archive
from roleagent.curricula.library import FailureLibrary, LibraryError


def list_newest(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show the newest entries."""
    from roleagent.curricula.cli.tables import show_list

    entries = archive.newest(library, options.mode, options.task_type, options.task, options.limit)
    if entries:
        show_list(entries)
    else:
        print("no failures match")


def show(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show one failure: analysis, steps, what followed from it."""
    from roleagent.curricula.cli.tables import show_failure

    found = archive.find(library, options.id)
    if found is None:
        raise LibraryError(f"there is no failure {options.id}; `roleagent failures list` shows the numbers")
    filed, story = found
    task_id = filed.failure.task.task_id
    followed = library.retrievals(mode=filed.failure.reflection.mode, task_id=task_id)
    show_failure(filed, story, followed, library.retrievals(chosen_task_id=task_id))


def modes(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show the failure modes and how much is under each."""
    from roleagent.curricula.cli.tables import show_modes

    show_modes(archive.mode_counts(library))


def growth(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show how the entries of each mode grew over the iterations."""
    from roleagent.curricula.cli.tables import show_growth

    rows = archive.curves(library.growth())
    if options.json:
        print(json.dumps(rows))
    elif options.csv:
        _write_csv(sys.stdout, ("iteration", "mode", "failures", "new_entries", "entries"), rows)
    elif rows:
        show_growth(rows)
    else:
        print("no failures yet")


def export(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Write all failures as JSON lines or CSV."""
    kind = options.format or ("csv" if options.out and options.out.suffix == ".csv" else "jsonl")
    rows = archive.everything(library, options.trajectories)
    if options.out is None:
        _write(sys.stdout, kind, rows, options.trajectories)
        return
    partial = options.out.with_name(f".{options.out.name}.{os.getpid()}")  # a partial file has another name
    try:
        with partial.open("w", encoding="utf-8", newline="") as stream:
            count = _write(stream, kind, rows, options.trajectories)
        partial.replace(options.out)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{count} failures in {options.out}")


VERBS: dict[str, Callable[[argparse.Namespace, FailureLibrary], None]] = {
    "list": list_newest,
    "show": show,
    "modes": modes,
    "growth": growth,
    "export": export,
}


def _write(stream: TextIO, kind: str, rows: Iterable[Mapping[str, Any]], trajectories: bool) -> int:
    """Writes one failure after the other; returns how many."""
    if kind == "csv":
        names = (*archive.FIELDS, "trajectory") if trajectories else archive.FIELDS
        return _write_csv(stream, names, rows)
    count = 0
    for row in rows:
        stream.write(json.dumps(row) + "\n")
        count += 1
    return count


def _write_csv(stream: TextIO, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    count = 0
    for row in rows:
        writer.writerow({name: json.dumps(v) if isinstance(v, list) else v for name, v in row.items()})
        count += 1
    return count


__all__ = ["VERBS"]
