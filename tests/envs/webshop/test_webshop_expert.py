"""The scripted shopper: what it reads, how it shops, and what a warm start makes of it."""

import gzip
import json

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.env_card import make_expert
from roleagent.envs.webshop.text import read_page, read_request

ENV = "RoleAgent/WebShop-v0"


@pytest.fixture(scope="module")
def env():
    return gymnasium.make(ENV, data_dir="generated", num_products=120)


def play(env, task_id, expert=None, stray=()):
    """An episode of the expert; ``stray`` maps step numbers to commands of somebody else. Commands and last info."""
    text, info = env.reset(options={"task_id": task_id})
    expert = expert or make_expert(env, None)
    expert.reset(info["goal"], text)
    commands, stray, done = [], dict(stray), False
    while not done:
        command = stray.get(len(commands)) or expert.act()
        text, _, terminated, truncated, info = env.step(command)
        expert.observe(command, text)
        commands.append(command)
        done = terminated or truncated
    return commands, info


# --- reading ----------------------------------------------------------------------------------------------------------


def recorded(folder):
    for name in ("synthetic", "human"):
        with gzip.open(folder / "reference" / f"traces_{name}.jsonl.gz", "rt") as lines:
            for line in lines:
                yield json.loads(line)


def test_pages_of_the_original_are_read_as_they_are(webshop_data):
    """Kind, products and option values, against the clickables that the original reported."""
    kinds = set()
    for episode in recorded(webshop_data):
        for step in (episode, *episode["steps"]):
            page, buttons = read_page(step["observation"]), step["clickables"]
            kinds.add(page.kind)
            if page.kind == "results":
                ways = ["back to search", *["< prev"] * (page.number > 1), "next >"]
                assert buttons == [*ways, *(listing.asin.lower() for listing in page.listings)]
            elif page.kind == "item":
                values = [value for values in page.groups().values() for value in values]
                assert list(dict.fromkeys(values)) == buttons[buttons.index("buy now") + 1 :]
                assert page.price > 0
            elif page.kind == "detail":
                assert buttons == ["back to search", "< prev"]
            else:
                assert buttons == (["search"] if page.kind == "index" else [])
    assert kinds == {"index", "results", "item", "detail", "done"}


def test_requests_of_the_original_are_read_as_they_are(webshop_data):
    with gzip.open(webshop_data / "reference" / "goals_synthetic.json.gz", "rt") as lines:
        for goal in json.load(lines):
            request = read_request(goal["instruction_text"])
            assert request.options == goal["goal_options"]
            assert request.cap == goal["price_upper"] or (request.cap == float("inf") and goal["price_upper"] > 1000)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    assert read_page(text).kind in ("index", "results", "item", "detail", "done")
    read_page(f"Instruction: [SEP] x [SEP] Back to Search [SEP] {text} [SEP] Buy Now").groups()
    assert isinstance(read_request(text).kind, str) and len(read_request(text).words) <= 200


# --- shopping ---------------------------------------------------------------------------------------------------------


def test_it_wins_most_tasks_of_the_real_catalogue(webshop_data):
    """Of those that can be won at all: the original turns some chosen colors into ones that the goal does not name."""
    env = gymnasium.make(ENV, data_dir=str(webshop_data))
    task_ids = env.unwrapped.task_split.task_ids[:200]
    won = possible = 0
    for task_id in task_ids:
        _, info = play(env, task_id)
        won += info["won"]
        goal = env.unwrapped.shop.goals.find(task_id)
        possible += env.unwrapped.shop.score(goal, goal.position, dict(goal.options)).total == 1
    assert won >= 0.75 * len(task_ids) and won >= 0.82 * possible
