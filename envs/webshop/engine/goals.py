"""The goals of shoppers, exactly as in the public WebShop.

A synthetic goal is a product's request with one combination of its option values, a human goal is a sentence that
somebody wrote for a product; both end with a price cap. The original draws prices and caps from the process's
unseeded generator, so that they differ from run to run. Here they come from ``random.Random(seed)`` in the original's
order: prices over the products, then caps over the goals. The order of the goals is the original's shuffle.

A goal's id, ``synthetic/00042/B09QCP4579``, is its kind, its number in the shuffled order (the published goal index)
and the product it was made of. It depends on the catalogue alone, never on the seed: that changes prices and caps only.

Scale. Nothing is kept per goal but its place in the shuffled order (4 bytes); per product there are its price, its cap
and the number of its first goal. A :class:`Goal` is written when it is asked for. The full set's 1.18 million products
give some eight million synthetic goals, which is 33 MB plus 24 MB. Shuffling takes seconds without a store.
Splits name their tasks one by one, so they end after :data:`SPLIT_LIMIT` goals; the others can be had by their index.

Twins. Products of one kind lead to the same request, and the original's shuffle puts some of them in two splits
(:func:`twins`). Official splits are the original's, with their twins; generated ones leave them out.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from operator import add
from typing import Literal

import numpy as np
import numpy.typing as npt

from roleagent.envs.webshop.data.catalogue import Catalogue, CatalogueError, Product
from roleagent.sharing import Immutable
from roleagent.tasks.split import TaskSplit, assert_disjoint

ENV_ID = "RoleAgent/WebShop-v0"
KINDS = ("synthetic", "human")
SPLITS = ("train", "valid", "test")
Kind = Literal["synthetic", "human"]

PUBLISHED = (500, 1500)  # test goals are those before the first index, validation goals those before the second
SPLIT_LIMIT = 100_000
CAPS = tuple(10.0 * step for step in range(1, 100))
NO_CAP = 1_000_000
SEED = 7  # default, of prices and caps
_ORDER_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal(Immutable):
    """One request.

    Attributes:
        goal_id: names it in splits, logs and reports.
        index: its place in the shuffled order.
        position: where the product it was made of stands in the catalogue.
        title: that product's, and likewise ``asin``, ``query``, ``category`` and ``product_category``.
        instruction: what the shopper reads, price cap included.
        attributes: what the product must be; at least one.
        options: what must be chosen: by group (synthetic), or values alone (human).
        price_upper: dollars; 1,000,000 where there is no cap.
        weight: how often the original draws it, relative to the others.
    """

    goal_id: str
    index: int
    position: int
    asin: str
    title: str
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    price_upper: float
    weight: float
    query: str
    category: str
    product_category: str

    @property
    def request(self) -> str:
        """The instruction without the price cap, which differs with the seed; in lower case, with single blanks."""
        return " ".join(self.instruction.removesuffix(price_text(self.price_upper)).lower().split())


class Goals(Immutable, Sequence[Goal]):
    """All goals of one kind, in a fixed order.

    Args:
        catalogue: what they are made of.
        kind: ``"synthetic"`` or ``"human"``.
        caps: the price cap of every product (synthetic) or of every goal in the original's order (human).
        order: the number of the goal in the original's order, for every place in this one; None: the same order.
    """

    def __init__(self, catalogue: Catalogue, kind: Kind, caps: Sequence[float], order: Sequence[int] | None = None):
        self.catalogue = catalogue
        self.kind: Kind = kind
        self._caps, self._order = caps, order
        self._ends = np.cumsum(_counts(catalogue, kind))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Goal:  # type: ignore[override] - no slices: a goal at a time
        if not -len(self) <= index < len(self):
            raise IndexError(f"there are {len(self)} {self.kind} goals, no goal {index}")
        index %= len(self)
        number = index if self._order is None else int(self._order[index])
        position = int(np.searchsorted(self._ends, number, "right"))
        variant = number - (int(self._ends[position - 1]) if position else 0)
        product = self.catalogue[position]
        cap = self._caps[position if self.kind == "synthetic" else number]
        text, attributes, options = (_synthetic if self.kind == "synthetic" else _human)(product, variant)
        return Goal(
            goal_id=self._id(index, product.asin),
            index=index,
            position=position,
            asin=product.asin,
            title=product.title,
            instruction=text + price_text(cap),
            attributes=attributes,
            options=options,
            price_upper=cap if cap != NO_CAP else NO_CAP,
            weight=self._weight(attributes),
            query=product.query,
            category=product.category,
            product_category=product.product_category,
        )

    def find(self, goal_id: str) -> Goal:
        """The goal of an id.

        Raises:
            ValueError: there is none.
        """
        kind, _, rest = goal_id.partition("/")
        number = rest.partition("/")[0]
        if kind == self.kind and number.isdecimal() and int(number) < len(self):
            goal = self[int(number)]
            if goal.goal_id == goal_id:
                return goal
        raise ValueError(f"unknown goal id {goal_id!r}: {self.catalogue.name} has {len(self)} {self.kind} goals")

    def ids(self, start: int, stop: int) -> tuple[str, ...]:
        """The ids of the goals from ``start`` to before ``stop``."""
        asins = self.catalogue.asins
        numbers = np.arange(start, stop) if self._order is None else np.asarray(self._order[start:stop])
        positions = np.searchsorted(self._ends, numbers, "right").tolist()
        return tuple(self._id(start + step, asins[int(position)]) for step, position in enumerate(positions))

    @cached_property
    def weights(self) -> npt.NDArray[np.float64]:
        """The weight of every goal, in this order; the first access reads all products."""
        if self.kind == "human":
            return np.ones(len(self))
        of_product = np.array(
            [self._weight(product.instruction_attributes) if product.combinations else 0 for product in self.catalogue]
        )
        numbers = np.arange(len(self)) if self._order is None else np.asarray(self._order)
        return of_product[np.searchsorted(self._ends, numbers, "right")]

    def reordered(self, order: Sequence[int]) -> Goals:
        """The same goals, in the order of these numbers."""
        return Goals(self.catalogue, self.kind, self._caps, order)

    def _id(self, index: int, asin: str) -> str:
        return f"{self.kind}/{index:05d}/{asin}"

    def _weight(self, attributes: Sequence[str]) -> float:
        if self.kind == "human":
            return 1
        counts = self.catalogue.attribute_counts
        # One after another, as the original adds: from Python 3.12 on `sum` rounds otherwise.
        return reduce(add, (1.0 / counts[attribute] for attribute in attributes)) / len(attributes)


def prices(catalogue: Catalogue, rng: random.Random) -> array[float]:
    """The price in dollars at which every product is sold: a range gives one uniform draw."""
    low, high = catalogue.columns.prices.T
    found = array("d", low.tobytes())
    for position in np.flatnonzero(~np.isnan(high)).tolist():
        found[position] = rng.uniform(float(low[position]), float(high[position]))
    return found


def goals(catalogue: Catalogue, kind: Kind, rng: random.Random, purchase_prices: Sequence[float]) -> Goals:
    """All goals of a kind in the original's order, with caps above the prices.

    Args:
        rng: the generator that drew the prices, right after it has drawn them.
        purchase_prices: those prices, one per product.

    Raises:
        CatalogueError: the data has no such goals.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of goals {kind!r}; there are {' and '.join(KINDS)}")
    counts = _counts(catalogue, kind)
    if not counts.any():
        source = "requests in items_ins_v2*.json" if kind == "synthetic" else "requests in items_human_ins*.json"
        raise CatalogueError(
            f"{catalogue.name} has no {kind} goals (no {source}); choose the other kind, or get that file"
        )
    caps: list[float] | array[float]
    if kind == "synthetic":
        caps = array("f", bytes(4 * len(catalogue)))
        for position in np.flatnonzero(catalogue.columns.asked).tolist():
            caps[position] = _cap(purchase_prices[position], rng)
    else:
        caps = [
            _cap(purchase_prices[position], rng)
            for position in np.flatnonzero(counts).tolist()
            for _ in range(int(counts[position]))
        ]
    return Goals(catalogue, kind, caps)


@lru_cache(maxsize=4)
def open_goals(catalogue: Catalogue, kind: Kind = "synthetic", seed: int = SEED) -> tuple[array[float], Goals]:
    """Purchase prices, and all goals in the shuffled order in which the original numbers them.

    Raises:
        CatalogueError: the data has no such goals.
    """
    rng = random.Random(seed)
    purchase_prices = prices(catalogue, rng)
    ordered = goals(catalogue, kind, rng, purchase_prices)
    order = catalogue.goal_order if kind == "synthetic" else None
    return purchase_prices, ordered.reordered(shuffled(len(ordered)) if order is None else order)


def shuffled(n: int) -> array[int]:
    """The numbers 0 … n-1 in the original's fixed order of goals."""
    order = array("i", range(n))
    random.Random(_ORDER_SEED).shuffle(order)
    return order


def bounds(n: int) -> dict[str, tuple[int, int]]:
    """The range of goal indices of every split.

    The published ones where training keeps at least as many goals as the other two have; 70/15/15 % otherwise.

    >>> bounds(6910)
    {'train': (1500, 6910), 'valid': (500, 1500), 'test': (0, 500)}

    Raises:
        CatalogueError: there are fewer than three goals.
    """
    if n < 3:
        raise CatalogueError(f"{n} goals are too few for the splits train, valid and test; take more products")
    share = max(1, round(0.15 * n))
    test, valid = PUBLISHED if n >= 2 * PUBLISHED[1] else (share, 2 * share)
    return {"train": (valid, min(n, SPLIT_LIMIT)), "valid": (test, valid), "test": (0, test)}


@lru_cache(maxsize=8)
def task_splits(catalogue: Catalogue, kind: Kind = "synthetic") -> Mapping[str, TaskSplit]:
    """The splits ``train``, ``valid`` and ``test``: the same whatever the seed of prices and caps.

    Those of a generated catalogue share no request.

    Raises:
        CatalogueError: the data has too few such goals.
    """
    _, every = open_goals(catalogue, kind, SEED)
    left_out = twins(catalogue, kind) if catalogue.generated else {}
    listed = {split: every.ids(*where) for split, where in bounds(len(every)).items()}
    found = {
        split: TaskSplit(ENV_ID, split, tuple(one for one in ids if one not in left_out))
        for split, ids in listed.items()
    }
    assert_disjoint(found.values())
    return found


@lru_cache(maxsize=8)
def twins(catalogue: Catalogue, kind: Kind = "synthetic") -> Mapping[str, str]:
    """Goals whose request, the price cap aside, is that of a goal in another split.

    Returns:
        by the id of a goal in ``train`` or ``valid``, that of one in ``test``, else in ``valid``.
    """
    _, every = open_goals(catalogue, kind, SEED)
    seen: dict[str, tuple[str, str]] = {}
    found: dict[str, str] = {}
    for split, where in reversed(bounds(len(every)).items()):
        for index in range(*where):
            goal = every[index]
            other, first = seen.setdefault(goal.request, (split, goal.goal_id))
            if other != split:
                found[goal.goal_id] = first
    return found


def _counts(catalogue: Catalogue, kind: Kind) -> npt.NDArray[np.int64]:
    return catalogue.columns.combinations if kind == "synthetic" else catalogue.columns.requests


def price_text(cap: float) -> str:
    """How a request names its price cap.

    >>> price_text(40.0), price_text(1_000_000)
    (', and price lower than 40.00 dollars', '')
    """
    return f", and price lower than {cap:.2f} dollars" if cap != NO_CAP else ""


def _cap(price: float, rng: random.Random) -> float:
    """The larger of two caps drawn from the four above the price."""
    first = bisect_right(CAPS, price)
    above = CAPS[first : first + 4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_CAP


def _synthetic(product: Product, variant: int) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """The request with the ``variant``-th combination of option values, the last group changing fastest."""
    chosen = {}
    for name in sorted(product.options, reverse=True):
        variant, value = divmod(variant, len(product.options[name]))
        chosen[name] = product.options[name][value]
    options = {name: chosen[name] for name in sorted(chosen)}
    told = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return product.instruction + (f" with {told}" if told else ""), product.instruction_attributes, options


def _human(product: Product, variant: int) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    request = product.requests[variant]
    return (
        request["instruction"].strip("."),
        tuple(request["instruction_attributes"]),
        tuple(request["instruction_options"]),
    )


__all__ = [
    "ENV_ID",
    "KINDS",
    "SPLITS",
    "Goal",
    "Goals",
    "bounds",
    "goals",
    "open_goals",
    "price_text",
    "prices",
    "task_splits",
    "twins",
]
