"""Hints for a player: possible commands, corrections of typing errors, and the expert's command."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.random import Generator
from rapidfuzz import fuzz, process

from roleagent.env_card import CommandForm, card_of, make_expert
from roleagent.types import Expert

NEAR = 75.0
"""Likeness, in [0, 100], from which on a command that cannot be carried out is taken for a slip of another one."""


class Guide:
    """Follows a player's episode and gives the expert's command on request.

    It is the environment's own expert, which goes on from wherever the player went; where there is none, or it has
    given up, the walkthrough, as long as the player has followed it.

    Args:
        env: the base environment, after ``reset``.
        observation, info: what ``reset`` returned.
        rng: of the expert's guesses.
    """

    def __init__(self, env: Any, observation: str, info: Mapping[str, Any], rng: Generator):
        self._env = env.unwrapped
        self._expert: Expert | None = None
        self._played: list[str] = []
        self._advice: tuple[str, str] | None = None  # asked twice, it answers the same twice
        if card_of(env).expert:
            expert = make_expert(env, rng)
            with contextlib.suppress(ValueError):  # not a goal that it understands
                expert.reset(info["goal"], observation)
                self._expert = expert

    def observe(self, command: str, observation: str) -> None:
        """Reads a command and its observation."""
        self._played.append(command)
        self._advice = None
        if self._expert is not None:
            self._expert.observe(command, observation)

    def advise(self) -> tuple[str, str]:
        """The next command and its source; ``("", reason)`` without one."""
        if self._advice is None:
            self._advice = self._think()
        return self._advice

    def walkthrough(self) -> tuple[str, ...]:
        """Commands that win the game from its start, ``()`` where none are known."""
        return tuple(self._env.walkthrough()) if hasattr(self._env, "walkthrough") else ()

    def _think(self) -> tuple[str, str]:
        command = self._expert.act() if self._expert is not None else ""
        if command and not getattr(self._expert, "given_up", False):
            knows_all = getattr(self._expert, "privileged", False)
            return command, f"the expert, who {'knows everything' if knows_all else 'sees only what you see'}"
        known, done = self.walkthrough(), len(self._played)
        if done < len(known) and [_plain(c) for c in known[:done]] == [_plain(c) for c in self._played]:
            return known[done], "the walkthrough, which knows everything"
        return "", "the expert does not know, and you have left the walkthrough" if known else "unknown"


def meant(command: str, admissible: Sequence[str], forms: Sequence[CommandForm] = ()) -> str | None:
    """The command that was probably meant; None if the command is possible as it is, or similar to none.

    >>> meant("go to frige 1", ["go to fridge 1", "look"]), meant("look", ["look"])
    ('go to fridge 1', None)
    >>> meant("buy now", ["click[buy now]"]), meant("search Silver Harbor", [], [CommandForm("search", "", "")])
    ('click[buy now]', 'search[Silver Harbor]')
    """
    typed = _plain(command)
    verb, separator, rest = " ".join(command.split()).partition(" ")
    if any(typed.startswith((f"{form.verb}[", f"{form.verb}:")) for form in forms):
        return None
    for form in forms:
        if verb.casefold() == form.verb and separator:
            return f"{form.verb}[{rest.strip('[]')}]" if form.brackets else None
    listed = {_plain(name): name for name in admissible}
    if typed in listed:
        return None
    listed |= {found[1]: name for plain, name in listed.items() if (found := re.fullmatch(r"\w+\[(.*)\]", plain))}
    near = process.extractOne(typed, list(listed), scorer=fuzz.ratio, score_cutoff=NEAR)
    return listed[near[0]] if near else None


def columns(items: Sequence[str], width: int) -> str:
    """Items in as many columns as fit into ``width`` characters, read downwards.

    >>> print(columns(["go to bed 1", "go to desk 1", "look"], 28))
    go to bed 1   look
    go to desk 1
    """
    if not items:
        return ""
    cell = max(map(len, items)) + 2
    rows = -(-len(items) // max(1, width // cell))
    lines = ("".join(item.ljust(cell) for item in items[row::rows]).rstrip() for row in range(rows))
    return "\n".join(lines)


def _plain(command: str) -> str:
    return " ".join(command.casefold().split())


__all__ = ["NEAR", "Guide", "columns", "meant"]
