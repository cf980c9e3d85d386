"""ReAct (Yao et al. 2023): thoughts and actions in turn, in one growing conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.agents.chat.plain import PlainAgent, tidy
from roleagent.env_spec import ExampleStep, Instructions

# Lists, quotes and emphasis stand around these words, numbers behind them; bounded, for replies may be pathological.
_HEADED = r"^[ \t>#*_`•-]{{0,12}}{}[ \t]{{0,4}}\d{{0,3}}[*_`]{{0,3}}[ \t]{{0,4}}[:：][*_]{{0,3}}(.*)$"
_ACTION = re.compile(_HEADED.format("action"), re.IGNORECASE | re.MULTILINE)
_IMAGINED = re.compile(_HEADED.format("observation"), re.IGNORECASE | re.MULTILINE)


class ReAct(PlainAgent):
    """Thinks in words before every command.

    The command is the last line ``Action: …`` of a reply. What a model imagines to come of it (``Observation: …`` and
    all that follows) is cut off. A reply without an action is answered once with what was expected, as in
    :class:`~roleagent.agents.chat.plain.PlainAgent`.

    Args:
        guide: the instructions of the environment.
        example: whether the guide's example is shown, with its thoughts.
        listed: whether the possible commands are listed with an observation, even where the guide explains how
            commands are worded.
    """

    form = (
        "Each of your replies has two lines:\n"
        "Thought: what you make of the last observation, what is left to do, and what to do next\n"
        "Action: one command\n"
        "Then wait: you are told what comes of it."
    )
    correction = (
        'There is no command in your reply. Give it in a line that begins with "Action:", and nothing after it.'
    )
    label = "Observation: "

    def __init__(self, guide: Instructions, example: bool = True, listed: bool = False):
        super().__init__(guide, example, listed)

    def read(self, reply: str, info: Mapping[str, Any]) -> str:
        return read_action(reply, info.get("admissible_actions") or ())

    def shown(self, step: ExampleStep) -> str:
        return f"Observation: {step.observation}\nThought: {step.thought}\nAction: {step.command}"

    def kept(self, reply: str) -> str:
        return without_imagined(super().kept(reply))


def read_action(reply: str, admissible: Sequence[str] = ()) -> str:
    """The command in the last line ``Action: …``, or below it where that line has none; ``""`` if there is none.

    >>> read_action("Thought: Mugs are on desks.\\nAction: go to desk 1")
    'go to desk 1'
    >>> read_action("**Action 2:**\\n```\\nGo to desk 1.\\n```", ["go to desk 1"])
    'go to desk 1'
    >>> read_action("I had better go to desk 1.")
    ''
    """
    for found in reversed(list(_ACTION.finditer(reply))):
        lines = (tidy(line, admissible) for line in (found[1], *reply[found.end() :].splitlines()))
        if command := next(filter(None, lines), ""):
            return command
    return ""


def without_imagined(reply: str) -> str:
    """A reply up to the first observation that the model invented.

    >>> without_imagined("Action: look\\nObservation: You see gold.\\nAction: take gold")
    'Action: look'
    """
    action = _ACTION.search(reply)
    imagined = _IMAGINED.search(reply, action.end()) if action else None
    return reply[: imagined.start()].rstrip() if imagined else reply


__all__ = ["ReAct", "read_action", "without_imagined"]
