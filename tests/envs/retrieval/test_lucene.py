"""Agreement with real Lucene, and how it starts. What needs pyserini and Java runs in .ci/lucene."""

import gzip
import json
import multiprocessing
import os
import random
import subprocess
import sys

import pytest
from gymnasium.error import DependencyNotInstalled

from roleagent.envs.retrieval.lexical import lucene
from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.retrieval.lexical.bm25 import BM25
from roleagent.envs.retrieval.lexical.lucene import LuceneIndex
from roleagent.envs.retrieval.lexical.words import CLASSES
from roleagent.envs.webshop.data.sources import load_catalogue

# Anserini rounds scores to four digits and takes millionths off equal ones.
ROUNDING = 1e-4


@pytest.fixture(scope="module")
def java():
    """:func:`lucene.java`, where there is one; ROLEAGENT_LUCENE=required turns skips into failures."""
    try:
        lucene.java("java.lang.String")
    except DependencyNotInstalled as error:
        if os.environ.get("ROLEAGENT_LUCENE") == "required":
            raise
        pytest.skip(str(error))
    return lucene.java


@pytest.fixture(scope="module")
def analyzer(java):
    """Lucene's own English analysis of a text, as lists of terms."""
    tools, english = java("io.anserini.analysis.AnalyzerUtils"), java("io.anserini.analysis.DefaultEnglishAnalyzer")
    analyzer = english.newDefaultInstance()
    return lambda text: list(tools.analyze(analyzer, text).toArray())


@pytest.fixture(scope="module")
def pair(java, tmp_path_factory):
    """Both indices of a catalogue."""

    def build(catalogue):
        texts = [product.document for product in catalogue]
        folder = tmp_path_factory.mktemp("lucene")
        return BM25.build(list(catalogue.asins), texts), LuceneIndex.build(list(catalogue.asins), texts, folder)

    return build


def disagreements(bm25, real, queries):
    """Queries whose best 50 are not the same documents in the same order with the same scores."""
    found = []
    for query in queries:
        ours, theirs = bm25.search_scores(query), real.search_scores(query)
        same = [place for place, _ in ours] == [place for place, _ in theirs] and all(
            abs(one - other) < 2 * ROUNDING + 1e-6 * one for (_, one), (_, other) in zip(ours, theirs, strict=True)
        )
        if not same:
            found.append(query)
    return found


def made_up_queries(catalogue, rng, n):
    """Instructions, titles, mixtures of words, repetitions, and Unicode of every class."""
    products = list(catalogue)
    words = [word for product in products for word in product.document.split(" ")]
    odd = odd_characters()
    for number in range(n):
        product = rng.choice(products)
        yield (
            product.instruction or product.title,
            product.title,
            " ".join(rng.choices(words, k=rng.randint(1, 40))),
            " ".join(rng.choices(words, k=3) * rng.randint(2, 5)),
            "".join(rng.choice(words) + rng.choice(odd) for _ in range(rng.randint(1, 20))),
        )[number % 5]


def odd_characters():
    points = [point.split("-")[0] for ranges in CLASSES.values() for point in ranges.split()]
    return [chr(int(point, 16)) for point in points] + list(' \0\t\n\u3000\u202e\u2028!?-/\\"()[]{}*:~^+&|\ud800')


# --- agreement --------------------------------------------------------------------------------------------------------


def test_real_products(pair, webshop_data):
    catalogue = load_catalogue(webshop_data)
    bm25, real = pair(catalogue)
    recorded = json.loads(gzip.decompress((webshop_data / "reference" / "lucene_top50.json.gz").read_bytes()))
    people = json.loads((webshop_data / "human_goals.json").read_text("utf-8"))
    queries = [item["query"] for item in recorded] + random.Random(0).sample(people, 1000)
    queries += made_up_queries(catalogue, random.Random(1), 1500)
    assert disagreements(bm25, real, queries) == []


@pytest.mark.parametrize(
    "context", ["{}", "a{}b", "1{}2", "\u05d0{}\u05d0", "\u30ab{}\u30ab", "{}\u200d\u2764", "A{}S"]
)
def test_every_character(analyzer, context):
    points = [*range(1, 0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE1000)]
    for start in range(0, len(points), 4000):
        text = " ".join(context.format(chr(point)) for point in points[start : start + 4000])
        assert analyze(text) == analyzer(text)


# --- how it starts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(java, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    LuceneIndex.build(["b", "a"], ["red shoe", "blue shoe"], folder)
    return folder


def search_in_a_worker(index):
    return index.search("shoe")


def test_spawned_workers_search(folder):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(search_in_a_worker, [LuceneIndex.open(folder)]) == [[1, 0]]  # pickled as its folder
    index = LuceneIndex.open(folder)
    assert (len(index), index.search("shoe", 1), index.search("shoe", 0)) == (2, [1], [])


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_a_fork_is_refused_in_a_line(folder):
    program = f"""
import os, sys
from roleagent.envs.retrieval.lexical.lucene import LuceneIndex
index = LuceneIndex.open({str(folder)!r})
index.search("shoe")
child = os.fork()
if not child:
    try:
        index.search("shoe")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""
    assert "does not survive a fork into this one: start worker processes with" in run(program)


@pytest.mark.parametrize("missing", ["pyserini", "jnius"])
def test_a_missing_package_is_named(missing, monkeypatch, tmp_path):
    monkeypatch.setattr(lucene, "find_spec", lambda name: None if name == missing else object())
    for call in (lambda: LuceneIndex.open(tmp_path), lambda: LuceneIndex.build(["a"], ["x"], tmp_path)):
        with pytest.raises(DependencyNotInstalled, match=r"pip install 'roleagent\[pyserini\]'"):
            call()
