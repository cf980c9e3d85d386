"""What a run shows in a log or a pipe, where nothing is drawn over."""

import re

import pytest

from roleagent.learners.tracking.display import Display


def shown(display, capsys, before=0):
    """The lines of a stage of four steps of 30 seconds."""
    now = [100.0]
    display._progress.get_time = lambda: now[0]
    with display:
        display.stage("train", 4, before)
        for done in range(1, 5):
            now[0] += 30.0
            display.advance(done, success=0.25)
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "a run"
    return [re.sub(" +success 0.25$", "", line) for line in lines]


@pytest.mark.parametrize(
    ("before", "lines"),
    [
        (0, ["train 1/4, 1 min 30 s left", "train 2/4, 1 min 0 s left", "train 3/4, 30 s left", "train 4/4"]),
        (1, ["train 1/4", "train 2/4, 2 min 0 s left", "train 3/4, 45 s left", "train 4/4"]),
    ],
    ids=["from the beginning", "resumed after one"],
)
def test_a_line_of_progress_says_how_long_is_left(before, lines, capsys):
    assert shown(Display("a run"), capsys, before) == lines


def test_a_planned_run_says_how_long_is_left_in_all(capsys):
    display = Display("a run")
    display.plan({"warmstart": 200.0, "train": 120.0, "evaluate after": 60.0})
    assert capsys.readouterr().out == (
        "about 6 min 20 s in all on this machine: warmstart 3 min 20 s, train 2 min 0 s, evaluate after 1 min 0 s\n"
    )
    assert shown(display, capsys)[0] == "train 1/4, 1 min 30 s left, 2 min 30 s in all"
