"""The kill benchmark: its default of two kills, and processes that do not end."""

import random

import pytest
from programs import load, run


def test_moments_are_drawn_from_places_and_from_time():
    kills = load("benchmarks/kills")
    event = kills.Event.parse
    places = ("rollout", "update", "checkpoint", "library", "log")
    timeline = [(float(at), event(f"train/1/{place}/0")) for at, place in enumerate(places)]
    timeline.append((100.0, event("train/1/file/0")))
    drawn = [kills.moments(timeline, 2, random.Random(seed)) for seed in range(20)]
    assert all(any(moment.place == "rollout" for moment, _ in pair) for pair in drawn)
    assert sum(any(moment.place == "log" for moment, _ in pair) for pair in drawn) > 15  # 96 of its 100 seconds


@pytest.mark.slow
def test_a_process_that_does_not_end_is_an_error(tmp_path):
    status, _, errors = run("benchmarks/kills", "--out", tmp_path, "--timeout", 0.01)
    assert status == 1 and "the run did not end within 0.01 s" in errors
