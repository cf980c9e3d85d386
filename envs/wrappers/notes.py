"""Notes: replies like ``<revise>That was a mistake.</revise>``, with which a model takes back its last steps.

They are the revision signal of Agent-R (arXiv 2501.11425). A wrapper answers them: no note reaches the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REVISE = "revise"
REVISED = "OK."
"""The answer to a note."""
REVISION_THOUGHTS = (
    "That was a mistake. I go another way.",
    "I misread what I saw. I look again.",
    "I left something out. I make up for it.",
    "This leads nowhere. I try something else.",
    "That was the wrong thing. I correct it.",
    "I lost sight of the task. I return to it.",
    "That step did not help. I change my plan.",
    "I was too hasty. I do it properly now.",
    "I repeat myself. I do something new.",
    "My last steps were wrong. I start from here.",
)
"""Ten thoughts. They mark the turn and give no reason, as published; the wording is our own."""
_OF_A_STEP = ("calls", "command", "counters", "prediction_scores")  # keys of ``info`` about a single step


def after_note(info: Mapping[str, Any]) -> dict[str, Any]:
    """The ``info`` after a note, from the one before it: the world is unchanged, and there is no state to predict.

    >>> after_note({"state": "a room", "won": False, "rewards": {"task": 1.0}})["grouping_state"]
    'a room'
    """
    kept = {name: value for name, value in info.items() if name not in _OF_A_STEP}
    answer = {"state": None, "valid_action": True, "rewards": {}, "format_error": None, "revision": True}
    return {"grouping_state": info.get("state"), **kept, **answer}


def note_error(past: int, previous: bool, most: int) -> str | None:
    """Why another note is malformed; None if it is not.

    Args:
        past: notes so far in the episode.
        previous: whether the last reply was one.
        most: notes that an episode may have.

    >>> note_error(1, previous=True, most=5), note_error(1, previous=False, most=5)
    ('a note after a note', None)
    """
    return "a note after a note" if previous else f"more than {most} notes" if past >= most else None


def note_of(command: str) -> str | None:
    """The text of a note, from the command of a parsed reply or of a turn; None for another command.

    >>> note_of("revise[I look again.]"), note_of("look")
    ('I look again.', None)
    """
    return command[len(REVISE) + 1 : -1] if command.startswith(f"{REVISE}[") and command.endswith("]") else None


__all__ = ["REVISE", "REVISED", "after_note", "note_error", "note_of"]
