"""``roleagent tools <verb>``: shows tools as a model sees them, and makes a call."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from roleagent.commands import Parser, choose, complain, positive

_SOURCE = "a file (my_tools.py), a module, or a server (mcp:COMMAND or mcp:https://…)"


def show(arguments: Sequence[str]) -> int:
    """Print the schemas of tools as a model sees them, or why they cannot be used."""
    from roleagent.envs.tools.definition.function_tool import function_schema
    from roleagent.envs.tools.definition.load import load_tools

    parser = Parser(
        "roleagent tools show",
        f"{show.__doc__}\n\nOn standard output: a JSON list, as chat templates and OpenAI-compatible servers take it.",
        "roleagent tools show my_tools.py\nroleagent tools show roleagent.envs.tools.examples",
    )
    parser.add_argument("source", nargs="+", metavar="SOURCE", help=_SOURCE)
    options = parser.parse_args(arguments)
    try:
        tools = load_tools(options.source)
    except (ValueError, OSError, RuntimeError) as error:
        return complain("roleagent tools show", error)
    print(json.dumps([function_schema(tool) for tool in tools], indent=2, ensure_ascii=False))
    print(f"{len(tools)} tool{'s' * (len(tools) > 1)}: {', '.join(tool.name for tool in tools)}", file=sys.stderr)
    return 0


def call(arguments: Sequence[str]) -> int:
    """Make one call, checked and answered as in an episode."""
    from roleagent.envs.tools.calls.command import call_command
    from roleagent.envs.tools.env import ToolEnv
    from roleagent.tools import Call, EpisodeError

    parser = Parser(
        "roleagent tools call",
        f"{call.__doc__}\n\nThe result is printed as an agent reads it. The exit status is 1 if the call failed.",
        """roleagent tools call my_tools.py convert '{"amount": 3, "unit": "km"}'""",
    )
    parser.add_argument("source", metavar="SOURCE", help=_SOURCE)
    parser.add_argument("name", metavar="NAME", help="of the tool")
    parser.add_argument("arguments", nargs="?", default="{}", metavar="JSON", help="the arguments, an object")
    parser.add_argument(
        "--state", default="{}", metavar="JSON", help="the episode's state, an object; printed afterwards"
    )
    parser.add_argument("--timeout", type=positive, default=10.0, metavar="S", help="seconds (default: %(default)g)")
    options = parser.parse_args(arguments)
    try:
        made = Call(options.name, _object("arguments", options.arguments))
        task = {"id": "call", "prompt": "One call.", "state": _object("--state", options.state)}
        env = ToolEnv(options.source, [task], _unjudged, "all", max_steps=1, timeout=options.timeout)
        try:
            env.reset()
            text, _, _, _, info = env.step(call_command([made]))
        finally:
            env.close()
    except (ValueError, OSError, RuntimeError, EpisodeError) as error:
        return complain("roleagent tools call", error)
    [report] = info["calls"]
    failed = report["error"] is not None
    print(text, file=sys.stderr if failed else sys.stdout)
    if options.state != "{}":
        print(f"state: {json.dumps(env.state, ensure_ascii=False, default=repr)}")
    return int(failed)


def _unjudged(task: Any, episode: Any) -> float:
    return 0.0


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: no JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be a JSON object, not {text[:100]}")
    return found


VERBS: dict[str, Callable[[Sequence[str]], int]] = {"show": show, "call": call}


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status."""
    return choose("roleagent tools", VERBS, arguments, "Functions and servers that agents call.")


__all__ = ["VERBS", "main"]
