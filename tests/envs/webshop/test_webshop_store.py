"""The store of a large catalogue: equal to the catalogue in memory, however often its building was interrupted."""

import json
import shutil

import numpy as np
import pytest

from roleagent.envs.retrieval.lexical.bm25 import BM25
from roleagent.envs.webshop.data import build
from roleagent.envs.webshop.data.catalogue import CatalogueError
from roleagent.envs.webshop.data.generate import write_catalogue
from roleagent.envs.webshop.data.sources import _load as load_anew
from roleagent.envs.webshop.data.sources import load_catalogue
from roleagent.envs.webshop.data.store import FOLDER, LINES, MANIFEST
from roleagent.envs.webshop.engine.goals import open_goals

PRODUCTS = 120


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(build, "CHECKPOINT", 10)
    load_anew.cache_clear()


@pytest.fixture
def data(tmp_path):
    """Official files, with some bad entries among the products."""
    folder = tmp_path / "data"
    items, *_ = write_catalogue(folder, PRODUCTS)
    entries = json.loads(items.read_text())
    entries[20:20] = [None, entries[3], {"asin": "nan"}, entries[5] | {"asin": "B0000000001"}]
    items.write_text(json.dumps(entries))
    notes = json.loads((folder / "items_ins_v2.json").read_text())
    odd = {
        "\ud83d": {},
        "é": [],
        "": None,
        "nobody": 7,
        entries[-1]["asin"]: {"attributes": "\ud83d", "instruction": 3},
    }
    (folder / "items_ins_v2.json").write_text(json.dumps(notes | odd))
    return folder


def contents(folder):
    """Every file of a store but its manifest, which names the place of the data."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }


def test_the_store_is_the_catalogue(data):
    memory = load_catalogue(data)
    assert memory.folder is None
    built = build.build_store(data)
    before = (data / FOLDER / LINES).stat().st_mtime_ns
    build.build_store(data, progress=lambda what, share: pytest.fail("it was built again"))
    assert (data / FOLDER / LINES).stat().st_mtime_ns == before
    load_anew.cache_clear()
    store = load_catalogue(data)
    assert store.folder == built.folder == data / FOLDER
    assert (store.digest, store.name, store.skipped) == (memory.digest, memory.name, memory.skipped)
    assert store.skipped == {"no object": 1, "no asin": 1, "asin longer than 10 characters": 1, "asin seen before": 1}
    assert list(store) == list(memory)
    assert list(store.asins) == list(memory.asins)
    assert [store.position(asin) for asin in memory.asins] == list(range(PRODUCTS))
    for asin in ("", "B", "Z" * 10, "é", "B071BGC100\0", "B071BGC10", "x" * 1_000_000, 7):
        with pytest.raises(KeyError):
            store.position(asin)
    index = BM25.build(list(store.asins), [product.document for product in store])
    opened = BM25.open(store.folder / "bm25")
    for product in list(store)[::7]:
        assert opened.search(product.title) == index.search(product.title)
    assert store.attribute_counts == memory.attribute_counts
    for column in ("prices", "asked", "combinations", "requests"):
        assert np.array_equal(
            getattr(store.columns, column), getattr(memory.columns, column), equal_nan=column == "prices"
        )
    for kind in ("synthetic", "human"):
        prices, goals = open_goals(store, kind)
        assert (prices, list(goals)) == (open_goals(memory, kind)[0], list(open_goals(memory, kind)[1]))
    assert sorted(path.name for path in store.folder.iterdir()) == sorted(
        [*json.loads((store.folder / MANIFEST).read_text())["sizes"], MANIFEST, "bm25"]
    )


class Killed(BaseException):
    """What the process sees of a kill: nothing after it runs."""


def test_an_interrupted_build_continues(data, tmp_path):
    steps = []
    build.build_store(data, tmp_path / "whole", lambda what, share: steps.append((what, share)))
    stages = list(dict.fromkeys(what for what, _ in steps))
    assert stages == ["reading requests", "reading products", "putting in order", "indexing"]
    assert steps == sorted(steps, key=lambda step: (stages.index(step[0]), step[1]))
    assert all(0 <= share <= 1 for _, share in steps)
    whole = contents(tmp_path / "whole")
    folder = tmp_path / "resumed"
    read = []

    def kill_at_the_next_checkpoint(what, share):
        """Lets one checkpoint pass per life; what was written after it must be forgotten."""
        if (what, share) not in read:
            read.append((what, share))
            for name in (LINES, "products.rows"):
                if (folder / name).exists():
                    with (folder / name).open("ab") as file:
                        file.write(b"half a li")
            raise Killed

    for _ in range(100):
        try:
            catalogue = build.build_store(data, folder, kill_at_the_next_checkpoint)
            break
        except Killed:
            assert not (folder / MANIFEST).exists()
    assert len(read) > 15
    # No life began again from the start: every checkpoint of the products was passed in one life only.
    shares = [share for what, share in read if what == "reading products"]
    assert shares == sorted(set(shares))
    assert contents(folder) == whole
    assert len(catalogue) == PRODUCTS


def test_input_that_changed_in_between_starts_anew(data):
    def kill(what, share):
        if what == "reading products" and share > 0.5:
            raise Killed

    with pytest.raises(Killed):
        build.build_store(data, progress=kill)
    items = data / "items_shuffle.json"
    entries = [entry for entry in json.loads(items.read_text()) if entry]
    items.write_text(json.dumps(entries[::-1]))
    store = build.build_store(data)
    assert store[0].asin == entries[-1]["asin"]
    assert store.skipped == {"no asin": 1, "asin longer than 10 characters": 1, "asin seen before": 1}


@pytest.mark.parametrize("name", ["items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"])
def test_a_store_of_other_input_is_refused_and_built_anew(data, name):
    build.build_store(data)
    (data / name).write_text((data / name).read_text() + " ")
    with pytest.raises(CatalogueError, match=rf"built from another {name} .* run `roleagent webshop build --data"):
        load_catalogue(data)
    if name == "items_shuffle.json":
        build.build_store(data)
        assert len(load_catalogue(data)) == PRODUCTS


@pytest.mark.parametrize("name", [LINES, "products.rows", "asins.npy", "positions.npy", "goal_order.npy", "bm25"])
@pytest.mark.parametrize("harm", ["cut", "gone"])
def test_a_damaged_store_is_refused(data, name, harm):
    path = build.build_store(data).folder / name
    if path.is_dir():
        shutil.rmtree(path)
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with pytest.raises(CatalogueError, match=rf"{name} is damaged: delete .* and run `roleagent webshop build` again"):
        load_catalogue(data)
    if name == LINES:
        build.build_store(data)
        assert len(load_catalogue(data)) == PRODUCTS


def test_two_builds_at_once_and_no_manifest(data):
    def build_another(what, share):
        with pytest.raises(CatalogueError, match="another build is at work in"):
            build.build_store(data)
        raise Killed

    with pytest.raises(Killed):
        build.build_store(data, progress=build_another)
    folder = build.build_store(data).folder
    unread, newer = "no manifest that this version reads", "was written by a newer version of roleagent"
    for manifest, words in {
        "": unread,
        "[]": unread,
        "{}": unread,
        '{"format": 99}': newer,
        '{"format": 1}': unread,
    }.items():
        (folder / MANIFEST).write_text(manifest)
        with pytest.raises(CatalogueError, match=words):
            load_catalogue(data)
    assert len(build.build_store(data)) == PRODUCTS
