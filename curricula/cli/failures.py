"""``roleagent failures <verb>``: shows the failure library of a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.commands import Parser, complain, natural, out_file
from roleagent.options import ConfigError, home_expanded, user_path

if TYPE_CHECKING:
    from roleagent.curricula.library import FailureLibrary

Resolve = Callable[[Path], str | Path]  # from a run folder to its library

EXAMPLES = """\
examples:
  roleagent failures list runs/toy --mode navigation_loop
  roleagent failures show runs/toy 17
  roleagent failures modes postgresql+psycopg://user@host/database
  roleagent failures growth runs/toy --csv > growth.csv
  roleagent failures export runs/toy --out failures.jsonl --trajectories
  roleagent failures freeze runs/toy --out suite.json
  roleagent failures suite runs/toy

RUN_OR_URL is a run folder, a SQLite file, or the SQLAlchemy URL of a library; freeze and suite need a run folder."""
VERBS = {
    "list": "Show the newest entries.",
    "show": "Show one failure: analysis, steps, what followed from it.",
    "modes": "Show the failure modes and how much is under each.",
    "growth": "Show how the entries of each mode grew over the iterations.",
    "export": "Write all failures as JSON lines or CSV.",
    "freeze": "Write the failures that were solved later as a suite of tasks, for train.suite.",
    "suite": "Show what a run forgot and regained of its suite, by failure mode and iteration.",
}


def main(arguments: Sequence[str], resolve: Resolve) -> int:
    """The group of verbs; returns the exit status.

    Args:
        arguments: the command line behind ``roleagent failures``.
        resolve: finds the library of a run folder; raises ConfigError or LibraryError.
    """
    if arguments and arguments[0] not in VERBS and not arguments[0].startswith("-"):
        example = f"roleagent failures modes {arguments[0]}"
        return complain(
            "roleagent failures", f"{arguments[0]!r} is no verb ({', '.join(VERBS)}); say for example: {example}"
        )
    options = _parser().parse_args(arguments)
    if options.verb in OF_RUN:
        try:
            return OF_RUN[options.verb](options)
        except (ConfigError, OSError, ValueError) as error:
            return complain("roleagent failures", error)
    from roleagent.curricula.cli.verbs import VERBS as RUN  # here: --help does without SQLAlchemy
    from roleagent.curricula.library import LibraryError

    try:
        with closing(open_source(options.source, resolve)) as library:
            RUN[options.verb](options, library)
    except (ConfigError, LibraryError, OSError) as error:
        return complain("roleagent failures", error)
    return 0


def freeze(options: argparse.Namespace) -> int:
    """Writes a suite of the solved failures."""
    from roleagent.curricula.cli.suites import freeze as write

    return write(options.source, options.out, options.limit)


def suite(options: argparse.Namespace) -> int:
    """Shows the matrix of failure modes and iterations; the exit status is 1 if the suite is worse than at its best."""
    from roleagent.curricula.cli.suites import show

    return show(options.source, options.json)


OF_RUN = {"freeze": freeze, "suite": suite}


def _parser() -> argparse.ArgumentParser:
    about = "Look into the failures that a run has filed."
    parser = Parser("roleagent failures", about, epilog=EXAMPLES, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    own = {}
    for verb, summary in VERBS.items():
        own[verb] = verbs.add_parser(verb, help=summary, description=summary, epilog=EXAMPLES)
        if verb in OF_RUN:
            own[verb].add_argument("source", type=Path, metavar="RUN", help="a run folder")
        else:
            text = "a run folder, a SQLite file, or a library's URL"
            own[verb].add_argument("source", metavar="RUN_OR_URL", help=text)
    own["list"].add_argument("--mode", default="", help="entries of this failure mode")
    own["list"].add_argument("--task-type", default="", metavar="TYPE", help="entries of this kind of task")
    own["list"].add_argument("--task", default="", metavar="TEXT", help="entries whose task id contains this")
    own["list"].add_argument("--limit", type=natural, default=20, metavar="N", help="how many (default: %(default)s)")
    own["show"].add_argument("id", type=natural, metavar="ID", help="the number of a failure, as list shows it")
    form = own["growth"].add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="a line per mode and iteration, for plotting")
    form.add_argument("--json", action="store_true", help="the same as one JSON list")
    own["export"].add_argument("--out", type=out_file, metavar="FILE", help="where to (default: the standard output)")
    own["export"].add_argument("--format", choices=("jsonl", "csv"), help="default: by the file's name, or jsonl")
    own["export"].add_argument("--trajectories", action="store_true", help="with every step of every episode")
    own["freeze"].add_argument("--out", type=out_file, metavar="FILE", help="where to (default: suite.json in RUN)")
    own["freeze"].add_argument(
        "--limit",
        type=natural,
        default=200,
        metavar="N",
        help="most tasks, of all modes in turn (default: %(default)s)",
    )
    own["suite"].add_argument("--json", action="store_true", help="the same as JSON")
    return parser


def open_source(source: str, resolve: Resolve, run: str = "") -> FailureLibrary:
    """The library of a run folder, a file or a URL, for reading alone.

    Args:
        source: as a user gives it.
        resolve: finds the library of a run folder.
        run: whose failures are the library's own.

    Raises:
        ConfigError, LibraryError: there is none; one line.
    """
    from roleagent.curricula.library import FailureLibrary, LibraryError

    path = user_path(source)
    url: str | Path = source if "://" in source and not path.exists() else path if path.is_file() else resolve(path)
    file = url if isinstance(url, Path) else home_expanded(url.partition("sqlite:///")[2])
    if file and not Path(file).exists():
        raise LibraryError(f"{file} does not exist: the run has filed no failures (aiw=off?)")
    return FailureLibrary(url, run, read_only=True)


__all__ = ["main", "open_source"]
