"""A scripted shopper with full knowledge of the shop: it finds any product and knows the reward of each purchase."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode
from roleagent.envs.webshop.engine.goals import Goal
from roleagent.envs.webshop.engine.pages import BUY, NEXT, PAGE_SIZE, PREV
from roleagent.envs.webshop.engine.session import parse
from roleagent.envs.webshop.engine.shop import Shop
from roleagent.envs.webshop.engine.written import find_goal
from roleagent.envs.webshop.oracle import choose
from roleagent.envs.webshop.text import read_request, without_courtesy

_PAGES = 2  # of results that a sensible shopper looks through
_LAST_STEPS = 6  # of an episode: four options, at most, and the purchase


class Shopper:
    """The building blocks of right and wrong behavior.

    Args:
        episode: just begun.

    Attributes:
        goal: the goal with its hidden parts.
        query: what a sensible shopper would search for first.
    """

    def __init__(self, episode: ScriptedEpisode):
        base: Any = episode.env.unwrapped
        self.episode = episode
        self.shop: Shop = base.shop
        self.goal: Goal = find_goal(self.shop, episode.info["task_id"])
        parsed = parse(episode.expert.act())
        if parsed is None:
            raise Impossible
        self.query = parsed[1]

    @property
    def clickables(self) -> Sequence[str]:
        """The clickable elements of the page."""
        return self.episode.info["clickables"]

    def click(self, name: str) -> None:
        """Clicks, in lower case."""
        self.episode.do(f"click[{name}]")

    def search(self, query: str) -> None:
        """Searches from wherever it is."""
        self.episode.do(f"search[{query}]")

    def number(self, position: int) -> str:
        """The element in the results that opens a product."""
        return self.shop.catalogue[position].asin.lower()

    def found(self) -> tuple[int, ...]:
        """The products that a sensible shopper sees among the results."""
        return self.shop.find(self.query.lower())[: _PAGES * PAGE_SIZE]

    def reach(self, position: int) -> None:
        """Searches for a product and turns to the page of results that shows it; may look at another one before.

        Raises:
            Impossible: no sensible search shows it.
        """
        *turns, _ = self._way(position)
        for command in turns:
            self.episode.do(command)
        others = [name for name in map(self.number, self.found()) if name in self.clickables]
        if others and self.episode.chance(0.3) and self.episode.left > _LAST_STEPS + 4:
            other = self.episode.pick(others)
            if other != self.number(position):
                self.click(other)
                self.read(0.3)
                self.click(PREV)

    def open(self, position: int) -> None:
        """Opens a product from the results."""
        self.click(self.number(position))

    def read(self, chance: float) -> None:
        """Perhaps reads the details of an open product."""
        for page in self.episode.shuffled(("features", "description")):
            if self.episode.chance(chance) and self.episode.left > _LAST_STEPS + 2:
                self.click(page)
                self.click(PREV)
                if self.episode.chance(0.6):
                    return

    def options(self, position: int) -> dict[str, str] | None:
        """The choices that satisfy all options, group → value; None if there are none."""
        page = self.shop.item(position)
        values = choose(page, self.goal.options)
        return None if values is None else {page.targets[value].group: value for value in values}

    def some_options(self, position: int) -> dict[str, str]:
        """As many of the wanted options as can be had."""
        page, wanted = self.shop.item(position), self.goal.options
        pairs = wanted.items() if isinstance(wanted, Mapping) else ()
        single: list[Any] = [{name: value} for name, value in pairs] or [(value,) for value in wanted]
        return {page.targets[value].group: value for one in single for value in choose(page, one) or ()}

    def fits(self, position: int) -> bool:
        """Whether every wanted option can be chosen to the letter: the shop also takes "black" for "black-hole228"."""
        wanted = self.goal.options
        return {*(wanted.values() if isinstance(wanted, Mapping) else wanted)} <= {
            *self.some_options(position).values()
        }

    def flaws(self, position: int) -> set[str]:
        """The flaws of a purchase: ``"kind"``, ``"attributes"``, ``"options"``, ``"price"``."""
        score = self.shop.score(self.goal, position, self.some_options(position))
        product = self.shop.catalogue[position]
        found = {
            "kind": score.type < 1,
            "attributes": score.attributes < len(self.goal.attributes),
            "options": score.options < len(self.goal.options),
            "price": not score.price or product.prices[0] >= self.goal.price_upper,
        }
        return {flaw for flaw, there in found.items() if there}

    def buy(self, values: Sequence[str]) -> None:
        """Chooses these values in any order and buys."""
        for value in self.episode.shuffled(values):
            self.click(value)
        self.click(BUY)

    def _way(self, position: int) -> tuple[str, ...]:
        """Commands from the index to a product, by words that the request suggests."""
        request = read_request(self.goal.instruction)
        for text in (self.query, request.product, request.sentence, request.kind):
            query = re.sub(r"[\[\]\s]+", " ", without_courtesy(text)).strip().lower()
            found = self.shop.find(query)[: _PAGES * PAGE_SIZE] if query else ()
            if position in found:
                turns = [f"click[{NEXT}]"] * (found.index(position) // PAGE_SIZE)
                return (f"search[{query}]", *turns, f"click[{self.number(position)}]")
        raise Impossible


__all__ = ["Shopper"]
