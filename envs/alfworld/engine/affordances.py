"""Affordances of objects: which open, can be cleaned, heated, cooled, sliced or lit, and where they can be put."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from roleagent.envs.alfworld.generated.rooms import ROOMS


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


OPENABLE = _kinds("Cabinet Drawer Fridge Microwave Safe")
"""Receptacle types with a door or a front; the others stand open."""

SINGLE_PLACES = _kinds("CoffeeMachine HandTowelHolder StoveBurner ToiletPaperHanger TowelHolder")
"""Receptacles in which at most one object lies at the start."""

CLEANABLE = _kinds(
    "Apple Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan Plate Pot Potato "
    "SoapBar Spatula Spoon Tomato"
)
HEATABLE = _kinds("Apple Bread Cup Egg Mug Plate Potato Tomato")
COOLABLE = _kinds("Apple Bowl Bread Cup Egg Lettuce Mug Pan Plate Pot Potato Tomato WineBottle")
SLICEABLE = _kinds("Apple Bread Egg Lettuce Potato Tomato")
VESSELS = _kinds("Bowl Box Cup Mug Pan Plate Pot")
TOGGLEABLE = _kinds("DeskLamp FloorLamp")

FURTHER_PLACES: Mapping[str, frozenset[str]] = {
    place: _kinds(things)
    for place, things in {
        "CoffeeMachine": "Mug",
        "Fridge": "Pot WineBottle",
        "GarbageCan": "Bread Lettuce TissueBox Newspaper DishSponge",
        "Microwave": "Bowl Bread Plate Tomato Glassbottle",
        "Ottoman": "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pillow RemoteControl",
        "Safe": "CD CellPhone CreditCard Statue Vase",
        "SideTable": "Bowl Bread Cup Egg Fork Knife Lettuce Mug Plate Pot Potato SaltShaker Spatula Spoon Tomato",
        "Sofa": "CellPhone Newspaper",
        "StoveBurner": "Kettle",
        "ArmChair": "Box Newspaper",
        "Dresser": "CD Mug Plate SprayBottle ToiletPaper",
        "Cart": "SoapBar SoapBottle ToiletPaper",
        "Toilet": "HandTowel TissueBox",
        "BathtubBasin": "HandTowel",
        "SinkBasin": "HandTowel Bowl Kettle Ladle Pan Plate Pot",
    }.items()
}
"""Where a thing may be put although it is not usually found there."""


@cache
def places_of(obj: str) -> Mapping[str, float]:
    """The usual places of an object type over all room types: receptacle type → share, with sum 1 per room.

    An unknown type gives an empty mapping.

    >>> max(places_of("Pillow"), key=places_of("Pillow").get)
    'Bed'
    """
    shares: dict[str, float] = {}
    for room in ROOMS:
        homes = room.stock[obj].homes if obj in room.stock else room.lamp_homes if obj == "DeskLamp" else {}
        for place, weight in homes.items():
            shares[place] = shares.get(place, 0.0) + weight / sum(homes.values())
    return shares


@cache
def accepts(place: str, obj: str) -> bool:
    """Whether an object of this type may be put into a receptacle of that type.

    >>> accepts("Safe", "CD"), accepts("Safe", "Bread")
    (True, False)
    """
    return place in places_of(obj) or obj in FURTHER_PLACES.get(place, ())
