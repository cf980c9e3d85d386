"""What a run shows in a log or a pipe, where nothing is drawn over."""

import re
import time
import warnings

import pytest

from roleagent import slow_notice
from roleagent.learners.run.display import Display
from roleagent.programs import evaluate


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


def test_a_stage_that_goes_on_behind_an_evaluation_knows_its_time(capsys):
    """It fell back to what was planned for the whole stage; evaluations to come are as frequent as those that were."""
    display, now = Display("a run"), [0.0]
    display._progress.get_time = lambda: now[0]
    with display:
        display.plan({"train": 500.0, "evaluate after": 20.0})
        display.stage("train", 4)
        now[0] = 90.0
        display.advance(3)
        display.stage("evaluate iteration-000003", 5)
        now[0] = 120.0
        display.stage("train", 4, 3)
        display._print_progress("")
    assert "train 3/4, 40 s left, 1 min 0 s to the end of the run" in capsys.readouterr().out


def test_a_stage_ends_in_one_line_though_late_work_reports_the_end_again(capsys):
    with Display("a run") as display:
        display.stage("evaluate after", 4)
        for done in (2.5, 4, 4, 4):
            display.advance(done)
    assert [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()] == ["a run", "evaluate after 4/4"]


NAMES = ("all", "pick_heat_then_place_in_recep", "look_at_obj_in_light")
FIGURES = ("134", "64.2%  [55.8%, 71.8%]  n=134", "27.2", "+17.9 [-16.0, +29.9]")


@pytest.mark.parametrize("columns", [80, 60, 200])
def test_no_figure_of_a_table_is_cut_or_broken(capsys, monkeypatch, columns):
    """Names take several lines where the terminal is narrow; a table that is still too wide is printed as it is."""
    monkeypatch.setenv("COLUMNS", str(columns))
    with Display("a run") as display:
        display.table("success", ["task type", "n", "success", "steps", "A − B"], [[name, *FIGURES] for name in NAMES])
    shown, figures = capsys.readouterr().out, " ".join(FIGURES).split()
    lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert sum(line[-len(figures) :] == figures for line in lines) == len(NAMES)
    assert "".join(line[0] for line in lines[4:]) == "".join(NAMES)
    assert columns < 80 or max(map(len, shown.splitlines())) <= columns


class SlowAgent:
    """Takes a twentieth of a second for a command, as a model on a CPU takes seconds."""

    def reset(self, observation, info):
        pass

    def act(self, observation, info):
        time.sleep(0.05)
        return "look"


@pytest.fixture
def hasty(monkeypatch):
    """Ten seconds are three tenths of one here."""
    monkeypatch.setattr(slow_notice, "EVERY", 0.3)
    monkeypatch.setattr(slow_notice, "_GLANCE", 0.02)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_long_episode_says_how_far_it_is(hasty, threads, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(__file__.rpartition("/")[0])
    split = ["--env", "RoleAgent/Toy-v0", "--split", "train", "--tasks", "1", "--env-arg", "max_steps=40"]
    agent = ["--agent", "test_display:SlowAgent", "--concurrency", str(threads)]
    assert evaluate.main([*split, *agent, "--repeats", str(threads)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "under way" in line]
    assert len(lines) >= 3, "a long episode was silent"
    assert all(
        re.fullmatch(
            rf"evaluate \d/{threads}, \d+ s left; episodes under way \d/{threads}(: [\d,]+ turns? \(\d.*/s\))?", one
        )
        for one in lines
    ), lines


def test_a_warning_of_python_is_a_line_of_the_display(capsys):
    with Display("a run"):
        warnings.warn("the agent program crashed", UserWarning, stacklevel=1)
    said = capsys.readouterr()
    assert "warning: the agent program crashed\n" in said.out and "test_display.py" not in said.out + said.err
