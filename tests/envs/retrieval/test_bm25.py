"""BM25: the ranking, the index on disk, and building it."""

import gzip
import json
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.envs.retrieval.lexical import indexer
from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.retrieval.lexical.bm25 import BM25
from roleagent.envs.retrieval.lexical.indexer import LENGTHS
from roleagent.envs.webshop.data.sources import load_catalogue

VOCABULARY = "red blue green shoe hat sock wool silk the".split()  # noqa: SIM905 - reads as words
documents = st.lists(st.text("", max_size=0) | st.lists(st.sampled_from(VOCABULARY), max_size=60).map(" ".join))
queries = st.lists(st.sampled_from([*VOCABULARY, "unknown"]), max_size=8).map(" ".join)


def names(n):
    """Ids whose order is not that of the documents."""
    return [f"{(number * 7919) % 1000:03d}-{number}" for number in range(n)]


def score_one_by_one(ids, texts, query, k, k1=0.9, b=0.4):
    """The formula of the module's docstring, document by document, in single precision."""
    f = np.float32
    bags = [Counter(analyze(text)) for text in texts]
    lengths = [sum(bag.values()) for bag in bags]
    scored = sum(length > 0 for length in lengths)
    found = []
    for position, (bag, length) in enumerate(zip(bags, lengths, strict=True)):
        total = 0.0
        for term, count in Counter(analyze(query)).items():
            holders = sum(term in other for other in bags)
            if term not in bag:
                continue
            mean = f(sum(lengths) / scored)
            spoken = f(max(value for value in LENGTHS.tolist() if value <= length))
            weight = f(count) * f(math.log(1 + (scored - holders + 0.5) / (holders + 0.5)))
            inverse = f(1) / (f(k1) * ((f(1) - f(b)) + f(b) * spoken / mean))
            total += float(weight - weight / (f(1) + f(bag[term]) * inverse))
        if total > 0:
            found.append((-f(total), ids[position], position))
    return [(position, float(-score)) for score, _, position in sorted(found)[:k]]


@pytest.fixture
def small_runs(monkeypatch):
    monkeypatch.setattr(indexer, "RUN", 7)


# --- the ranking ------------------------------------------------------------------------------------------------------


def test_the_recorded_rankings_of_lucene(webshop_data):
    recorded = json.loads(gzip.decompress((webshop_data / "reference" / "lucene_top50.json.gz").read_bytes()))
    catalogue = load_catalogue(webshop_data)
    asins = list(catalogue.asins)
    index = BM25.build(asins, (product.document for product in catalogue))
    assert len(recorded) == 500
    differing = [
        item["query"] for item in recorded if [asins[place] for place in index.search(item["query"])] != item["top50"]
    ]
    assert differing == []


@given(documents, queries, st.integers(0, 12), st.just((0.9, 0.4)) | st.tuples(st.floats(0.1, 5), st.floats(0, 1)))
def test_scores_are_those_of_the_formula(texts, query, k, constants):
    ids = names(len(texts))
    k1, b = constants
    index = BM25.build(ids, texts, k1=k1, b=b)
    best = score_one_by_one(ids, texts, query, k, k1, b)
    assert index.search_scores(query, k) == best
    assert index.search(query, k) == [position for position, _ in best]


def test_equal_scores_go_in_the_order_of_the_ids():
    ids = ["b", "\U0001f600", "a", "\uffff", "B"]
    index = BM25.build(ids, ["red shoe"] * 5)
    assert [ids[position] for position in index.search("red")] == ["B", "a", "b", "\uffff", "\U0001f600"]
    assert index.search("red", 2) == [4, 2]
    assert index.search("red " + "word[x] " * 130_000, 2) == [4, 2]  # a megabyte


@pytest.mark.parametrize("query", ["", " ", "the and of", "unknown", "!?", "\ud800", "\0"])
def test_queries_that_find_nothing(query):
    assert BM25.build(["a"], ["red shoe"]).search(query) == BM25.build(["a"], [""]).search(query) == []
    assert BM25.build([], []).search("red") == BM25.build(["a"], ["red"]).search("red", -1) == []


# --- building ---------------------------------------------------------------------------------------------------------


@given(documents.filter(len), queries)
def test_runs_are_merged_as_if_there_were_one(texts, query):
    ids = names(len(texts))
    whole = BM25.build(ids, texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexer, "RUN", 7)
        merged = BM25.build(ids, texts)
    for name, values in whole._postings._arrays().items():
        other = getattr(merged._postings, name)
        assert values.dtype == other.dtype
        assert values.tolist() == other.tolist()
    assert merged.search_scores(query) == whole.search_scores(query)


def test_an_interrupted_build_is_no_index_and_can_be_repeated(tmp_path, small_runs):
    def broken():
        yield "red shoes and blue hats and green socks"
        raise KeyboardInterrupt

    BM25.build(["a"], ["an older index"], folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        BM25.build(["a", "b"], broken(), folder=tmp_path)
    with pytest.raises(ValueError, match="build it again"):
        BM25.open(tmp_path)
    assert BM25.build(["a", "b"], ["red", "blue"], folder=tmp_path).search("blue") == [1]
    assert not (tmp_path / "runs").exists()


# --- on disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    BM25.build(["b", "a"], ["red shoe", "blue shoe"]).save(tmp_path)
    return tmp_path


def test_an_opened_index_is_mapped_and_answers_the_same(saved):
    index = BM25.open(saved)
    assert isinstance(index._postings.documents, np.memmap)
    assert not index._postings.documents.flags.writeable
    assert index.search("shoe") == [1, 0]
    assert len(index) == 2
    index.save(saved)  # where it was opened
    assert BM25.open(saved).search("shoe") == [1, 0]


def test_files_hold_no_pickles(saved):
    arrays = sorted(saved.glob("*.npy"))
    assert len(arrays) == 8
    for path in arrays:
        np.load(path, allow_pickle=False)
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(path.read_bytes())


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("documents.npy", lambda path: path.write_bytes(path.read_bytes()[:-4])),
        ("ranks.npy", lambda path: np.save(path, np.arange(3, dtype=np.int32))),
        ("index.json", lambda path: path.write_text(path.read_text().replace('"format": 1', '"format": 0'))),
        ("terms.npy", lambda path: path.unlink()),
        ("index.json", lambda path: path.unlink()),
        ("index.json", lambda path: path.write_text("{")),
        ("index.json", lambda path: path.write_text("[]")),
        ("codes.npy", lambda path: path.write_bytes(b"")),
    ],
)
def test_a_damaged_index_is_one_line(saved, name, harm):
    harm(saved / name)
    with pytest.raises(ValueError, match=r"holds no usable BM25 index .*: build it again$") as raised:
        BM25.open(saved)
    assert "\n" not in str(raised.value)
