"""The scripted expert, which sees only the shown commands and the answers.

It fetches what no shown command makes, before each craft in the number of its command, and all at once where steps are
few. An ingredient that cannot be fetched stands for any thing whose name ends with
it ("board": "ash board"), as does one that several shown commands make in this sense.

>>> expert = CraftingExpert()
>>> expert.reset("craft torch", "Crafting commands:\\ncraft 4 torch using 2 stick, 1 coal\\n\\nGoal: craft torch.")
>>> expert.act()
'get 2 stick'
>>> expert.observe("get 2 stick", "Got 2 stick"); expert.observe("get 1 coal", "Got 1 coal")
>>> expert.act()
'craft 4 torch using 2 stick, 1 coal'
"""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np

from roleagent.env_card import step_limit
from roleagent.envs.textcraft.data.recipes import Recipe
from roleagent.envs.textcraft.engine.planner import Planner
from roleagent.envs.textcraft.text import Command, Stock, read_command, read_commands, read_goal


class CraftingExpert:
    """Fetches and crafts; recovers from other agents' commands.

    Args:
        max_steps: of an episode.
    """

    def __init__(self, max_steps: int = 50):
        self._max_steps = max_steps

    def reset(self, goal: str, observation: str) -> None:
        """Starts an episode from the goal and the shown commands."""
        self._goal = read_goal(goal)
        self._shown = read_commands(observation)
        self._stock = Stock()
        self._left = self._max_steps
        self._plain: set[str] = set()  # known to be items, though the name looks like a tag
        self._generic: set[str] = set()  # known to be tags
        self._misfits: set[tuple[str, str]] = set()  # tags, and things of that name that no recipe took for them
        self._plan()

    @property
    def given_up(self) -> bool:
        """Whether no shown command makes the goal."""
        return self._goal not in self._by_product

    def observe(self, command: str, observation: str) -> None:
        """Takes in the command that was played, its own or not, and the answer."""
        self._left -= 1
        read = read_command(command)
        self._stock.update(read, observation)
        if read.verb == "get" and observation.startswith("Got ") and read.name in self._tags:
            self._plain.add(read.name)
            self._plan()
        elif read.verb == "get" and observation.startswith("Could not find") and read.name not in self._by_product:
            self._generic.add(read.name)
            self._plan()
        elif observation.startswith("Could not find a valid recipe"):
            self._learn_misfits(read)

    def _learn_misfits(self, command: Command) -> None:
        """A thing that was taken for a tag in vain is not of that kind."""
        given = dict(command.inputs)
        for recipe in self._by_product.get(command.name, ()):
            if sorted(one.count for one in recipe.ingredients) == sorted(given.values()):
                tags = [one.name for one in recipe.ingredients if one.is_tag]
                self._misfits |= {(tag, item) for tag in tags for item in self._tags[tag] if item in given}
        self._plan()

    def act(self) -> str:
        """The next command."""
        if self.given_up:
            return "inventory"
        commands = self._planner.commands(self._goal, self._stock.carried, at_once=False)
        return (commands if len(commands) <= self._left else self.plan())[0]

    def plan(self) -> list[str]:
        """The fewest commands that it thinks are left."""
        return [] if self.given_up else self._planner.commands(self._goal, self._stock.carried)

    def needed(self) -> set[str]:
        """Every name that may serve the goal, and the goal, by the shown commands."""
        return self._planner.needed(self._goal)

    def _plan(self) -> None:
        """Sorts the shown commands by product, with the ingredients that stand for several things marked."""
        products = {recipe.product for recipe in self._shown}
        names = {one.name for recipe in self._shown for one in recipe.ingredients} - products - self._plain
        takes: dict[str, set[str]] = {}
        for recipe in self._shown:
            takes.setdefault(recipe.product, set()).update(one.name for one in recipe.ingredients)
        self._tags: dict[str, tuple[str, ...]] = {}
        for name in names:
            kinds = tuple(sorted(product for product in products if product.endswith(f" {name}")))
            kinds = tuple(kind for kind in kinds if (name, kind) not in self._misfits)
            # What takes "glass" is not of the kind "glass", even if it is called "red glass".
            if kinds and (name in self._generic or (len(kinds) > 1 and not any(name in takes[kind] for kind in kinds))):
                self._tags[name] = kinds
        self._by_product: dict[str, list[Recipe]] = {}
        for recipe in self._shown:
            inputs = tuple(one._replace(is_tag=one.name in self._tags) for one in recipe.ingredients)
            self._by_product.setdefault(recipe.product, []).append(replace(recipe, ingredients=inputs))
        self._planner = Planner(lambda name: self._by_product.get(name, ()), lambda tag: self._tags[tag])


def make_expert(env: gymnasium.Env, rng: np.random.Generator) -> CraftingExpert:
    """The expert for an environment; it needs no randomness."""
    return CraftingExpert(step_limit(env))  # type: ignore[arg-type]


__all__ = ["CraftingExpert", "make_expert"]
