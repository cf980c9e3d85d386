"""A shop's catalogue from the project's own words, in the official format.

Every block of thirty products has one of each kind. Products of a kind differ in attributes, options and price, and
many have a twin that differs in one attribute, in the choice of options and in price: an agent has to look. Everything
that a request names stands somewhere on the product's pages, so that a careful shopper scores 1.

A product depends on its number and the seed alone: the first products of a large catalogue are the small catalogue.
With the number of products the number of brands grows, so that large catalogues have rare words, as real ones do.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from pathlib import Path
from typing import Any

from roleagent.envs.webshop.data.product_templates import BRANDS, GROUPS, SYLLABLES, WARES, Ware, shown

SEED = 0
MOST = 400_000
"""Products at most: as many asins there are."""

_CENTS = (0.99, 0.95, 0.49, 0.25)
_LETTERS = ["".join(triple) for triple in combinations("BKMT", "GLRXY", "CJV")]
_YEARS = (71, 75, 78, 82, 85, 89, 93, 97)


@dataclass(frozen=True)
class Design:
    """The properties that distinguish a product from others of its type."""

    ware: Ware
    brand: str
    qualities: tuple[str, str]
    part: str
    use: str
    options: dict[str, tuple[str, ...]]
    dollars: tuple[float, ...]


def entries(products: int, seed: int = SEED) -> Iterator[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]]:
    """The products' entries in the three official files: product, attributes and request, people's requests.

    Raises:
        ValueError: more products are asked for than there are asins.
    """
    if not 1 <= products <= MOST:
        raise ValueError(f"the generator makes 1 to {MOST} products, not {products}")
    for number in range(products):
        yield entry(number, seed)


def entry(number: int, seed: int = SEED) -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """One product's entries."""
    rng = random.Random(f"{seed}/entry/{number}")
    design = _design(number, seed)
    asin = _asin(number)
    attributes = [*design.qualities, design.part, design.use]
    rng.shuffle(attributes)
    item = {
        "asin": asin,
        "name": _title(design, rng),
        "full_description": _description(design, rng),
        "small_description": _bullets(design, rng),
        "pricing": " - ".join(f"${dollars:,.2f}" for dollars in design.dollars),
        "customization_options": {
            name: [
                {"is_selected": value == values[0], "value": value.title(), "price": 0, "image": None}
                for value in values
            ]
            for name, values in design.options.items()
        }
        or "",
        "category": design.ware.department,
        "product_category": design.ware.product_category,
        "query": design.ware.query,
        "average_rating": rng.choice(["", 3.5, 4.0, 4.5]),
        "images": [f"{asin}.jpg"],
        "page": 1 + number % 50,
    }
    notes: dict[str, Any] = {"attributes": attributes}
    if rng.random() < 0.85:
        asked = sorted(rng.sample(attributes, rng.choice([1, 2, 2, 3])), key=attributes.index)
        notes |= {"instruction": _request(design, asked), "instruction_attributes": asked}
    requests = [_human(design, asin, attributes, rng) for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    return item, notes, requests


def _asin(number: int) -> str:
    """Ten characters like real ones, of few different pieces; every product has its own."""
    year, letters, round_ = number % len(_YEARS), number // len(_YEARS) % len(_LETTERS), number // 480
    tail = 100 + (36 * ((5 * year + 7 * letters) % 25) + round_) % 900
    return f"B0{_YEARS[year]}{_LETTERS[letters]}{tail}"


def _design(number: int, seed: int) -> Design:
    rng = random.Random(f"{seed}/design/{number}")
    block, place = divmod(number, len(WARES))
    ware = random.Random(f"{seed}/block/{block}").sample(WARES, len(WARES))[place]
    first, second = rng.sample(ware.qualities, 2)
    part, use = rng.choice(ware.parts), rng.choice(ware.uses)
    options = {
        shown(group): tuple(value for value in GROUPS[group] if value in drawn)
        for group in ware.groups
        if rng.random() < 0.9
        for drawn in [rng.sample(GROUPS[group], rng.choice([2, 3, 3, 4][: len(GROUPS[group])]))]
    }
    brand, dollars = _brand(number, rng), _dollars(ware, rng)
    if block % 2 and rng.random() < 0.7:
        twin = _design(_number_of(ware, block - 1, seed), seed)
        (first, second), part, use = twin.qualities, twin.part, twin.use
        match rng.randrange(4):
            case 0:
                second = rng.choice([other for other in ware.qualities if other not in twin.qualities])
            case 1:
                part = rng.choice([other for other in ware.parts if other != part])
            case 2:
                use = rng.choice([other for other in ware.uses if other != use])
            case _:
                options, dollars = twin.options, tuple(price + 40 for price in twin.dollars)  # beyond every cap
    return Design(ware, brand, (first, second), part, use, options, dollars)


def _number_of(ware: Ware, block: int, seed: int) -> int:
    order = random.Random(f"{seed}/block/{block}").sample(WARES, len(WARES))
    return block * len(WARES) + order.index(ware)


def _brand(number: int, rng: random.Random) -> str:
    name = rng.randrange(len(BRANDS) + max(0, number - 500) // 25)
    if name < len(BRANDS):
        return BRANDS[name]
    syllables = []
    while name:
        name, syllable = divmod(name, len(SYLLABLES))
        syllables.append(SYLLABLES[syllable])
    return "".join(syllables).capitalize()


def _dollars(ware: Ware, rng: random.Random) -> tuple[float, ...]:
    """One price, the two ends of a range, or none."""
    low, high = ware.dollars
    price = int(low * (high / low) ** rng.random()) + rng.choice(_CENTS)
    kind = rng.random()
    if kind < 0.03:
        return ()
    return (price, price + rng.choice([3, 5, 8])) if kind < 0.1 else (price,)


def _title(design: Design, rng: random.Random) -> str:
    first, second = design.qualities
    noun = design.ware.noun
    text = rng.choice(
        [
            f"{first} {noun} with {design.part}",
            f"{first} {noun} for {design.use}",
            f"{noun} with {design.part}, {second}",
            f"{first}, {second} {noun}",
        ]
    )
    return f"{design.brand} {text.title().replace(' With ', ' with ').replace(' For ', ' for ')}"


def _description(design: Design, rng: random.Random) -> str:
    first, second = design.qualities
    brand, noun, part, use = design.brand, design.ware.noun, design.part, design.use
    return rng.choice(
        [
            f"This {noun} by {brand} is {first} and {second}. It comes with {part} and is good for {use}.",
            f"Made for {use}: {second} {noun} with {part}. Also {first}.",
            f"{brand} makes this {noun} {first}, {second} and ready for {use}. You get it with {part}.",
        ]
    )


def _bullets(design: Design, rng: random.Random) -> list[str]:
    first, second = design.qualities
    bullets = [
        rng.choice([f"With {design.part}", f"It has {design.part}"]),
        rng.choice([f"For {design.use}", f"Good for {design.use}"]),
        rng.choice([f"{second} and {first}".capitalize(), f"{first}, {second}".capitalize()]),
    ]
    rng.shuffle(bullets)
    return bullets


def _request(design: Design, asked: Sequence[str]) -> str:
    """A request in the words of the official synthetic ones."""
    return request_text(
        design.ware.query,
        [attribute for attribute in asked if attribute in design.qualities],
        [attribute for attribute in asked if attribute == design.part],
        [attribute for attribute in asked if attribute == design.use],
    )


def request_text(query: str, qualities: Sequence[str], parts: Sequence[str], uses: Sequence[str]) -> str:
    """A request in the words of the official synthetic ones.

    >>> request_text("mugs", ["easy clean"], ["wood handle"], ["hot drinks"])
    'Find me easy clean mugs with wood handle for hot drinks'
    """
    before = f"{', '.join(qualities)} " if qualities else ""
    with_parts = f" with {', '.join(parts)}" if parts else ""
    return f"Find me {before}{query}{with_parts}" + (f" for {', '.join(uses)}" if uses else "")


def _human(design: Design, asin: str, attributes: Sequence[str], rng: random.Random) -> dict[str, Any]:
    """A request as a person would write it; names one or two attributes, and most of the options."""
    asked = sorted(rng.sample(attributes, rng.choice([1, 1, 2])), key=attributes.index)
    chosen = {name: rng.choice(values) for name, values in design.options.items() if rng.random() < 0.8}
    what = design.ware.one
    quality = " and ".join(attribute for attribute in asked if attribute in design.qualities)
    wishes = [f"that is {quality}"] if quality and not what.startswith("a pair") else []
    wishes += [f"{quality} if you can"] if quality and not wishes else []
    wishes += [f"with {design.part}"] if design.part in asked else []
    wishes += [f"for {design.use}"] if design.use in asked else []
    wishes += [rng.choice(_CHOICES[name]).format(value) for name, value in chosen.items()]
    rng.shuffle(wishes)
    text = f"{rng.choice(_OPENINGS)} {what} {', '.join(wishes)}{rng.choice(['.', '', ' please'])}"
    return {
        "asin": asin,
        "instruction": text,
        "attributes": list(attributes),
        "options": [f"{name.lower()}: {value}" for name, value in chosen.items()],
        "instruction_attributes": asked,
        "instruction_options": list(chosen.values()),
    }


_OPENINGS = (
    "i am looking for",
    "i need",
    "i want to buy",
    "can you find me",
    "please show me",
    "we would like",
    "my sister wants",
    "where can i get",
)
_CHOICES = {
    "Color": ("in {}", "the color should be {}"),
    "Size": ("size {}", "in the size {}"),
    "Scent": ("with {} scent", "it should smell of {}"),
    "Flavor": ("{} flavor", "it should taste of {}"),
}


def write_catalogue(folder: Path, products: int, seed: int = SEED, progress: Any = iter) -> list[Path]:
    """Writes the three official files.

    Args:
        folder: made if it is missing; files of these names in it are replaced.
        progress: wraps the iterator over the products.

    Returns:
        The paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")]
    with paths[0].open("w") as items, paths[1].open("w") as notes, paths[2].open("w") as human:
        for file, opening in ((items, "["), (notes, "{"), (human, "{")):
            file.write(opening)
        asked = 0
        for number, (item, note, requests) in enumerate(progress(entries(products, seed))):
            items.write(",\n" * bool(number) + json.dumps(item))
            notes.write(",\n" * bool(number) + f'"{item["asin"]}": {json.dumps(note)}')
            if requests:
                human.write(",\n" * bool(asked) + f'"{item["asin"]}": {json.dumps(requests)}')
                asked += 1
        for file, closing in ((items, "]\n"), (notes, "}\n"), (human, "}\n")):
            file.write(closing)
    return paths


__all__ = ["MOST", "SEED", "entries", "entry", "request_text", "write_catalogue"]
