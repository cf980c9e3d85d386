"""``roleagent index import``: indexes as Search-R1 publishes them open as they are, and wrong ones are one line."""

import json
import os
from unittest.mock import Mock

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled
from tiny_e5 import save_model

from roleagent.agents.builders import EnvSplit
from roleagent.cli import main
from roleagent.config import ConfigError, load
from roleagent.envs.retrieval.lexical import lucene
from roleagent.envs.retrieval.passages import Passages
from roleagent.envs.retrieval.registry import open_index, open_retriever
from roleagent.envs.searchqa.data.dataset import open_archive

faiss = pytest.importorskip("faiss")
WORDS = [
    "red",
    "blue",
    "green",
    "shoe",
    "hat",
    "coat",
    "sea",
    "river",
    "hill",
    "game",
    "ball",
    "board",
    "dough",
    "oil",
    "syrup",
]
WORDS += ["drink", "fruit", "sugar", "cold", "hot"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus as Search-R1 has it, an encoder, and FAISS files as its builder writes them, in half precision."""
    place = tmp_path_factory.mktemp("published")
    rows = [(str(n), f'"{WORDS[n % 20]} {WORDS[n % 7]}"\n{WORDS[n % 11]} and {WORDS[n % 13]}') for n in range(60)]
    for name, lines in (
        ("wiki", rows),
        ("other", [(n, text) for (n, _), (_, text) in zip(rows, rows[1:] + rows[:1], strict=True)]),
    ):
        (place / f"{name}.jsonl").write_text("".join(json.dumps({"id": n, "contents": c}) + "\n" for n, c in lines))
    (place / "short.jsonl").write_text("".join((place / "wiki.jsonl").read_text().splitlines(keepends=True)[:-1]))
    save_model(place / "e5")
    save_model(place / "e5-other", seed=1)
    corpus = Passages.open(place / "wiki.jsonl")
    encoder = open_retriever(f"e5:{place / 'e5'}", corpus).encoder
    vectors = encoder.encode_passages([one.contents for one in corpus]).astype(np.float16).astype(np.float32)
    for name, kind, metric in (
        *(("e5_Flat", "Flat", faiss.METRIC_INNER_PRODUCT), ("e5_HNSW64", "HNSW64", faiss.METRIC_INNER_PRODUCT)),
        *(("l2", "Flat", faiss.METRIC_L2), ("lists", "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)),
    ):
        index = faiss.index_factory(vectors.shape[1], kind, metric)
        index.train(vectors)
        index.add(vectors)
        faiss.write_index(index, str(place / f"{name}.index"))
    (place / "text.index").write_text("no index")
    return place


def imported(folder, out, index="e5_Flat.index", corpus="wiki.jsonl", encoder="e5"):
    name = encoder if encoder == "pyserini" else f"e5:{folder / encoder}"
    words = ["--index", folder / index, "--corpus", folder / corpus, "--encoder", name, "--out", out]
    return main(["index", "import", *map(str, words)])


@pytest.mark.parametrize("index", ["e5_Flat.index", "e5_HNSW64.index"])
def test_a_published_index_finds_what_one_of_ones_own_finds(folder, tmp_path, index):
    assert imported(folder, tmp_path / "wiki", index) == 0
    corpus = Passages.open(folder / "wiki.jsonl")
    own, published = open_retriever(f"e5:{folder / 'e5'}", corpus), open_index(tmp_path / "wiki")
    queries = ["red shoe", "cold river and hill", "sugar"]
    for mine, theirs in zip(own.retrieve(queries, 3), published.retrieve(queries, 3), strict=True):
        assert [hit.passage.id for hit in mine] == [hit.passage.id for hit in theirs]
    assert os.path.getsize(tmp_path / "wiki" / "index.faiss") == os.path.getsize(folder / index)
    assert (tmp_path / "wiki" / "index.faiss").is_symlink()  # 60 GB are not copied


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"corpus": "other.jsonl"}, "is not what e5:"),  # lines in another order
        ({"encoder": "e5-other"}, "is not what e5:"),
        ({"corpus": "short.jsonl"}, "has 60 vectors, and"),
        ({"index": "l2.index"}, "only flat and HNSW with inner products open"),
        ({"index": "lists.index"}, "only flat and HNSW with inner products open"),
        ({"index": "text.index"}, "is no FAISS file"),
        ({"index": "nothing.index"}, "there is no index"),
        ({"index": "e5"}, "the folder of a Lucene index needs --encoder pyserini"),
        ({"encoder": "pyserini"}, "only the folder of a Lucene index takes --encoder pyserini"),
    ],
)
def test_what_does_not_belong_together_is_one_line(folder, tmp_path, capsys, wrong, reason):
    out = tmp_path / "wiki"
    assert imported(folder, out, **wrong) != 0
    assert reason in capsys.readouterr().err.strip().splitlines()[-1]  # transformers shows its progress before
    assert not (out / "retrieval.json").exists()


def test_an_import_into_the_folder_of_the_published_index_leaves_it_there(folder, tmp_path, capsys):
    """Its link took the place of a file of the same name."""
    published = tmp_path / "index.faiss"
    published.write_bytes((folder / "e5_Flat.index").read_bytes())
    assert imported(folder, tmp_path, published) != 0
    assert "is not empty: choose another --out" in capsys.readouterr().err
    assert published.read_bytes() == (folder / "e5_Flat.index").read_bytes()


def test_without_pyserini_a_lucene_index_is_one_line(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lucene, "find_spec", lambda name: None)
    (folder / "bm25").mkdir(exist_ok=True)
    assert imported(folder, tmp_path / "wiki", "bm25", encoder="pyserini") != 0
    assert "pip install 'roleagent[pyserini]'" in capsys.readouterr().err.strip().splitlines()[-1]


class Searcher:
    """Lucene's answers, where there is no Java."""

    def __init__(self, place):
        pass

    def get_total_num_docs(self):
        return 60

    def search(self, query, k):
        return []


def no_java(name):
    raise DependencyNotInstalled("Lucene needs Java 17 or 21")


def test_a_lucene_index_without_java_is_one_line_and_leaves_nothing(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lucene, "find_spec", lambda name: object())
    monkeypatch.setattr(lucene, "java", no_java)
    (folder / "bm25").mkdir(exist_ok=True)
    assert imported(folder, tmp_path / "wiki", "bm25", encoder="pyserini") != 0
    assert capsys.readouterr().err.strip().splitlines()[-1].endswith("Lucene needs Java 17 or 21")
    assert not (tmp_path / "wiki").exists()


def test_a_run_over_a_lucene_index_is_refused_where_java_is_missing(folder, tmp_path, monkeypatch):
    """It began, and ended in the first search."""
    monkeypatch.setattr(lucene, "find_spec", lambda name: object())
    monkeypatch.setattr(lucene, "java", lambda name: Searcher if name.endswith("SimpleSearcher") else Mock())
    (folder / "bm25").mkdir(exist_ok=True)
    assert imported(folder, tmp_path / "wiki", "bm25", encoder="pyserini") == 0
    arguments = {"data_dir": "generated", "corpus": folder / "wiki.jsonl", "index": tmp_path / "wiki"}
    options = [f"env.kwargs.{name}={value}" for name, value in arguments.items()]
    config = load(None, ["env.id=RoleAgent/SearchQA-v0", "env.kwargs.retriever=pyserini", *options])
    EnvSplit.open(config, "valid")
    open_archive.__globals__["_open"].cache_clear()
    monkeypatch.setattr(lucene, "java", no_java)
    with pytest.raises(ConfigError, match="SearchQA-v0 is not ready: Lucene needs Java 17 or 21"):
        EnvSplit.open(config, "valid")


def test_a_published_lucene_index_opens(folder, tmp_path, capsys):
    try:
        lucene.java("java.lang.String")
    except DependencyNotInstalled as error:
        pytest.skip(str(error))
    corpus, built = Passages.open(folder / "wiki.jsonl"), tmp_path / "built"
    lucene.LuceneIndex.build(corpus.ids, (one.contents for one in corpus), built)
    assert imported(folder, tmp_path / "wiki", built / "lucene", encoder="pyserini") == 0
    own, published = lucene.LuceneIndex.open(built), open_index(tmp_path / "wiki")
    for query in ("red shoe", "cold river"):
        [hits] = published.retrieve([query], 5)
        assert [hit.passage.id for hit in hits] == [corpus[row].id for row in own.search(query, 5)]
    capsys.readouterr()
    assert imported(folder, tmp_path / "short", built / "lucene", "short.jsonl", "pyserini") != 0
    assert "has 60 documents, and" in capsys.readouterr().err and not (tmp_path / "short").exists()
    assert imported(folder, tmp_path / "other", built / "lucene", "other.jsonl", "pyserini") != 0
    assert "does not find passage" in capsys.readouterr().err
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    assert imported(folder, tmp_path / "third", nothing, encoder="pyserini") != 0
    assert "is no Lucene index" in capsys.readouterr().err
