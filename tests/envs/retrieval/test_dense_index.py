"""Dense indexes of every kind, retrievers over them, and what is refused."""

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.envs.retrieval.build import build_index
from roleagent.envs.retrieval.dense.index import KINDS, DenseIndex
from roleagent.envs.retrieval.dense.tfidf import TfidfEncoder
from roleagent.envs.retrieval.fusion import fuse
from roleagent.envs.retrieval.manifest import MANIFEST, Manifest
from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError
from roleagent.envs.retrieval.registry import open_index, open_retriever
from roleagent.envs.retrieval.retriever import DenseRetriever, Hit

COUNT, DIMENSION = 4000, 64


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def vectors():
    """Vectors in clusters, as encoders make them."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(COUNT // 40, DIMENSION))
    return unit(centers[rng.integers(len(centers), size=COUNT)] + 0.6 * rng.normal(size=(COUNT, DIMENSION)))


@pytest.fixture(scope="module")
def questions(vectors):
    rng = np.random.default_rng(1)
    return unit(vectors[rng.integers(COUNT, size=200)] + 0.05 * rng.normal(size=(200, DIMENSION)))


@pytest.fixture(scope="module")
def indexes(vectors):
    chunks = [vectors[begin : begin + 900] for begin in range(0, COUNT, 900)]
    return {kind: DenseIndex.build(kind, chunks) for kind in KINDS}


def share(found, exact):
    return np.mean([len(set(one) & set(other)) / len(other) for one, other in zip(found, exact, strict=True)])


# --- the index --------------------------------------------------------------------------------------------------------


def test_flat_is_exact(indexes, vectors, questions):
    scores, rows = indexes["flat"].search(questions, 5)
    products = questions @ vectors.T
    assert np.array_equal(rows, np.argsort(-products, axis=1)[:, :5])
    assert scores == pytest.approx(np.take_along_axis(products, rows, 1), abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_mapped(indexes, vectors, questions, kind, tmp_path):
    path = tmp_path / "index.faiss"
    indexes[kind].save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.faiss"]
    opened = DenseIndex.open(path, kind)
    scores, rows = opened.search(questions, 3)
    assert share(rows, indexes["flat"].search(questions, 3)[1]) > 0.95  # nearly exact
    assert (np.diff(scores, axis=1) <= 1e-6).all()
    assert scores.max() < 1.05  # inner products, also where the index holds bytes
    assert (len(opened), opened.dimension, opened.effort) == (COUNT, DIMENSION, indexes[kind].effort)
    for k in (1, 3, 50):
        for one, other in zip(opened.search(questions, k), indexes[kind].search(questions, k), strict=True):
            assert np.array_equal(one, other)
    # The same bytes every time. To all but hnsw, chunks are nothing.
    size = 900 if kind == "hnsw" else COUNT
    DenseIndex.build(kind, [vectors[begin : begin + size] for begin in range(0, COUNT, size)]).save(tmp_path / "again")
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


# --- retrievers -------------------------------------------------------------------------------------------------------

TEXTS = {
    "Lokma": "Balls of dough, fried in oil and soaked in syrup.",
    "Sherbet": "A cold drink of fruit and sugar, also called syrup.",
    "Golf": "A game with a ball and clubs.",
    "Oil": "Oil is pressed from olives; dough may be fried in it.",
    "Chess": "A game for two at a board.",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    Passages.of(Passage(f"p{row}", title, text) for row, (title, text) in enumerate(TEXTS.items())).write(path)
    return Passages.open(path)


def titles(hits):
    return [hit.passage.title for hit in hits]


@pytest.mark.parametrize("spec", ["bm25", "tfidf", "bm25+tfidf"])
def test_retrievers_by_name(corpus, spec):
    engine = open_retriever(spec, corpus)
    assert engine.name == spec
    answers = engine.retrieve(["dough fried in oil", "a game", "fried dough in syrup"], 2)
    assert [set(titles(hits)) for hits in answers] == [{"Lokma", "Oil"}, {"Golf", "Chess"}, {"Lokma", "Oil"}]
    assert titles(answers[2])[0] == "Lokma"
    for hits in answers:
        assert all(isinstance(hit, Hit) and isinstance(hit.score, float) for hit in hits)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert engine.retrieve([]) == []
    assert len(engine.retrieve(["dough game syrup board oil"], 100)[0]) <= len(TEXTS)
    *odd, long = engine.retrieve(["", "  \n", "unheard-of", "the of", "\ud83d", "\0", "oil " * 25_000])
    assert odd == [[]] * 6 and titles(long)[0] == "Oil"
    with pytest.raises(ValueError, match="at least one passage"):
        engine.retrieve(["oil"], 0)
    with pytest.raises(TypeError, match="a list of texts"):
        engine.retrieve("oil")


def test_errors_are_raised_and_never_answers(corpus):
    encoder = TfidfEncoder.fit([passage.contents for passage in corpus])
    index = DenseIndex.build("flat", [encoder.encode_passages([passage.contents for passage in corpus])])

    class Broken:
        name, dimension = "broken", encoder.dimension

        def encode_queries(self, texts):
            raise RuntimeError("CUDA error:\nout of memory")

    with pytest.raises(RetrievalError, match=r"^broken failed: CUDA error: out of memory$"):
        DenseRetriever(Broken(), index, corpus).retrieve(["oil"])
    with pytest.raises(RetrievalError, match="an index of 5 passages does not fit a corpus of 1"):
        DenseRetriever(encoder, index, Passages.of([corpus[0]]))
    narrow = TfidfEncoder.fit(["oil"], dimension=64)
    with pytest.raises(RetrievalError, match="tfidf has 64 dimensions, the index 768"):
        DenseRetriever(narrow, index, corpus)


# --- built indexes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def built(corpus, tmp_path):
    """A folder with an index for each retriever, called by its name."""
    for name in ("tfidf", "bm25"):
        build_index(corpus, name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("spec", ["bm25", "tfidf", "bm25+tfidf"])
def test_a_built_index_is_that_in_memory(corpus, built, spec):
    queries = ["dough fried in oil", "a game with syrup", "", "board"]
    expected = open_retriever(spec, corpus).retrieve(queries)
    assert open_retriever(spec, corpus, built).retrieve(queries) == expected
    if "+" not in spec:
        assert open_retriever(spec, corpus, built / spec).retrieve(queries) == expected
        opened = open_index(built / spec)  # finds its corpus itself
        assert (opened.name, opened.retrieve(queries)) == (spec, expected)


def test_indexes_that_do_not_fit_are_refused(corpus, built, tmp_path):
    other = Passages.of([*list(corpus)[:-1], Passage("p4", "Chess", "A game for two at one board.")])
    changed = tmp_path / "changed.jsonl"
    other.write(changed)
    for name in ("tfidf", "bm25"):
        for wrong in (other, Passages.open(changed), Passages.of(list(corpus)[:3])):
            with pytest.raises(RetrievalError, match=r"was built over 5 passages of .*corpus\.jsonl, not over the"):
                open_retriever(name, wrong, built)
    TfidfEncoder.fit(["another", "corpus"]).save(built / "tfidf" / "encoder")
    with pytest.raises(RetrievalError, match="built with another encoder than the one that tfidf is now"):
        open_index(built / "tfidf")
    with pytest.raises(RetrievalError, match="is an index for bm25, not for tfidf"):
        open_retriever("tfidf", corpus, built / "bm25")
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(RetrievalError, match="holds no finished index: roleagent index build --corpus"):
            open_index(folder)


def test_a_built_index_that_is_damaged(corpus, built):
    manifest = Manifest.read(built / "tfidf")
    assert (manifest.corpus_digest, manifest.passages) == (corpus.digest, 5)
    assert (manifest.name, manifest.kind, manifest.dimension) == ("tfidf", "flat", 768)
    assert manifest.versions["faiss-cpu"] == faiss.__version__
    (built / "tfidf" / "index.faiss").unlink()
    with pytest.raises(RetrievalError, match="no usable index"):
        open_index(built / "tfidf")
    (built / "bm25" / "terms.npy").unlink()
    with pytest.raises(RetrievalError, match="no usable BM25 index"):
        open_index(built / "bm25")
    for text in ("", "[]", "{}", '{"format": 99}', '{"format": 1}', '{"format": 1, "more": 2}'):
        (built / "bm25" / MANIFEST).write_text(text)
        with pytest.raises(RetrievalError, match=r"cannot be used .*: build the index again"):
            open_index(built / "bm25")


# --- fusion -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), unique=True), min_size=1, max_size=4))
def test_fusion_is_of_places(rankings):
    assert dict(fuse([["a", "b"], ["b", "c"]])) == pytest.approx({"a": 1 / 61, "b": 1 / 62 + 1 / 61, "c": 1 / 62})
    fused = fuse(rankings)
    assert {name for name, _ in fused} == {name for ranking in rankings for name in ranking}
    assert [score for _, score in fused] == sorted((score for _, score in fused), reverse=True)
    if len(rankings) == 1:
        assert [name for name, _ in fused] == rankings[0]  # one ranking stays as it is
