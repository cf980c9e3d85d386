"""Goals: those of the original exactly, in its order, split once and for all."""

import gzip
import json
from math import ceil

import gymnasium
import numpy as np
import pytest

from roleagent.envs.webshop.data.catalogue import Catalogue, MemoryShelf
from roleagent.envs.webshop.data.product import clean
from roleagent.envs.webshop.data.sources import load_catalogue
from roleagent.envs.webshop.engine.goals import (
    KINDS,
    NO_CAP,
    bounds,
    open_goals,
    task_splits,
    twins,
)
from roleagent.envs.webshop.engine.written import find_goal
from roleagent.envs.webshop.text import read_request
from roleagent.tasks.grammar import grammar_of
from roleagent.tasks.split import assert_disjoint


def shop(*products):
    """A catalogue of products given as changes to a plain one, with optional notes and human requests."""
    shelf = []
    for number, (changes, notes, human) in enumerate(products):
        entry = {"asin": f"B{number}", "name": f"thing {number}", "pricing": "$5.00"} | changes
        shelf.append(clean(entry, notes, human))
    return Catalogue(MemoryShelf(shelf), "a test's shop", "0")


@pytest.fixture(scope="module")
def real(webshop_data):
    return load_catalogue(webshop_data)


# --- the original -----------------------------------------------------------------------------------------------------


def reference(folder, name):
    with gzip.open(folder / "reference" / f"{name}.json.gz", "rt") as file:
        return json.load(file)


@pytest.mark.parametrize("kind", KINDS)
def test_goals_are_those_of_the_original(webshop_data, real, kind):
    """Every field of every goal, in order, to the last bit."""
    expected = reference(webshop_data, f"goals_{kind}")
    _, found = open_goals(real, kind, seed=7)
    assert len(found) == len(expected) == {"synthetic": 6910, "human": 13}[kind]
    for goal, original in zip(found, expected, strict=True):
        assert {
            "asin": goal.asin,
            "instruction_text": goal.instruction,
            "attributes": list(goal.attributes),
            "price_upper": goal.price_upper,
            "goal_options": goal.options if kind == "synthetic" else list(goal.options),
            "weight": goal.weight,
        } == original


def test_the_published_splits(real):
    found = task_splits(real)
    assert {split: len(tasks) for split, tasks in found.items()} == {"train": 5410, "valid": 1000, "test": 500}
    assert found["test"].task_ids[0] == "synthetic/00000/B0743JKHBV"
    assert found["valid"].task_ids[0].startswith("synthetic/00500/")
    assert found["train"].task_ids[0].startswith("synthetic/01500/")
    digests = {"train": "07aca1e057d138ac", "valid": "c4a8edbf2adfde14", "test": "b7ba0719df95fbbd"}
    assert {split: tasks.digest for split, tasks in found.items()} == digests
    # Eight requests of test stand in training, seven of them with the same price cap (docs/evaluation.md).
    _, every = open_goals(real)
    again = {twin: first for twin, first in twins(real).items() if twin in found["train"] and first in found["test"]}
    assert len({every.find(twin).request for twin in again}) == 8
    same = {every.find(twin).instruction for twin in found["train"].task_ids}
    assert len({every.find(first).instruction for first in found["test"].task_ids} & same) == 7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("products", [300, 1000])
def test_generated_splits_share_no_request_whatever_the_seed(kind, products):
    catalogue = load_catalogue("generated", products)
    found = task_splits(catalogue, kind)
    for seed in (7, 8):
        every = open_goals(catalogue, kind, seed)[1]
        assert_disjoint(found.values(), key=lambda task_id: every.find(task_id).request)
        assert_disjoint(found.values(), key=lambda task_id: every.find(task_id).instruction)
    assert set(found["test"].task_ids) == set(every.ids(*bounds(len(every))["test"]))
    assert bool(twins(catalogue, kind)) == ((kind, products) != ("human", 300))


# --- rules ------------------------------------------------------------------------------------------------------------


def request(text, *attributes, options=()):
    return {"instruction": text, "instruction_attributes": list(attributes), "instruction_options": list(options)}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_lead_to_goals_and_back(kind):
    catalogue = load_catalogue("generated")
    _, found = open_goals(catalogue, kind)
    split_ids = [task_id for tasks in reversed(task_splits(catalogue, kind).values()) for task_id in tasks.task_ids]
    assert split_ids == [goal.goal_id for goal in found if goal.goal_id not in twins(catalogue, kind)]
    assert [goal.index for goal in found] == [*range(len(found))]
    for goal in (found[0], found[len(found) // 2], found[-1]):
        assert found.find(goal.goal_id) == goal
        assert found.catalogue[goal.position].asin == goal.asin
        assert found.ids(goal.index, goal.index + 1) == (goal.goal_id,)
    other = {"synthetic": "human", "human": "synthetic"}[kind]
    asin = found[0].asin
    wrong = [f"{kind}/{number}/{asin}" for number in ("-1", "0", "99999999999999999999", "²")]
    for task_id in (
        "",
        "x",
        kind,
        f"{kind}/",
        *wrong,
        f"{other}/00000/{asin}",
        f"{kind}/00000/B0",
        f"{found.ids(0, 1)[0]}/",
    ):
        with pytest.raises(ValueError, match="unknown goal id"):
            found.find(task_id)
    assert found[-len(found)] == found[0]
    for index in (len(found), -len(found) - 1):
        with pytest.raises(IndexError):
            found[index]


# --- written goals ----------------------------------------------------------------------------------------------------


def test_a_written_goal_asks_for_what_its_fields_say():
    env = gymnasium.make("RoleAgent/WebShop-v0", generated_tasks=True)
    grammar, shop = grammar_of(env), env.unwrapped.shop
    rng = np.random.default_rng(0)
    for _ in range(100):
        spec = grammar.vary(grammar.base(rng), rng)
        named = dict(zip(grammar.fields, spec.values, strict=True))
        goal = find_goal(shop, grammar.task_id(spec))
        product, request = shop.catalogue[goal.position], read_request(goal.instruction)
        text, info = env.reset(options={"task_id": goal.goal_id})
        assert goal.instruction in text and goal.category == named["category"] == info["task_type"]
        assert len(goal.attributes) == int(named["attributes"]) and set(goal.attributes) <= set(product.attributes)
        assert all(attribute in goal.instruction for attribute in goal.attributes)
        assert request.options == goal.options and len(goal.options) == int(named["options"])
        assert all(value in product.options[name] for name, value in goal.options.items())
        price = shop.prices[goal.position]
        if named["cap"] == "none":
            assert goal.price_upper == NO_CAP and "price" not in goal.instruction
        else:
            assert request.cap == goal.price_upper and ceil((request.cap - price) / 10) == int(named["cap"])


def test_nobody_writes_the_requests_of_people():
    with pytest.raises(ValueError, match="generated_tasks needs goals='synthetic'"):
        gymnasium.make("RoleAgent/WebShop-v0", goals="human", generated_tasks=True)
