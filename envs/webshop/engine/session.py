"""One shopper in the shop: the state machine of the original, step for step."""

from __future__ import annotations

import json
from copy import copy

from roleagent.envs.webshop.engine.goals import Goal
from roleagent.envs.webshop.engine.pages import (
    BACK,
    BUY,
    INDEX,
    NEXT,
    PREV,
    RENDERINGS,
    SEARCH,
    SUB_PAGES,
    Page,
    as_html,
    as_rich_text,
    as_text,
    done_page,
)
from roleagent.envs.webshop.engine.reward import Score
from roleagent.envs.webshop.engine.shop import Shop

# The original finds out where a shopper is by looking for these in the address, in this order.
_PLACES = ("search_results", "item_page", "item_sub_page")


def parse(command: object) -> tuple[str, str] | None:
    r"""Verb and argument of a command, as the pattern ``(.+)\[(.+)\]`` finds them, in linear time; None if it does not.

    Both parts are as long as they can be, the verb first; neither crosses a line break, and what follows is ignored.

    >>> parse("click[Buy Now] please"), parse("search[1 [2 pack]]"), parse("search[]"), parse("think\nclick[a]")
    (('click', 'Buy Now'), ('search[1 ', '2 pack]'), None, None)
    """
    if not isinstance(command, str):
        return None
    line = command.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 0, max(end - 1, 0))
    return (line[:start], line[start + 1 : end]) if start > 0 else None


class Session:
    """One shopper with one goal.

    Attributes:
        shop: where.
        goal: what for.
        page: the page that the shopper sees.
        query: the words last searched for; None before the first search and after Back to Search.
        number: which page of the results, from 1.
        position: the product that was opened last, in the catalogue; None on the index and on results.
        options: what was chosen for it, option group → value, in the order of choosing.
        visited: numbers of the products opened since the index was last seen.
        score: how good the purchase was; None until something is bought.
    """

    def __init__(self, shop: Shop, goal: Goal):
        self.shop, self.goal = shop, goal
        self.score: Score | None = None
        self._begin()

    def copy(self) -> Session:
        """A second shopper with the same goal in the same shop, in the same state."""
        other = copy(self)
        other.options, other.visited = self.options.copy(), self.visited.copy()
        return other

    @property
    def done(self) -> bool:
        """Whether something was bought: nothing can be done any more."""
        return self.score is not None

    @property
    def clickables(self) -> tuple[str, ...]:
        """The clickable elements in lower case, in the page's order."""
        return self.page.clickables

    @property
    def has_search_bar(self) -> bool:
        return self.page.has_search_bar

    @property
    def asin(self) -> str:
        """The number of the product that is open or bought; ``""`` if there is none."""
        return "" if self.position is None else self.shop.catalogue[self.position].asin

    @property
    def url(self) -> str:
        """The URL of the page, with everything that the page depends on."""
        query = "+".join((self.query or "").split(" "))
        if self.page.name == "results":
            return f"/search_results/{query}/{self.number}"
        if self.page.name == "item":
            return f"/item_page/{self.asin}/{query}/{self.number}/{json.dumps(self.options)}"
        if self.page.name in SUB_PAGES:
            return f"/item_sub_page/{self.asin}/{query}/{self.number}/{self.page.name.title()}/{self.options}"
        return f"/done/{self.asin}/{self.options}" if self.done else "/"

    def observe(self, rendering: str = "text") -> str:
        """The page with the instruction, as ``"text"``, ``"text_rich"`` or ``"html"``."""
        if rendering == "text":
            return as_text(self.page, self.goal.instruction)
        if rendering == "text_rich":
            return as_rich_text(self.page, self.goal.instruction, self.url, self.visited)
        if rendering == "html":
            return as_html(self.page, self.goal.instruction, self.options)
        raise ValueError(f"unknown rendering {rendering!r}; there are {', '.join(RENDERINGS)}")

    def act(self, command: object) -> bool:
        """``search[words]``, or ``click[name]`` of a clickable. Anything else changes nothing.

        Returns:
            Whether the command did something.
        """
        parsed = parse(command)
        if parsed is None or self.done:
            return False
        verb, argument = parsed[0], parsed[1].lower()
        if verb == "search":
            self._look_up(argument, 1)
        elif verb == "click" and argument != SEARCH and argument in self.page.targets:
            self._click(argument)
        else:
            return False
        return True

    def _click(self, name: str) -> None:
        # By name first, as in the original: an option called "features" opens the features.
        place = self._place() if name in (NEXT, PREV) else ""
        if name == BUY:
            self._buy()
        elif name == BACK:
            self._begin()
        elif place == "search_results":
            self._look_up(self._words(), self.number + (1 if name == NEXT else -1))
        elif name == PREV and place == "item_page":
            self._look_up(self._words(), self.number)
        elif name == PREV:
            self.page = self.shop.item(self._opened())
        elif name in SUB_PAGES:
            self.page = self.shop.sub_page(self._opened(), name)
        else:
            self._choose(name)

    def _place(self) -> str:
        """Where the original takes the shopper to be: a page's name in the query or in a chosen option misleads it."""
        url = self.url
        return next(place for place in _PLACES if place in url)

    def _choose(self, name: str) -> None:
        """Opens a product from the results, or sets one of its options."""
        text, kind, group = self.page.targets[name]
        if kind == "link":
            self.position = self.shop.catalogue.position(text)
            self.visited.add(text)
            self.page = self.shop.item(self.position)
        else:
            self.options[group] = name

    def _begin(self) -> None:
        self.page: Page = INDEX
        self.query: str | None = None
        self.number = 1
        self.position: int | None = None
        self.options: dict[str, str] = {}
        self.visited: set[str] = set()

    def _look_up(self, query: str, number: int) -> None:
        page = self.shop.results(query, number)  # first: if it fails, nothing has changed
        self.page, self.query, self.number = page, query, number
        self.position, self.options = None, {}

    def _buy(self) -> None:
        score = self.shop.score(self.goal, self._opened(), self.options)
        self.page, self.score = done_page(self.asin, self.options, score.total), score

    def _words(self) -> str:
        assert self.query is not None
        return self.query

    def _opened(self) -> int:
        assert self.position is not None
        return self.position


__all__ = ["Session", "parse"]
