"""Room types: their furniture, and the usual places of objects.

The generator draws from these tables, and the search expert looks in the likely places first. Names are those of the
game files (``SinkBasin``); the text of a game writes them in small letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def _weights(text: str) -> dict[str, int]:
    """``"CounterTop 5 Fridge 3"`` as a mapping."""
    words = text.split()
    return {name: int(weight) for name, weight in zip(words[::2], words[1::2], strict=True)}


@dataclass(frozen=True, slots=True)
class Furniture:
    """The frequency of a receptacle type: the share of rooms that have it, and its smallest and largest number."""

    share: float
    least: int = 1
    most: int = 1


@dataclass(frozen=True, slots=True)
class Stock:
    """The frequency of an object type: the share of rooms that have it, its largest number, its places (weights)."""

    share: float
    most: int
    homes: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """One kind of room.

    Attributes:
        first_scene: its scenes are numbered ``first_scene + 1`` to ``first_scene + 99``.
        furniture: receptacles of a standard room.
        core: receptacles that a small room always has.
        extras: receptacles that a small room draws from, each entry at most once.
        extra_pieces: fewest and most extras of a small room. A tiny room has one.
        stock: objects that can be carried. Small rooms have only those that every standard room has (share 1).
        staples: the few of them that tiny rooms draw from.
        lamp_share: the share of standard rooms with a desk lamp.
        lamp_homes: where a desk lamp stands.
        fixtures: things that only fill the room, fewest and most.
    """

    name: str
    first_scene: int
    furniture: Mapping[str, Furniture]
    core: tuple[str, ...]
    extras: tuple[str, ...]
    extra_pieces: tuple[int, int]
    stock: Mapping[str, Stock]
    staples: tuple[str, ...]
    fixtures: Mapping[str, tuple[int, int]]
    lamp_share: float = 0.0
    lamp_homes: Mapping[str, int] = field(default_factory=dict)


def _stock(table: str) -> dict[str, Stock]:
    """One line per object: name, share in percent, most, then homes with weights."""
    stock = {}
    for line in table.strip().splitlines():
        name, share, most, homes = line.split(maxsplit=3)
        stock[name] = Stock(int(share) / 100, int(most), _weights(homes))
    return stock


KITCHEN = Room(
    name="kitchen",
    first_scene=0,
    furniture={
        "Cabinet": Furniture(1, 6, 22),
        "CoffeeMachine": Furniture(1),
        "CounterTop": Furniture(1, 1, 3),
        "DiningTable": Furniture(0.55, 1, 2),
        "Drawer": Furniture(0.95, 2, 11),
        "Fridge": Furniture(1),
        "GarbageCan": Furniture(1),
        "Microwave": Furniture(1),
        "Shelf": Furniture(0.15, 2, 3),
        "SideTable": Furniture(0.1),
        "SinkBasin": Furniture(1),
        "StoveBurner": Furniture(1, 4, 4),
        "Toaster": Furniture(1),
    },
    core=("Fridge", "Microwave", "SinkBasin", "CounterTop"),
    extras=("Cabinet", "Cabinet", "Drawer", "DiningTable", "StoveBurner", "GarbageCan"),
    extra_pieces=(2, 4),
    stock=_stock("""
        Apple         100 3  CounterTop 5 Fridge 5 DiningTable 3 Microwave 2 GarbageCan 2 SinkBasin 2 SideTable 1
        Bowl          100 3  Cabinet 7 CounterTop 4 Fridge 4 DiningTable 3 Shelf 2 SinkBasin 1
        Bread         100 2  CounterTop 11 DiningTable 6 Fridge 2
        ButterKnife   100 3  CounterTop 11 DiningTable 5 Drawer 3 SinkBasin 1
        Cup           100 3  Cabinet 5 CounterTop 4 Fridge 4 DiningTable 3 SinkBasin 2 Microwave 1 Shelf 2
        DishSponge    100 3  CounterTop 5 Cabinet 4 Drawer 4 DiningTable 2 SinkBasin 2 GarbageCan 1 Shelf 1
        Egg           100 3  Fridge 6 CounterTop 5 SinkBasin 2 GarbageCan 2 Microwave 2 DiningTable 2
        Fork          100 3  CounterTop 9 DiningTable 5 Drawer 4 SinkBasin 2
        Knife         100 3  CounterTop 10 DiningTable 5 Drawer 4 SinkBasin 1
        Lettuce       100 3  CounterTop 8 Fridge 5 DiningTable 5 SinkBasin 1
        Mug           100 3  CounterTop 6 CoffeeMachine 3 Cabinet 3 Fridge 3 DiningTable 2 Microwave 1 SinkBasin 1
        Pan           100 2  StoveBurner 10 CounterTop 6 Cabinet 2 DiningTable 1 Fridge 1
        PepperShaker  100 3  Cabinet 6 CounterTop 6 DiningTable 3 Drawer 3 Shelf 1
        Plate         100 3  Cabinet 8 CounterTop 6 DiningTable 3 Fridge 2 Shelf 1
        Pot           100 2  StoveBurner 14 CounterTop 3 DiningTable 1 Fridge 1 Cabinet 1
        Potato        100 3  CounterTop 6 Fridge 5 DiningTable 3 SinkBasin 2 Microwave 2 GarbageCan 1
        SaltShaker    100 3  Cabinet 6 CounterTop 6 DiningTable 4 Drawer 3 Shelf 1
        SoapBottle    100 3  CounterTop 6 Cabinet 6 DiningTable 4 GarbageCan 2 Shelf 1
        Spatula       100 3  CounterTop 9 DiningTable 5 Drawer 4 SinkBasin 2
        Spoon         100 3  CounterTop 8 Drawer 6 DiningTable 4 SinkBasin 2
        Tomato        100 3  Fridge 7 CounterTop 6 DiningTable 4 GarbageCan 2 SinkBasin 1
        Book           10 2  CounterTop 6 Cabinet 2 DiningTable 1 Drawer 1
        CreditCard     10 3  CounterTop 5 Drawer 4 Shelf 2
        Glassbottle    25 3  Cabinet 6 CounterTop 5 DiningTable 3 SinkBasin 2 Fridge 2 GarbageCan 1
        Kettle         50 2  StoveBurner 8 CounterTop 5 Cabinet 5 DiningTable 1
        Ladle          35 3  CounterTop 8 Cabinet 5 Drawer 4 DiningTable 3
        Statue         15 2  CounterTop 5 Shelf 5
        Vase           15 3  CounterTop 4 Shelf 3 Cabinet 3
        WineBottle     45 3  CounterTop 7 Cabinet 5 DiningTable 5 GarbageCan 2 Fridge 1
    """),
    staples=("Apple", "Egg", "Mug", "Plate", "Potato", "Tomato"),
    fixtures={
        "Chair": (0, 2),
        "Curtains": (0, 1),
        "HousePlant": (0, 1),
        "LightSwitch": (1, 1),
        "StoveKnob": (4, 4),
        "Window": (1, 2),
    },
)

LIVING_ROOM = Room(
    name="living room",
    first_scene=200,
    furniture={
        "ArmChair": Furniture(0.9, 1, 2),
        "Cabinet": Furniture(0.1, 2, 6),
        "CoffeeTable": Furniture(0.85, 1, 2),
        "DiningTable": Furniture(0.5),
        "Drawer": Furniture(0.75, 1, 8),
        "Dresser": Furniture(0.35),
        "GarbageCan": Furniture(1),
        "Ottoman": Furniture(0.15),
        "Safe": Furniture(0.05),
        "Shelf": Furniture(0.4, 2, 9),
        "SideTable": Furniture(0.8, 1, 3),
        "Sofa": Furniture(1, 1, 2),
        "TVStand": Furniture(0.45),
    },
    core=("Sofa", "CoffeeTable", "SideTable"),
    extras=("ArmChair", "Drawer", "Drawer", "Dresser", "DiningTable", "GarbageCan"),
    extra_pieces=(2, 4),
    stock=_stock("""
        Box           100 2  DiningTable 5 Sofa 5 CoffeeTable 5 SideTable 2 Dresser 1 Cabinet 1 Shelf 1 ArmChair 1
        CreditCard    100 3  Sofa 4 CoffeeTable 3 ArmChair 3 Drawer 3 SideTable 2 DiningTable 2 Dresser 1 Shelf 1
        KeyChain      100 3  CoffeeTable 4 SideTable 3 Drawer 3 Sofa 3 ArmChair 2 DiningTable 2 Dresser 1 Shelf 1
        Laptop        100 2  Sofa 6 CoffeeTable 5 DiningTable 4 SideTable 2 Dresser 1 ArmChair 1
        Pillow        100 2  Sofa 8 ArmChair 3
        RemoteControl 100 3  CoffeeTable 5 Sofa 4 SideTable 3 DiningTable 2 Dresser 2 ArmChair 2 Drawer 1 Shelf 1
        Statue        100 3  CoffeeTable 5 DiningTable 4 Shelf 4 SideTable 4 Dresser 2
        Book           25 2  CoffeeTable 6 Dresser 4 Sofa 4 ArmChair 2 SideTable 2 DiningTable 2
        Bowl           10 2  DiningTable 6 CoffeeTable 5 SideTable 2 Shelf 2
        Candle         10 3  SideTable 7 CoffeeTable 5 DiningTable 4 Drawer 1
        CellPhone      20 3  Dresser 4 SideTable 3 CoffeeTable 3 Sofa 3 Drawer 3 DiningTable 2 ArmChair 1
        Newspaper      60 3  Sofa 4 CoffeeTable 4 DiningTable 4 SideTable 3 Shelf 2 ArmChair 1 Dresser 1
        Pen            20 3  CoffeeTable 6 SideTable 4 Dresser 4 Drawer 1 GarbageCan 1
        Pencil         15 3  SideTable 7 CoffeeTable 6 Drawer 2 Dresser 1 GarbageCan 1
        Plate          35 2  DiningTable 9 CoffeeTable 4 Shelf 2 SideTable 2
        TissueBox      35 3  CoffeeTable 7 DiningTable 4 SideTable 4 Shelf 2 TVStand 1 Drawer 1
        Vase           55 4  Shelf 7 CoffeeTable 4 DiningTable 3 SideTable 2 Dresser 2
        Watch          50 3  CoffeeTable 5 Drawer 4 SideTable 4 DiningTable 2 Dresser 2 Shelf 1
        WateringCan    45 1  CoffeeTable 5 Shelf 4 SideTable 1
    """),
    staples=("Box", "KeyChain", "Laptop", "Pillow", "RemoteControl", "Statue"),
    fixtures={
        "Chair": (0, 5),
        "Curtains": (0, 1),
        "FloorLamp": (1, 1),
        "HousePlant": (1, 1),
        "LightSwitch": (1, 1),
        "Painting": (1, 3),
        "Television": (1, 1),
        "Window": (1, 4),
    },
    lamp_share=0.3,
    lamp_homes=_weights("SideTable 8 CoffeeTable 1 Dresser 1"),
)

BEDROOM = Room(
    name="bedroom",
    first_scene=300,
    furniture={
        "ArmChair": Furniture(0.2, 1, 2),
        "Bed": Furniture(1, 1, 2),
        "Cabinet": Furniture(0.15, 2, 4),
        "Desk": Furniture(0.8),
        "Drawer": Furniture(0.95, 2, 9),
        "Dresser": Furniture(0.5),
        "GarbageCan": Furniture(1),
        "LaundryHamper": Furniture(0.25),
        "Safe": Furniture(0.15),
        "Shelf": Furniture(0.65, 1, 7),
        "SideTable": Furniture(0.75, 1, 2),
    },
    core=("Bed", "Desk", "SideTable"),
    extras=("Drawer", "Drawer", "Shelf", "Dresser", "ArmChair", "GarbageCan"),
    extra_pieces=(2, 4),
    stock=_stock("""
        AlarmClock    100 3  Desk 7 Shelf 4 SideTable 4 Dresser 3
        Book          100 3  Bed 10 Desk 4 Drawer 2 Dresser 1 SideTable 1 Cabinet 1
        CD            100 3  Drawer 6 Desk 4 Dresser 3 SideTable 3 GarbageCan 2 Shelf 2
        CellPhone     100 3  Bed 6 Desk 3 Drawer 3 Dresser 2 SideTable 2 Shelf 2 ArmChair 1
        CreditCard    100 3  Drawer 6 Shelf 3 Desk 3 SideTable 3 Dresser 2 ArmChair 1
        KeyChain      100 3  Drawer 5 Desk 4 Shelf 3 SideTable 3 Dresser 3 Safe 1 ArmChair 1
        Laptop        100 2  Bed 14 Desk 4 Dresser 1 ArmChair 1
        Pen           100 3  Desk 6 Drawer 4 Shelf 3 Dresser 3 SideTable 3 GarbageCan 1
        Pencil        100 3  Desk 5 Drawer 4 SideTable 4 Shelf 3 Dresser 2 GarbageCan 1
        Pillow        100 2  Bed 30 ArmChair 1
        Bowl           45 2  Desk 6 Shelf 4 Dresser 2 SideTable 1
        Box            45 1  Desk 5 Shelf 4
        Cloth          20 2  LaundryHamper 4 Drawer 3 Dresser 3
        Mug            50 3  Desk 6 Shelf 3 SideTable 3 Dresser 3
        RemoteControl  10 2  Drawer 6 Desk 5 SideTable 3 Dresser 1
        Statue         15 2  Shelf 6 Dresser 4 Desk 4 SideTable 1
        TeddyBear      35 1  Bed 1
        TissueBox      15 3  Desk 6 Drawer 4 Shelf 2 SideTable 2
        Vase           10 3  Shelf 6 Dresser 5 Desk 2 SideTable 1
        Watch          10 3  Drawer 5 Shelf 4 Desk 3 Dresser 2 SideTable 1
    """),
    staples=("Book", "CD", "CellPhone", "KeyChain", "Laptop", "Pen"),
    fixtures={
        "Blinds": (1, 2),
        "Chair": (0, 2),
        "HousePlant": (0, 1),
        "LightSwitch": (1, 1),
        "Mirror": (1, 1),
        "Painting": (0, 2),
        "Poster": (0, 1),
        "Window": (1, 2),
    },
    lamp_share=0.75,
    lamp_homes=_weights("Desk 5 SideTable 4 Dresser 3 Shelf 1"),
)

BATHROOM = Room(
    name="bathroom",
    first_scene=400,
    furniture={
        "BathtubBasin": Furniture(0.7),
        "Cabinet": Furniture(0.5, 2, 6),
        "Cart": Furniture(0.1),
        "CounterTop": Furniture(0.85, 1, 2),
        "Drawer": Furniture(0.55, 2, 7),
        "Dresser": Furniture(0.1),
        "GarbageCan": Furniture(1),
        "HandTowelHolder": Furniture(1, 1, 2),
        "Shelf": Furniture(0.3, 1, 3),
        "SideTable": Furniture(0.1),
        "SinkBasin": Furniture(1, 1, 2),
        "Toilet": Furniture(1),
        "ToiletPaperHanger": Furniture(1),
        "TowelHolder": Furniture(1, 1, 2),
    },
    core=("SinkBasin", "Toilet", "CounterTop", "GarbageCan"),
    extras=("Cabinet", "Cabinet", "Drawer", "BathtubBasin", "Shelf", "HandTowelHolder"),
    extra_pieces=(2, 4),
    stock=_stock("""
        Candle        100 3  CounterTop 6 Toilet 6 Cabinet 3 Drawer 3 Shelf 2 SideTable 1 Cart 1
        Cloth         100 3  BathtubBasin 6 Cabinet 4 CounterTop 3 Drawer 3 SinkBasin 2 Shelf 1 Toilet 1 Cart 1
        HandTowel     100 2  HandTowelHolder 20 CounterTop 1
        SoapBar       100 3  CounterTop 4 Toilet 3 SinkBasin 3 Cabinet 2 BathtubBasin 2 Drawer 2 GarbageCan 1 Shelf 1
        SoapBottle    100 3  CounterTop 6 Toilet 5 Cabinet 4 Shelf 2 GarbageCan 2 Drawer 1
        SprayBottle   100 3  CounterTop 6 Toilet 5 Cabinet 3 GarbageCan 2 Shelf 2 Cart 1
        ToiletPaper   100 3  Toilet 5 CounterTop 4 ToiletPaperHanger 2 Cabinet 2 Drawer 2 GarbageCan 2 Shelf 1
        DishSponge     20 3  BathtubBasin 4 CounterTop 4 Drawer 4 SinkBasin 2 Shelf 2 Toilet 2 Cart 1
        TissueBox      25 3  CounterTop 7 Shelf 6 Drawer 4 Cabinet 1 Cart 1
        Towel         100 2  TowelHolder 1
    """),
    staples=("Candle", "Cloth", "SoapBar", "SoapBottle", "SprayBottle", "ToiletPaper"),
    fixtures={
        "LightSwitch": (1, 1),
        "Mirror": (1, 1),
        "Plunger": (1, 1),
        "ScrubBrush": (1, 1),
        "ShowerDoor": (0, 1),
        "Window": (0, 2),
    },
)

ROOMS = (KITCHEN, LIVING_ROOM, BEDROOM, BATHROOM)


def room_of(scene: int) -> Room:
    """The kind of room that a scene number belongs to.

    Raises:
        ValueError: no kind of room has such a number.
    """
    for room in ROOMS:
        if 1 <= scene - room.first_scene <= 99:
            return room
    raise ValueError(f"no room has the scene number {scene}; they are 1-99, 201-299, 301-399 and 401-499")
