"""Goals that are written for training (GenEnv): a product of a training goal, asked for in another way.

The id ``synthetic/00042/B09QCP4579+a2o1c3v017`` asks for the product of the goal before the plus sign: by two of its
attributes, one of that goal's options, and with a price cap three steps above the price. The last number chooses the
attributes and the option. The catalogue decides the rest, as it does for the goals themselves.
"""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from roleagent.envs.webshop.data.catalogue import Product
from roleagent.envs.webshop.data.generate import request_text
from roleagent.envs.webshop.data.product import NO_ATTRIBUTES
from roleagent.envs.webshop.data.product_templates import WARES
from roleagent.envs.webshop.engine.goals import CAPS, NO_CAP, Goal, price_text, task_splits
from roleagent.envs.webshop.engine.shop import Shop
from roleagent.tasks.grammar import OpenTaskSplit

VARIANTS = 1000
MOST_ATTRIBUTES, MOST_OPTIONS, MOST_STEPS = 4, 3, 4
_GOAL_ID = re.compile(r"(?P<goal>synthetic/\d+/[^+]+)\+a(?P<a>[1-4])o(?P<o>[0-3])c(?P<c>[0-4])v(?P<v>[0-9]{3})")
_WARES = {ware.query: ware for ware in WARES}


@dataclass(frozen=True, slots=True)
class WrittenGoal:
    """The parts of such an id.

    Attributes:
        goal_id: the training goal.
        attributes: how many of the product's attributes are asked for, 1 to 4.
        options: how many of the goal's options, 0 to 3.
        steps: how many steps of 10 dollars the cap is above the price, 1 to 4; 0: no cap.
        variant: chooses attributes and options, 0 to 999.
    """

    goal_id: str
    attributes: int
    options: int
    steps: int
    variant: int

    @classmethod
    def parse(cls, task_id: str) -> WrittenGoal | None:
        """Reads an id; None if it is none of a written goal."""
        match = _GOAL_ID.fullmatch(task_id)
        return match and cls(match["goal"], int(match["a"]), int(match["o"]), int(match["c"]), int(match["v"]))

    @property
    def task_id(self) -> str:
        """The id."""
        return f"{self.goal_id}+a{self.attributes}o{self.options}c{self.steps}v{self.variant:03d}"

    def goal(self, shop: Shop) -> Goal:
        """The goal itself.

        Raises:
            ValueError: there is no such training goal, or its product has fewer attributes, options or caps.
        """
        of = shop.goals.find(self.goal_id)
        product = shop.catalogue[of.position]
        known, chosen = attributes_of(product), dict(of.options)
        caps = caps_above(shop.prices[of.position])
        if self.attributes > len(known) or self.options > len(chosen) or self.steps > len(caps):
            raise ValueError(f"{self.task_id}: the product has not as much to ask for")
        rng = random.Random(f"written/{self.goal_id}/{self.variant}")
        asked = sorted(rng.sample(known, self.attributes), key=known.index)
        options = {name: chosen[name] for name in sorted(rng.sample(sorted(chosen), self.options))}
        cap = caps[self.steps - 1] if self.steps else NO_CAP
        told = ", and ".join(f"{name}: {value}" for name, value in options.items())
        return replace(
            of,
            goal_id=self.task_id,
            instruction=_request(product, asked) + (f" with {told}" if told else "") + price_text(cap),
            attributes=tuple(asked),
            options=options,
            price_upper=cap,
        )


def find_goal(shop: Shop, task_id: str) -> Goal:
    """The goal of an id, a listed one or a written one.

    Raises:
        ValueError: there is none.
    """
    written = WrittenGoal.parse(task_id)
    return written.goal(shop) if written else shop.goals.find(task_id)


def is_written(shop: Shop, task_id: str) -> bool:
    """Whether an id is that of a goal that can be written for training: its request is none of an evaluation split."""
    written = WrittenGoal.parse(task_id)
    if written is None or written.goal_id not in task_splits(shop.catalogue, shop.goals.kind)["train"]:
        return False
    try:
        return written.goal(shop).request not in _held_out(shop)
    except ValueError:
        return False


@lru_cache(maxsize=8)
def _held_out(shop: Shop) -> frozenset[str]:
    """The requests of the evaluation splits."""
    splits = task_splits(shop.catalogue, shop.goals.kind)
    ids = (goal_id for split, tasks in splits.items() if split != "train" for goal_id in tasks.task_ids)
    return frozenset(shop.goals.find(goal_id).request for goal_id in ids)


@lru_cache(maxsize=8)
def open_task_split(shop: Shop, split: str = "train") -> OpenTaskSplit:
    """The tasks of a split, and those that are written for training.

    Raises:
        ValueError: it is an evaluation split, or the goals are people's requests.
    """
    if shop.goals.kind != "synthetic":
        raise ValueError("generated_tasks needs goals='synthetic': nobody writes people's requests")
    return OpenTaskSplit.of(task_splits(shop.catalogue, shop.goals.kind)[split], partial(is_written, shop))


def attributes_of(product: Product) -> Sequence[str]:
    """What a request can name: the attributes of the product, else those of its own request; each once."""
    tagged = product.attributes if product.attributes != NO_ATTRIBUTES else product.instruction_attributes
    return tuple(dict.fromkeys(tagged))


def caps_above(price: float) -> Sequence[float]:
    """The caps that a request can name, lowest first; at most :data:`MOST_STEPS`.

    >>> caps_above(24.5)
    (30.0, 40.0, 50.0, 60.0)
    """
    first = bisect_right(CAPS, price)
    return CAPS[first : first + MOST_STEPS]


def _request(product: Product, asked: Sequence[str]) -> str:
    """The request in the words of the synthetic ones; an attribute stands where the product's own request has it."""
    ware = _WARES.get(product.query)
    before = ware.qualities if ware else [one for one in asked if one in product.instruction.split(product.query)[0]]
    uses = ware.uses if ware else ()
    return request_text(
        product.query,
        [one for one in asked if one in before],
        [one for one in asked if one not in before and one not in uses],
        [one for one in asked if one in uses],
    )


__all__ = [
    "MOST_ATTRIBUTES",
    "MOST_OPTIONS",
    "MOST_STEPS",
    "VARIANTS",
    "WrittenGoal",
    "attributes_of",
    "caps_above",
    "find_goal",
    "is_written",
    "open_task_split",
]
