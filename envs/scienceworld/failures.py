"""Failure modes of ScienceWorld, with one detector each."""

from __future__ import annotations

from roleagent.envs.failures.detectors import unreadable_replies
from roleagent.envs.scienceworld.trace import Trace, read_trace
from roleagent.failures.modes import FailureModes, Finding

MEANINGS = {
    "wrong_focus": "it focused on a thing that the task is not about, which fails the task",
    "unanswered_choice": "it gave ambiguous commands and did not answer the list of choices with a number",
    "unknown_command": "it gave commands that the world does not understand, or named things that are not there",
    "aimless_looking": "it looked around or waited, and did not act",
    "wrong_place": "it went from room to room, and did nothing there",
    "wrong_tool": "it did things with tools and substances that do not serve the task",
    "action_format_error": "its replies could not be read as commands",
}
"""By mode, what it means, as a sentence about the agent."""

_NEUTRAL = ("look", "question", "unknown", "lost")


def action_format_error(trace: Trace) -> Finding | None:
    """At least a quarter of the replies held no command."""
    return unreadable_replies([step.kind == "malformed" for step in trace.steps])


def wrong_focus(trace: Trace) -> Finding | None:
    """The episode failed at a focus."""
    if not (trace.failed and trace.steps and trace.steps[-1].kind == "focus"):
        return None
    last = trace.steps[-1]
    detail = f"{last.text!r} failed the task"
    return Finding(last.number, detail, "Focus only on what the task names, when you have found it.")


def unanswered_choice(trace: Trace) -> Finding | None:
    """Two fifths of the later steps were ambiguous, or lost because a list of choices was open."""
    if trace.share("lost", "question") < 0.4 or not trace.share("lost"):
        return None
    first = trace.start(("question", "lost"), _NEUTRAL)
    detail = f"{first.text!r} was ambiguous, and no number was given"
    return Finding(first.number, detail, "Answer a list of choices with the number alone, or name the thing precisely.")


def unknown_command(trace: Trace) -> Finding | None:
    """Half of the later steps were not understood."""
    if trace.share("unknown") < 0.5:
        return None
    first = trace.start(("unknown",), _NEUTRAL)
    detail = f"the world does not understand {first.text!r}"
    return Finding(first.number, detail, "Use the given forms of commands, and the names that the room shows.")


def aimless_looking(trace: Trace) -> Finding | None:
    """Most of the later steps looked at things or waited."""
    if trace.share("look") <= max(0.5, trace.share("walk"), trace.share("act", "focus")):
        return None
    first = trace.start(("look",))
    return Finding(first.number, "it only looked or waited from here on", "Do the next thing that the task asks for.")


def wrong_place(trace: Trace) -> Finding | None:
    """Later on it walked more than it acted."""
    if not trace.steps or trace.share("walk") <= trace.share("act", "focus"):
        return None
    return Finding(None, "it walked about", "Go to the room where the task can go on, and act there.")


def wrong_tool(trace: Trace) -> Finding | None:
    """Later on it acted, and was not done when the steps ran out."""
    if not trace.steps:
        return None
    first = trace.start(("act", "focus", "question"), _NEUTRAL)
    progress = [step.number for step in trace.steps if step.progress]
    number = min(max(first.number, progress[-1] + 1 if progress else 0), len(trace.steps) - 1)
    detail = f"{trace.steps[number].text!r} and what followed did not bring the task forward"
    return Finding(number, detail, "Use the things that the task names, and the tool that does what it asks for.")


# The first that applies is the dominant one: what ends an episode or loses every step comes first.
FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(
        action_format_error,
        wrong_focus,
        unanswered_choice,
        unknown_command,
        aimless_looking,
        wrong_place,
        wrong_tool,
    ),
    read=read_trace,
)

__all__ = ["FAILURE_MODES", "MEANINGS"]
