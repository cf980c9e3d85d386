"""``roleagent index build``: the same bytes however often it was killed, and by however many machines it was made."""

import errno
import itertools
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from roleagent.cli import main
from roleagent.envs.retrieval import build
from roleagent.envs.retrieval.build import BUILDING, build_index
from roleagent.envs.retrieval.dense import vectors
from roleagent.envs.retrieval.dense.index import KINDS
from roleagent.envs.retrieval.dense.tfidf import TfidfEncoder
from roleagent.envs.retrieval.manifest import MANIFEST, Manifest
from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError
from roleagent.envs.retrieval.registry import open_index, open_retriever
from roleagent.files import Lock

PASSAGES, CHUNK = 300, 20
WORDS = re.findall(
    r"\w+", "red blue green shoe hat coat sea river hill game ball board dough oil syrup drink fruit sugar cold hot"
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(vectors, "CHUNK", CHUNK)


@pytest.fixture
def corpus(tmp_path):
    draw = random.Random(0)
    made = [
        Passage(f"p{row}", draw.choice(WORDS).title(), " ".join(draw.choices(WORDS, k=12))) for row in range(PASSAGES)
    ]
    Passages.of(made).write(tmp_path / "corpus.jsonl")
    return Passages.open(tmp_path / "corpus.jsonl")


def contents(folder):
    """Every file of an index."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Killed(BaseException):
    """What the process sees of a kill: nothing after it runs."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_build_continues(corpus, tmp_path, kind):
    """The index finds what one in memory finds, and is the same to the byte however often its building stopped."""
    steps, whole = [], tmp_path / "whole"
    manifest = build_index(corpus, "tfidf", whole, kind=kind, threads=1, progress=lambda *step: steps.append(step))
    assert (manifest.kind, manifest.passages) == (kind, PASSAGES)
    assert sorted(path.name for path in whole.iterdir()) == ["encoder", "index.faiss", MANIFEST]
    learned = [] if kind == "flat" else ["learning lists"]
    stages = list(dict.fromkeys(what for what, _ in steps))
    assert stages == ["counting words", "encoding", *learned, "indexing", "writing"]
    assert steps == sorted(steps, key=lambda step: (stages.index(step[0]), step[1]))
    assert all(dict(steps)[stage] == 1 for stage in stages)
    queries = [" ".join(WORDS[first : first + 4]) for first in range(0, 16, 2)]
    exact, found = (engine.retrieve(queries) for engine in (open_retriever("tfidf", corpus), open_index(whole)))
    same = [
        {hit.passage.id for hit in one} & {hit.passage.id for hit in two} for one, two in zip(found, exact, strict=True)
    ]
    assert np.mean([len(ids) / 3 for ids in same]) > 0.8

    def kill_at_the_next_step(what, share):
        """Lets one step pass per life."""
        if (what, share) not in passed:
            passed.append((what, share))
            raise Killed

    out, passed, lives = tmp_path / "resumed", [], 0
    for lives in itertools.count(1):
        try:
            build_index(corpus, "tfidf", out, kind=kind, threads=1, progress=kill_at_the_next_step)
            break
        except Killed:
            assert not (out / MANIFEST).exists() and lives < 200
    assert lives > 2 * PASSAGES / CHUNK
    assert contents(out) == contents(whole)


def test_shards_of_several_machines(corpus, tmp_path):
    """Two machines encode, a third that has their files makes the index."""
    build_index(corpus, "tfidf", tmp_path / "whole", kind="ivf-sq8", threads=1)
    for shard in (0, 1):
        out = tmp_path / f"machine{shard}"
        assert build_index(corpus, "tfidf", out, kind="ivf-sq8", shards=2, shard=shard) is None
        assert not (out / MANIFEST).exists()
    third = tmp_path / "third"
    (third / BUILDING).mkdir(parents=True)
    for path in (*(tmp_path / "machine0" / BUILDING).iterdir(), *(tmp_path / "machine1" / BUILDING).iterdir()):
        if path.is_file():
            path.replace(third / BUILDING / path.name)
    assert len(list((third / BUILDING).glob("*.npy"))) == PASSAGES // CHUNK
    encoded = []
    build_index(
        corpus,
        "tfidf",
        third,
        kind="ivf-sq8",
        shards=2,
        threads=1,
        progress=lambda what, share: encoded.append(share) if what == "encoding" else None,
    )
    assert encoded == [1]
    assert contents(third) == contents(tmp_path / "whole")


def test_a_finished_build_is_left_alone(corpus, tmp_path):
    first = build_index(corpus, "tfidf", tmp_path / "index")
    before = contents(tmp_path / "index")
    again = build_index(corpus, "tfidf", tmp_path / "index", progress=lambda what, share: pytest.fail("built again"))
    assert (again, contents(tmp_path / "index")) == (first, before)
    for arguments, settings in (
        (("tfidf",), {"kind": "hnsw"}),
        (("bm25",), {}),
        (("tfidf",), {"settings": {"seed": 1}}),
    ):
        with pytest.raises(RetrievalError, match=r"holds an index for tfidf, flat, .*: delete it, or choose another"):
            build_index(corpus, *arguments, tmp_path / "index", **settings)
    with pytest.raises(RetrievalError, match="was built over 300 passages"):
        build_index(other_corpus(corpus), "tfidf", tmp_path / "index")


@pytest.mark.parametrize("name", ["bm25", "tfidf"])
def test_one_build_at_a_time(corpus, tmp_path, name):
    """A second one would fill the same files."""
    out = tmp_path / "index"
    (out / BUILDING).mkdir(parents=True)
    lock = Lock(out / BUILDING)
    with pytest.raises(BlockingIOError, match="is at work in"):
        build_index(corpus, name, out)
    lock.release()
    assert build_index(corpus, name, out).passages == PASSAGES and not (out / BUILDING).exists()


def other_corpus(corpus):
    path = corpus.path.with_name("other.jsonl")
    Passages.of(list(corpus)[::-1]).write(path)
    return Passages.open(path)


def kill_in_the_middle(what, share):
    if what == "encoding" and share > 0.5:
        raise Killed


def test_half_an_index_of_something_else_is_not_touched(corpus, tmp_path):
    out = tmp_path / "index"
    with pytest.raises(Killed):
        build_index(corpus, "tfidf", out, progress=kill_in_the_middle)
    before = contents(out)
    for passages, settings, key in (
        (other_corpus(corpus), {}, "corpus"),
        (corpus, {"settings": {"seed": 1}}, "encoder"),
    ):
        with pytest.raises(RetrievalError, match=f"holds vectors of another {key} .*: delete it to begin anew"):
            build_index(passages, "tfidf", out, **settings)
    # An encoder that has changed under its name.
    TfidfEncoder.fit(["something", "else"]).save(out / BUILDING / "encoder")
    with pytest.raises(RetrievalError, match="holds vectors of another digest"):
        build_index(corpus, "tfidf", out)
    assert {name: data for name, data in contents(out).items() if "encoder" not in name} == {
        name: data for name, data in before.items() if "encoder" not in name
    }


@pytest.mark.parametrize("harm", [b"half a file", None])
def test_vectors_that_are_damaged(corpus, tmp_path, harm):
    build_index(corpus, "tfidf", tmp_path / "index", keep_vectors=True)
    path = tmp_path / "index" / BUILDING / "000003.npy"
    path.write_bytes(path.read_bytes()[:1000] if harm is None else harm)
    (tmp_path / "index" / MANIFEST).unlink()
    with pytest.raises(RetrievalError, match=r"000003\.npy is damaged .*: delete it and run the same command again"):
        build_index(corpus, "tfidf", tmp_path / "index")
    path.unlink()
    steps = []  # vectors that are kept serve another kind
    manifest = build_index(
        corpus, "tfidf", tmp_path / "index", kind="hnsw", progress=lambda what, share: steps.append(what)
    )
    assert manifest.kind == "hnsw" and steps.count("encoding") <= 2 and not (tmp_path / "index" / BUILDING).exists()


# --- BM25 -------------------------------------------------------------------------------------------------------------


def test_bm25(corpus, tmp_path, monkeypatch):
    manifest = build_index(corpus, "bm25", tmp_path / "usual")
    assert (manifest.kind, manifest.settings, manifest.encoder_digest) == ("bm25", {"k1": 1.2, "b": 0.75}, "")
    queries = ["red shoe", "dough in oil"]
    assert open_index(tmp_path / "usual").retrieve(queries) == open_retriever("bm25", corpus).retrieve(queries)
    other = build_index(corpus, "bm25", tmp_path / "other", settings={"k1": 0.9, "b": 0.4})
    assert other.settings == {"k1": 0.9, "b": 0.4}
    assert open_index(tmp_path / "other").retrieve(queries) != open_index(tmp_path / "usual").retrieve(queries)
    for settings in ({"k1": -1}, {"k2": 1}, {"b": "x"}):
        with pytest.raises(RetrievalError, match="bm25 cannot be built with"):
            build_index(corpus, "bm25", tmp_path / "bad", settings=settings)
    monkeypatch.setattr(build, "STRIDE", 100)

    def kill(what, share):
        if share > 0.5:
            raise Killed

    with pytest.raises(Killed):
        build_index(corpus, "bm25", tmp_path / "killed", progress=kill)
    assert not (tmp_path / "killed" / MANIFEST).exists()
    build_index(corpus, "bm25", tmp_path / "killed")
    assert contents(tmp_path / "killed") == contents(tmp_path / "usual")


# --- full disks -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_disk_that_fills_up(corpus, tmp_path):
    """A real one: what is written to /dev/full does not fit."""
    out = tmp_path / "index"
    blocked = out / BUILDING / f".000005.npy.{os.getpid()}.partial"
    blocked.parent.mkdir(parents=True)
    blocked.symlink_to("/dev/full")
    with pytest.raises(RetrievalError, match="is full: make room and run the same command again, it goes on") as error:
        build_index(corpus, "tfidf", out)
    assert error.value.__cause__.errno == errno.ENOSPC
    assert len(list((out / BUILDING).glob("*.npy"))) == 5
    blocked.unlink()
    build_index(corpus, "tfidf", out)
    assert len(open_index(out).retrieve(["red shoe"])[0]) == 3


# --- the command ------------------------------------------------------------------------------------------------------


def flat(text):
    return " ".join(text.split())


def test_the_command(corpus, tmp_path, capsys, monkeypatch):
    command = ["index", "build", "--corpus", str(corpus.path), "--out", str(tmp_path / "index")]
    for shard in ("0", "1"):
        assert main([*command, "--shards", "2", "--shard", shard]) == 0
        assert f"shard {shard} of 2 is in" in flat(capsys.readouterr().out)
    assert main([*command, "--kind", "ivf-rabitq", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert "encoding" in printed and "100 %" in printed
    assert "300 passages, tfidf, ivf-rabitq:" in flat(printed)
    assert main(["index", "build", "--corpus", str(corpus.path), "--out", str(tmp_path / "bm25"), "--encoder", "bm25",
                 "--set", "k1=0.9", "--set", "b=0.4"]) == 0  # fmt: skip
    assert Manifest.read(tmp_path / "bm25").settings == {"k1": 0.9, "b": 0.4}
    # An index knows its corpus from wherever it is opened.
    monkeypatch.chdir(tmp_path)
    assert main(["index", "build", "--corpus", "corpus.jsonl", "--out", "near"]) == 0
    assert Path(Manifest.read(tmp_path / "near").corpus).is_absolute()
    monkeypatch.chdir("/")
    assert open_index(tmp_path / "near").retrieve(["red shoe"])[0]
