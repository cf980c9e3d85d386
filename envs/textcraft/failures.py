"""Failure modes of TextCraft, with one detector each."""

from __future__ import annotations

from itertools import pairwise

from roleagent.envs.failures.detectors import unreadable_replies
from roleagent.envs.textcraft.trace import Trace, read_trace
from roleagent.failures.modes import FailureModes, Finding

MEANINGS = {
    "fetching_craftable": "it tried to fetch what has to be crafted",
    "missing_ingredient": "it tried to craft before it had all the ingredients",
    "wrong_quantity": "it tried to craft with other numbers than the crafting command has",
    "invented_recipe": "it tried to craft from ingredients that no crafting command names",
    "distractor_crafting": "it crafted things that the goal does not need",
    "repeated_failed_command": "it gave the same failed command again and again",
    "aimless_fetching": "it fetched materials and looked at what it carried, and did not go on crafting",
    "action_format_error": "its replies could not be read as commands",
}
"""By mode, what it means, as a sentence about the agent."""

_OFTEN = 3  # times in a row


def action_format_error(trace: Trace) -> Finding | None:
    """At least a quarter of the replies held no command of the game."""
    return unreadable_replies([step.kind == "malformed" for step in trace.steps])


def repeated_failed_command(trace: Trace) -> Finding | None:
    """A command failed, and came again at once, and again."""
    row = 1
    for before, step in pairwise(trace.steps):
        same = step.text == before.text and step.kind not in ("useful", "idle", "distractor", "malformed")
        row = row + 1 if same else 1
        if row >= _OFTEN:
            detail = f"{step.text!r} failed {_OFTEN} times in a row"
            return Finding(step.number - row + 1, detail, "When a command fails, find out what it lacks.")
    return None


def distractor_crafting(trace: Trace) -> Finding | None:
    """More was crafted that the goal does not need than commands failed."""
    found = trace.of_kind("distractor")
    if len(found) <= trace.failures.total():
        return None
    detail = f"{found[0].name} was crafted, which {trace.goal} does not need"
    return Finding(found[0].number, detail, "Craft only what the goal is made of, from its crafting command down.")


def fetching_craftable(trace: Trace) -> Finding | None:
    """Most failures are attempts to fetch what cannot be fetched."""
    return _mostly(trace, "craftable", "{name} cannot be fetched", "Craft it first, by the command that makes it.")


def missing_ingredient(trace: Trace) -> Finding | None:
    """Most failures are crafts whose ingredients were not carried."""
    return _mostly(trace, "missing", "not enough was carried to craft {name}", "Fetch and craft all ingredients first.")


def wrong_quantity(trace: Trace) -> Finding | None:
    """Most failures are crafts with other numbers than a shown command has."""
    detail = "the numbers in {text!r} are not those of the crafting command"
    return _mostly(trace, "quantity", detail, "Copy the numbers of the crafting command; repeat it to make more.")


def invented_recipe(trace: Trace) -> Finding | None:
    """Most failures are crafts from ingredients that no shown command names."""
    return _mostly(trace, "invented", "no crafting command is {text!r}", "Use the shown crafting commands only.")


def aimless_fetching(trace: Trace) -> Finding | None:
    """From some step on nothing brought the goal nearer, or the steps ran out."""
    useful = max((step.number for step in trace.steps if step.kind == "useful"), default=-1)
    step = min(useful + 1, len(trace.steps) - 1) if trace.steps else None
    idle = len(trace.of_kind("idle"))
    detail = f"{idle} commands were of no use for {trace.goal}" if idle else f"the steps ended before {trace.goal}"
    return Finding(step, detail, "Fetch what the next crafting command takes, then craft.")


def _mostly(trace: Trace, kind: str, detail: str, lesson: str) -> Finding | None:
    """The first failure of a kind, if it is the most frequent one and not outnumbered by idle steps."""
    counts = trace.failures
    if not counts or counts.most_common(1)[0][1] > counts[kind] or counts[kind] <= len(trace.of_kind("idle")) / 3:
        return None
    first = trace.of_kind(kind)[0]
    return Finding(first.number, detail.format(name=first.name, text=first.text), lesson)


# The first that applies is the dominant one: what spoils an episode from the start comes first.
FAILURE_MODES = FailureModes(
    MEANINGS,
    detectors=(
        action_format_error,
        repeated_failed_command,
        distractor_crafting,
        fetching_craftable,
        wrong_quantity,
        invented_recipe,
        missing_ingredient,
        aimless_fetching,
    ),
    read=read_trace,
)
