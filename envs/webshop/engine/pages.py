"""The pages of the shop: their contents, clickable elements and text.

A page is a sequence of parts in the order of the original's HTML. Everything else follows from the parts: the
clickables, the three renderings, and what a click means. Pages know neither the shopper nor the instruction (both are
added when a page is rendered), so that all sessions share them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import NamedTuple

from roleagent.envs.webshop.data.catalogue import Product
from roleagent.sharing import Immutable

SEARCH, BACK, PREV, NEXT, BUY = "search", "back to search", "< prev", "next >", "buy now"
SUB_PAGES = ("description", "features", "reviews", "attributes")
PAGE_SIZE = 10  # products on a page of results
SEPARATOR = " [SEP] "
RENDERINGS = ("text", "text_rich", "html")

_ASCII_SPACE = " \t\n\f\r"


class Part(NamedTuple):
    """One string of a page.

    Attributes:
        text: as it stands in the page, surrounding blanks included.
        kind: ``"text"``, ``"button"``, ``"link"`` (to a product) or ``"option"``.
        group: the name of the option group, for an option.
    """

    text: str
    kind: str = "text"
    group: str = ""


def folded(text: str) -> str:
    r"""The string as an HTML parser reads it: white space alone becomes one blank, or nothing if it breaks a line.

    >>> [folded(text) for text in (" a\r", "", " \n ", " \r")]
    [' a\r', '', '', ' ']
    """
    if text.strip(_ASCII_SPACE):
        return text
    return " " if text and "\n" not in text else ""


@dataclass(frozen=True)
class Page(Immutable):
    """One page, without the instruction.

    Attributes:
        name: ``"index"``, ``"results"``, ``"item"``, one of :data:`SUB_PAGES`, or ``"done"``.
        parts: what stands on it, in order.
    """

    name: str
    parts: tuple[Part, ...]

    def __reduce__(self) -> tuple[type[Page], tuple[str, tuple[Part, ...]]]:
        return Page, (self.name, self.parts)  # without what can be worked out again

    @cached_property
    def targets(self) -> Mapping[str, Part]:
        """The clickable elements in the original's order: buttons, links to products, options.

        A name belongs to the last part that carries it, at the place of the first.
        """
        kinds = [[part for part in self.parts if part.kind == kind] for kind in ("button", "link", "option")]
        return {part.text if part.kind == "option" else part.text.lower(): part for kind in kinds for part in kind}

    @cached_property
    def clickables(self) -> tuple[str, ...]:
        """The names of :attr:`targets`."""
        return tuple(self.targets)

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """The clicks that would do something; a search is free text and cannot be listed."""
        return tuple(f"click[{name}]" for name in self.targets if name != SEARCH)

    @property
    def has_search_bar(self) -> bool:
        return self.name == "index"

    @cached_property
    def text(self) -> str:
        """The parts in the rendering ``text``."""
        return SEPARATOR.join(part.text.strip() for part in self.parts if folded(part.text))


# --- the pages --------------------------------------------------------------------------------------------------------

_BACK, _PREV, _NEXT = (Part(text, "button") for text in ("Back to Search", "< Prev", "Next >"))
_BUY = Part("Buy Now", "button")
INDEX = Page("index", (Part("Search", "button"),))


def results_page(products: Sequence[Product], number: int, total: int) -> Page:
    """Page ``number`` (1-based) of ``total`` results, with the products on it."""
    parts = [_BACK, Part(f"Page {number} (Total results: {total})"), *([_PREV] if number > 1 else []), _NEXT]
    for product in products:
        parts += [Part(product.asin, "link"), Part(product.title), Part(product.price_tag)]
    return Page("results", tuple(parts))


def item_page(product: Product, show_attributes: bool = False) -> Page:
    """A product with its options."""
    parts = [_BACK, _PREV]
    for name, values in product.options.items():
        parts += [Part(name), *(Part(value, "option", name) for value in values)]
    shown = SUB_PAGES if show_attributes else SUB_PAGES[:3]
    parts += [Part(product.title), Part(f"Price: {product.price_tag}"), Part("Rating: N.A.")]
    return Page("item", (*parts, *(Part(name.title(), "button") for name in shown), _BUY))


def sub_page(product: Product, name: str) -> Page:
    """Description, features, reviews (there are none) or attributes of a product."""
    contents: dict[str, Sequence[str]] = {
        "description": [product.description],
        "features": [f" {bullet}" for bullet in product.bullets],
        "reviews": [],
        "attributes": [
            *(f" {attribute}" for attribute in product.attributes),
            *(product.category, product.query, product.product_category),
        ],
    }
    return Page(name, (_BACK, _PREV, *map(Part, contents[name])))


def done_page(asin: str, options: Mapping[str, str], score: float) -> Page:
    """The last page: the purchase and the score."""
    chosen = json.dumps(dict(sorted(options.items())))
    for character in "<>&'":  # as a template engine writes JSON into HTML
        chosen = chosen.replace(character, f"\\u{ord(character):04x}")
    lines = (
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", chosen, "attrs", "None", "category", "None", "query", "None"),
        *("product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"),
        *("category", "product category", "query", "Goal ", "None", "Reward"),
        *("Your score (min 0.0, max 1.0)", str(score), "Reward Details ", "None"),
    )
    return Page("done", tuple(map(Part, lines)))


# --- the renderings ---------------------------------------------------------------------------------------------------


def heading(page: Page, instruction: str) -> tuple[str, ...]:
    """The heading of a page."""
    if page.name == "done":
        return ()
    return ("WebShop", "Instruction: ", instruction) if page.name == "index" else ("Instruction:", instruction)


def as_text(page: Page, instruction: str) -> str:
    """The strings of the page, joined by ``[SEP]``."""
    above = SEPARATOR.join(line.strip() for line in heading(page, instruction) if folded(line))
    return f"{above}{SEPARATOR}{page.text}" if above else page.text


def as_rich_text(page: Page, instruction: str, url: str, visited: frozenset[str] | set[str]) -> str:
    """One line per element, with marks for buttons, options, links and earlier clicks.

    Args:
        url: the address of the page: an option counts as chosen if the address holds it in double quotes.
        visited: asins that were opened since the last visit of the index.
    """
    lines, clicked = list(filter(None, map(folded, heading(page, instruction)))), []
    for part in page.parts:
        text, kind = folded(part.text), part.kind
        if not text:
            continue
        mark = "button"
        if kind == "option" and f'"{text}"' in url:
            mark = "clicked button"
            clicked.insert(0, f"You have clicked {text}.")
        elif kind == "link" and text in visited:
            mark = "clicked button"
        lead = {"option": "  ", "link": "\n"}.get(kind, "")
        lines.append(text if kind == "text" else f"{lead}[{mark}] {text} [{mark}_]")
    return "".join(f"{line}\n" for line in (*clicked, *lines))


def as_html(page: Page, instruction: str, options: Mapping[str, str]) -> str:
    """A plain HTML page. Its one form posts ``command``; the search bar posts ``query``."""
    body: list[str] = ["<h2>WebShop</h2>"] if page.name == "index" else []
    if page.name != "done":
        body.append(f'<h4 id="instruction-text">Instruction:<br>{escape(instruction)}</h4>')
    if page.has_search_bar:
        body.append('<input id="search_input" name="query" type="text">')
    for text, kind, group in page.parts:
        shown, value = escape(text), escape(f"click[{text}]")
        if kind == "text":
            body.append(f"<p>{shown}</p>")
        elif kind == "button" and page.has_search_bar:
            body.append(f'<button class="btn">{shown}</button>')
        elif kind == "button":
            body.append(f'<button class="btn" name="command" value="{value}">{shown}</button>')
        elif kind == "link":
            body.append(f'<button class="product-link" name="command" value="{value}">{shown}</button>')
        else:
            checked = ' aria-pressed="true"' if options.get(group) == text else ""
            attributes = f'class="option" data-group="{escape(group)}"{checked}'
            body.append(f'<button {attributes} name="command" value="{value}">{shown}</button>')
    inner = "\n".join(body)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>WebShop</title></head>\n'
        f'<body>\n<form method="post">\n{inner}\n</form>\n</body>\n</html>\n'
    )
