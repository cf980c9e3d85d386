"""What a run shows in a log or a pipe, where nothing is drawn over."""

import math
import re

import pytest

from roleagent.learners.tracking.display import Display


@pytest.mark.parametrize(
    ("before", "limit", "lines"),
    [
        (0, math.inf, ["train 1/4, 1 min 30 s left", "train 2/4, 1 min 0 s left", "train 3/4, 30 s left", "train 4/4"]),
        (1, math.inf, ["train 1/4", "train 2/4, 2 min 0 s left", "train 3/4, 45 s left", "train 4/4"]),
        (0, 100, ["train 1/4, 1 min 10 s left", "train 2/4, 40 s left", "train 3/4, 10 s left", "train 4/4"]),
    ],
    ids=["from the beginning", "resumed after one", "a limit that comes first"],
)
def test_a_line_of_progress_says_how_long_is_left(before, limit, lines, capsys):
    display, now = Display("a run"), [100.0]
    display._progress.get_time = lambda: now[0]
    with display:
        display.stage("train", 4, before, limit)
        for done in range(1, 5):
            now[0] += 30.0
            display.advance(done, success=0.25)
    title, *shown = capsys.readouterr().out.splitlines()
    assert title == "a run"
    assert [re.sub(" +success 0.25$", "", line) for line in shown] == lines
