"""The tasks that can be written for a shop (GenEnv): products of its training goals, asked for in other ways.

A line describes how much of a product a request names, how close the price cap is, and, in shops with many products of
a kind, how far down a search finds the product. The seed chooses the product and the words: no simulator can know a
catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
from numpy.random import Generator

from roleagent.envs.webshop.engine.goals import NO_CAP, Goal, task_splits
from roleagent.envs.webshop.engine.pages import PAGE_SIZE
from roleagent.envs.webshop.engine.written import (
    MOST_ATTRIBUTES,
    MOST_OPTIONS,
    MOST_STEPS,
    VARIANTS,
    WrittenGoal,
    attributes_of,
    caps_above,
    find_goal,
    is_written,
)
from roleagent.tasks.grammar import Refused, TaskGrammar, TaskSpec

_TRIES = 200  # training goals that are drawn in search of one that fits
NO_CAP_STEPS = "none"
RANKS = ("top", "page", "later")
_TOP = 3  # results
_EXAMINED = 100  # goals
_CAP_STEPS = (2, 3, 3, 4, 4, 4)  # the larger of two of the four caps above the price


class ShopGrammar(TaskGrammar):
    """Requests for the products of training goals. The seed is a training goal and the choice of what is named."""

    seed_draws_goal = True

    def __init__(self, env: gymnasium.Env, plan_share: float = 0.5):
        super().__init__(env, plan_share)
        self._shop, self._listed = self.env.shop, self.env.task_split.task_ids
        self._goals_of: dict[str, list[int]] = {}  # places in the split, by category
        attributes = options = 0
        for place, goal_id in enumerate(self._listed):
            product = self._shop.catalogue[self._shop.catalogue.position(goal_id.rpartition("/")[2])]
            self._goals_of.setdefault(product.category, []).append(place)
            attributes, options = max(attributes, len(attributes_of(product))), max(options, len(product.options))
        self.fields = {
            "category": tuple(sorted(self._goals_of)),
            "attributes": tuple(str(n) for n in range(1, min(MOST_ATTRIBUTES, attributes) + 1)),
            "options": tuple(str(n) for n in range(min(MOST_OPTIONS, options) + 1)),
            "cap": (NO_CAP_STEPS, *(str(n) for n in range(1, MOST_STEPS + 1))),
            **({"rank": RANKS} if self._is_large() else {}),
        }

    def task_id(self, spec: TaskSpec) -> str:
        return self._written(spec.values, spec.seed).task_id

    def spec(self, task_id: str) -> TaskSpec:
        written = WrittenGoal.parse(task_id) if isinstance(task_id, str) else None
        if written is None or task_id not in self.env.task_split:
            raise ValueError(f"{str(task_id)[:200]!r} is no task that was written for {self.env.task_split.env_id}")
        return self._spec(written)

    def base(self, rng: Generator) -> TaskSpec:
        goal = self._shop.goals.find(self._listed[int(rng.integers(len(self._listed)))])
        known = attributes_of(self._shop.catalogue[goal.position])
        attributes = min(len(goal.attributes), len(known), MOST_ATTRIBUTES)
        caps = caps_above(self._shop.prices[goal.position])
        steps = _CAP_STEPS[int(rng.integers(len(_CAP_STEPS)))] if goal.price_upper != NO_CAP else 0
        options, variant = min(len(goal.options), MOST_OPTIONS), int(rng.integers(VARIANTS))
        return self._spec(WrittenGoal(goal.goal_id, attributes, options, min(steps, len(caps)), variant))

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        places = self._goals_of[values[0]]
        for _ in range(_TRIES):
            seed = places[int(rng.integers(len(places)))] * VARIANTS + int(rng.integers(VARIANTS))
            written = self._written(values, seed)
            if is_written(self._shop, written.task_id) and self._spec(written).values == tuple(values):
                return TaskSpec(tuple(values), seed)
        raise Refused("inconsistent", "no product found has so much to ask for")

    def content(self, spec: TaskSpec) -> str:
        return _content(find_goal(self._shop, self.task_id(spec)))

    def held_out_contents(self) -> frozenset[str]:
        splits = task_splits(self._shop.catalogue, self._shop.goals.kind)
        held_out = (task_id for name, split in splits.items() if name != "train" for task_id in split.task_ids)
        return frozenset(_content(self._shop.goals.find(task_id)) for task_id in held_out)

    def _written(self, values: Sequence[str], seed: int) -> WrittenGoal:
        _, attributes, options, cap, *_ = values
        steps = 0 if cap == NO_CAP_STEPS else int(cap)
        return WrittenGoal(self._listed[seed // VARIANTS], int(attributes), int(options), steps, seed % VARIANTS)

    def _spec(self, written: WrittenGoal) -> TaskSpec:
        goal = written.goal(self._shop)
        named = {"category": goal.category, "attributes": str(written.attributes), "options": str(written.options)}
        named |= {"cap": str(written.steps or NO_CAP_STEPS), "rank": self._rank(goal) if "rank" in self.fields else ""}
        values = tuple(named[field] for field in self.fields)
        return TaskSpec(values, self.env.task_split.position(written.goal_id) * VARIANTS + written.variant)

    def _rank(self, goal: Goal) -> str:
        """The place of the product among the results of a search for its kind and the options."""
        found = self._shop.find(" ".join((goal.query, *dict(goal.options).values())))
        place = found.index(goal.position) if goal.position in found else len(found)
        return RANKS[(place >= _TOP) + (place >= PAGE_SIZE)]

    def _is_large(self) -> bool:
        """Whether a search for a kind of product can need a second page; decided by some of the goals."""
        some = self._listed[:: max(1, len(self._listed) // _EXAMINED)]
        return any(self._rank(self._shop.goals.find(goal_id)) == RANKS[-1] for goal_id in some)


def _content(goal: Goal) -> str:
    return repr((goal.asin, sorted(dict(goal.options).items())))


__all__ = ["ShopGrammar"]
