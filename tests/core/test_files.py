"""Packed JSON lines: every text comes back, and every kind of damage is an error that readers expect."""

import gzip

import pytest

from roleagent.files import read_json_lines, write_json_lines


def test_a_line_ends_at_the_line_feed_only(tmp_path):
    rows = [{"observation": "a\u2028b\x85c\x0bd\r\n"}, {"observation": ""}]
    write_json_lines(tmp_path / "new" / "x.jsonl.gz", rows)
    assert [*read_json_lines(tmp_path / "new" / "x.jsonl.gz")] == rows


def test_damage_anywhere_is_a_value_error_or_an_os_error(tmp_path):
    path = tmp_path / "x.jsonl.gz"
    write_json_lines(path, [{"number": number} for number in range(50)])
    whole = path.read_bytes()
    for place in range(10, len(whole)):  # behind the header, which has a time and a system that nothing reads
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        with pytest.raises((ValueError, OSError)):
            [*read_json_lines(path)]
        path.write_bytes(whole[:place])
        with pytest.raises((ValueError, OSError)):
            [*read_json_lines(path)]
    path.write_bytes(gzip.compress(b"[" * 100_000))
    with pytest.raises(ValueError):
        [*read_json_lines(path)]
