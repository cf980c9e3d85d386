"""WebShop's failure modes, each told from an episode that was really played."""

from collections import Counter

import gymnasium
import pytest

from roleagent.curricula import RuleAnalyst
from roleagent.envs.webshop.text import read_request, words_of
from roleagent.envs.wrappers import Tags
from roleagent.failures.modes import diagnose, taxonomy
from roleagent.types import Completion, Task, Trajectory, Turn

WEBSHOP = taxonomy("RoleAgent/WebShop-v0")

ENV = "RoleAgent/WebShop-v0"
NOTHING = Completion((), (), "stop")


@pytest.fixture(scope="module")
def env():
    return gymnasium.make(ENV, data_dir="generated", num_products=150)


@pytest.fixture(scope="module")
def goal(env):
    """A goal with two options, whose words are not all in its product's title."""
    shop = env.unwrapped.shop
    for task_id in env.unwrapped.task_split.task_ids:
        goal = shop.goals.find(task_id)
        product = shop.catalogue[goal.position]
        telling = all(words_of(attribute) <= words_of(product.title) for attribute in goal.attributes)
        if len(goal.options) == 2 and all(len(values) > 1 for values in product.options.values()) and not telling:
            return goal
    pytest.fail("no goal with two options in this catalogue")


def play(env, task_id, commands, stop_reason=""):
    """The trajectory of these commands in the real environment."""
    first, info = env.reset(options={"task_id": task_id})
    task = Task(ENV, task_id, info["split"], info["goal"], info["task_type"])
    turns, terminated, truncated = [], False, False
    for command in commands:
        assert not terminated and not truncated
        text, _, terminated, truncated, info = env.step(command)
        turns.append(Turn((), NOTHING, command, text, info=info))
    assert not info["won"], "a solved task is no failure"
    reason = stop_reason or ("lost" if terminated else "max_steps" if truncated else "context")
    return Trajectory(task, tuple(turns), terminated, truncated or not terminated, reason, first)


def opened(env, goal, position=None):
    """Commands to the page of a product, by its title."""
    product = env.unwrapped.shop.catalogue[goal.position if position is None else position]
    return [f"search[{product.title.lower()}]", f"click[{product.asin.lower()}]"]


def other_value(env, goal, name):
    return next(v for v in env.unwrapped.shop.catalogue[goal.position].options[name] if v != goal.options[name])


def rival(env, goal, fits):
    """A product in whose sight the right one stands: another price, or other options."""
    shop = env.unwrapped.shop
    own = shop.catalogue[goal.position]
    for position in shop.find(own.title.lower())[:10]:
        product = shop.catalogue[position]
        if position != goal.position and fits(product):
            return position
    pytest.skip("this catalogue has no such rival")


def episodes(env, goal):
    """One failed episode per mode: commands, and the step at which it went wrong."""
    right = opened(env, goal)
    values = [f"click[{value}]" for value in goal.options.values()]
    wrong = f"click[{other_value(env, goal, next(iter(goal.options)))}]"
    query, prev, back, more = right[0], "click[< prev]", "click[back to search]", ["click[next >]"] * 2
    lacking = rival(env, goal, lambda p: any(v not in p.options.get(k, ()) for k, v in goal.options.items()))
    return {
        "action_format_error": ([query, "", "buy the first one"], 1),
        "irrelevant_query": ([query, "search[zebra crossing paint]", "click[next >]", "search[cheap flights]"], 1),
        "wrong_product_selection": ([query, opened(env, goal, lacking)[1], "click[buy now]"], 1),
        "wrong_attribute_selection": ([*right, values[1], wrong, "click[buy now]"], 3),
        "missing_attribute_selection": ([*right, values[0], "click[buy now]"], 3),
        "repeated_query": ([query, back, query, back, query], 2),
        "navigation_error": ([query, "click[buy now]", "click[features]"], 1),
        "excessive_browsing": (
            [*right, "click[description]", prev, "click[features]", prev, "click[reviews]", prev, prev, *more],
            10,
        ),
        "premature_termination": ([*right, *[values[0]] * 4], 3),
    }


@pytest.mark.parametrize("mode", sorted(set(WEBSHOP) - {"price_constraint_violation", "premature_purchase"}))
def test_each_mode_is_detected_at_its_step(env, goal, mode):
    commands, step = episodes(env, goal)[mode]
    [reflection] = RuleAnalyst().reflect([play(env, goal.goal_id, commands)])
    assert (reflection.mode, reflection.critical_step) == (mode, step)
    assert reflection.detail and reflection.lesson and goal.category in reflection.query


def test_a_product_that_is_too_dear(env):
    """The right options of a product above the limit."""
    shop = env.unwrapped.shop
    for task_id in env.unwrapped.task_split.task_ids:
        goal = shop.goals.find(task_id)
        for position in shop.find(shop.catalogue[goal.position].title.lower())[:10]:
            product = shop.catalogue[position]
            offers = all(value in product.options.get(name, ()) for name, value in goal.options.items())
            if not offers or product.prices[0] <= goal.price_upper or product.query != goal.query:
                continue
            values = [f"click[{value}]" for value in goal.options.values()]
            way = [opened(env, goal)[0], opened(env, goal, position)[1], *values, "click[buy now]"]
            mode, finding = diagnose(play(env, task_id, way))
            if mode == "price_constraint_violation":
                assert f"${product.prices[0]}" in finding.detail and finding.step == len(way) - 1
                return
            assert mode == "wrong_product_selection"  # something visibly better was in sight
    pytest.fail("no purchase above the limit was told")


def bought_unread(env, read_first):
    """Purchases with every option right of products that lack what is not in the title."""
    shop = env.unwrapped.shop
    for task_id in env.unwrapped.task_split.task_ids[::2]:
        goal = shop.goals.find(task_id)
        query = read_request(goal.instruction).sentence.lower()
        for position in shop.find(query)[:10]:
            product = shop.catalogue[position]
            offers = all(value in product.options.get(name, ()) for name, value in goal.options.items())
            cheap = product.prices[0] < goal.price_upper
            if not offers or not cheap or shop.score(goal, position, dict(goal.options)).total == 1:
                continue
            values = [f"click[{value}]" for value in goal.options.values()]
            looks = ["click[features]", "click[< prev]"] if read_first else []
            way = [f"search[{query}]", opened(env, goal, position)[1], *looks, *values, "click[buy now]"]
            yield diagnose(play(env, task_id, way))


@pytest.mark.slow
def test_a_purchase_without_reading(env):
    """Told apart from one after reading, which is the choice of a wrong product."""
    unread = Counter(mode for mode, _ in bought_unread(env, read_first=False))
    read_first = Counter(mode for mode, _ in bought_unread(env, read_first=True))
    assert set(unread) == {"premature_purchase", "wrong_product_selection"}
    assert set(read_first) == {"wrong_product_selection"}
    assert unread["premature_purchase"] >= 10


def test_malformed_replies_are_a_format_error(env, goal):
    wrapped = Tags(env)
    trajectory = play(wrapped, goal.goal_id, ["click[buy now]", "<action></action>", "I would search for shoes"])
    assert diagnose(trajectory)[0] == "action_format_error"
