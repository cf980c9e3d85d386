"""Failure modes of tasks with any tools, with one detector each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from roleagent.envs.failures.detectors import is_malformed, unreadable_replies
from roleagent.failures.modes import FailureModes, Finding
from roleagent.types import Trajectory

MEANINGS = {
    "action_format_error": "its replies could not be read as calls or answers",
    "failed_call": "its calls failed: tools that do not exist, arguments that do not fit, or calls that were refused",
    "repeated_call": "it made the same call again and again",
    "premature_answer": "it answered without a call",
    "wrong_answer": "it made calls, and its answer was wrong",
    "unfinished_task": "it ran out of turns without an answer",
}
"""By mode, what it means, as a sentence about the agent."""


def _calls(trajectory: Trajectory) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The turn and the report of every call that could be read."""
    for number, turn in enumerate(trajectory.turns):
        for call in turn.info.get("calls", ()):
            if call["name"]:
                yield number, call


def _answered(trajectory: Trajectory) -> bool:
    return bool(trajectory.turns) and bool(trajectory.turns[-1].info.get("answer"))


def action_format_error(trajectory: Trajectory) -> Finding | None:
    """At least a quarter of the replies held neither a call nor an answer."""
    neither = [turn.info.get("counters", {}).get("malformed", 0) for turn in trajectory.turns]
    malformed = [is_malformed(turn) or bool(count) for turn, count in zip(trajectory.turns, neither, strict=True)]
    return unreadable_replies(malformed)


def failed_call(trajectory: Trajectory) -> Finding | None:
    """At least half of the calls failed."""
    calls = list(_calls(trajectory))
    failed = [(number, call) for number, call in calls if call["error"] is not None]
    if not failed or 2 * len(failed) < len(calls):
        return None
    number, call = failed[0]
    return Finding(number, f"{call['name']} failed: {call['result'][:200]}", "Read why a call failed, and correct it.")


def repeated_call(trajectory: Trajectory) -> Finding | None:
    """The same call three times."""
    seen: Counter[str] = Counter()
    for number, call in _calls(trajectory):
        key = json.dumps([call["name"], call["arguments"]], sort_keys=True)
        seen[key] += 1
        if seen[key] == 3:
            detail = f"{call['name']} was called three times with the same arguments"
            return Finding(max(0, number - 1), detail, "Go on with the result instead of asking again.")
    return None


def premature_answer(trajectory: Trajectory) -> Finding | None:
    """An answer, and no call before it."""
    if not _answered(trajectory) or any(_calls(trajectory)):
        return None
    return Finding(len(trajectory.turns) - 1, "it answered without a call", "Call a tool before you answer.")


def wrong_answer(trajectory: Trajectory) -> Finding | None:
    """Calls, and an answer that is not right."""
    if not _answered(trajectory):
        return None
    detail = f"{trajectory.turns[-1].info['answer'][:200]!r} was not right"
    return Finding(len(trajectory.turns) - 1, detail, "Take the answer from the results.")


def unfinished_task(trajectory: Trajectory) -> Finding | None:
    """No answer in time."""
    return None if _answered(trajectory) else Finding(None, "the turns were used up", "Answer when you know enough.")


FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(action_format_error, failed_call, repeated_call, premature_answer, wrong_answer, unfinished_task),
)

__all__ = ["FAILURE_MODES", "MEANINGS"]
