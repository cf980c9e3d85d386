"""The options of ``evaluate.py`` and of its verbs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from roleagent.commands import Parser, add_json, from_zero, natural, out_file, positive, whole
from roleagent.program import as_called

_COMPARE = """\
Compares two evaluations of the same split, task by task: the first one's success minus the other one's, with a
bootstrap interval over tasks, over all and per task type, McNemar's exact test where each task was played once, pass@k
and pass^k where both sides played tasks repeatedly, and the environment's measures. Above zero, the first one has more.
Files of several splits are compared split by split. Where the output is no terminal, its last line is the result as
JSON.

examples:
  two agents, evaluated by evaluate.py: a minus b
      python evaluate.py compare evaluations/a.jsonl --against evaluations/b.jsonl
  two training runs at their ends; what one run gained
      python evaluate.py compare runs/role_agent --against runs/gigpo
      python evaluate.py compare runs/role_agent/after.json --against runs/role_agent/before.json
  several seeds on each side, and two baselines
      python evaluate.py compare runs/role_agent-0 runs/role_agent-1 --against runs/gigpo-0 runs/gigpo-1 \\
          --against runs/grpo-0 runs/grpo-1
"""

_TABLE = """\
Prints a table of agents × environments from record files: success in percent with 95 % intervals over tasks. Files of
one agent on one split (other seeds) are one cell. Nothing is played.

examples:
  for a page, a paper and a program
      python evaluate.py table evaluations/*.jsonl
      python evaluate.py table evaluations/*.jsonl --format latex > success.tex
      python evaluate.py table evaluations/*.jsonl --format csv > success.csv
  the seeds of two methods, named
      python evaluate.py table --row GRPO runs/grpo-0 runs/grpo-1 --row Role-Agent runs/role_agent-0 runs/role_agent-1
"""


_RESCORE = """\
Judges the episodes of a record file again, without playing them. The judge is a function of an episode (a line of the
transcripts: goal, turns, won, reward, …) that returns whether it is won, or a score in [0, 1], of which 1 is won. The
new record file stands beside the old one, and so do its transcripts. The same command continues an interrupted one.

examples:
  a judge of your own, then what it changes
      python evaluate.py rescore evaluations/a.jsonl --judge my_judges:strict
      python evaluate.py compare evaluations/a.strict.jsonl --against evaluations/a.jsonl
"""


def options_of(arguments: Sequence[str], text: str | None, name: str) -> argparse.Namespace:
    """The options of ``evaluate.py``, with ``verb`` set to the first word if it is ``compare``, ``table``, ``rescore``.

    Args:
        arguments: the command line.
        text: the program's docstring.
        name: of the program as it was called.
    """
    parsers = {"compare": compare_parser, "table": table_parser, "rescore": rescore_parser}
    verb = arguments[0] if arguments and arguments[0] in parsers else ""
    parser = parsers[verb](name) if verb else evaluation_parser(text, name)
    return parser.parse_args(arguments[bool(verb) :], argparse.Namespace(verb=verb))


def evaluation_parser(text: str | None, name: str) -> Parser:
    """The parser of ``evaluate.py``, whose docstring is ``text``."""
    parser = Parser(
        name,
        as_called(text or "", name),
        usage=f"{name} [options], or {name} compare …, {name} table …, {name} rescore …",
        allow_abbrev=False,
    )
    who = parser.add_argument_group("agent")
    who.add_argument(
        "--agent",
        metavar="AGENT",
        help="a run folder (its newest checkpoint), a Hugging Face folder or hub name, random, oracle (the game's own "
        "solution), expert (scripted, sees only what an agent sees), plain, react, reflexion or rag (prompt the model "
        "of one of the next three options), or a class or function module:NAME; by default that model plays with the "
        "standard prompts",
    )
    who.add_argument("--run", type=Path, metavar="RUN", help="model: the checkpoint of a run folder")
    who.add_argument("--model-path", default="", metavar="MODEL", help="model: a Hugging Face folder or hub name")
    who.add_argument("--base-url", default="", metavar="URL", help="model: behind an OpenAI-compatible server")
    who.add_argument("--model", default="", metavar="NAME", help="its name on the server (default: the only one)")
    who.add_argument("--checkpoint", metavar="NAME", help="of a run, e.g. step-500020 (default: the newest)")
    who.add_argument(
        "--agent-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the agent, e.g. trials=2"
    )
    where = parser.add_argument_group("environment")
    where.add_argument(
        "--env", metavar="ID", help="Gymnasium id (default: the run's or --config's, else RoleAgent/ALFWorld-v0)"
    )
    where.add_argument(
        "--split",
        help="split to play (default: the run's or --config's, else ALFWorld's valid_seen, others' held-out split)",
    )
    where.add_argument("--tasks", type=natural, metavar="N", help="only N tasks of each environment, of all its types")
    where.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="official data (default: $ALFWORLD_DATA, $WEBSHOP_DATA, $SEARCHQA_DATA, $TEXTCRAFT_DATA, else generated)",
    )
    where.add_argument(
        "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the environment; repeatable"
    )
    how = parser.add_argument_group("evaluation")
    how.add_argument("--repeats", type=natural, default=1, metavar="N", help="play the split N times, seeds differ")
    how.add_argument(
        "--single-step",
        action="store_true",
        help="instead of episodes: the share of steps at which a local model gives exactly the scripted expert's "
        "command, after the expert's history (GenEnv's measure of ALFWorld; no success rate)",
    )
    how.add_argument("--seed", type=whole, default=0, help="of repeat 0; repeat r uses seed + r (default: %(default)s)")
    how.add_argument(
        "--temperature", type=from_zero, metavar="T", help="of sampling (default: the run's or --config's, else 0)"
    )
    how.add_argument("--max-tokens", type=natural, metavar="N", help="maximum tokens of a reply, thoughts included")
    how.add_argument("--batch", type=natural, metavar="N", help="episodes per batch of a local model")
    how.add_argument("--config", type=Path, metavar="FILE", help="configuration file: environment, prompts and limits")
    how.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option that an evaluation reads (env, policy, prompt, rollout), e.g. prompt.think=none",
    )
    how.add_argument(
        "--lessons",
        metavar="RUN_OR_URL",
        help="lessons for the prompts of a local policy, from the failure library of a run folder, a SQLite file or a "
        "URL, which is only read (default: of a run with lessons.evaluate=on its own; --set lessons.show=none: none)",
    )
    how.add_argument(
        "--keep-failures",
        type=Path,
        metavar="FILE",
        help="writes the failed episodes of a local policy to FILE, each cut at a drawn step",
    )
    how.add_argument(
        "--keep-signals",
        type=Path,
        metavar="FILE",
        help="writes to FILE the episodes with a revision signal of a local policy, each cut before the first one",
    )
    how.add_argument(
        "--cut-failures",
        type=Path,
        metavar="FILE",
        help="revision test: a local policy continues the episodes in FILE; success of those that --keep-failures "
        "wrote is the share recovered",
    )
    how.add_argument(
        "--concurrency",
        type=natural,
        default=8,
        metavar="N",
        help="episodes at the same time with a server, or with your own agent, which then acts in N threads "
        "(default: 8)",
    )
    server = parser.add_argument_group("server")
    server.add_argument(
        "--timeout",
        type=positive,
        default=120.0,
        metavar="S",
        help="seconds for one request (default: 120)",
    )
    server.add_argument(
        "--prices",
        type=from_zero,
        nargs=2,
        metavar=("IN", "OUT"),
        help="per million prompt and completion tokens; shows the cost",
    )
    add_json(parser)
    parser.add_argument(
        "--no-transcripts",
        action="store_true",
        help="do not write the episodes, turn by turn, beside the records (for roleagent report)",
    )
    parser.add_argument("--out", type=out_file, metavar="FILE", help="record file (default: a name under evaluations/)")
    return parser


def compare_parser(name: str) -> Parser:
    """The parser of ``evaluate.py compare``."""
    parser = Parser(f"{name} compare", as_called(_COMPARE, name))
    parser.add_argument(
        "records",
        nargs="+",
        type=Path,
        help="record files, run folders (their after.json), or a run's before.json, iteration-….json or after.json",
    )
    parser.add_argument(
        "--against",
        nargs="+",
        action="append",
        type=Path,
        default=[],
        metavar="RECORDS",
        help="the other side, whose success is subtracted; repeatable, for several others",
    )
    parser.add_argument("--seed", type=whole, default=0, help="of the bootstrap (default: %(default)s)")
    add_json(parser)
    return parser


def table_parser(name: str) -> Parser:
    """The parser of ``evaluate.py table``."""
    parser = Parser(f"{name} table", as_called(_TABLE, name))
    files = "record files, or run folders (their after.json)"
    parser.add_argument("records", nargs="*", type=Path, help=f"{files}; a row is called after the agent")
    parser.add_argument(
        "--row",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "RECORDS"),
        help="a row with a name of its own",
    )
    parser.add_argument(
        "--format", choices=("markdown", "latex", "csv"), default="markdown", help="default: %(default)s"
    )
    return parser


def rescore_parser(name: str) -> Parser:
    """The parser of ``evaluate.py rescore``."""
    parser = Parser(f"{name} rescore", as_called(_RESCORE, name))
    parser.add_argument("records", type=Path, help="a record file with its transcripts beside it")
    parser.add_argument(
        "--judge", required=True, metavar="MODULE:FUNCTION", help="the judge; the working directory is searched first"
    )
    add_json(parser)
    parser.add_argument("--out", type=out_file, metavar="FILE", help="record file (default: RECORDS.FUNCTION.jsonl)")
    return parser
