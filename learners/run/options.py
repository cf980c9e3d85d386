"""The options of ``train.py``; here, so that they can be read before PyTorch is loaded."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import roleagent
from roleagent.commands import Parser
from roleagent.options import user_path
from roleagent.program import as_called

if TYPE_CHECKING:
    from roleagent.config import Config

DEFAULT_CONFIG = Path(roleagent.__file__).parent / "configs" / "default.yaml"
"""The configuration of a run that names none."""


def check_command(text: str | None, name: str) -> None:
    """Ends the program with status 2 and a line where this process's command, or its configuration, is wrong."""
    options = read_command(training_parser(text, name))
    from roleagent.config import ConfigError  # pydantic: neither does --help need it

    try:
        open_config(options)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def read_command(parser: Parser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command, given in any order: ``--resume key=value`` is ``--resume`` and an option."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for place in range(len(words) - 1):
        after = words[place + 1]
        if words[place] == "--resume" and re.match(r"[\w.]+=", after) and not Path(after).is_dir():
            words[place : place + 2] = after, "--resume"  # an option is no RUN
    options = parser.parse_intermixed_args(words)
    if options.agent is not None:
        if not options.agent.strip():
            parser.error("--agent is empty: name the command that starts the program")
        options.overrides.append(f"agent.command={json.dumps(options.agent)}")
    return options


def open_config(options: argparse.Namespace) -> Config:
    """The configuration of a command: a run's own with ``--resume RUN``, else that of ``--config``.

    Args:
        options: of :func:`read_command`.

    Raises:
        ConfigError: there is no such run or file, or an option is wrong.
    """
    from roleagent.config import ConfigError, load
    from roleagent.learners.run.folder import read_config

    if not isinstance(options.resume, str):
        return load(options.config or DEFAULT_CONFIG, options.overrides)
    if options.config:
        raise ConfigError("a run has its own configuration: remove --config")
    run = user_path(options.resume)
    read_config(run)  # refuses a damaged one
    config = load(run / "config.yaml", options.overrides)
    return replace(config, run_dir=str(run))  # where it is now


def training_parser(text: str | None, name: str) -> Parser:
    """The parser of ``train.py``.

    Args:
        text: its docstring.
        name: of the program as it was called, with which its errors begin.
    """
    called = name.partition(",")[0]  # without the rank
    usage = f"{called} [--config FILE] [--resume [RUN]] [--agent COMMAND] [--show-config] [--json] [key=value …]"
    parser = Parser(name, as_called(text or "", called), usage=usage)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file (default: configs/default.yaml)")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        default=False,
        metavar="RUN",
        help="continue the run in the folder RUN with its own options, or the one that this command began",
    )
    parser.add_argument(
        "--agent", metavar="COMMAND", help="an agent program that plays the episodes, short for agent.command=COMMAND"
    )
    parser.add_argument("--show-config", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--json", action="store_true", help="print the run's result.json as the last line")
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # the deepspeed launcher's
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options, e.g. optim.lr=1e-4 wia=off")
    return parser
