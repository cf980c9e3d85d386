"""The calls of one step: which of them run, their results as the agent reads them, reward terms and counters."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from roleagent.envs.tools.calls.broker import CallResult, PreparedCall
from roleagent.envs.tools.calls.shown_text import cut, image_text, neutralize
from roleagent.envs.tools.definition.schema import ArgumentCheck
from roleagent.options import shown
from roleagent.tools import Call, Tool

COUNTERS = (
    *("calls", "malformed", "unknown_tool", "bad_arguments", "tool_errors", "timeouts", "not_run", "cut_results"),
    *("neutralized", "coerced", "shared_calls", "images"),
)
"""The keys of ``info["counters"]``, events of one step."""


@dataclass(slots=True)
class _Record:
    """One call.

    Attributes:
        error: what went wrong, as one word or a few; None: it succeeded.
        text: the result, or the reason why there is none.
        runs: whether it is run.
    """

    call: Call
    error: str | None = None
    text: str = ""
    seconds: float = 0.0
    reward: float | None = None
    runs: bool = False


@dataclass(slots=True)
class StepCalls:
    """The calls of one step.

    Attributes:
        tools: that are offered, by name.
        checks: of their arguments, by name.
        max_calls: that are run; the others are refused.
        coerce: whether texts are read as numbers where the schema wants these.
        counters: events by name.
        made: the calls that are run, with the arguments that the tools get.
        images: of the results, in the order of the calls.
    """

    tools: Mapping[str, Tool]
    checks: Mapping[str, ArgumentCheck]
    max_calls: int = 1
    coerce: bool = False
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    made: list[Call] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    _records: list[_Record] = field(default_factory=list)

    def prepare(self, items: Sequence[Call | str], state: Any, timeout: float) -> list[PreparedCall]:
        """Checks calls; a text in place of a call is the reason why it is malformed.

        Returns:
            Those to run, in order.
        """
        ready = []
        self.counters["calls"] = len(items)
        for number, item in enumerate(items):
            if isinstance(item, str):
                self._records.append(_Record(Call("", {}), "malformed", item))
                continue
            error, text, arguments = self._check(item, number)
            self._records.append(_Record(item, error, text, runs=error is None))
            if error is None:
                self.made.append(replace(item, arguments=copy.deepcopy(dict(arguments))))  # a tool may change its own
                ready.append(PreparedCall(self.tools[item.name], arguments, state, timeout))
        return ready

    def _check(self, call: Call, number: int) -> tuple[str | None, str, Mapping[str, Any]]:
        """Why a call is not run, in a word and as the agent reads it; and its arguments."""
        if number >= self.max_calls:
            most = "one call" if self.max_calls == 1 else f"{self.max_calls} calls"
            return self._refused("not_run", f"not run: {most} at a time")
        if call.name not in self.tools:
            near = difflib.get_close_matches(call.name[:100], self.tools, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(self.tools)}"
            return self._refused("unknown_tool", f"there is no tool {shown(call.name)}; {hint}")
        check, arguments = self.checks[call.name], copy.deepcopy(dict(call.arguments))
        problem = check.problem(arguments)
        if problem and self.coerce:
            arguments, count = check.coerced(arguments)
            self.counters["coerced"] += count
            problem = check.problem(arguments)
        if problem:
            return self._refused("bad_arguments", f"{call.name} was not called: {problem}")
        return None, "", arguments

    def _refused(self, error: str, text: str) -> tuple[str, str, Mapping[str, Any]]:
        self.counters[error] += 1
        return error, text, {}

    def enter(self, results: Sequence[CallResult]) -> None:
        """Takes the results of the calls that were run, in their order.

        Raises:
            EpisodeError: a tool cannot be used any more.
        """
        for record, ran in zip([record for record in self._records if record.runs], results, strict=True):
            if ran.fatal is not None:
                raise ran.fatal
            result = ran.result
            record.text = "\n".join([*([result.text] if result.text else []), *map(image_text, result.images)])
            record.error = ran.failure or (None if result.success else "refused")
            record.seconds, record.reward = ran.seconds, result.reward
            self.counters["timeouts"] += record.error == "timeout"
            self.counters["tool_errors"] += record.error in ("refused", "error")
            self.counters["shared_calls"] += ran.shared
            self.counters["images"] += len(result.images)
            self.images += result.images

    def show(self, max_words: int) -> str:
        """The results as the agent reads them: each cut to ``max_words`` words, without markers, line by line."""
        for record in self._records:
            short = cut(record.text, max_words)
            self.counters["cut_results"] += short is not record.text
            record.text, count = neutralize(short, tuple(self.tools))
            self.counters["neutralized"] += count
        return "\n".join(record.text for record in self._records)

    @property
    def any_succeeded(self) -> bool:
        """Whether a call did what it was asked for."""
        return any(record.error is None for record in self._records)

    @property
    def any_malformed(self) -> bool:
        """Whether a call could not be read."""
        return any(record.error == "malformed" for record in self._records)

    @property
    def unpredictable(self) -> bool:
        """Whether a tool that was called is random, or asks a network."""
        called = [self.tools.get(record.call.name) for record in self._records]
        return any(getattr(tool, "random", False) or getattr(tool, "network", False) for tool in called)

    @property
    def terms(self) -> dict[str, float]:
        """The reward terms ``tool``, ``tool_error`` and ``process``; none without calls."""
        if not self._records:
            return {}
        failures = sum(record.error is not None for record in self._records)
        rewards = [record.reward for record in self._records if record.reward is not None]
        terms = {"tool": 1.0 - failures / len(self._records), "tool_error": float(failures)}
        return terms | ({"process": float(sum(rewards))} if rewards else {})

    @property
    def described(self) -> list[dict[str, Any]]:
        """The calls for ``info``."""
        return [
            call_record(record.call, record.error, record.text, record.seconds, record.reward)
            for record in self._records
        ]


def call_record(
    call: Call, error: str | None = None, text: str = "", seconds: float = 0.0, reward: float | None = None
) -> dict[str, Any]:
    """A call in ``info["calls"]``."""
    return {
        "name": call.name,
        "arguments": dict(call.arguments),
        "id": call.id,
        "error": error,
        "result": text,
        "seconds": seconds,
        "reward": reward,
    }


def task_report(task: Any, split: str, tools: Sequence[Mapping[str, Any]], counters: Iterable[str]) -> dict[str, Any]:
    """The fields of ``info`` about a task at the start of an episode.

    Args:
        task: has ``id``, ``prompt`` and ``type``.
        split: of the task.
        tools: the offered ones, see :func:`~roleagent.envs.tools.definition.function_tool.function_schema`.
        counters: names of the counters.
    """
    return {
        "task_id": task.id,
        "goal": task.prompt,
        "task_type": task.type,
        "split": split,
        "admissible_actions": [],
        "won": False,
        "valid_action": True,
        "tools": list(tools),
        "calls": [],
        "answer": "",
        "counters": dict.fromkeys(counters, 0),
    }


__all__ = ["COUNTERS", "StepCalls", "call_record", "task_report"]
