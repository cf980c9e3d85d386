"""What is packed in pieces arrives whole, and a piece that did not arrive is named."""

import os

import pytest
from programs import result_of, run

BUNDLE = "benchmarks/offline_bundle"


@pytest.fixture
def packed(tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    content = {"weights": os.urandom(25_000), "inner/words": b"look\n", "empty": b""}
    for name, data in content.items():
        (tmp_path / "model" / name).write_bytes(data)
    status, out, err = run(BUNDLE, "pack", "--size", "10K", tmp_path / "pieces", tmp_path / "model")
    assert status == 0, err
    assert result_of(out)["pieces"] == 3
    return tmp_path, content


def test_what_arrives_is_what_was_packed(packed):
    folder, content = packed
    status, _, err = run(BUNDLE, "unpack", folder / "pieces", folder / "there")
    assert status == 0, err
    found = folder / "there" / "model"
    assert {str(path.relative_to(found)): path.read_bytes() for path in found.rglob("*") if path.is_file()} == content


def test_missing_and_damaged_pieces_are_named_and_nothing_is_unpacked(packed):
    folder, _ = packed
    (folder / "pieces" / "piece-000").unlink()
    cut = folder / "pieces" / "piece-002"
    cut.write_bytes(cut.read_bytes()[:-1])  # a transfer that was cut off
    status, _, err = run(BUNDLE, "unpack", folder / "pieces", folder / "there")
    assert status == 1 and "bring these again: piece-000 piece-002" in err
    assert not (folder / "there").exists()
