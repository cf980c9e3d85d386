"""``RoleAgent/WebShop-v0``: purchases, commands, pages as the original renders them, and the oracle."""

import re
from dataclasses import replace
from importlib.util import find_spec

import gymnasium
import pytest

from roleagent.envs.retrieval.lexical.bm25 import BM25
from roleagent.envs.webshop.data.catalogue import Catalogue, CatalogueError, MemoryShelf
from roleagent.envs.webshop.data.sources import load_catalogue
from roleagent.envs.webshop.engine.goals import open_goals
from roleagent.envs.webshop.engine.nouns import HEURISTIC, NounError
from roleagent.envs.webshop.engine.session import Session
from roleagent.envs.webshop.engine.shop import Shop, open_shop
from roleagent.envs.webshop.env import WebShopEnv
from roleagent.envs.webshop.oracle import choose, walkthrough


def make(**options):
    return gymnasium.make("RoleAgent/WebShop-v0", **options)


# --- the contract -----------------------------------------------------------------------------------------------------


def test_info_from_reset_to_the_purchase():
    env = make()
    for task_id in env.unwrapped.task_split.task_ids:
        _, info = env.reset(options={"task_id": task_id})
        if plan := env.unwrapped.walkthrough():
            break
    goal = env.unwrapped.shop.goals.find(task_id)
    assert info["goal_id"] == task_id and info["task_type"] == goal.category != "" and info["asin"] == ""
    assert info["clickables"] == ["search"] and info["has_search_bar"] and info["admissible_actions"] == []
    assert info["noun_source"] == env.unwrapped.shop.nouns.name
    for command in plan:
        assert info["score"] == 0
        text, *_, info = env.step(command)
        assert not info["has_search_bar"]
    assert info["score"] == 1 and info["asin"] == goal.asin and info["admissible_actions"] == info["clickables"] == []
    assert text.startswith("Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it")


@pytest.mark.parametrize(("reward", "earned"), [("success", 0.0), ("score", None)])
def test_a_poor_purchase_ends_the_episode_and_keeps_its_score(reward, earned):
    env = make(reward=reward)
    for task_id in env.unwrapped.task_split.task_ids:
        _, info = env.reset(options={"task_id": task_id})
        _, _, _, _, info = env.step(f"search[{info['goal']}]")
        for command in (info["admissible_actions"][-1], "click[buy now]"):
            _, got, terminated, truncated, info = env.step(command)
        assert terminated and not truncated and info["rewards"] == {"task": got} and info["state"] is None
        if 0 < info["score"] < 1:
            assert got == (info["score"] if earned is None else earned) and not info["won"]
            return
    raise AssertionError("no purchase was half right")


def test_missing_data_end_in_one_line(tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(CatalogueError, match=re.escape(str(folder))) as error:
            WebShopEnv(data_dir=folder)
        assert "\n" not in str(error.value)
        monkeypatch.setenv("WEBSHOP_DATA", str(folder))
        with pytest.raises(CatalogueError):
            WebShopEnv()
        assert len(WebShopEnv(data_dir="generated").task_split) > 100
        monkeypatch.delenv("WEBSHOP_DATA")
    with pytest.raises(NounError, match="noun file"):
        WebShopEnv(nouns=tmp_path / "nouns.json")


def test_a_real_lucene_finds_the_same_and_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = {"data_dir": "generated", "num_products": 90, "search": "pyserini"}
    if find_spec("pyserini") is None:
        with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"pip install 'roleagent\[pyserini\]'"):
            WebShopEnv(**arguments)
        assert list(tmp_path.iterdir()) == []
        pytest.skip("needs the extra [pyserini]")
    theirs, ours = open_shop(**arguments), open_shop("generated", 90)
    for goal in (ours.goals[index] for index in range(40)):
        assert theirs.find(goal.instruction) == ours.find(goal.instruction)
    (folder,) = (tmp_path / "roleagent" / "webshop").iterdir()
    made = folder.stat().st_mtime_ns
    assert open_shop(**arguments, goals="human").index is theirs.index and folder.stat().st_mtime_ns == made


# --- the pages --------------------------------------------------------------------------------------------------------


def odd_shop(**changed):
    """A shop in which the first product has odd fields."""
    products = list(load_catalogue("generated", 60))
    products[0] = replace(products[0], **changed)
    catalogue = Catalogue(MemoryShelf(products), "odd", "0" * 16)
    index = BM25.build(catalogue.asins, [product.document for product in catalogue])
    prices, goals = open_goals(load_catalogue("generated", 60))
    return Shop(catalogue, index, goals, prices, HEURISTIC, show_attributes=True)


def open_first(shop):
    session = Session(shop, shop.goals[0])
    session.query, session.page, session.position = "x", shop.item(0), 0
    return session


def test_queries_and_categories_can_be_listed_as_in_the_original():
    shop = open_shop("generated")
    session = Session(shop, shop.goals[0])
    product = shop.catalogue[0]
    for query, attribute, value in (
        (f"<q> {product.query}", "query", product.query),
        (f"<q>  {product.query} ", "query", product.query),
        (f"<c> {product.category} more", "category", product.category),
        ("<q>", "query", ""),
        ("<c> nothing", "category", "nothing"),
    ):
        found = [position for position, other in enumerate(shop.catalogue) if getattr(other, attribute) == value]
        assert list(shop.find(query)) == found
        assert session.act(f"search[{query}]") and f"Page 1 (Total results: {len(found)})" in session.observe()
    assert len(shop.find(f"<c> {product.category}")) > 50
    assert shop.find("<c>") == shop.find("c") and shop.find("<r> table") == shop.find("r table")  # words, here


def test_options_named_like_buttons_do_what_the_button_does():
    session = open_first(odd_shop(options={"top": ("red", "blue"), "sole": ("red", "white")}))
    assert session.clickables[-3:] == ("red", "blue", "white")
    assert session.act("click[red]") and session.options == {"sole": "red"}  # a value of two groups sets the last
    shop = odd_shop(options={"kind": ("description", "search", "buy now", "plain", "attributes")})
    session = open_first(shop)
    buttons = ("back to search", "< prev", "description", "features", "reviews", "attributes", "buy now")
    assert session.clickables == (*buttons, "search", "plain")
    assert not session.act("click[search]") and "click[search]" not in session.page.commands
    assert session.act("click[description]") and session.page.name == "description" and session.options == {}
    assert session.act("click[< prev]") and session.act("click[attributes]") and session.page.name == "attributes"
    product = shop.catalogue[0]
    assert session.page.text.endswith(f"{product.category} [SEP] {product.query} [SEP] {product.product_category}")
    assert choose(shop.item(0), ("buy now",)) is None and choose(shop.item(0), ("plain",)) == ("plain",)


# --- the oracle -------------------------------------------------------------------------------------------------------


def test_the_oracle_finds_which_real_goals_cannot_be_reached(webshop_data):
    shop = open_shop(webshop_data, nouns=webshop_data / "reference" / "title_nouns.json.gz")
    goals = [shop.goals[index] for index in range(0, len(shop.goals), 29)]
    plans = [walkthrough(shop, goal) for goal in goals]
    assert 0.9 < sum(map(bool, plans)) / len(goals) < 0.96 and max(map(len, plans)) <= 8
    for goal, plan in zip(goals, plans, strict=True):
        if not plan:  # a wanted option that nothing on the product's own page satisfies
            assert choose(shop.item(goal.position), goal.options) is None
