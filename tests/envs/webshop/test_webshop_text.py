"""What the scripted shopper and the failure rules read in pages and requests."""

import gzip
import json

from hypothesis import given
from hypothesis import strategies as st

from roleagent.envs.webshop.text import read_page, read_request

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
