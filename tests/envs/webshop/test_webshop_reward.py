"""The score of a purchase, part by part, and where nouns come from."""

import json
import sys
from types import SimpleNamespace

import pytest

from roleagent.envs.webshop.data.product import Product
from roleagent.envs.webshop.engine import nouns
from roleagent.envs.webshop.engine.goals import Goal
from roleagent.envs.webshop.engine.nouns import NounError, open_nouns
from roleagent.envs.webshop.engine.reward import color_of, count_attributes, count_options, judge, type_factor

MUG = Product(
    asin="B000000001",
    title="Blue Mug with Handle",
    description="Holds a pint. Dishwasher Safe.",
    bullets=("BPA Free", "Keeps warm"),
    category="kitchen",
    product_category="Kitchen › Cups › Mugs",
    query="mugs",
    options={"color": ("blue", "dark red"), "size": ("small", "large")},
    attributes=("easy clean", "lead free"),
    prices=(10.0,),
    instruction="",
    instruction_attributes=(),
    human=(),
)


def goal(**changed):
    fields = {
        "goal_id": "synthetic/00000/B000000001",
        "index": 0,
        "position": 0,
        "asin": MUG.asin,
        "title": MUG.title,
        "instruction": "",
        "attributes": ("easy clean", "bpa free"),
        "options": {"color": "blue", "size": "large"},
        "price_upper": 20.0,
        "weight": 1.0,
        "query": MUG.query,
        "category": MUG.category,
        "product_category": MUG.product_category,
    }
    return Goal(**{**fields, **changed})


NOUNS = ("mug", "handle")


def test_the_score_is_the_share_of_what_was_wanted():
    full = judge(MUG, goal(), 10.0, ("blue", "large"), NOUNS, NOUNS)
    assert (full.total, full.type, full.attributes, full.options, full.price) == (1.0, 1.0, 2, 2, True)
    assert full.query_match and full.category_match and full.title_score == 1
    assert judge(MUG, goal(), 20.0, ("blue",), NOUNS, NOUNS).total == 4 / 5  # the cap itself is cheap enough
    assert judge(MUG, goal(), 20.01, (), NOUNS, NOUNS).total == 2 / 5
    assert judge(MUG, goal(attributes=("silver plated",), options={}), 99, (), NOUNS, NOUNS).total == 0
    assert judge(MUG, goal(options={}), 10.0, ("blue", "large"), NOUNS, NOUNS).total == 1  # more does not hurt


@pytest.mark.parametrize(
    ("query", "categories", "bought", "wanted", "factor"),
    [
        ("mugs", "Toys", ("a", "b"), ("a", "b"), 1.0),  # the same query
        ("cups", "Mugs › Kitchen", ("a",), ("a", *"bcdefgh"), 1.0),  # two shared categories, in any order
        ("cups", "Kitchen › Kitchen", ("a",), ("a", *"bcdefgh"), 0.5),  # only one, and a title score of 1/8
        ("cups", "Toys", ("a", "b"), ("a", "b", *"cdefghi"), 1.0),  # title score 2/9 > 0.2
        ("cups", "Toys", ("a",), ("a", *"bcde"), 0.5),  # title score 0.2 is not more than that
        ("mugs", "Toys", ("a",), ("a", *"bcdefghijkl"), 0.1),  # a title score below 0.1, whatever else agrees
        ("mugs", MUG.product_category, ("x",), ("a", "b"), 0.0),  # nothing in common
        ("cups", "Toys", ("x",), (), 0.5),  # no nouns in the wanted title: as a score of 0.2
        ("mugs", "Toys", (), (), 1.0),
        ("cups", "Toys", ("a",), ("a", "a", "a", "a", "a", "b", "b", "b", "b", "b", "b"), 0.1),  # 1 of 11 words
    ],
)
def test_the_factor_for_the_kind_of_product(query, categories, bought, wanted, factor):
    assert type_factor(MUG, goal(query=query, product_category=categories), bought, wanted)[0] == factor


def test_attributes_are_found_as_attributes_or_in_the_words():
    assert count_attributes(MUG, ("easy to clean", "blue mug", "keeps warm", "dishwasher safe")) == 4
    assert count_attributes(MUG, ("Blue Mug",)) == 0  # texts are lowered, what is wanted is not
    assert count_attributes(MUG, ("free keeps",)) == 1  # bullets are joined by a blank
    assert count_attributes(MUG, ("machine washable", "handle")) == 1


def test_options_are_compared_by_color_then_by_words():
    assert count_options(["dark red"], {"color": "dark red"}) == 1  # "dark", among the words of the pair
    assert count_options(["light blue"], {"color": "sky blue"}) == 1  # to the shop, what was bought is blue
    assert count_options(["large"], {"size": "large"}) == 1 and count_options(["x-large"], {"size": "large"}) == 0
    assert count_options(["blue"], {"color": "blue", "trim": "blue"}) == 2  # one value may satisfy two wishes
    assert count_options(["red", "small"], ("small", "red")) == 2 and count_options([], ("red",)) == 0
    # A color inside a longer word counts in the purchase and not in the goal: such a goal cannot be reached.
    assert color_of("rectangular") == "tan" and count_options(["rectangular"], {"shape": "rectangular"}) == 0


# --- nouns ------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_model(monkeypatch):
    monkeypatch.setattr(nouns, "installed_model", lambda: None)


def test_a_noun_file_by_asin_or_by_title(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"B1": ["mug"], "Blue Cup": ["cup", "cup"]}))
    source = open_nouns(file, asins=["B1"])
    assert source.name == "mine.json"
    assert source.find("B1", "anything") == ("mug",) and source.find("B2", "Blue Cup") == ("cup", "cup")
    partial = open_nouns(str(file), asins=["B1", "B2"])  # said, because scores then mix two sources
    assert partial.name == "mine.json+heuristic" and partial.find("B2", "Red Bowl") == ("red", "bowl")


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": "mug"}', b"\xff\xfe", b"{"])
def test_a_broken_noun_file_ends_in_one_line(tmp_path, content):
    for name in ("nouns.json", "nouns.json.gz"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(NounError, match="cannot read the noun file") as error:
            open_nouns(tmp_path / name)
        assert "\n" not in str(error.value)
    with pytest.raises(NounError, match="cannot read the noun file"):
        open_nouns(tmp_path / "nowhere.json")


def test_a_spacy_model_is_preferred_and_loaded_late(monkeypatch, tmp_path):
    (tmp_path / "title_nouns.json").write_text("{}")
    loaded = []

    def load(name, **_):
        loaded.append(name)
        kinds = {"mug": "NOUN", "Acme": "PROPN", "blue": "ADJ"}
        return lambda title: [SimpleNamespace(text=word, pos_=kinds[word]) for word in title.split()]

    monkeypatch.setattr(nouns, "installed_model", lambda: "en_core_web_lg")
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load))
    nouns.from_spacy.cache_clear()
    source = open_nouns(None, tmp_path)
    assert source.name == "en_core_web_lg" and loaded == []
    assert source.find("", "Acme blue mug") == source.find("", "Acme blue mug") == ("acme", "mug")
    assert loaded == ["en_core_web_lg"]
    monkeypatch.setattr(nouns, "version", {"en_core_web_lg": "3.8.0", "spacy": "3.8.7"}.get)
    assert nouns.described(source) == "en_core_web_lg 3.8.0 of spaCy 3.8.7"
    assert nouns.described(nouns.HEURISTIC) == "heuristic"
    nouns.from_spacy.cache_clear()
