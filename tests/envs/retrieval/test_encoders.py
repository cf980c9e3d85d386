"""Encoders: tf-idf from the corpus, and real transformers of the E5 kind, small and random, saved and loaded."""

import os
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_e5 import MODULES, NORMALIZE, PROMPTS, save_model, state_use
from transformers import AutoModel, PreTrainedTokenizerFast

from roleagent.cli import main
from roleagent.envs.retrieval.dense import tfidf
from roleagent.envs.retrieval.dense.e5 import E5Encoder
from roleagent.envs.retrieval.dense.tfidf import TfidfEncoder
from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError
from roleagent.envs.retrieval.registry import open_index, open_retriever

TEXTS = [
    "red shoes for running",
    "a red hat",
    "blue hats, blue hats and more blue hats",
    "the shop sells shoes and hats",
    "running is fun",
    "nothing of that",
]


# --- tf-idf -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted():
    return TfidfEncoder.fit(TEXTS)


def exact(query, text):
    """The cosine that the projection approaches, worked out by hand from the formula."""
    has = Counter(term for other in TEXTS for term in set(analyze(other)))

    def weigh(words):
        counts = Counter(term for term in analyze(words) if term in has)
        return {term: (1 + np.log(count)) * np.log(1 + len(TEXTS) / has[term]) for term, count in counts.items()}

    one, other = weigh(query), weigh(text)
    product = sum(value * other.get(term, 0) for term, value in one.items())
    return product / np.linalg.norm(list(one.values())) / np.linalg.norm(list(other.values()))


def test_the_projection_keeps_the_cosines():
    wide = TfidfEncoder.fit(TEXTS, dimension=1 << 16)
    for query in ("blue running shoes", "hats hats", "fun with a red shop"):
        scores = wide.encode_queries([query]) @ wide.encode_passages(TEXTS).T
        assert scores[0] == pytest.approx([exact(query, text) for text in TEXTS], abs=0.02)


def test_saved_and_opened(fitted, tmp_path):
    fitted.save(tmp_path / "encoder")
    opened = TfidfEncoder.open(tmp_path / "encoder")
    for again in (opened, pickle.loads(pickle.dumps(fitted))):
        assert (again.digest, again.settings) == (fitted.digest, fitted.settings)
        assert np.array_equal(again.encode_queries(TEXTS), fitted.encode_queries(TEXTS))
    assert {path.suffix for path in (tmp_path / "encoder").iterdir()} == {".npy", ".json"}


@pytest.mark.parametrize("name", [tfidf.HEADER, tfidf.TERMS, tfidf.COUNTS])
@pytest.mark.parametrize("harm", [b"", b"[]", None])
def test_a_damaged_encoder_is_refused(fitted, tmp_path, name, harm):
    fitted.save(tmp_path)
    (tmp_path / name).unlink()
    if harm is not None:
        (tmp_path / name).write_bytes(harm)
    with pytest.raises(RetrievalError, match=r"no usable tf-idf encoder .*: build the index again"):
        TfidfEncoder.open(tmp_path)


# --- E5 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("e5"))


@pytest.fixture(scope="module")
def encoder(model):
    return E5Encoder(model, device="cpu")


def expected(folder, text, length):
    """The published recipe, one text at a time, with nothing padded."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    ids = tokenizer(text, truncation=True, max_length=length, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        states = AutoModel.from_pretrained(folder).eval()(input_ids=ids).last_hidden_state[0]
    mean = states.mean(0)
    return (mean / mean.norm()).numpy()


def test_batches_change_nothing(encoder, monkeypatch):
    """Texts of like length go together; each vector comes back to its place."""
    texts = [("word " * (number * 7 % 40)).strip() for number in range(60)]
    vectors = encoder.encode_passages(texts)
    shapes = []
    embed = E5Encoder._embed

    def noting(self, ids):
        shapes.append((len(ids), max(map(len, ids)), sum(map(len, ids))))
        return embed(self, ids)

    monkeypatch.setattr(E5Encoder, "_embed", noting)
    monkeypatch.setattr("roleagent.envs.retrieval.dense.e5.TOKENS", 500)
    assert encoder.encode_passages(texts) == pytest.approx(vectors, abs=1e-5)
    assert len(shapes) > 5
    assert all(rows * longest <= 500 for rows, longest, _ in shapes)
    assert sum(tokens for *_, tokens in shapes) > 0.8 * sum(rows * longest for rows, longest, _ in shapes)
    assert encoder.encode_passages(texts[::-1])[::-1] == pytest.approx(vectors, abs=1e-5)
    assert encoder.encode_passages([]).shape == (0, 32)


ALL = (*MODULES, NORMALIZE)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"modules": ALL, "prompts": PROMPTS}, ("mean", "cosine", "query: ", "passage: ", 64)),
        ({"modules": ALL, "pooling": "cls_token", "prompts": {"query": "Find: "}}, ("cls", "cosine", "Find: ", "", 64)),
        (
            {"modules": MODULES, "pooling": "lasttoken", "prompts": {"document": "D "}, "similarity_fn_name": "dot"},
            ("lasttoken", "dot", "", "D ", 64),
        ),
        (
            {"modules": ALL, "length": None, "prompts": {"web": "Web: "}, "default_prompt_name": "web"},
            ("mean", "cosine", "Web: ", "Web: ", 256),
        ),
    ],
)
def test_the_files_of_a_model_state_its_use(model, tmp_path, stated, expected):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    state_use(folder, **{"length": 64} | stated)
    opened = E5Encoder(folder, device="cpu")
    settings = opened.settings
    keys = ("pooling", "similarity", "query_prefix", "passage_prefix", "passage_length")
    assert tuple(settings[key] for key in keys) == expected
    pooling, similarity, prefix, *_ = expected
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    texts = ["a red hat", "a far longer text, with many words in it"]
    for text, vector in zip(texts, opened.encode_queries(texts), strict=True):
        ids = tokenizer(prefix + text, truncation=True, max_length=expected[-1], return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            states = AutoModel.from_pretrained(folder).eval()(input_ids=ids).last_hidden_state[0]
        wanted = {"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling]
        assert vector == pytest.approx((wanted / (wanted.norm() if similarity == "cosine" else 1)).numpy(), abs=1e-5)
    again = E5Encoder(folder, device="cpu", **settings)
    assert (again.settings, again.digest) == (settings, opened.digest)


def test_a_use_that_no_file_states_is_asked_for(model, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    for path in (*folder.glob("*sentence_*.json"), *folder.glob("modules.json")):
        path.unlink()
    given = {"similarity": "cosine", "query_prefix": "", "passage_prefix": ""}
    with pytest.raises(RetrievalError, match=r"do not state pooling: .* --set pooling="):
        E5Encoder(folder, device="cpu", **given)
    assert E5Encoder(folder, device="cpu", pooling="mean", **given).settings["pooling"] == "mean"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "prompts"), [("e5", 512, PROMPTS), ("minilm", 256, {"query": "", "document": ""})]
)
def test_vectors_are_those_of_sentence_transformers(tmp_path, name, length, prompts):
    """Both read the same folder: a real model with the files that it is published with."""
    source = Path(os.environ.get("ROLEAGENT_MODELS", "/nowhere")) / name
    if not (source / "config.json").exists():
        pytest.skip(f"needs the real model {name}: set ROLEAGENT_MODELS to the folder that has it")
    library = pytest.importorskip("sentence_transformers", reason="needs pip install sentence-transformers")
    folder = tmp_path / name
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    for path in (*folder.glob("*sentence_*.json"), *folder.glob("modules.json")):
        path.unlink()
    state_use(folder, length=length, prompts=prompts)
    texts = [*TEXTS, "Ünïcode, 東京 and \n newlines", "  spaces around  ", "long " * 700, "", "ALL CAPITALS"]
    ours, theirs = E5Encoder(folder, device="cpu"), library.SentenceTransformer(str(folder), device="cpu")
    for encode, prompt in zip((ours.encode_queries, ours.encode_passages), prompts, strict=True):
        assert np.abs(encode(texts) - theirs.encode(texts, prompt_name=prompt)).max() < 1e-5


def test_an_index_with_a_transformer(model, tmp_path):
    """Through the command: what was said of the encoder is kept with the index, and holds when it is opened."""
    corpus = Passages.of([Passage(str(number), "", text) for number, text in enumerate(TEXTS)])
    corpus.write(tmp_path / "corpus.jsonl")
    shutil.copytree(model, tmp_path / "model")
    name = f"e5:{tmp_path / 'model'}"
    command = ["index", "build", "--corpus", str(tmp_path / "corpus.jsonl"), "--encoder", name]
    command += ["--out", str(tmp_path / "indexes" / "e5"), "--set", "query_prefix=", "--set", "passage_length=64"]
    assert main(command) == 0
    opened = open_index(tmp_path / "indexes" / "e5")
    assert opened.name == name
    assert opened.encoder.settings["query_prefix"] == ""
    assert opened.encoder.settings["passage_length"] == 64
    (hits,) = opened.retrieve(["a red hat"], len(TEXTS))
    products = opened.encoder.encode_passages([passage.contents for passage in corpus])
    products = products @ opened.encoder.encode_queries(["a red hat"])[0]
    assert [int(hit.passage.id) for hit in hits] == np.argsort(-products).tolist()
    assert opened.retrieve(["", "  "]) == [[], []]  # a blank query is not searched for
    fused = open_retriever(f"bm25+{name}", corpus)
    assert fused.retrieve(["a red hat"], 1)[0][0].passage.text == "a red hat"

    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(RetrievalError, match="holds no encoder"):
        open_index(tmp_path / "indexes" / "e5")
    moved = open_retriever(f"e5:{tmp_path / 'moved'}", corpus, tmp_path / "indexes")
    assert moved.retrieve(["a red hat"], 3) == open_index(
        tmp_path / "indexes" / "e5", encoder=f"e5:{tmp_path / 'moved'}"
    ).retrieve(["a red hat"], 3)
    save_model(tmp_path / "model", seed=5)
    with pytest.raises(RetrievalError, match=r"was built with another encoder than the one that e5:.* is now"):
        open_index(tmp_path / "indexes" / "e5")
