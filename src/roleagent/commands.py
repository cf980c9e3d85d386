"""Command-line parsing: help with examples, one-line errors with suggestions, and groups of verbs.

>>> try:
...     Parser("roleagent games", "Write games.", "roleagent games --out games").parse_args(["--oot", "games"])
... except SystemExit as ended:
...     ended.code
2
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from roleagent.options import ConfigError, check_finite, shown, user_path
from roleagent.slow_notice import waiting

Verb = Callable[[Sequence[str]], int]


@contextlib.contextmanager
def stage_bars(width: int) -> Iterator[Callable[[str, float], None]]:
    """Shows a bar for each stage of a command; yields what moves one: its name and the finished share in [0, 1].

    Args:
        width: of the names, in characters.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn(f"{{task.description:<{width}}}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        stages = {}
        newest = ["", 0.0]

        def progress(stage: str, share: float) -> None:
            if stage not in stages:
                stages[stage] = bar.add_task(stage, total=1.0)
            bar.update(stages[stage], completed=share)
            newest[:] = stage, share

        def state() -> str:
            return "{}, {:.0%} done".format(*newest)

        with contextlib.nullcontext() if bar.console.is_terminal else waiting(state):
            yield progress


class Parser(argparse.ArgumentParser):
    """An argument parser with examples and one-line errors.

    A program parses its arguments before it imports torch or SQLAlchemy, so help is fast.

    Args:
        prog: the command, e.g. ``roleagent games``.
        description: what it does and needs; line breaks stay. Text after a line ``examples:`` becomes the examples, so
            a module's docstring can be used.
        examples: commands, one per line.
    """

    def __init__(self, prog: str | None = None, description: str | None = None, examples: str = "", **options: Any):
        about, _, own = (description or "").partition("\nexamples:\n")
        lines = textwrap.indent(textwrap.dedent(own or examples).strip("\n"), "  ")
        options.setdefault("epilog", f"examples:\n{lines}" if lines else None)
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(prog, description=about.strip(), **options)
        self.register("type", Path, _path)  # so that `type=Path` reads every path as user_path does

    def error(self, message: str) -> NoReturn:
        """Exits with status 2 and one line with a suggestion."""
        wrong = re.match(r"unrecognized arguments: (-[^\s=]+)", message)
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        hint = ""
        if wrong:
            hint = nearest(wrong[1], self._spellings())
        elif choice:
            hint = nearest(choice[1], re.findall(r"[\w./-]+", choice[2]))
        print(f"{self.prog}: {' '.join(message.split())}{hint} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)

    def _spellings(self) -> list[str]:
        """All option names, including those of sub-parsers."""
        verbs = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return [
            *self._option_string_actions,
            *(word for verb in verbs for own in verb.choices.values() for word in own._spellings()),
        ]


def complain(program: str, error: Exception | str) -> int:
    """Prints in one line why a program ends; returns the exit status 2."""
    print(f"{program}: {' '.join(str(error).split())}", file=sys.stderr)
    return 2


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion of the nearest known name; empty without a similar one.

    >>> nearest("--confg", ["--config", "--resume"]), nearest("xyz", ["play"])
    ('; did you mean --config?', '')
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def printable(text: str) -> str:
    r"""A text as one line without control characters, which could move a terminal's cursor.

    >>> printable("An egg.\n\x1b[2JIt is \u202ehot.")
    'An egg. [2JIt is hot.'
    """
    return "".join(letter for letter in re.sub(r"\s+", " ", str(text)) if letter.isprintable())


def pairs(texts: Iterable[str]) -> dict[str, Any]:
    """Parses ``key=value`` texts with YAML values.

    Raises:
        ConfigError: a text has another form, or a number is not finite.

    >>> pairs(["max_steps=30", "size=tiny"])
    {'max_steps': 30, 'size': 'tiny'}
    """
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.isidentifier():
            raise ConfigError(f"{text!r} is not of the form key=value, e.g. max_steps=30")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {text!r} cannot be read as YAML") from error
        check_finite(found[key], key)
    return found


LARGEST = 2**31 - 1
"""The largest integer on a command line, within the range of databases and libraries."""


def natural(text: str) -> int:
    """Parses an integer of at least 1.

    >>> natural("12"), whole("0"), from_zero("0.5"), port_number("8000")
    (12, 0, 0.5, 8000)
    """
    return _whole(text, 1)


def whole(text: str) -> int:
    """Parses an integer of at least 0."""
    return _whole(text, 0)


def port_number(text: str) -> int:
    """Parses a port number; 0 selects a free port."""
    return _whole(text, 0, 65535)


def from_zero(text: str) -> float:
    """Parses a finite number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number of at least 0")
    return value


def positive(text: str) -> float:
    """Parses a finite number above 0."""
    value = from_zero(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number above 0")
    return value


def out_folder(text: str) -> Path:
    """Parses the path of an output folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is empty")
    if (path := _path(text)).is_file():
        raise argparse.ArgumentTypeError(f"{shown(text)} is a file: name a folder")
    return path


def out_file(text: str) -> Path:
    """Parses the path of an output file."""
    path = _path(text)
    if not text or path.is_dir():
        raise argparse.ArgumentTypeError(f"{shown(text)} is {'a folder' if text else 'empty'}: name a file")
    return path


def _path(text: str) -> Path:
    try:
        return user_path(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _whole(text: str, least: int, most: int = LARGEST) -> int:
    if not text.isdecimal() or (len(text) < 12 and int(text) < least):
        raise argparse.ArgumentTypeError(f"{shown(text)} is not an integer of at least {least}")
    if len(text) > 11 or int(text) > most:
        raise argparse.ArgumentTypeError(f"{shown(text)} is more than {most}")
    return int(text)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json``: see :func:`print_result`."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON on a terminal, too")


def print_result(result: Any, asked: bool) -> None:
    """Prints a command's result as one line of JSON for programs; on a terminal only if it was asked for.

    Args:
        asked: whether the command has ``--json``.
    """
    if asked or not sys.stdout.isatty():
        print(json.dumps(result))


def cannot_listen(host: str, port: int, error: Exception) -> OSError:
    """The error of a server whose address is taken, or is none of this machine's."""
    reason = getattr(error, "strerror", None) or error
    return OSError(f"cannot listen on {host}:{port} ({reason}): give another --port or --host")


def choose(prog: str, verbs: Mapping[str, Verb], arguments: Sequence[str], title: str = "") -> int:
    """Runs one of several verbs and returns its exit status; without a verb, prints the verbs and exits.

    Args:
        prog: the command before the verb.
        verbs: functions by name, described by the first line of their docstrings.
        title: a sentence about all verbs.
    """
    name = arguments[0] if arguments else "--help"
    if name in verbs:
        return verbs[name](arguments[1:])
    if name not in ("-h", "--help"):
        print(f"{prog}: there is no verb {name!r}{nearest(name, verbs)} ({prog} --help lists them)", file=sys.stderr)
        raise SystemExit(2)
    summaries = "\n".join(f"  {verb:<12}{(run.__doc__ or '').partition(chr(10))[0]}" for verb, run in verbs.items())
    lead = f"{title}\n\n" if title else ""
    print(f"usage: {prog} VERB …\n\n{lead}verbs:\n{summaries}\n\n{prog} VERB --help has details and examples.")
    raise SystemExit(0)
