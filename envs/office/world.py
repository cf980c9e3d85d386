"""The generated office of a task: people and rooms with ids, their hours, and prices in three currencies.

Every task has an office of its own, drawn from a seed and the task's id. Names belong to one split, their parts occur
in all. Ids and numbers are drawn again for every task, so that they cannot be learned by heart.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from roleagent.sharing import Immutable

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
HOURS = range(8, 18)
CURRENCIES = ("EUR", "USD", "GBP")
PERSON_FIELDS = ("boss", "room", "phone", "expenses")
ROOM_FIELDS = ("keeper", "price", "size")
RELATIONS = {"boss": "person", "room": "room", "keeper": "person"}
"""Fields that name another id, and the kind of thing that they name."""
SPLITS = ("train", "valid", "test")
_PEOPLE, _ROOMS = 5, 3  # of an office
_FIRST = (
    "Abra Arlo Bero Cadel Corin Dova Edda Elra Fenno Galen Gira Hodel Ilka Joren Junia Kesta Lamo Leoni Mirel "
    "Nado Nerys Olva Orla Pesko Quin Relda Soren Tibba Ulma Vero Wenda Yaro"
)
_LAST = (
    "Abbot Ashby Barrow Brandt Crane Culver Dunmore Eller Farrow Goss Hartley Holt Ingram Jessop Keane Lorne "
    "Lyall Marlow Mercer Nettle Osgood Pruitt Quill Radley Selby Stroud Thorne Tully Upton Voss Winslow Zeller"
)
_COLORS = "Amber Azure Coral Cobalt Copper Crimson Golden Indigo Ivory Jade Olive Ruby Scarlet Silver Teal Violet"
_PLACES = "Attic Chamber Corner Den Gallery Garden Hall Library Loft Parlor Pavilion Studio Terrace Tower Wing Yard"


@dataclass(frozen=True)
class Office(Immutable):
    """An office before the first call. Copies share it.

    Attributes:
        ids: the id of every person and room, by name.
        details: by id, the text of each field.
        taken: by id and day, the hours that are not free.
        rates: what one unit of a currency is worth, in cents of a fourth.
    """

    ids: Mapping[str, str]
    details: Mapping[str, Mapping[str, str]]
    taken: Mapping[tuple[str, str], frozenset[int]]
    rates: Mapping[str, int]

    def people(self) -> list[str]:
        """The ids of the people."""
        return [id for id in self.details if id.startswith("p")]

    def rooms(self) -> list[str]:
        """The ids of the rooms."""
        return [id for id in self.details if id.startswith("r")]

    def name(self, id: str) -> str:
        """The name of an id."""
        return next(name for name, own in self.ids.items() if own == id)


@lru_cache(maxsize=16)
def names(split: str, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the people and of the rooms of a split: 60, 20 and 20 percent of all.

    >>> [len(people) for people, _ in (names(split, 0) for split in SPLITS)]
    [614, 205, 205]
    >>> set(names("train", 0)[0]) & set(names("test", 0)[0])
    set()
    """
    rng = random.Random(f"office names {seed}")
    found = []
    for first, second in ((_FIRST, _LAST), (_COLORS, _PLACES)):
        every = [" ".join(parts) for parts in product(first.split(), second.split())]
        rng.shuffle(every)
        places = [0, round(0.6 * len(every)), round(0.8 * len(every)), len(every)]
        part = SPLITS.index(split)
        found.append(tuple(every[places[part] : places[part + 1]]))
    return found[0], found[1]


def build_office(split: str, rng: random.Random, seed: int = 0) -> Office:
    """Draws an office with names of a split.

    The second person has a name in common with the first one, and so has the second room with the first.
    """
    people, rooms = (_draw(pool, count, rng) for pool, count in zip(names(split, seed), (_PEOPLE, _ROOMS), strict=True))
    person_ids = [f"p{number}" for number in rng.sample(range(10, 100), _PEOPLE)]
    room_ids = [f"r{number}" for number in rng.sample(range(10, 100), _ROOMS)]
    details: dict[str, Mapping[str, str]] = {}
    for id in person_ids:
        amounts = ", ".join(str(rng.randrange(5, 30)) for _ in range(rng.choice((2, 3))))
        details[id] = {
            "boss": rng.choice([other for other in person_ids if other != id]),
            "room": rng.choice(room_ids),
            "phone": f"{rng.randrange(10, 100)}-{rng.randrange(10, 100)}",
            "expenses": f"{rng.choice(CURRENCIES)} {amounts}",
        }
    for id in room_ids:
        details[id] = {
            "keeper": rng.choice(person_ids),
            "price": f"{rng.choice(CURRENCIES)}{rng.randrange(20, 80)}",
            "size": str(rng.randrange(4, 60)),
        }
    taken = {(id, day): frozenset(rng.sample(HOURS, rng.randrange(3, 7))) for id, day in product(details, DAYS)}
    rates: dict[str, int] = dict(zip(CURRENCIES, (100, rng.randrange(75, 96), rng.randrange(105, 131)), strict=True))
    ids = dict(zip((*people, *rooms), (*person_ids, *room_ids), strict=True))
    return Office(ids, details, taken, rates)


def _draw(pool: tuple[str, ...], count: int, rng: random.Random) -> list[str]:
    """Different names, of which the first two share a part."""
    first = rng.choice(pool)
    alike = [name for name in pool if name != first and set(name.split()) & set(first.split())]
    chosen = [first, rng.choice(alike)] if alike else [first]
    others = rng.sample(pool, 2 * count)
    return [*chosen, *(name for name in others if name not in chosen)][:count]


__all__ = ["CURRENCIES", "DAYS", "HOURS", "PERSON_FIELDS", "RELATIONS", "ROOM_FIELDS", "SPLITS", "Office"]
__all__ += ["build_office", "names"]
