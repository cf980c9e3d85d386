"""The options of ``train.py``; here, so that they can be read before PyTorch is loaded."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from roleagent.commands import Parser
from roleagent.program import as_called


def check_command(text: str | None, config: Path, name: str) -> None:
    """Ends the program with status 2 and a line where this process's command, or its configuration, is wrong."""
    options = training_parser(text, config, name).parse_intermixed_args()
    from roleagent.config import ConfigError, load  # pydantic: neither does --help need it

    try:
        load(options.config, options.overrides)
    except ConfigError as error:
        print(f"{name}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def training_parser(text: str | None, config: Path, name: str) -> Parser:
    """The parser of ``train.py``.

    Args:
        text: its docstring.
        config: the configuration where none is named.
        name: of the program as it was called, with which its errors begin.
    """
    called = name.partition(",")[0]  # without the rank
    parser = Parser(
        name, as_called(text or "", called), usage=f"{called} [--config FILE] [--resume] [--show-config] [key=value …]"
    )
    parser.add_argument("--config", type=Path, default=config, metavar="FILE", help="YAML file (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on with the run that lies in the run folder")
    parser.add_argument("--show-config", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # the deepspeed launcher's
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options, e.g. optim.lr=1e-4 wia=off")
    return parser
