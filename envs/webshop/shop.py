"""The shop and its shoppers.

A :class:`Shop` is what all environments of a process share: catalogue, search index, goals, prices, nouns, and the
pages once they have been made. It never changes. A :class:`Session` is one shopper with one goal: the state machine
of the original, step for step. Environment and web site are views of it.

What the original's search does with the words ``<r>``, ``<a>``, ``<c>`` and ``<q>`` (a shortcut for its developers,
partly broken) is left out: they are words like any other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from roleagent.envs.retrieval.bm25 import BM25, SearchIndex
from roleagent.envs.webshop.catalogue import Catalogue, load_catalogue
from roleagent.envs.webshop.goals import Goal, open_goals
from roleagent.envs.webshop.nouns import NounSource, open_nouns
from roleagent.envs.webshop.official import default_data_dir
from roleagent.envs.webshop.pages import (
    BACK,
    BUY,
    INDEX,
    NEXT,
    PAGE_SIZE,
    PREV,
    RENDERINGS,
    SEARCH,
    SUB_PAGES,
    Page,
    as_html,
    as_rich_text,
    as_text,
    done_page,
    item_page,
    results_page,
    sub_page,
)
from roleagent.envs.webshop.reward import Score, judge

RESULTS = 50  # products that a search finds at most
SEARCHES = ("bm25", "pyserini")
KEPT = 2048  # pages and answers of each kind that are kept
LONG = 1000  # characters; answers to longer queries are not kept


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


class Shop:
    """A shop; see :func:`open_shop`.

    Attributes:
        catalogue: what it sells.
        index: how it searches.
        goals: all goals in their fixed order.
        prices: what each product costs, in dollars: the price, or a draw from its range.
        nouns: where the nouns of titles come from.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        index: SearchIndex,
        goals: Sequence[Goal],
        prices: Sequence[float],
        nouns: NounSource,
        show_attributes: bool = False,
    ):
        self.catalogue, self.index, self.goals, self.prices, self.nouns = catalogue, index, goals, prices, nouns
        self._show_attributes = show_attributes
        # Kept per shop, so that they go when it goes.
        self._found = lru_cache(KEPT)(self._search)
        self._listed = lru_cache(KEPT)(self._list)
        self.item = lru_cache(KEPT)(self._item)
        self.sub_page = lru_cache(KEPT)(self._sub_page)
        self._nouns_of = lru_cache(KEPT)(self._find_nouns)

    def __reduce__(self):
        raise TypeError("a shop is not sent between processes: open it in each")

    def find(self, query: str) -> tuple[int, ...]:
        """Positions of the products that a search finds, best first."""
        return self._found(query) if len(query) <= LONG else self._search(query)

    def results(self, query: str, number: int) -> Page:
        """Page ``number`` (from 1) of the results."""
        return self._listed(query, number) if len(query) <= LONG else self._list(query, number)

    def score(self, goal: Goal, position: int, options: dict[str, str]) -> Score:
        """What buying a product with these options (group → value) is worth."""
        return judge(
            self.catalogue[position],
            goal,
            self.prices[position],
            options.values(),
            self._nouns_of(position),
            self._nouns_of(goal.position),
        )

    def _search(self, query: str) -> tuple[int, ...]:
        return tuple(self.index.search(query, RESULTS))

    def _list(self, query: str, number: int) -> Page:
        found = self.find(query)
        products = [self.catalogue[position] for position in found[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]]
        return results_page(products, number, len(found))

    def _item(self, position: int) -> Page:
        return item_page(self.catalogue[position], self._show_attributes)

    def _sub_page(self, position: int, name: str) -> Page:
        return sub_page(self.catalogue[position], name)

    def _find_nouns(self, position: int) -> tuple[str, ...]:
        product = self.catalogue[position]
        return self.nouns.find(product.asin, product.title)


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

    @property
    def done(self) -> bool:
        """Whether something was bought: nothing can be done any more."""
        return self.score is not None

    @property
    def clickables(self) -> tuple[str, ...]:
        """What can be clicked, lower-cased, in the page's order."""
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
        """Where the shopper is: the page and everything that it depends on."""
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
        here = self.page.name
        if name == BUY:
            self._buy()
        elif name == BACK:
            self._begin()
        elif name in (NEXT, PREV) and here == "results":
            self._look_up(self._words(), self.number + (1 if name == NEXT else -1))
        elif name == PREV and here == "item":
            self._look_up(self._words(), self.number)
        elif name == PREV:
            self.page = self.shop.item(self._opened())
        elif name in SUB_PAGES:
            self.page = self.shop.sub_page(self._opened(), name)
        else:
            self._choose(name)

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
        self.score = self.shop.score(self.goal, self._opened(), self.options)
        self.page = done_page(self.asin, self.options, self.score.total)

    def _words(self) -> str:
        assert self.query is not None
        return self.query

    def _opened(self) -> int:
        assert self.position is not None
        return self.position


def open_shop(
    data_dir: str | os.PathLike[str] | None = None,
    num_products: int | None = None,
    goals: str = "synthetic",
    search: str = "bm25",
    nouns: str | os.PathLike[str] | None = None,
    seed: int = 7,
    show_attributes: bool = False,
) -> Shop:
    """The shop with these arguments: one for all environments of a process.

    Args:
        data_dir, num_products: see :func:`~roleagent.envs.webshop.catalogue.load_catalogue`.
        goals: ``"synthetic"`` or ``"human"``.
        search: ``"bm25"``, or ``"pyserini"`` for a real Lucene index.
        nouns: see :func:`~roleagent.envs.webshop.nouns.open_nouns`.
        seed: of prices and price caps.
        show_attributes: whether products have the sub-page of attributes.

    Raises:
        CatalogueError: there is no such catalogue, or it is broken.
        NounError: there is no such source of nouns.
        ValueError: an argument has no meaning.
        gymnasium.error.DependencyNotInstalled: ``"pyserini"`` is not installed.
    """
    if search not in SEARCHES:
        raise ValueError(f"unknown search {search!r}; there are {' and '.join(SEARCHES)}")
    data = str(data_dir) if data_dir is not None else default_data_dir()
    return _open(data, num_products, goals, search, None if nouns is None else str(nouns), seed, show_attributes)


@lru_cache(maxsize=8)
def _open(
    data: str, num_products: int | None, kind: str, search: str, nouns: str | None, seed: int, show_attributes: bool
) -> Shop:
    catalogue = load_catalogue(data, num_products)
    prices, goals = open_goals(catalogue, kind, seed)
    source = open_nouns(nouns, Path(data).expanduser(), catalogue.asins)
    return Shop(catalogue, _open_index(data, num_products, search), goals, prices, source, show_attributes)


@lru_cache(maxsize=4)
def _open_index(data: str, num_products: int | None, search: str) -> SearchIndex:
    """The index of a catalogue; shops with other goals share it."""
    catalogue = load_catalogue(data, num_products)
    documents = (product.document for product in catalogue)
    if search == "pyserini":
        from roleagent.envs.webshop.lucene import lucene_of

        return lucene_of(catalogue)
    if catalogue.folder is not None:
        return BM25.open(catalogue.folder / "bm25")
    return BM25.build(catalogue.asins, documents)


__all__ = ["Session", "Shop", "open_shop", "parse"]
