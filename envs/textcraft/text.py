"""Parsers of TextCraft's text: shown commands and answers.

>>> shown = read_commands("Crafting commands:\\ncraft 4 torch using 1 stick, 1 coal\\n\\nGoal: craft torch.")
>>> shown[0].product, shown[0].count, shown[0].ingredients[1].name
('torch', 4, 'coal')
"""

from __future__ import annotations

import re
from typing import NamedTuple

from roleagent.envs.textcraft.data.recipes import Ingredient, Recipe, plain_name

_GET = re.compile(r"get ([0-9]{1,9}) (.*)")
_CRAFT = re.compile(r"craft (?:([0-9]{1,9}) )?(.*) using (.*)")
_COUNTED = re.compile(r"\s*([0-9]{1,9}) (.*)")
_CRAFTED = re.compile(r"Crafted ([0-9]+) (.*)")


class Command(NamedTuple):
    """A command by its parts, names without underscores.

    Attributes:
        verb: ``"get"``, ``"craft"``, ``"inventory"``, or ``""`` for anything else.
        name: what is fetched or crafted.
        count: how many; of a craft without a number 0.
        inputs: of a craft, name → number.
    """

    verb: str
    name: str = ""
    count: int = 0
    inputs: tuple[tuple[str, int], ...] = ()


def read_command(text: str) -> Command:
    """Reads a command; a craft with an input that has no number is none.

    >>> read_command("craft 4 oak_planks using 1 oak logs")
    Command(verb='craft', name='oak planks', count=4, inputs=(('oak logs', 1),))
    """
    if found := _CRAFT.match(text):
        parts = [_COUNTED.match(part) for part in found[3].split(",")]
        if all(parts):
            inputs = tuple((_name(part[2]), int(part[1])) for part in parts if part)
            return Command("craft", _name(found[2]), int(found[1] or 0), inputs)
    elif found := _GET.match(text):
        return Command("get", _name(found[2]), int(found[1]))
    elif text.startswith("inventory"):
        return Command("inventory")
    return Command("")


def read_commands(observation: str) -> tuple[Recipe, ...]:
    """The shown commands of a first observation, in order. They do not show which ingredients are tags."""
    found = []
    for line in observation.partition("\n\nGoal: ")[0].splitlines()[1:]:
        command = read_command(line)
        if command.verb == "craft":
            inputs = tuple(Ingredient(name, count, False) for name, count in command.inputs)
            found.append(Recipe(command.name, command.count, inputs))
    return tuple(found)


def read_goal(goal: str) -> str:
    """The thing to craft.

    >>> read_goal("craft oak planks")
    'oak planks'
    """
    return goal.removeprefix("craft ").rstrip(".")


def read_crafted(observation: str) -> tuple[str, int] | None:
    """The crafted item and its number.

    >>> read_crafted("Crafted 4 minecraft:oak_planks")
    ('oak planks', 4)
    """
    found = _CRAFTED.fullmatch(observation)
    return (plain_name(found[2]), int(found[1])) if found else None


def _name(text: str) -> str:
    return text.replace("_", " ")


class Stock:
    """The inventory as far as commands and answers show it."""

    def __init__(self) -> None:
        self.carried: dict[str, int] = {}

    def update(self, command: Command, observation: str) -> None:
        """Takes in a command and its answer."""
        if command.verb == "get" and observation.startswith("Got "):
            self.carried[command.name] = self.carried.get(command.name, 0) + command.count
        elif command.verb == "craft" and (made := read_crafted(observation)):
            for name, count in command.inputs:
                self.carried[name] = self.carried.get(name, 0) - count
            self.carried[made[0]] = self.carried.get(made[0], 0) + made[1]
            self.carried = {name: count for name, count in self.carried.items() if count > 0}


__all__ = ["Command", "Stock", "read_command", "read_commands", "read_crafted", "read_goal"]
