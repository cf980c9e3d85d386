"""Scripted failures in TextCraft, one per failure mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode, unreadable_reply
from roleagent.envs.textcraft.data.recipes import Recipe, plain_name
from roleagent.envs.textcraft.engine.planner import craft
from roleagent.envs.textcraft.engine.tasks import CraftingTask, planner
from roleagent.envs.textcraft.text import read_command


class Crafter:
    """An agent that knows every recipe.

    Args:
        episode: just begun.
    """

    def __init__(self, episode: ScriptedEpisode):
        self.episode, self._base = episode, episode.env.unwrapped
        base: Any = self._base
        self.task: CraftingTask = base._task
        self.book = self.task.book
        self.planner = planner(self.book)
        self.needed = self.planner.needed(self.task.goal)
        self.own = [recipe for recipe in self.task.shown if recipe.product in self.needed]

    @property
    def game(self) -> Any:
        """The current game."""
        base: Any = self._base
        return base._game

    def begin(self, until: Callable[[str], bool] = lambda command: True) -> str:
        """Plays as the expert does for a while, never to the end; returns the command that would be next."""
        haste = self.episode.rng.uniform(0.1, 0.6)
        return self.episode.follow(
            lambda command: self.wins(command) or (until(command) and self.episode.chance(haste))
        )

    def wins(self, command: str) -> bool:
        """Whether a command may craft the goal."""
        read = read_command(command)
        return read.verb == "craft" and read.name == plain_name(self.task.goal)

    def vary(self, draw: Callable[[], str]) -> None:
        """Plays drawn commands to the end, never the same twice in a row."""
        self.episode.mark_failure()
        while True:
            command = draw()
            again = self.episode.turns and self.episode.turns[-1].action == command
            self.episode.do("inventory" if again else command)

    def inputs(self, recipe: Recipe) -> list[tuple[str, int]]:
        """Items for a recipe, drawn where it takes a tag."""
        members = {tag: [one.product for one in self.book.by_tag[tag]] for tag in self.book.by_tag}
        return [
            (self.episode.pick(members[one.name]) if one.is_tag else one.name, one.count) for one in recipe.ingredients
        ]

    def no_recipe(self, product: str, inputs: list[tuple[str, int]]) -> bool:
        """Whether no recipe of a product takes these inputs."""
        return not any(self.game._fits(recipe, inputs) for recipe in self.book.recipes_for(product))

    def craftable_fetch(self) -> str:
        """An attempt to fetch what has to be crafted."""
        names = [recipe.product for recipe in self.own] + [
            one.name for recipe in self.own for one in recipe.ingredients if one.is_tag
        ]
        return f"get {self.episode.pick((1, 1, 2, 3, 4, 5, 6))} {plain_name(self.episode.pick(names))}"

    def missing_craft(self) -> str:
        """A craft by a shown recipe whose ingredients are not carried."""
        crafts = [(recipe, self.inputs(recipe)) for recipe in self.own]
        return craft(*self.episode.pick([one for one in crafts if not self.game.holds(one[1])]))

    def miscounted_craft(self) -> str:
        """A craft with other numbers than the recipe's."""
        recipe = self.episode.pick(self.own)
        inputs = self.inputs(recipe)
        for _ in range(20):
            place = int(self.episode.rng.integers(len(inputs)))
            item, count = inputs[place]
            other = max(1, count + self.episode.pick((-3, -2, -1, 1, 2, 3)))
            changed = [*inputs[:place], (item, other), *inputs[place + 1 :]]
            if other != count and self.no_recipe(recipe.product, changed):
                return craft(recipe, changed)
        raise Impossible

    def invented_craft(self) -> str:
        """A craft from other ingredients than the recipe's."""
        recipe = self.episode.pick(self.own)
        inputs = self.inputs(recipe)
        names = [one.name for other in self.task.shown for one in other.ingredients if one.name in self.book.items]
        names += [name for name in self.game.carried]
        for _ in range(20):
            place = int(self.episode.rng.integers(len(inputs)))
            other = self.episode.pick([*names, self.episode.pick(self.book.goals)])
            changed = [*inputs[:place], (other, inputs[place][1]), *inputs[place + 1 :]]
            words = {plain_name(name) for name, _ in changed}
            alike = any(plain_name(other).endswith(f" {plain_name(name)}") for name, _ in inputs)
            if len(words) == len(changed) and not alike and self._differs(changed, recipe.product):
                return craft(recipe, changed)
        raise Impossible

    def _differs(self, inputs: list[tuple[str, int]], product: str) -> bool:
        """Whether every recipe of a product takes things of other names."""
        tag_of = self.book.tag_of
        given = [{item, tag_of.get(item)} for item, _ in inputs]
        return not any(
            len(recipe.ingredients) == len(given)
            and all(any(one.name in names for names in given) for one in recipe.ingredients)
            for recipe in self.book.recipes_for(product)
        )


def fetching_craftable(episode: ScriptedEpisode) -> None:
    """Fetches things that have to be crafted, one after the other."""
    agent = Crafter(episode)
    agent.begin()
    agent.vary(agent.craftable_fetch)


def missing_ingredient(episode: ScriptedEpisode) -> None:
    """Crafts without the ingredients."""
    agent = Crafter(episode)
    agent.begin()
    agent.vary(agent.missing_craft)


def wrong_quantity(episode: ScriptedEpisode) -> None:
    """Crafts with numbers of its own."""
    agent = Crafter(episode)
    agent.begin(lambda command: command.startswith("craft"))
    agent.vary(agent.miscounted_craft)


def invented_recipe(episode: ScriptedEpisode) -> None:
    """Crafts from ingredients of its own choice."""
    agent = Crafter(episode)
    agent.begin(lambda command: command.startswith("craft"))
    agent.vary(agent.invented_craft)


def distractor_crafting(episode: ScriptedEpisode) -> None:
    """Crafts shown things that the goal does not need, in the right way."""
    agent = Crafter(episode)
    useless = [recipe.product for recipe in agent.task.shown if recipe.product not in agent.needed]
    needed = set(map(plain_name, agent.needed))
    agent.begin()
    while True:
        plan = agent.planner.commands(episode.pick(useless), agent.game.carried)
        if any(agent.wins(command) for command in plan):
            raise Impossible
        for command in plan:
            if command.startswith("craft") and read_command(command).name not in needed:
                episode.mark_failure()
            episode.do(command)


def repeated_failed_command(episode: ScriptedEpisode) -> None:
    """Gives one failed command again and again."""
    agent = Crafter(episode)
    agent.begin()
    command = episode.pick((agent.craftable_fetch, agent.missing_craft, agent.miscounted_craft))()
    episode.mark_failure()
    while True:
        episode.do(command)


def aimless_fetching(episode: ScriptedEpisode) -> None:
    """Fetches useless materials, looks at the inventory, and crafts nothing."""
    agent = Crafter(episode)
    agent.begin()
    wanted = {read_command(command).name for command in agent.planner.commands(agent.task.goal, agent.game.carried)}
    names = {one.name for recipe in agent.task.shown for one in recipe.ingredients if one.name not in agent.needed}
    names |= {name for name in agent.game.carried if plain_name(name) not in wanted}
    fetched = sorted(plain_name(name) for name in names if agent.book.can_be_fetched(name))
    episode.mark_failure()
    while True:
        idle = not fetched or episode.chance(0.3)
        episode.do("inventory" if idle else f"get {episode.pick((1, 1, 2, 3, 4, 8))} {episode.pick(fetched)}")


SCRIPTED_FAILURES: dict[str, Callable[[ScriptedEpisode], None]] = {
    script.__name__: script
    for script in (
        fetching_craftable,
        missing_ingredient,
        wrong_quantity,
        invented_recipe,
        distractor_crafting,
        repeated_failed_command,
        aimless_fetching,
    )
} | {"action_format_error": unreadable_reply(lambda command: command.startswith("craft"))}

__all__ = ["SCRIPTED_FAILURES", "Crafter"]
