"""The generated shop: the official format, few words, goals that can be reached and must be looked for."""

import hashlib
import json

import pytest

from roleagent.envs.webshop.data.generate import MOST, _asin, entries, write_catalogue
from roleagent.envs.webshop.data.sources import load_catalogue

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
