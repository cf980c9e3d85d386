"""The generated shop: the official format, few words, goals that can be reached and must be looked for."""

import hashlib
import json
from collections import defaultdict

import pytest

from roleagent.envs.webshop.data.generate import MOST, _asin, entries, write_catalogue
from roleagent.envs.webshop.data.sources import load_catalogue
from roleagent.envs.webshop.engine.goals import KINDS, open_goals
from roleagent.envs.webshop.engine.nouns import guess_nouns
from roleagent.envs.webshop.engine.reward import judge

CATALOGUE = load_catalogue("generated")


def test_the_same_products_always():
    made = json.dumps(list(entries(300))).encode()
    assert made == json.dumps(list(entries(300))).encode()
    assert made != json.dumps(list(entries(300, seed=1))).encode()
    assert list(entries(300))[:100] == list(entries(100))
    assert len({_asin(number) for number in range(0, MOST, 17)}) == len(range(0, MOST, 17))
    for products in (0, MOST + 1):
        with pytest.raises(ValueError, match="the generator makes 1 to"):
            list(entries(products))
    # Splits, reports and trained policies rest on these products: a change of them is a change of the environment.
    assert hashlib.sha256(made).hexdigest()[:16] == CATALOGUE.digest == "85fdd864e8e0e5dc"


def test_written_files_give_the_same_catalogue(tmp_path):
    write_catalogue(tmp_path, 300)
    written = load_catalogue(tmp_path)
    assert list(written) == list(CATALOGUE)
    assert written.skipped == CATALOGUE.skipped == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_goal_can_be_reached_and_few_products_will_do(kind):
    """Its own product scores 1; of the ten of its kind, on average, fewer than three do, whatever is chosen."""
    prices, found = open_goals(CATALOGUE, kind)
    of_kind = defaultdict(list)
    for position, product in enumerate(CATALOGUE):
        of_kind[product.query].append(position)
    nouns = [guess_nouns(product.asin, product.title) for product in CATALOGUE]
    good = 0
    only_dearer = 0
    for goal in found:
        for position in of_kind[goal.query]:
            product = CATALOGUE[position]
            wanted = goal.options.values() if kind == "synthetic" else goal.options
            offered = {value for values in product.options.values() for value in values}
            chosen = [value for value in wanted if value in offered]
            score = judge(product, goal, prices[position], chosen, nouns[position], nouns[goal.position])
            assert score.type == 1
            if position == goal.position:
                assert score.total == 1
            good += score.total == 1
            only_dearer += (
                not score.price and score.attributes == len(goal.attributes) and score.options == len(goal.options)
            )
    assert 1 < good / len(found) < 3
    assert only_dearer / len(found) > 0.1
