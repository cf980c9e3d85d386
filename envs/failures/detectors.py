"""Parts of detectors that every environment can use."""

from __future__ import annotations

from collections.abc import Sequence

from roleagent.failures.modes import Finding
from roleagent.types import Turn


def is_malformed(turn: Turn) -> bool:
    """Whether the reply could not be read as a command.

    >>> from roleagent.types import Completion
    >>> is_malformed(Turn((), Completion((), (), "stop"), " ", "Nothing happens."))
    True
    """
    return not turn.action.strip() or turn.info.get("format_error") is not None


def unreadable_replies(malformed: Sequence[bool]) -> Finding | None:
    """At least a quarter of the replies could not be read as an action.

    >>> unreadable_replies([False, True, False]).step
    1
    >>> unreadable_replies([False] * 4 + [True]) is None
    True
    """
    bad = [number for number, wrong in enumerate(malformed) if wrong]
    if not bad or 4 * len(bad) < len(malformed):
        return None
    detail = f"{len(bad)} of {len(malformed)} replies held no readable action"
    return Finding(bad[0], detail, "Answer with exactly one action in the demanded form.")


__all__ = ["is_malformed", "unreadable_replies"]
