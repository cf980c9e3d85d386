"""``RoleAgent/BFCL-v0``: which functions does a request need, and with which arguments?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from roleagent.envs.bfcl.check import gold_calls, problem_of
from roleagent.envs.bfcl.schema import tool_of
from roleagent.envs.single_reply import SingleReplyTasks, json_rows, read_files
from roleagent.envs.tools.next_call import CallTask, NextCallEnv
from roleagent.tools import Call

ENV_ID = "RoleAgent/BFCL-v0"
ARCHIVE, SOURCE = "bfcl_v4_tasks.tar.xz", "github.com/ShishirPatil/gorilla, Apache-2.0"
CATEGORIES = (
    *("simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance", "live_relevance"),
)
"""The categories of a single turn. Those of several turns need the publisher's worlds, which are not here."""


class BFCLEnv(NextCallEnv):
    """BFCL v4 (Patil et al. 2025), the categories of a single turn, with the publisher's check of the calls.

    In the categories ``irrelevance`` and ``live_irrelevance`` no call is right; in ``live_relevance`` any call is. What
    cannot be decoded is no call there, as in the publisher's check: a malformed reply is right in the first two, and
    wrong in the third. A malformed call beside a sound one counts neither way (the publisher's decoders differ: Qwen's
    skips it, that of OpenAI's servers then drops the whole reply). ``info["malformed"]`` shows such replies.

    A task's type is its category, and each category is a split.

    Attributes:
        mapped: how many types of the descriptions were mapped to JSON Schema's, by their names.
        left_out: ids of the tasks that no call can solve by the publisher's check, and that are in no split.
    """

    version = "BFCL v4"

    def open_tasks(self, data_dir: str | None) -> SingleReplyTasks[CallTask]:
        tasks, self.mapped, self.left_out = load(data_dir)
        return tasks

    def problem(self, task: CallTask, calls: Sequence[Call | str]) -> str | None:
        functions, wanted = task.wanted
        if task.type.endswith("irrelevance"):
            made = [call for call in calls if isinstance(call, Call)]
            return f"{len(made)} calls, none is right" if made else None
        if task.type.endswith("relevance"):
            return None if any(isinstance(call, Call) for call in calls) else "no call"
        return problem_of(calls, functions, wanted, "java" in task.type)


@lru_cache(maxsize=2)
def load(data_dir: str | None) -> tuple[SingleReplyTasks[CallTask], Mapping[str, int], tuple[str, ...]]:
    """The tasks, how many types were mapped, and which tasks were left out.

    Raises:
        FileNotFoundError: there are no such data.
        ValueError: a file is broken.
    """
    files = read_files(data_dir, ARCHIVE, SOURCE)
    mapped: Counter[str] = Counter()
    tasks: list[CallTask] = []
    for category in CATEGORIES:
        questions = _rows(files, f"BFCL_v4_{category}.json")
        answers = {row["id"]: row["ground_truth"] for row in _rows(files, f"BFCL_v4_{category}.json", True)}
        tasks += [_task(row, category, answers.get(row["id"], ()), mapped) for row in questions]
    if not tasks:
        raise FileNotFoundError(f"{data_dir} has no files of the name BFCL_v4_….json ({SOURCE})")
    broken = tuple(task.id for task in tasks if task.gold and "relevance" not in task.type and _unsolvable(task))
    found = SingleReplyTasks[CallTask]([task for task in tasks if task.id not in broken], ENV_ID)
    found.origin = (_tasks, (data_dir,))
    return found, dict(mapped), broken


def _unsolvable(task: CallTask) -> bool:
    """Whether the published answer fails the publisher's check."""
    functions, wanted = task.wanted
    return problem_of(task.gold, functions, wanted, "java" in task.type) is not None


def _tasks(data_dir: str | None) -> SingleReplyTasks[CallTask]:
    return load(data_dir)[0]


def _rows(files: Mapping[str, bytes], name: str, answers: bool = False) -> list[dict[str, Any]]:
    path = next((path for path in files if path.endswith(name) and ("possible_answer" in path) == answers), "")
    return json_rows(files, path)


def _task(row: Mapping[str, Any], category: str, wanted: Sequence[Any], mapped: Counter[str]) -> CallTask:
    turns = row["question"][0]
    named = {"system": "", "user": ""} if all(turn["role"] != "assistant" for turn in turns) else {}
    parts = [named.get(turn["role"], f"{turn['role'].capitalize()}: ") + turn["content"] for turn in turns]
    functions = row["function"]
    tools = {tool.name: tool for tool in (tool_of(function, mapped) for function in functions)}
    gold = gold_calls(wanted, functions)
    if category == "live_relevance":
        gold = (Call(next(iter(tools)), {}),)
    return CallTask(row["id"], category, "\n\n".join(parts), tuple(tools.values()), (functions, wanted), gold)


__all__ = ["CATEGORIES", "BFCLEnv", "load"]
