"""The scripted expert, which sees only the request and the text of the pages.

It searches for what the request names, opens the likeliest results, leaves a product that is too dear or lacks an
option that was asked for, reads on where the title leaves doubts, and buys the first product that shows all that is
wanted, or else the best it has seen. It knows no catalogue, no attributes of goals and no click targets, and goes on
from wherever another player's clicks have led.

>>> expert = ShoppingExpert()
>>> expert.reset("Find me a mug with color: red, and price lower than 20.00 dollars",
...              "WebShop [SEP] Instruction: [SEP] Find me a mug with color: red, and price lower than 20.00 dollars "
...              "[SEP] Search")
>>> expert.act()
'search[a mug color: red]'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np

from roleagent.envs.webshop.text import OPTION_NAMES, Listing, read_page, read_request, without_courtesy, words_of

PATIENCE = 15  # steps of the published protocol
_CONVINCING = 0.8  # share of the request's words that a product must show to be bought at once
_UNKNOWN = 0.7  # of the words that a title does not show, the share that its details may
_PLACE = 0.04  # how much each place further down counts against a result, in shares of the request's words
_MISFITS = 2  # products that cannot be had as wanted, before another search is better than another look


@dataclass
class Visit:
    """A product that was looked at.

    Attributes:
        page_words: the words that its pages have shown.
        read: whether its features were read.
        fits: whether price and options are as the request wants them.
        cover: share of the request's words among ``page_words``, in [0, 1].
    """

    page_words: frozenset[str] = frozenset()
    read: bool = False
    fits: bool = False
    cover: float = 0.0


class ShoppingExpert:
    """Searches, compares, chooses and buys; recovers from other agents' commands.

    Args:
        rng: unused: this expert always does what seems best.
        patience: steps within which it wants to have bought something.
    """

    def __init__(self, rng: np.random.Generator | None = None, patience: int = PATIENCE):
        self.patience = patience
        self.reset("", "")

    def reset(self, goal: str, observation: str) -> None:
        """Starts an episode from the request and the first page."""
        self.request = read_request(goal)
        self.page = read_page(observation)
        self._left = self.patience
        self._searched: list[str] = []
        self._visits: dict[str, Visit] = {}
        self._hopes: dict[str, tuple[float, int]] = {}  # the last search's products: how hopeful, on which page
        self._asin = ""  # the product that is open, and
        self._chosen: dict[str, str] = {}  # what was clicked for it: group → value

    def observe(self, command: str, observation: str) -> None:
        """Takes in the command that was played, its own or not, and the page that came of it."""
        verb, _, argument = command.strip().partition("[")
        argument = argument.rpartition("]")[0].lower()
        before, self.page = self.page, read_page(observation)
        self._left -= 1
        if verb == "search":
            self._searched.append(argument)
            self._hopes = {}
        if self.page.kind in ("index", "results"):
            self._asin, self._chosen = "", {}
            self._hopes |= self._glance()
        elif before.kind == "results":
            self._asin = argument
        elif before.kind == self.page.kind == "item":
            self._chosen |= {name: argument for name, values in self._groups().items() if argument in values}
        if self._asin:
            self._look(argument)

    def act(self) -> str:
        """The next command; ``""`` after the purchase."""
        return next(self._wishes(), "")

    # -- what it makes of a page -----------------------------------------------------------------------------------

    def _look(self, button: str) -> None:
        """Records the open page's information on its product."""
        visit = self._visits.setdefault(self._asin, Visit())
        if self.page.kind == "item":
            shown = " ".join((self.page.title, *self.page.choices))
            groups = self._groups()
            available = all(value in groups.get(name, ()) for name, value in self.request.options.items())
            visit.fits = available and self.page.price < self.request.cap
        else:
            shown = self.page.text
            visit.read |= button == "features"
        visit.page_words |= words_of(shown)
        visit.cover = self.request.cover(visit.page_words)

    def _groups(self) -> dict[str, tuple[str, ...]]:
        return self.page.groups(OPTION_NAMES | set(self.request.options))

    def _glance(self) -> dict[str, tuple[float, int]]:
        """How much of the request each affordable product of this page of results may turn out to show."""
        hopes = {}
        for place, listing in enumerate(self.page.listings):
            if listing.price < self.request.cap:
                cover = self.request.cover(words_of(listing.title))
                hope = cover + _UNKNOWN * (1 - cover) - _PLACE * place
                hopes[listing.asin.lower()] = hope, self.page.number
        return hopes

    def _next(self) -> tuple[float, str, int]:
        """The most hopeful of the products found that were not opened yet: how hopeful, its number, its page."""
        unopened = ((hope, asin, page) for asin, (hope, page) in self._hopes.items() if asin not in self._visits)
        return max(unopened, default=(0.0, "", 0))

    def _merit(self, listing: Listing) -> tuple[bool, float]:
        """How good a listed product has turned out to be."""
        visit = self._visits.get(listing.asin.lower(), Visit())
        return visit.fits, visit.cover

    # -- what it does about it: commands, best first -----------------------------------------------------------------

    def _wishes(self) -> Iterator[str]:
        if self.page.kind == "index":
            yield from self._search()
            yield f"search[{self._queries()[0]}]"
        elif self.page.kind == "results":
            yield from self._browse()
        elif self.page.kind == "item":
            yield from self._consider()
        elif self.page.kind == "detail":
            yield "click[< Prev]"

    def _queries(self) -> list[str]:
        """What to search for: kind and options, where the request names them so, then the request as it stands."""
        options = ", and ".join(f"{name}: {value}" for name, value in self.request.options.items())
        texts = [f"{self.request.kind} {options}"] if options else []
        return [_query(text) for text in (*texts, without_courtesy(self.request.sentence))]

    def _search(self) -> Iterator[str]:
        for query in self._queries():
            if query not in self._searched:
                yield f"search[{query}]"

    def _browse(self) -> Iterator[str]:
        """Opens the likeliest result, goes back to the best product seen, or looks for others."""
        choices = len(self.request.options)
        best = max(self.page.listings, key=self._merit, default=None)
        fits, cover = self._merit(best) if best else (False, 0.0)
        time_for_another = self._left >= choices + 4  # open, go back, open the best, choose, buy
        if time_for_another and self._searched and self._searched[-1] not in self._queries():
            yield f"search[{self._queries()[0]}]"
        misfits = sum(asin in self._visits for asin in self._hopes)
        if not fits and misfits >= _MISFITS and time_for_another:
            yield from self._search()
        hope, asin, number = self._next()
        if asin and (not fits or (hope > cover and time_for_another)):
            if number != self.page.number:
                yield "click[< Prev]" if number < self.page.number else "click[Next >]"
            yield f"click[{asin.upper()}]"
        if best and fits:
            yield f"click[{best.asin}]"
        if self._left >= choices + 3:
            yield from self._search()
            if not self.page.is_last:
                yield "click[Next >]"
        if best:
            yield f"click[{best.asin}]"
        yield "click[Back to Search]"

    def _consider(self) -> Iterator[str]:
        """Leaves the open product, reads on, or chooses its options and buys it."""
        visit = self._visits.setdefault(self._asin, Visit())
        wanted = {name: self.request.wanted(name, values) for name, values in self._groups().items()}
        missing = [value for name, value in wanted.items() if value and self._chosen.get(name) != value]
        time_for_more = self._left >= len(missing) + 3
        if time_for_more and not visit.fits:
            yield "click[< Prev]"
        if time_for_more and visit.cover < _CONVINCING:
            if not visit.read:
                yield "click[Features]"
            if self._next()[0] > visit.cover:
                yield "click[< Prev]"
        for value in missing[: max(0, self._left - 1)]:  # something bought is better than nothing
            yield f"click[{value}]"
        yield "click[Buy Now]"


def _query(text: str) -> str:
    """A text as it can be searched for: in one line, without brackets, in lower case.

    >>> _query("[2 pack] Mugs")
    '2 pack mugs'
    """
    return " ".join(re.sub(r"[\[\]]", " ", text.lower()).split())


def make_expert(env: gymnasium.Env, rng: np.random.Generator) -> ShoppingExpert:
    """The expert for an environment."""
    return ShoppingExpert(rng, env.unwrapped.max_steps)  # type: ignore[attr-defined]


__all__ = ["PATIENCE", "ShoppingExpert", "make_expert"]
