"""Passages from files: every usual form, mapped and cheap; every broken form refused with the number of its line."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roleagent.envs.retrieval import passages
from roleagent.envs.retrieval.passages import Passage, Passages, RetrievalError

LOKMA = Passage("7", "Lokma", "Fried dough.\nSweet.")


def write(path, *lines):
    texts = (line if isinstance(line, str | bytes) else json.dumps(line) + "\n" for line in lines)
    path.write_bytes(b"".join(t if isinstance(t, bytes) else t.encode("utf-8", "surrogatepass") for t in texts))
    return path


@pytest.mark.parametrize(
    ("line", "passage"),
    [
        ({"id": "7", "contents": '"Lokma"\nFried dough.\nSweet.'}, LOKMA),
        ({"id": "7", "contents": "Lokma\nFried dough.\nSweet."}, LOKMA),
        ({"id": 7, "title": "Lokma", "text": "Fried dough.\nSweet.", "url": None}, LOKMA),
        ({"id": "7", "contents": "No title."}, Passage("7", "", "No title.")),
        ({"id": "7", "text": "No title."}, Passage("7", "", "No title.")),
        ({"id": "7", "contents": '""Heroes""\nAn album.'}, Passage("7", '"Heroes"', "An album.")),
        ({"id": "", "contents": '"\n'}, Passage("", '"', "")),
        ({"id": "é", "contents": '"Jōmon"\n縄文 😀'}, Passage("é", "Jōmon", "縄文 😀")),
        ('{"id": "7", "title": "half \\ud83d", "text": "whole \\ud83d\\ude00"}', Passage("7", "half ?", "whole 😀")),
        ({"id": "7", "title": "line\u2028separator", "text": "\x85"}, Passage("7", "line\u2028separator", "\x85")),
    ],
)
def test_forms_of_a_line(tmp_path, line, passage):
    corpus = Passages.open(write(tmp_path / "corpus.jsonl", line))
    assert list(corpus) == [passage]


@given(st.lists(st.tuples(st.text(max_size=9), st.text()), min_size=1, max_size=5))
def test_written_passages_are_read_back(texts):
    """Whatever the text, a file written from memory is the corpus in memory. What UTF-8 cannot say is replaced."""
    made = [Passage(str(number), title, text) for number, (title, text) in enumerate(texts)]
    held = Passages.of(made)
    assert list(held) == made


def test_memory_and_file_are_one_corpus(tmp_path):
    held = Passages.of([LOKMA, Passage("8", "Sherbet", "A drink.")])
    held.write(tmp_path / "corpus.jsonl")
    corpus = Passages.open(tmp_path / "corpus.jsonl")
    assert (list(corpus), corpus.digest) == (list(held), held.digest)
    assert held.path is None and LOKMA.contents == '"Lokma"\nFried dough.\nSweet.'
    assert held.digest == Passages.of(list(held)).digest != Passages.of([LOKMA]).digest
    for one in (held, corpus):
        again = pickle.loads(pickle.dumps(one))
        assert (list(again), again.digest, again.path) == (list(one), one.digest, one.path)
    assert len(pickle.dumps(corpus)) < 300  # its path, not its passages


# --- what is refused --------------------------------------------------------------------------------------------------

GOOD = {"id": "1", "contents": '"A"\na'}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("not json\n", "Expecting value"),
        ("\n", "it is empty"),
        (b'{"id": "2", "contents": "\xff"}\n', "'utf-8' codec can't decode"),
        ("[1]\n", "no JSON object"),
        ('{"id": "2", "contents": "cut off\n', "Invalid control character"),
        ({"contents": '"B"\nb'}, "no id"),
        ({"id": None, "contents": "b"}, "no id"),
        ({"id": [2], "contents": "b"}, "an id that is neither text nor number"),
        ({"id": True, "contents": "b"}, "an id that is neither text nor number"),
        ({"id": "2"}, "neither contents nor title and text"),
        ({"id": "2", "contents": 5}, "neither contents nor title and text"),
        ({"id": "2", "title": 5, "text": "b"}, "neither contents nor title and text"),
        ("[" * 100_000 + "\n", ""),
        ('{"id": ' + "9" * 10_000 + ', "text": ""}\n', ""),
    ],
)
def test_a_line_that_is_no_passage(tmp_path, line, why):
    path = write(tmp_path / "corpus.jsonl", GOOD, GOOD | {"id": "3"}, line, GOOD | {"id": "4"})
    with pytest.raises(RetrievalError) as error:
        Passages.open(path)
    assert str(error.value).startswith(f"{path}, line 3: no passage ({why}")
    assert "\n" not in str(error.value)


def test_ids_that_occur_twice(tmp_path):
    path = write(tmp_path / "corpus.jsonl", GOOD, GOOD | {"id": "2"}, GOOD | {"id": 1}, GOOD | {"id": "2"})
    with pytest.raises(RetrievalError, match="lines 1 and 3 have the same id, and so have 1 more; ids must"):
        Passages.open(path)
    with pytest.raises(RetrievalError, match="these passages: lines 1 and 2 have the same id; ids must be unique"):
        Passages.of([LOKMA, LOKMA])


@pytest.mark.parametrize(("suffix", "pack"), [("xz", lzma.compress), ("gz", gzip.compress), ("bz2", bz2.compress)])
def test_packed_files_name_the_command_that_unpacks_them(tmp_path, suffix, pack):
    packed = tmp_path / "a folder" / f"corpus.jsonl.{suffix}"
    packed.parent.mkdir()
    packed.write_bytes(pack(write(tmp_path / "plain", GOOD).read_bytes()))
    with pytest.raises(RetrievalError, match="is packed; unpack it first: ") as error:
        Passages.open(packed)
    command = str(error.value).partition("unpack it first: ")[2]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert list(Passages.open(tmp_path / "corpus.jsonl")) == [Passage("1", "A", "a")]


# --- large files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A corpus that counts as large, with what is kept about it."""
    monkeypatch.setattr(passages, "SMALL", 100)
    path = write(tmp_path / "corpus.jsonl", *(GOOD | {"id": str(number)} for number in range(100)))
    Passages.open(path)
    return path


def test_a_file_that_changed_is_read_again(large):
    write(large, GOOD, GOOD | {"id": "2"})
    assert len(Passages.open(large)) == 2
    status = large.stat()
    write(large, GOOD, GOOD | {"id": "3"})  # as long as before
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert Passages.open(large)[1].id == "3"
