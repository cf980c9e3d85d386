"""A product as the shop sells it, and the cleaning that makes one of an official entry.

The cleaning is that of the public WebShop: option names and values in lower case, prices read off the price tag,
queries stripped. Where the original would crash on bad data, this one has a rule instead:

* an entry that is no object, or whose asin is no plain text, is ``nan`` or longer than ten characters, is no product;
* a text that is missing is empty, and a number in its place is written out; a list or an object there is no product;
* a price that cannot be read is as one that is missing: 100 dollars;
* an option group that is no list, and a value without a text, are left out, as are malformed human instructions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from roleagent.spaces import whole

NO_PRICE = (100.0,)
NO_ATTRIBUTES = ("DUMMY_ATTR",)
MAX_ASIN = 10
MAX_COMBINATIONS = 1_000_000  # of option values; a product with more of them has no synthetic goals


class CatalogueError(ValueError):
    """The product data cannot be used; the message is one line with the solution."""


class NotAProduct(ValueError):
    """An entry is left out; the message is the reason, the same for all entries of its kind."""


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        asin: its number, at most ten characters, unique in a catalogue.
        bullets: the features, one text each.
        category: the shop's department, e.g. ``garden``.
        product_category: the path in the shop, joined by ``›``.
        query: the search that the product was found with; products of one kind share it. Lower case.
        options: the values of every option group, as the shop shows them, in the file's order.
        attributes: what it is tagged with; ``("DUMMY_ATTR",)`` where the data have none.
        prices: in dollars; one, or the two ends of a range.
        instruction: the synthetic request that this product fulfills, ``""`` if there is none.
        instruction_attributes: the attributes that this request names.
        human: requests that people wrote for this product: ``instruction``, ``instruction_attributes`` and
            ``instruction_options``.
    """

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    category: str
    product_category: str
    query: str
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    prices: tuple[float, ...]
    instruction: str
    instruction_attributes: tuple[str, ...]
    human: tuple[Mapping[str, Any], ...]

    @property
    def price_tag(self) -> str:
        """``$14.95`` or ``$14.98 to $17.98``."""
        return " to ".join(f"${price}" for price in self.prices)

    @property
    def document(self) -> str:
        """The text that the search index holds of this product; lower case."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        first = self.bullets[0] if self.bullets else ""
        return " ".join((self.title, self.description, first, options)).lower()

    @property
    def asked(self) -> bool:
        """Whether it has a synthetic request."""
        return bool(self.instruction and self.instruction_attributes)

    @property
    def combinations(self) -> int:
        """The number of synthetic goals of the product: one per combination of option values, 0 without a request."""
        if not self.asked:
            return 0
        number = math.prod(len(values) for values in self.options.values())
        return number if number <= MAX_COMBINATIONS else 0

    @property
    def requests(self) -> tuple[Mapping[str, Any], ...]:
        """The human requests that name an attribute: the others make no goals."""
        return tuple(request for request in self.human if request["instruction_attributes"])

    def row(self) -> list[Any]:
        """The fields in order, ready for JSON."""
        return [getattr(self, name) for name in FIELDS]

    @classmethod
    def from_row(cls, row: list[Any]) -> Product:
        """The inverse of :meth:`row`, after a way through JSON."""
        values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in row]
        values[_OPTIONS] = {name: tuple(group) for name, group in values[_OPTIONS].items()}
        return cls(*values)


FIELDS = tuple(field.name for field in fields(Product))
_OPTIONS = FIELDS.index("options")


def asin_of(entry: Any) -> str:
    """The number of a product.

    Raises:
        NotAProduct: the entry has none that can be used.
    """
    if not isinstance(entry, Mapping):
        raise NotAProduct("no object")
    asin = entry.get("asin")
    if not isinstance(asin, str) or asin in ("", "nan") or not (asin.isascii() and asin.isprintable()):
        raise NotAProduct("no asin")
    if len(asin) > MAX_ASIN:
        raise NotAProduct(f"asin longer than {MAX_ASIN} characters")
    return asin


def clean(entry: Any, notes: Any = None, human: Any = None) -> Product:
    """Makes a product of an official entry.

    Args:
        entry: of ``items_shuffle*.json``.
        notes: the entry of ``items_ins_v2*.json`` for its asin: attributes and a synthetic request.
        human: the entry of ``items_human_ins.json``: a list of requests.

    Raises:
        NotAProduct: the entry is none (see the module's docstring).
    """
    asin = asin_of(entry)
    notes = notes if isinstance(notes, Mapping) else {}
    bullets = entry.get("small_description")
    return Product(
        asin=asin,
        title=_text(entry, "name"),
        description=_text(entry, "full_description"),
        bullets=_texts(bullets) if isinstance(bullets, list) else (_text(entry, "small_description"),),
        category=_text(entry, "category"),
        product_category=_text(entry, "product_category"),
        query=_text(entry, "query").lower().strip(),
        options=_options(entry.get("customization_options")),
        attributes=_texts(notes["attributes"]) if isinstance(notes.get("attributes"), list) else NO_ATTRIBUTES,
        prices=read_prices(entry.get("pricing")),
        instruction=whole(notes["instruction"]) if isinstance(notes.get("instruction"), str) else "",
        instruction_attributes=_texts(notes.get("instruction_attributes")),
        human=_requests(human),
    )


def read_prices(tag: Any) -> tuple[float, ...]:
    """The first two prices after a dollar sign; 100 dollars if there is none.

    >>> read_prices("$1,014.95"), read_prices("$14.98 - $17.98"), read_prices("sold out"), read_prices(None)
    ((1014.95,), (14.98, 17.98), (100.0,), (100.0,))
    """
    if isinstance(tag, int | float) and not isinstance(tag, bool):
        tag = f"${tag}"
    if not isinstance(tag, str):
        return NO_PRICE
    found = []
    for text in tag.split("$")[1:]:
        try:
            price = float(re.sub(r"[^\d.]", "", text))
        except ValueError:
            continue
        if math.isfinite(price):
            found.append(price)
    return tuple(found[:2]) or NO_PRICE


def _options(groups: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(groups, Mapping):
        return {}
    options = {}
    for name, group in groups.items():
        if isinstance(group, list):
            values = [value for choice in group if (value := _value(choice)) is not None]
            options[whole(name).lower()] = tuple(values)
    return options


def _value(choice: Any) -> str | None:
    """The value of an option as the shop shows it; None if there is none."""
    value = choice.get("value") if isinstance(choice, Mapping) else None
    return whole(value).strip().replace("/", " | ").lower() if isinstance(value, str) else None


def _requests(human: Any) -> tuple[Mapping[str, Any], ...]:
    """Those with a text, attributes and options; both lists may be empty."""
    return tuple(
        {
            "instruction": whole(request["instruction"]),
            "instruction_attributes": list(_texts(request["instruction_attributes"])),
            "instruction_options": list(_texts(request["instruction_options"])),
        }
        for request in (human if isinstance(human, list) else ())
        if isinstance(request, Mapping)
        and isinstance(request.get("instruction"), str)
        and isinstance(request.get("instruction_attributes"), list)
        and isinstance(request.get("instruction_options"), list)
    )


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    if isinstance(value, list | Mapping):
        raise NotAProduct(f"{key} is no text")
    return "" if value is None else whole(str(value))


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(whole(str(value)) for value in values if isinstance(value, str | int | float))


__all__ = ["CatalogueError", "NotAProduct", "Product", "asin_of", "clean", "read_prices"]
