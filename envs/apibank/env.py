"""``RoleAgent/APIBank-v0``: which call comes next in a dialogue, and with which arguments?"""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from roleagent.envs.searchqa.scoring import judge
from roleagent.envs.single_reply import SingleReplyTasks, json_rows, read_files
from roleagent.envs.tools.definition.function_tool import DescribedTool
from roleagent.envs.tools.next_call import CallTask, NextCallEnv
from roleagent.tools import Call

ENV_ID = "RoleAgent/APIBank-v0"
ARCHIVE, SOURCE = "api_bank.tar.xz", "github.com/AlibabaResearch/DAMO-ConvAI, Apache-2.0"
LEVELS = {"level-1": "level-1-given-desc", "level-2": "level-2-toolsearcher"}
"""The levels, which are splits and types of tasks: the tools are given, or have to be searched for."""
SEARCHER = "ToolSearcher"
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}  # and lists


class APIBankEnv(NextCallEnv):
    """API-Bank's dialogues, cut before each call; the reward is 1 for the published call.

    A call is right if it names the tool and has the published arguments, no more and no fewer. Numbers and lists may be
    written as texts; texts are compared without case, articles and punctuation. The words that tools are searched for
    are free: an overlap (F1) above one half is enough.

    The publisher runs the call and compares results. The published files hold the databases, and not the 71 functions
    that read and change them.
    """

    version = "API-Bank"

    def open_tasks(self, data_dir: str | None) -> SingleReplyTasks[CallTask]:
        return load(data_dir)

    def problem(self, task: CallTask, calls: Sequence[Call | str]) -> str | None:
        [gold] = task.gold
        if len(calls) != 1:
            return f"{len(calls)} calls, one is right"
        [call] = calls
        if isinstance(call, str):
            return call
        if call.name != gold.name:
            return f"{gold.name} is not called"
        if set(call.arguments) != set(gold.arguments):
            return f"the arguments are {', '.join(gold.arguments) or 'none'}"
        same = _overlap if gold.name == SEARCHER else same_value
        wrong = next((name for name, value in gold.arguments.items() if not same(call.arguments[name], value)), None)
        return None if wrong is None else f"{wrong}: {call.arguments[wrong]!r} is not accepted"


def same_value(given: Any, wanted: Any) -> bool:
    """Whether an argument is the published one.

    >>> same_value("['a', 'B']", ["a", "b"]), same_value(3, "3.0"), same_value("The Park", "park.")
    (True, True, True)
    """
    given, wanted = _read(given), _read(wanted)
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(same_value, given, wanted))
    if isinstance(given, Mapping) and isinstance(wanted, Mapping):
        return set(given) == set(wanted) and all(same_value(given[key], wanted[key]) for key in wanted)
    if isinstance(given, str) and isinstance(wanted, str):
        return given == wanted or judge(given, [wanted]).em == 1
    return type(given) is type(wanted) and given == wanted


def _read(value: Any) -> Any:
    """A text that holds a number, a truth value, a list or an object, as this value."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value.strip()) if len(value) < 4096 else value
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # TypeError: {[1]: 2}
            return {"true": True, "false": False}.get(value.strip().lower(), value)
    if isinstance(value, int) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer beyond all floats stays one
            return float(value)
    return list(value) if isinstance(value, list | tuple) else value


def _overlap(given: Any, wanted: Any) -> bool:
    return judge(str(given), [str(wanted)]).f1 > 0.5


@lru_cache(maxsize=2)
def load(data_dir: str | None) -> SingleReplyTasks[CallTask]:
    """The tasks: one for every call of a dialogue.

    Raises:
        FileNotFoundError: there are no such data.
        ValueError: a file is broken.
    """
    files = read_files(data_dir, ARCHIVE, SOURCE)
    described = next((path for path in files if path.endswith("api_schemas.jsonl")), "")
    schemas = {row["name"]: row for row in json_rows(files, described)}
    tasks: list[CallTask] = []
    for level, folder in LEVELS.items():
        for path in sorted(path for path in files if folder in Path(path).parts):
            tasks += _dialogue(level, Path(path).stem, json_rows(files, path), schemas)
    if not tasks or not schemas:
        raise FileNotFoundError(f"{data_dir} lacks api_schemas.jsonl or the dialogues ({SOURCE})")
    found = SingleReplyTasks[CallTask](tasks, ENV_ID)
    found.origin = (load, (data_dir,))
    return found


def _dialogue(
    level: str, name: str, rows: Sequence[Mapping[str, Any]], schemas: Mapping[str, Mapping[str, Any]]
) -> list[CallTask]:
    """The tasks of a dialogue. On level 2 a tool is offered once a search has found it, or at once if none does."""
    calls = [row for row in rows if row["role"] == "API"]
    used = dict.fromkeys(row["api_name"] for row in calls)
    searched = {one for row in calls if row["api_name"] == SEARCHER for one in _found(row["result"]["output"])}
    known = used if level == "level-1" else dict.fromkeys(one for one in (SEARCHER, *used) if one not in searched)
    tasks: list[CallTask] = []
    lines: list[str] = []
    for row in rows:
        if row["role"] != "API":
            lines.append(f"{row['role']}: {row['text']}")
            continue
        gold = Call(row["api_name"], dict(row["param_dict"]))
        output = row["result"]["output"]
        tools = tuple(_tool(schemas[api], rows) for api in known if api in schemas)
        tasks.append(CallTask(f"{level}/{name}/{len(tasks)}", level, "\n".join(lines), tools, None, (gold,)))
        shown = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        lines.append(f"API: {gold.name}({json.dumps(gold.arguments, ensure_ascii=False)}) returned {shown}")
        if gold.name == SEARCHER:
            known |= dict.fromkeys(_found(output))
    return tasks


def _found(output: Any) -> list[str]:
    """The tools that a search has found."""
    rows = output if isinstance(output, list) else [output]
    return [row["name"] for row in rows if isinstance(row, Mapping) and "name" in row]


def _tool(schema: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> DescribedTool:
    """A tool as its schema describes it, with the arguments that the dialogue's calls have besides."""
    properties = {
        name: {"type": _TYPES.get(about["type"], "array"), "description": about.get("description", "")}
        for name, about in schema["input_parameters"].items()
    }
    for row in rows:
        if row.get("api_name") == schema["name"]:
            properties |= {name: {"type": "string"} for name in row["param_dict"] if name not in properties}
    return DescribedTool(schema["name"], schema["description"], {"type": "object", "properties": properties})


__all__ = ["LEVELS", "APIBankEnv", "load", "same_value"]
