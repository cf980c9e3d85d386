"""Evaluations of the next call: a prompt and descriptions of functions go in, calls come out, nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roleagent.envs.single_reply import SingleReplyEnv
from roleagent.envs.tools.calls.command import answer_command, call_command, read_command
from roleagent.envs.tools.calls.step_calls import call_record, task_report
from roleagent.envs.tools.definition.function_tool import DescribedTool, function_schema
from roleagent.tools import Call

MOST_CALLS = 64
"""Calls of a reply that are judged."""
DONE = "The calls were taken."


@dataclass(frozen=True)
class CallTask:
    """One question.

    Attributes:
        id: of the task.
        type: its category.
        prompt: what the agent reads.
        tools: that are offered.
        wanted: for the check; no agent sees it.
        gold: calls that are right; empty: none is.
    """

    id: str
    type: str
    prompt: str
    tools: tuple[DescribedTool, ...]
    wanted: Any
    gold: tuple[Call, ...] = ()


class NextCallEnv(SingleReplyEnv[CallTask]):
    """One question per episode, one reply, judged without running anything; a base class.

    A command is that of :class:`~roleagent.envs.tools.env.ToolEnv`: one JSON line with calls, or with an answer. Reward
    1 on this only step if the calls are right. ``info["malformed"]`` is 1.0 for a reply that is malformed, or has a
    malformed call, and 0.0 otherwise; evaluations report its mean.
    """

    max_calls, tools_by_task = MOST_CALLS, True

    def problem(self, task: CallTask, calls: Sequence[Call | str]) -> str | None:
        """Why the calls of a reply are wrong, in a few words; None: they are right.

        Args:
            calls: in order; a text in place of a call explains why it is malformed.
        """
        raise NotImplementedError

    @property
    def tools(self) -> tuple[DescribedTool, ...]:
        """The tools of the current task."""
        return self._task.tools if self._task else ()

    def judge(self, task: CallTask, action: Any) -> tuple[str, float, dict[str, Any]]:
        read = read_command(action)
        malformed = read.error is not None or len(read.readable) < len(read.calls)
        problem = self.problem(task, read.calls)
        won = problem is None
        calls = [
            call_record(Call("", {}), call, call) if isinstance(call, str) else call_record(call) for call in read.calls
        ]
        judged = {"won": won, "valid_action": not malformed, "calls": calls, "answer": read.answer or ""}
        counters = {"calls": len(calls), "malformed": int(malformed)}
        judged |= {"counters": counters, "malformed": float(malformed), "problem": problem or ""}
        return DONE if read.error is None else read.error, float(won), judged

    def report(self, task: CallTask) -> dict[str, Any]:
        tools = [function_schema(tool) for tool in task.tools]
        return {**task_report(task, self.task_split.split, tools, ("calls", "malformed")), "problem": ""}

    def right_reply(self, task: CallTask) -> str:
        return call_command(task.gold) if task.gold else answer_command("no call")


__all__ = ["CallTask", "NextCallEnv"]
