"""The engine: the effect of commands on the inventory.

Every text and every effect is that of the original, "Could not find a valid recipe for ItemTagWithCount(…)" included
(docs/exactness.md).

>>> from roleagent.envs.textcraft.data.recipes import Ingredient, Recipe, RecipeBook
>>> torch = Recipe("minecraft:torch", 4, (Ingredient("minecraft:stick", 1, False),))
>>> book = RecipeBook({torch.product: (torch,)}, {}, {}, {torch.product, "minecraft:stick"}, frozenset())
>>> game = Crafting(book, torch.product)
>>> game.act("get 2 stick").text, game.act("craft 4 torch using 1 stick").text, game.won
('Got 2 stick', 'Crafted 4 minecraft:torch', True)
>>> game.act("inventory").text
'Inventory: [stick] (1) [torch] (4) '
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from typing import NamedTuple

from roleagent.envs.textcraft.data.recipes import NAMESPACE, Recipe, RecipeBook, plain_name
from roleagent.spaces import whole

LONGEST = 10_000
"""Characters of a command that are read and repeated."""
DIGITS = 1_000
"""Digits of a number at most; Python refuses to print numbers of more than 4,300."""

_GET = re.compile(f"get ([0-9]{{1,{DIGITS}}}) (.*)")
_CRAFT = re.compile("craft (.*) using (.*)")
_COUNTED = re.compile(f"([0-9]{{1,{DIGITS}}}) (.*)")


class Effect(NamedTuple):
    """The effect of a command.

    Attributes:
        text: the answer.
        done: whether the command was carried out.
    """

    text: str
    done: bool = False


class Crafting:
    """One game: a goal and the inventory.

    Attributes:
        carried: item → number, in the order of getting.
        won: whether the goal has been crafted.
    """

    def __init__(self, book: RecipeBook, goal: str):
        self.book, self.goal = book, goal
        self.carried: dict[str, int] = {}
        self.won = False

    def copy(self) -> Crafting:
        """A second player of the same game, in the same state."""
        other = copy(self)
        other.carried = self.carried.copy()
        return other

    def act(self, command: str) -> Effect:
        """Carries out one command."""
        command = whole(command[:LONGEST])
        if found := _CRAFT.match(command):
            return self._craft(found[1], found[2])
        if found := _GET.match(command):
            return self._get(int(found[1]), found[2])
        if command.startswith("inventory"):
            return Effect(self.inventory(), True)
        return Effect(f"Could not execute {command}")

    def inventory(self) -> str:
        """The inventory as text."""
        if not self.carried:
            return "Inventory: You are not carrying anything."
        things = "".join(f"[{plain_name(item)}] ({count}) " for item, count in self.carried.items())
        return f"Inventory: {things}"

    def holds(self, inputs: Iterable[tuple[str, int]]) -> bool:
        """Whether so many of each item are carried."""
        carried = self.carried
        for item, count in inputs:  # noqa: SIM110 - every step asks this of every shown command, and a loop is faster
            if carried.get(item, -1) < count:
                return False
        return True

    def _get(self, count: int, text: str) -> Effect:
        item = _full_name(text)
        if not self.book.can_be_fetched(item):
            return Effect(f"Could not find {text}")
        self.carried[item] = self.carried.get(item, 0) + count
        return Effect(f"Got {count} {text}", True)

    def _craft(self, target: str, inputs: str) -> Effect:
        number, product = _counted(target) or (1, _full_name(target))
        given = []
        for text in inputs.split(","):
            if (read := _counted(text.strip())) is None:
                return Effect(f"Wrong item format: {text.strip()}")
            given.append((read[1], read[0]))
        is_tag = product in self.book.tags
        missing = Effect(f"Could not find enough items to craft {None if is_tag else product}")
        if not self.holds(given):
            return missing
        for recipe in self.book.recipes_for(product):
            if self._fits(recipe, given):
                totals: Counter[str] = Counter()
                for item, count in given:
                    totals[item] += count
                return self._make(recipe, totals) if self.holds(totals.items()) else missing
        tag, item = (product, None) if is_tag else (None, product)
        wanted = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item!r}), count={number})"
        return Effect(f"Could not find a valid recipe for {wanted}")

    def _fits(self, recipe: Recipe, given: list[tuple[str, int]]) -> bool:
        """Whether the inputs are the recipe's ingredients, each matched by the first input of its name or tag."""
        if len(given) != len(recipe.ingredients):
            return False
        tag_of, left = self.book.tag_of, list(given)
        for name, count, is_tag in recipe.ingredients:
            for one in left:
                if (tag_of.get(one[0]) if is_tag else one[0]) == name:
                    break
            else:
                return False
            if one[1] != count:
                return False
            left.remove(one)
        return True

    def _make(self, recipe: Recipe, used: Mapping[str, int]) -> Effect:
        for item, count in used.items():
            self.carried[item] -= count
            if self.carried[item] == 0:
                del self.carried[item]
        self.carried[recipe.product] = self.carried.get(recipe.product, 0) + recipe.count
        self.won = self.won or recipe.product == self.goal
        return Effect(f"Crafted {recipe.count} {recipe.product}", True)


def _full_name(text: str) -> str:
    return NAMESPACE + text.replace(" ", "_")


def _counted(text: str) -> tuple[int, str] | None:
    """Number and name in ``4 oak planks``; None without a number."""
    found = _COUNTED.match(text)
    return (int(found[1]), _full_name(found[2])) if found else None


__all__ = ["DIGITS", "LONGEST", "Crafting", "Effect"]
