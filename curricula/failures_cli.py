"""``roleagent failures <verb>``: what a run has filed, for people. Nothing here changes a library but ``upgrade``."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

from roleagent.commands import Parser
from roleagent.curricula import archive
from roleagent.curricula.library import FailureLibrary, LibraryError
from roleagent.options import ConfigError

Resolve = Callable[[Path], str]  # from a run folder to the URL of its library
_LARGEST = 2**31 - 1  # what any database takes as a number

EXAMPLES = """\
examples:
  roleagent failures list runs/toy --mode navigation_loop
  roleagent failures show runs/toy 17
  roleagent failures modes postgresql+psycopg://user@host/database
  roleagent failures growth runs/toy --csv > growth.csv
  roleagent failures export runs/toy --out failures.jsonl --trajectories

RUN_OR_URL is a run folder, a SQLite file, or the SQLAlchemy URL of a library."""


def list_newest(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show the newest entries."""
    from roleagent.curricula.failures_tables import show_list

    entries = archive.newest(library, options.mode, options.task_type, options.task, options.limit)
    if entries:
        show_list(entries)
    else:
        print("no failures match")


def show(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show one failure: analysis, steps, what followed from it."""
    from roleagent.curricula.failures_tables import show_failure

    found = archive.find(library, options.id)
    if found is None:
        raise LibraryError(f"there is no failure {options.id}; `roleagent failures list` shows the numbers")
    filed, story = found
    task_id = filed.failure.task.task_id
    followed = library.retrievals(mode=filed.failure.reflection.mode, task_id=task_id)
    show_failure(filed, story, followed, library.retrievals(chosen_task_id=task_id))


def modes(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show the failure modes and how much is under each."""
    from roleagent.curricula.failures_tables import show_modes

    show_modes(archive.mode_counts(library))


def growth(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Show how the entries of each mode grew over the iterations."""
    from roleagent.curricula.failures_tables import show_growth

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
    partial = options.out.with_name(f".{options.out.name}.{os.getpid()}")  # nobody takes half of it for the whole
    try:
        with partial.open("w", encoding="utf-8", newline="") as stream:
            count = _write(stream, kind, rows, options.trajectories)
        partial.replace(options.out)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{count} failures in {options.out}")


def upgrade(options: argparse.Namespace, library: FailureLibrary) -> None:
    """Bring the tables of an older roleagent up to date."""
    print(f"{library.database.where} is up to date: {len(library)} entries")


VERBS: dict[str, Callable[[argparse.Namespace, FailureLibrary], None]] = {
    "list": list_newest,
    "show": show,
    "modes": modes,
    "growth": growth,
    "export": export,
    "upgrade": upgrade,
}


def main(arguments: Sequence[str], resolve: Resolve) -> int:
    """The group of verbs; returns the exit status.

    Args:
        arguments: the command line behind ``roleagent failures``.
        resolve: finds the library of a run folder; raises ConfigError or LibraryError.
    """
    if arguments and arguments[0] not in VERBS and not arguments[0].startswith("-"):
        example = f"roleagent failures modes {arguments[0]}"
        return _complain(f"{arguments[0]!r} is no verb ({', '.join(VERBS)}); say for example: {example}")
    options = _parser().parse_args(arguments)
    try:
        with closing(_open(options.source, resolve, options.verb != "upgrade")) as library:
            VERBS[options.verb](options, library)
            sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ConfigError, LibraryError, OSError) as error:
        return _complain(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    about = "Look into the failures that a run has filed."
    parser = Parser("roleagent failures", about, epilog=EXAMPLES, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    own = {}
    for verb, function in VERBS.items():
        summary = str(function.__doc__)
        own[verb] = verbs.add_parser(verb, help=summary, description=summary, epilog=EXAMPLES)
        own[verb].add_argument("source", metavar="RUN_OR_URL", help="a run folder, a SQLite file, or a library's URL")
    own["list"].add_argument("--mode", default="", help="entries of this failure mode")
    own["list"].add_argument("--task-type", default="", metavar="TYPE", help="entries of this kind of task")
    own["list"].add_argument("--task", default="", metavar="TEXT", help="entries whose task id contains this")
    own["list"].add_argument("--limit", type=_number, default=20, metavar="N", help="how many (default: %(default)s)")
    own["show"].add_argument("id", type=_number, metavar="ID", help="the number of a failure, as list shows it")
    form = own["growth"].add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="a line per mode and iteration, for plotting")
    form.add_argument("--json", action="store_true", help="the same as one JSON list")
    own["export"].add_argument("--out", type=Path, metavar="FILE", help="where to (default: the standard output)")
    own["export"].add_argument("--format", choices=("jsonl", "csv"), help="default: by the file's name, or jsonl")
    own["export"].add_argument("--trajectories", action="store_true", help="with every step of every episode")
    return parser


def _number(text: str) -> int:
    if not (text.isdecimal() and len(text) < 12 and 1 <= int(text) <= _LARGEST):
        raise argparse.ArgumentTypeError(f"a number from 1 to {_LARGEST} is wanted, not {text!r}")
    return int(text)


def _open(source: str, resolve: Resolve, read_only: bool) -> FailureLibrary:
    if "://" in source:
        url = source
    elif Path(source).is_file():
        url = f"sqlite:///{source}"
    else:
        url = resolve(Path(source))
    file = url.partition("sqlite:///")[2]
    if file and not Path(file).exists():  # an upgrade must not make a new one either
        raise LibraryError(f"{file} does not exist: the run has filed no failures (aiw=off?)")
    return FailureLibrary(url, read_only=read_only)


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


def _complain(what: str) -> int:
    """One line about what went wrong; returns the exit status."""
    print(f"roleagent failures: {' '.join(what.split())}", file=sys.stderr)
    return 2


__all__ = ["main"]
