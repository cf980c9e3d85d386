"""Plans: what to fetch and in which order to craft.

The oracle plans with the whole book; the expert with what the shown commands contain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from roleagent.envs.textcraft.data.recipes import Recipe, plain_name

Inputs = Sequence[tuple[str, int]]
"""Items and their numbers."""


class Planner:
    """Plans for one goal.

    Args:
        recipes: name → its recipes; none for what is fetched.
        members: tag → the products that carry it.
    """

    def __init__(self, recipes: Callable[[str], Sequence[Recipe]], members: Callable[[str], Sequence[str]]):
        self._recipes, self._members = recipes, members

    def commands(self, goal: str, carried: Mapping[str, int], at_once: bool = True) -> list[str]:
        """Commands that craft the goal: missing materials are fetched, then items are crafted, the deepest first.

        Args:
            goal: a product.
            carried: item → number.
            at_once: whether all of a material is fetched at once, by its sum, which takes the fewest commands; else
                before each craft, in the recipe's own number.

        >>> from roleagent.envs.textcraft.data.recipes import Ingredient
        >>> torch = Recipe("torch", 4, (Ingredient("stick", 1, False), Ingredient("coal", 1, False)))
        >>> Planner({"torch": (torch,)}.get, {}.get).commands("torch", {"stick": 3})
        ['get 1 coal', 'craft 4 torch using 1 stick, 1 coal']
        """
        costs: dict[str, float] = {}
        chosen = {}  # product → recipe and the items that it takes
        order: list[str] = []  # ingredients before products

        def choose(name: str) -> None:
            if name in chosen:
                return
            recipe = self._best(name, costs)
            inputs = tuple((self._item(one.name, one.is_tag, carried, costs), one.count) for one in recipe.ingredients)
            chosen[name] = recipe, inputs
            for item, _ in inputs:
                if self._recipes(item):
                    choose(item)
            order.append(name)

        choose(goal)
        needed = {goal: carried.get(goal, 0) + 1}
        times = {}
        for name in reversed(order):
            recipe, inputs = chosen[name]
            times[name] = math.ceil(max(0, needed.get(name, 0) - carried.get(name, 0)) / recipe.count)
            for item, count in inputs:
                needed[item] = needed.get(item, 0) + count * times[name]
        crafts = [chosen[name] for name in order for _ in range(times[name])]
        if not at_once:
            return self._one_by_one(crafts, carried)
        fetched = [
            f"get {count - carried.get(item, 0)} {plain_name(item)}"
            for item, count in needed.items()
            if item not in chosen and count > carried.get(item, 0)
        ]
        return fetched + [craft(*one) for one in crafts]

    def _one_by_one(self, crafts: Sequence[tuple[Recipe, Inputs]], carried: Mapping[str, int]) -> list[str]:
        stock, commands = dict(carried), []
        for recipe, inputs in crafts:
            for item, count in inputs:
                if stock.get(item, 0) < count and not self._recipes(item):
                    commands.append(f"get {count} {plain_name(item)}")
                    stock[item] = stock.get(item, 0) + count
                stock[item] = stock.get(item, 0) - count
            stock[recipe.product] = stock.get(recipe.product, 0) + recipe.count
            commands.append(craft(recipe, inputs))
        return commands

    def needed(self, goal: str) -> set[str]:
        """Every name that some recipe for the goal takes, transitively, and the goal."""
        found: set[str] = set()
        names = [goal]
        while names:
            if (name := names.pop()) not in found:
                found.add(name)
                for recipe in self._recipes(name) or ():
                    for one in recipe.ingredients:
                        names += self._members(one.name) or () if one.is_tag else [one.name]
        return found

    def _best(self, name: str, costs: dict[str, float]) -> Recipe:
        return min(self._recipes(name), key=lambda recipe: self._recipe_cost(recipe, costs))

    def _item(self, name: str, is_tag: bool, carried: Mapping[str, int], costs: dict[str, float]) -> str:
        if not is_tag:
            return name
        return min(self._members(name), key=lambda item: (-carried.get(item, 0), self._cost(item, costs)))

    def _cost(self, name: str, costs: dict[str, float]) -> float:
        """About how many commands it takes to have something; infinite for what needs itself."""
        if name not in costs:
            costs[name] = math.inf
            known = self._recipes(name)
            costs[name] = min(1 + self._recipe_cost(recipe, costs) for recipe in known) if known else 1
        return costs[name]

    def _recipe_cost(self, recipe: Recipe, costs: dict[str, float]) -> float:
        return sum(
            min(self._cost(item, costs) for item in (self._members(one.name) if one.is_tag else (one.name,)))
            for one in recipe.ingredients
        )


def craft(recipe: Recipe, inputs: Inputs) -> str:
    """The command for a recipe with these items."""
    named = ", ".join(f"{count} {plain_name(item)}" for item, count in inputs)
    return f"craft {recipe.count} {plain_name(recipe.product)} using {named}"


__all__ = ["Planner", "craft"]
