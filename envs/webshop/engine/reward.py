"""The reward of a purchase.

``score = type · (attributes matched + options matched + [price ≤ cap]) / (attributes + options + 1)``, where *type* is
1, ½, 0.1 or 0 by how much the product bought is the kind of product that was wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz import fuzz
from rapidfuzz.utils import default_process

from roleagent.envs.webshop.data.catalogue import Product
from roleagent.envs.webshop.engine.goals import Goal

# In the order in which they are looked for: to the shop, "dark blue" is blue and "dark red" is dark.
# fmt: off
COLORS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush",
    "bordeaux", "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah",
    "chestnut", "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal",
    "dark", "denim", "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass",
    "gray", "green", "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light",
    "lilac", "lime", "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom",
    "mustard", "natural", "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow",
    "red", "rose", "royal", "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone",
    "stonewash", "sunflower", "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white",
    "wine", "yellow",
)
# fmt: on

SIMILAR = 85  # per cent; more than this is a match


@dataclass(frozen=True, slots=True)
class Score:
    """A purchase, judged.

    Attributes:
        total: the score, in [0, 1].
        type: the factor for the kind of product: 1, 0.5, 0.1 or 0.
        query_match: whether the product is listed under the query that the wanted one is listed under.
        category_match: whether the two share at least two categories.
        title_score: share of the wanted title's nouns that the bought title has.
        attributes: how many of the wanted attributes it has.
        options: how many of the wanted options were chosen.
        price: whether it costs no more than the cap.
    """

    total: float
    type: float
    query_match: bool
    category_match: bool
    title_score: float
    attributes: int
    options: int
    price: bool


def color_of(option: str | tuple[str, str]) -> str | tuple[str, str]:
    """The first color that the option names, else the option itself.

    An option of a synthetic goal is a pair (name, value), in which ``in`` finds whole members only.

    >>> color_of("dark blue (2 pack)"), color_of(("color", "navy")), color_of(("color", "navy 2"))
    ('blue', 'navy', ('color', 'navy 2'))
    """
    return next((color for color in COLORS if color in option), option)


@lru_cache(maxsize=16384)
def _words(text: str) -> str:
    return default_process(text.encode("ascii", "ignore").decode())


def similar(one: object, other: object) -> bool:
    """Whether two phrases have nearly the same set of words.

    >>> similar("machine wash", "machine washable"), similar("red", "('color', 'red wine')")
    (True, True)
    """
    return round(fuzz.token_set_ratio(_words(str(one)), _words(str(other)))) > SIMILAR


def count_attributes(product: Product, wanted: Sequence[str]) -> int:
    """The number of wanted attributes that the product has, as an attribute or anywhere in its text."""
    bullets, description, title = " ".join(product.bullets).lower(), product.description.lower(), product.title.lower()
    return sum(
        any(similar(attribute, want) for attribute in product.attributes)
        or (want in title or want in bullets or want in description)
        for want in wanted
    )


def count_options(chosen: Iterable[str], wanted: Mapping[str, str] | Sequence[str]) -> int:
    """The number of wanted options that the chosen values satisfy."""
    values = [color_of(value) for value in chosen]
    options = wanted.items() if isinstance(wanted, Mapping) else wanted
    return sum(any(similar(value, color_of(option)) for value in values) for option in options)


def type_factor(
    product: Product, goal: Goal, bought_nouns: Sequence[str], wanted_nouns: Sequence[str]
) -> tuple[float, bool, bool, float]:
    """The factor for the product type, with its parts: query match, category match, title score."""
    query_match = product.query == goal.query
    categories = (
        {part.strip() for part in text.split("›")} for text in (product.product_category, goal.product_category)
    )
    category_match = len(set.intersection(*categories)) >= 2
    title_score = len({*bought_nouns} & {*wanted_nouns}) / len(wanted_nouns) if wanted_nouns else 0.2
    factor = 1.0 if query_match or category_match or title_score > 0.2 else 0.5
    if title_score < 0.1:
        factor = 0.1 if title_score > 0 else 0.0
    return factor, query_match, category_match, title_score


def judge(
    product: Product,
    goal: Goal,
    price: float,
    chosen: Iterable[str],
    bought_nouns: Sequence[str],
    wanted_nouns: Sequence[str],
) -> Score:
    """The score of buying ``product`` for ``goal``.

    Args:
        price: what the product costs, in dollars.
        chosen: the option values chosen.
        bought_nouns: nouns of the title of ``product``.
        wanted_nouns: nouns of the title of the goal's product, with repetitions.
    """
    factor, query_match, category_match, title_score = type_factor(product, goal, bought_nouns, wanted_nouns)
    attributes = count_attributes(product, goal.attributes)
    options = count_options(chosen, goal.options)
    cheap = price <= goal.price_upper
    total = (attributes + options + cheap) / (len(goal.attributes) + len(goal.options) + 1)
    total *= factor
    return Score(total, factor, query_match, category_match, title_score, attributes, options, cheap)
