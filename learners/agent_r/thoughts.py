"""Revision thoughts: texts with which a model takes back its last steps."""

from __future__ import annotations

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
