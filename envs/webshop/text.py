"""WebShop as a reader of its text sees it: the request, and the pages.

The shop itself knows more. Who shops by reading (the scripted expert) and who looks over a shopper's shoulder (the
rules that detect failures) have only the text; this module is what they share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

SEPARATOR = " [SEP] "
_PRICE = re.compile(r"\$(\d+(?:\.\d+)?)")
_PAGE = re.compile(r"Page (\d+) \(Total results: (\d+)\)")
_CAP = re.compile(r",? and price lower than (\d+(?:\.\d+)?) dollars")
_NAME = r"((?:(?! with )[a-z ])+?)"
_FIRST_OPTION = re.compile(rf" with {_NAME}: ")
_NEXT_OPTION = re.compile(rf", and {_NAME}: ")
_FILLERS = (
    "a all also am an and any are as at be but by can come could do does find for from get give have help hello hey hi "
    "i if im in is it its ll looking like lower made make me must my need of off on one or order pair place please "
    "prefer price product purchase recommend search set should show so some something than that the them then these "
    "they thing this to us using want wanted was we what which will with would you"
)
_IGNORED = frozenset(_FILLERS.split())
_COURTESY = re.compile(
    r"^(?:(?:hello|hi|hey|please|can you|could you|i|i'm|im|am|need|want|would like|looking|to buy|to find|to get|for|"
    r"find|show|get|me|you|we|us)[ ,]+)+",
    re.IGNORECASE,
)
# What option groups are called, where the request does not say: text shows names and values alike.
_NAMES = (
    "capacity,color,colour,configuration,edition,fit type,flavor,flavor name,item package quantity,item shape,material,"
    "number of items,package,pattern,pattern name,scent,shape,size,special size type,style,style name,team name,"
    "unit count,width"
)
OPTION_NAMES = frozenset(_NAMES.split(","))


def words_of(text: str) -> frozenset[str]:
    """The content words of a text, in the singular.

    >>> sorted(words_of("Find me men's shorts with long sleeves"))
    ['long', 'men', 'short', 'sleeve']
    """
    words = re.findall(r"\d+(?:\.\d+)?|[^\W\d_]+", text.lower().replace("'s", ""))
    return frozenset(_singular(word) for word in words if word not in _IGNORED)


def _singular(word: str) -> str:
    if len(word) <= 3 or word.endswith("ss"):
        return word
    if word.endswith(("ie", "ies")):  # a hoodie, a battery
        return word.rstrip("s")[:-2] + "y"
    if word.endswith(("xes", "ches", "shes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") else word


def without_courtesy(text: str) -> str:
    """A request without the phrase that it opens with.

    >>> without_courtesy("Find me a mug"), without_courtesy("can you find me a mug")
    ('a mug', 'a mug')
    """
    return _COURTESY.sub("", text)


class Request(NamedTuple):
    """The request of the shopper.

    Attributes:
        sentence: all of it but the price.
        product: that without the options that it names by group.
        options: values by group, where the request names them so.
        cap: the price must be lower than this; infinite where there is no such demand.
    """

    sentence: str
    product: str
    options: Mapping[str, str]
    cap: float

    @property
    def words(self) -> frozenset[str]:
        """The words that describe the product."""
        return words_of(self.product)

    def cover(self, page_words: frozenset[str]) -> float:
        """The share of these words that are among others, in [0, 1]."""
        wanted = self.words
        return len(wanted & page_words) / len(wanted) if wanted else 1.0

    @property
    def kind(self) -> str:
        """The product type: the words before the first "with" or "for".

        >>> read_request("Find me slim fit, machine wash men's casual shirts with long sleeve for work").kind
        "machine wash men's casual shirts"
        """
        return re.split(r" (?:with|for) ", without_courtesy(self.product))[0].split(", ")[-1]

    def wanted(self, name: str, values: Iterable[str]) -> str:
        """The requested value of a group; ``""`` without one.

        >>> read_request("a dark blue shirt in xx-large").wanted("color", ["blue", "dark blue", "red"])
        'dark blue'
        >>> read_request("a shirt in xx-large").wanted("size", ["large", "x-large"])
        ''
        """
        values = tuple(values)
        if self.options:
            value = self.options.get(name, "")
            return value if value in values else ""
        named = (
            v for v in values if re.search(rf"(?<![\w.-]){re.escape(v.lower())}(?![\w-]|\.\d)", self.product.lower())
        )
        return max(named, key=len, default="")


def read_request(text: str) -> Request:
    """Takes a request apart.

    >>> text = "Find me oak desks with drawers with color: red, and size: 7, and price lower than 40.00 dollars"
    >>> request = read_request(text)
    >>> request.product, request.options, request.cap
    ('Find me oak desks with drawers', {'color': 'red', 'size': '7'}, 40.0)
    """
    cap = _CAP.search(text)
    sentence = text = text[: cap.start()] if cap else text
    first = _FIRST_OPTION.search(text)
    options: dict[str, str] = {}
    if first:
        name, *rest = [first[1], *_NEXT_OPTION.split(text[first.end() :])]
        # name, value, name, value, …
        options = dict(zip([name, *rest[1::2]], rest[::2], strict=True))
        text = text[: first.start()]
    return Request(sentence, text, options, float(cap[1]) if cap else float("inf"))


class Listing(NamedTuple):
    """A product among results: its number, its title, and its price or the lower end of its range."""

    asin: str
    title: str
    price: float


@dataclass(frozen=True)
class Page:
    """One page, as text.

    Attributes:
        kind: ``"index"``, ``"results"``, ``"item"``, ``"detail"`` (description, features, …) or ``"done"``.
        request: what is asked for; ``""`` on the page of a finished purchase.
        number: of a page of results, 1-based.
        total: of results.
        listings: the results on this page.
        choices: names of option groups and their values, of an item, as they stand.
        title, price: of an item.
        text: of a detail page.
    """

    kind: str
    request: str = ""
    number: int = 0
    total: int = 0
    listings: tuple[Listing, ...] = ()
    choices: tuple[str, ...] = ()
    title: str = ""
    price: float = 0.0
    text: str = ""

    @cached_property
    def is_last(self) -> bool:
        """Whether no results follow (a page has ten; the shop shows fifty)."""
        return 10 * self.number >= self.total

    def groups(self, names: Iterable[str] = OPTION_NAMES) -> dict[str, tuple[str, ...]]:
        """The option groups of an item. The first choice is a name in any case.

        >>> Page("item", choices=("color", "red", "blue", "size", "7")).groups()
        {'color': ('red', 'blue'), 'size': ('7',)}
        """
        known, found = frozenset(names), {}
        name = ""
        for choice in self.choices:
            if not name or choice in known:
                name = choice
                found[name] = []
            else:
                found[name].append(choice)
        return {name: tuple(values) for name, values in found.items()}


def read_page(text: str) -> Page:
    """Reads an observation of the ``text`` mode.

    >>> read_page("WebShop [SEP] Instruction: [SEP] a red mug [SEP] Search")
    Page(kind='index', request='a red mug', number=0, total=0, listings=(), choices=(), title='', price=0.0, text='')
    """
    parts = text.split(SEPARATOR)
    if parts[0] == "WebShop":
        return Page("index", parts[2] if len(parts) > 2 else "")
    if parts[0] != "Instruction:" or len(parts) < 4:
        return Page("done")
    request, body = parts[1], parts[3:]
    if found := _PAGE.fullmatch(body[0]):
        return Page("results", request, int(found[1]), int(found[2]), _listings(body))
    body = body[1:]  # < Prev
    if body and body[-1] == "Buy Now":
        at = max((i for i, part in enumerate(body) if part.startswith("Price: ")), default=0)
        price = _PRICE.search(body[at])
        title = body[at - 1] if at else ""
        return Page(
            "item", request, choices=tuple(body[: at - 1]), title=title, price=float(price[1]) if price else 0.0
        )
    return Page("detail", request, text=" ".join(body))


def _listings(body: list[str]) -> tuple[Listing, ...]:
    """Number, title (a product may have none) and price stand one after the other."""
    start = next((i for i, part in enumerate(body) if part == "Next >"), len(body)) + 1
    found: list[Listing] = []
    words: list[str] = []
    for part in body[start:]:
        price = _PRICE.match(part)
        if price and words:
            found.append(Listing(words[0], SEPARATOR.join(words[1:]), float(price[1])))
            words = []
        else:
            words.append(part)
    return tuple(found)


__all__ = ["OPTION_NAMES", "SEPARATOR", "Listing", "Page", "Request", "read_page", "read_request", "words_of"]
