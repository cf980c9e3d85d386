"""Revision thoughts: texts with which a model takes back its last steps."""

from __future__ import annotations

from pathlib import Path

from roleagent.config import ConfigError
from roleagent.envs.wrappers.tags import MAX_COMMAND

THOUGHTS = (
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


def read_thoughts(path: str) -> tuple[str, ...]:
    """The thoughts of a file, one a line; our own for the path ``""``.

    Raises:
        ConfigError: the file cannot be read or has no thought.
    """
    if not path:
        return THOUGHTS
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"revision.thoughts: cannot read {path}: {error}") from error
    thoughts = tuple(dict.fromkeys(" ".join(line.split()) for line in lines if line.strip()))
    if not thoughts:
        raise ConfigError(f"revision.thoughts: {path} has no thought: write one a line")
    if wrong := next((one for one in thoughts if "<" in one or len(one) > MAX_COMMAND), None):
        raise ConfigError(f"revision.thoughts: {wrong[:80]!r} cannot be a thought: it is too long or has a tag")
    return thoughts
