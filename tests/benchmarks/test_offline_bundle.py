"""What is packed in pieces arrives whole, and a piece that did not arrive is named."""

import os
import time

import pytest
from programs import result_of, run, start

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


def refusal(*arguments):
    """The line that a command ends with."""
    status, out, err = run(BUNDLE, *arguments)
    assert status == 2 and not out and "Traceback" not in err, err
    return err.splitlines()[-1]


def test_a_snapshot_of_the_hub_arrives_as_files(tmp_path):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "f00").write_bytes(content := os.urandom(5_000))
    (snapshot / "weights").symlink_to("../../blobs/f00")
    (snapshot / "again").hardlink_to(blobs / "f00")
    status, out, err = run(BUNDLE, "pack", tmp_path / "pieces", snapshot)
    assert status == 0 and result_of(out)["bytes"] > 5_000, err
    assert run(BUNDLE, "unpack", tmp_path / "pieces", tmp_path / "there")[0] == 0
    for name in ("weights", "again"):
        arrived = tmp_path / "there" / "abc" / name
        assert not arrived.is_symlink() and arrived.read_bytes() == content


def test_what_would_not_arrive_is_refused_before_anything_is_written(tmp_path):
    one, other = tmp_path / "a" / "policy", tmp_path / "b" / "policy"
    for folder in (one, other):
        folder.mkdir(parents=True)
    pieces, needed = tmp_path / "pieces", tmp_path / "needed.txt"
    assert "two things would be unpacked as policy" in refusal("pack", pieces, one, other)
    assert "nothing to pack" in refusal("pack", pieces)
    assert "packed into itself" in refusal("pack", one / "pieces", one)
    (one / "lost").symlink_to("nowhere")
    assert f"{one / 'lost'} is a link that leads nowhere" in refusal("pack", pieces, one)
    (other / "round").symlink_to("..")
    assert "a folder that it lies in" in refusal("pack", pieces, other)
    assert "such as 800, 10K, 50M or 1.5G, not '10X'" in refusal("pack", "--size", "10X", pieces, needed)
    needed.write_text("# nothing yet\n")
    assert "names no package" in refusal("pack", "--requirements", needed, pieces)
    needed.write_text("./no-such-folder\n")
    assert "pip could not build" in refusal("pack", "--requirements", needed, pieces)
    assert not pieces.exists()


def test_a_killed_pack_is_repeated_by_the_same_command(tmp_path):
    (tmp_path / "model").write_bytes(content := os.urandom(6_000_000))
    command = BUNDLE, "pack", "--size", "0.1MB", tmp_path / "pieces", tmp_path / "model"
    killed = start(*command)
    while killed.poll() is None and not any(tmp_path.glob("pieces*/piece-*")):
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    assert killed.returncode == -9
    status, _, err = run(*command)
    assert status == 0, err
    assert run(BUNDLE, "unpack", tmp_path / "pieces", tmp_path / "there")[0] == 0
    assert (tmp_path / "there" / "model").read_bytes() == content


@pytest.mark.parametrize("text", ["{", "[]", '{"python": ""}', '{"python": "", "pieces": {}}'])
def test_a_damaged_list_is_named(packed, text):
    folder, _ = packed
    (folder / "pieces" / "list.json").write_text(text)
    assert "list.json is damaged: bring it again" in refusal("unpack", folder / "pieces", folder / "there")
