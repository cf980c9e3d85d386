"""The shop: what all environments of a process share, and never change.

Catalogue, search index, goals, prices, nouns, and the pages once they have been made. Who shops is a
:class:`~roleagent.envs.webshop.engine.session.Session`; environment and web site are views of one.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from roleagent.envs.retrieval.lexical.bm25 import BM25, SearchIndex
from roleagent.envs.webshop.data.catalogue import Catalogue
from roleagent.envs.webshop.data.official import data_place
from roleagent.envs.webshop.data.sources import GENERATED, load_catalogue
from roleagent.envs.webshop.engine.goals import Goal, Goals, open_goals
from roleagent.envs.webshop.engine.nouns import SOURCES, NounSource, open_nouns
from roleagent.envs.webshop.engine.pages import PAGE_SIZE, Page, item_page, results_page, sub_page
from roleagent.envs.webshop.engine.reward import Score, judge
from roleagent.options import user_path
from roleagent.sharing import Opened
from roleagent.slow_notice import waiting

RESULTS = 50  # products that a search finds at most
SEARCHES = ("bm25", "pyserini")
KEPT = 2048  # pages and answers of each kind that are kept
LONG = 1000  # characters; answers to longer queries are not kept


class Shop(Opened):
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
        goals: Goals,
        prices: Sequence[float],
        nouns: NounSource,
        show_attributes: bool = False,
    ):
        self.catalogue, self.index, self.goals, self.prices, self.nouns = catalogue, index, goals, prices, nouns
        self.digest = f"{catalogue.digest} {nouns.name}"
        self._show_attributes = show_attributes
        # Kept per shop, so that they go when it goes.
        self._found = lru_cache(KEPT)(self._search)
        self._listed = lru_cache(KEPT)(self._list)
        self.item = lru_cache(KEPT)(self._item)
        self.sub_page = lru_cache(KEPT)(self._sub_page)
        self._nouns_of = lru_cache(KEPT)(self._find_nouns)

    def find(self, query: str) -> Sequence[int]:
        """Positions of the products that a search finds, best first.

        As in the original, ``<q> words`` finds every product whose query is these words, and ``<c> word`` every product
        of that category, in the catalogue's order.
        """
        shortcut, *words = query.split(" ")
        if shortcut == "<q>":
            return self._groups[0].get(" ".join(words).strip(), ())
        if shortcut == "<c>" and words:
            return self._groups[1].get(words[0].strip(), ())
        return self._found(query) if len(query) <= LONG else self._search(query)

    @cached_property
    def _groups(self) -> tuple[Mapping[str, array[int]], Mapping[str, array[int]]]:
        """Positions of the products by query and by category: 8 bytes a product, found at the first such search."""
        queries: dict[str, array[int]] = {}
        categories: dict[str, array[int]] = {}
        with waiting(f"the queries and categories of {len(self.catalogue):,} products"):
            for position, product in enumerate(self.catalogue):
                queries.setdefault(product.query, array("i")).append(position)
                categories.setdefault(product.category, array("i")).append(position)
        return queries, categories

    def results(self, query: str, number: int) -> Page:
        """Page ``number`` (from 1) of the results."""
        return self._listed(query, number) if len(query) <= LONG else self._list(query, number)

    def score(self, goal: Goal, position: int, options: dict[str, str]) -> Score:
        """The reward of a purchase with these options (group → value)."""
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
        data_dir, num_products: see :func:`~roleagent.envs.webshop.data.sources.load_catalogue`.
        goals: ``"synthetic"`` or ``"human"``.
        search: ``"bm25"``, or ``"pyserini"`` for a real Lucene index.
        nouns: see :func:`~roleagent.envs.webshop.engine.nouns.open_nouns`.
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
    data = data_place(data_dir)
    data = data if data == GENERATED else str(user_path(data).absolute())
    if nouns is not None and nouns not in SOURCES:
        nouns = str(user_path(nouns).absolute())
    return _open(data, num_products, goals, search, nouns, seed, show_attributes)


@lru_cache(maxsize=8)
def _open(
    data: str, num_products: int | None, kind: str, search: str, nouns: str | None, seed: int, show_attributes: bool
) -> Shop:
    with waiting(f"the products of the shop ({data}) to be read"):
        catalogue = load_catalogue(data, num_products)
    with waiting(f"the goals of the shop's {len(catalogue):,} products"):
        prices, goals = open_goals(catalogue, kind, seed)
        folder = None if data == GENERATED else Path(data)
        source = open_nouns(nouns, folder, catalogue.asins)
    with waiting(f"the search index of the shop's {len(catalogue):,} products"):
        index = _open_index(data, num_products, search)
    shop = Shop(catalogue, index, goals, prices, source, show_attributes)
    shop.origin = _open, (data, num_products, kind, search, nouns, seed, show_attributes)
    return shop


@lru_cache(maxsize=4)
def _open_index(data: str, num_products: int | None, search: str) -> SearchIndex:
    """The index of a catalogue; shops with other goals share it."""
    catalogue = load_catalogue(data, num_products)
    if search == "pyserini":
        return _open_lucene(catalogue)
    if catalogue.folder is not None:
        return BM25.open(catalogue.folder / "bm25")
    return BM25.build(catalogue.asins, (product.document for product in catalogue))


def _open_lucene(catalogue: Catalogue) -> SearchIndex:
    """The Lucene index of a catalogue; built once, under the user's cache folder."""
    from roleagent.envs.retrieval.lexical.lucene import LuceneIndex, require_pyserini

    require_pyserini()
    home = user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "roleagent" / "webshop"
    folder = home / f"lucene-{catalogue.digest}"
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="building-", dir=home) as scratch:
            built = Path(scratch) / "index"
            LuceneIndex.build(catalogue.asins, (product.document for product in catalogue), built)
            try:
                built.rename(folder)
            except OSError:  # another process was faster
                if not folder.exists():
                    raise
    return LuceneIndex.open(folder)


__all__ = ["Shop", "open_shop"]
