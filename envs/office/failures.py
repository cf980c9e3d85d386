"""Failure modes of office tasks, with one detector each."""

from __future__ import annotations

from roleagent.envs.failures.detectors import unreadable_replies
from roleagent.envs.office.goals import key_of
from roleagent.envs.office.trace import Trace, read_trace
from roleagent.failures.modes import FailureModes, Finding

MEANINGS = {
    "action_format_error": "its replies could not be read as calls or answers",
    "repeated_call": "it made the same call again",
    "refused_call": "it called tools that do not exist, or with arguments that do not fit",
    "invented_argument": "it called a tool with an id, a name or a number that nothing had shown",
    "wrong_lookup": "it looked up another person, room or field than the task needs",
    "wrong_amount": "it converted or added other amounts than the task needs",
    "wrong_booking": "it booked another person, room, day or hour than the task asks for",
    "premature_answer": "it answered before it had made the calls that the task needs",
    "misread_result": "the results held the answer, and it answered something else",
    "unfinished_task": "it ran out of turns on the way",
}
"""By mode, what it means, as a sentence about the agent."""


def action_format_error(trace: Trace) -> Finding | None:
    """At least a quarter of the replies held neither a call nor an answer."""
    return unreadable_replies([step.malformed for step in trace.steps])


def repeated_call(trace: Trace) -> Finding | None:
    """The same call as an earlier one, twice or more."""
    seen: dict[str, int] = {}
    for step, call in trace.calls():
        key = key_of(call)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] == 3:
            detail = f"{call.name} was called three times with the same arguments"
            return Finding(step.number - 1, detail, "Go on with the result instead of asking again.")
    return None


def refused_call(trace: Trace) -> Finding | None:
    """A tool that does not exist, or arguments that do not fit its schema."""
    for step, call in trace.calls():
        if step.error in ("unknown_tool", "bad_arguments"):
            return Finding(step.number, f"{call.name} could not be called so", "Use the tools as they are described.")
    return None


def invented_argument(trace: Trace) -> Finding | None:
    """An id, a name or a number that neither the goal nor a result had shown."""
    for step, call in trace.calls():
        if step.invented:
            detail = f"{call.name} was called with {step.invented}, which nothing had shown"
            return Finding(step.number, detail, "Use only ids and numbers that the task or a result names.")
    return None


def wrong_lookup(trace: Trace) -> Finding | None:
    """A find, detail or free that the task does not need."""
    return _unneeded(trace, ("find", "detail", "free"), "Look up only what leads to what the task asks for.")


def wrong_amount(trace: Trace) -> Finding | None:
    """A conversion or a sum that the task does not need."""
    lesson = "Add all amounts, and convert into the currency that the task names."
    return _unneeded(trace, ("convert", "sum"), lesson)


def wrong_booking(trace: Trace) -> Finding | None:
    """A booking that is not the wanted one, or is made too early."""
    return _unneeded(trace, ("book",), "Book exactly what the task asks for.")


def _unneeded(trace: Trace, tools: tuple[str, ...], lesson: str) -> Finding | None:
    """The first call of these tools that the task does not need; None if its goal is not understood."""
    for step, call in trace.calls(*tools):
        if trace.plan is not None and not trace.on_the_way(call):
            return Finding(
                step.number, f"{call.name} was called with {', '.join(map(str, call.arguments.values()))}", lesson
            )
    return None


def premature_answer(trace: Trace) -> Finding | None:
    """An answer while a call was still needed."""
    answer = trace.answer
    if answer is None or answer.needed is None or isinstance(answer.needed, str):
        return None
    detail = f"{answer.answer!r} was answered before {answer.needed.name} was called"
    return Finding(answer.number, detail, "Make all calls that the task needs before you answer.")


def misread_result(trace: Trace) -> Finding | None:
    """Another answer than the last result."""
    answer = trace.answer
    if answer is None or not isinstance(answer.needed, str):
        return None
    detail = f"{answer.answer!r} was answered, and the result was {answer.needed!r}"
    return Finding(answer.number, detail, "Answer with the last result, and nothing else.")


def unfinished_task(trace: Trace) -> Finding | None:
    """No answer in time."""
    if trace.answer is not None:
        return None
    return Finding(None, "the turns were used up", "Take the shortest way to the answer.")


def the_rest(trace: Trace) -> tuple[str, Finding]:
    """A wrong answer of which no more is known."""
    step = len(trace.steps) - 1 if trace.steps else None
    return misread_result.__name__, Finding(step, "the answer was wrong", "Answer with the last result.")


# The first that applies is the dominant one: what spoils an episode from the start comes first, and how it ended last.
FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(
        action_format_error,
        refused_call,
        repeated_call,
        invented_argument,
        wrong_lookup,
        wrong_amount,
        wrong_booking,
        premature_answer,
        misread_result,
        unfinished_task,
    ),
    read=read_trace,
    otherwise=the_rest,
)

__all__ = ["FAILURE_MODES", "MEANINGS"]
