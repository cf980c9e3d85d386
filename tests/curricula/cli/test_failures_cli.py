"""``roleagent failures``: what people see of a library."""

import csv
import io
import json

import pytest
import yaml
from failures import TOY, failed, story

from roleagent.cli import main
from roleagent.config import Config, to_dict
from roleagent.curricula.library import FailureLibrary
from roleagent.types import Reflection


@pytest.fixture
def run(tmp_path):
    """A run folder with five failures of four entries under three modes, one of them not in the taxonomy."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(Config())))
    library = FailureLibrary(f"sqlite:///{tmp_path / 'failures.db'}")
    library.record([failed("egg-1"), failed("egg-2"), failed("egg-1", "premature_give_up")], iteration=1)
    library.record([failed("egg-1")], iteration=3)
    library.record_retrievals(3, [("navigation_loop", "egg-1", "egg-2", "both walk in circles")])
    long = story(("look", "a kitchen"), ("take egg", "\x1b[2JNothing [bold]happens."), task_id="fish", task_type="cool")
    library.record([(long, Reflection("fell_asleep", "it [red]slept", 1, "wake, 起来", "sleep"))], iteration=4)
    library.close()
    return tmp_path


def shown(capsys, *arguments):
    assert main(["failures", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def cells(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_list_shows_the_newest_entries(run, capsys):
    rows = cells(shown(capsys, "list", run))
    assert [row[:6] for row in rows] == [
        ["5", "4", "fell_asleep", "1", "cool", "fish"],
        ["4", "3", "navigation_loop", "2", "heat", "egg-1"],
        ["3", "1", "premature_give_up", "1", "heat", "egg-1"],
        ["2", "1", "navigation_loop", "1", "heat", "egg-2"],
    ]
    assert rows[0][6] == "wake, 起来"


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["--mode", "navigation_loop"], ["4", "2"]),
        (["--task-type", "cool"], ["5"]),
        (["--task", "egg-"], ["4", "3", "2"]),
        (["--task", "egg%1"], []),
        (["--limit", "1"], ["5"]),
        (["--task", "egg-1", "--mode", "premature_give_up"], ["3"]),
        (["--mode", "\udcff"], []),
    ],
)
def test_list_filters(run, capsys, filters, ids):
    text = shown(capsys, "list", run, *filters)
    assert [row[0] for row in cells(text)] == ids
    assert ids or text == "no failures match\n"


def test_show_prints_the_whole_failure(run, capsys):
    text = shown(capsys, "show", run, 5)
    assert "fish" in text and "it [red]slept" in text and "wake, 起来" in text
    assert "\x1b" not in text and "Nothing [bold]happens." in text
    [critical] = [line for line in text.splitlines() if "critical step" in line]
    assert critical.split()[:3] == ["2>", "take", "egg"]
    followed, chosen = shown(capsys, "show", run, 4), shown(capsys, "show", run, 2)
    assert "because of it, these tasks were chosen:\n  iteration 3: egg-2 (navigation_loop): both walk" in followed
    assert "chosen because of these failures:\n  iteration 3: egg-1 (navigation_loop): both walk" in chosen


def test_modes_counts(run, capsys):
    text = shown(capsys, "modes", run)
    assert cells(text) == [
        ["navigation_loop", "2", "3", "60.0%", "3"],
        ["fell_asleep *", "1", "1", "20.0%", "4"],
        ["premature_give_up", "1", "1", "20.0%", "1"],
    ]
    assert "* not in the taxonomy" in text and "5 failed episodes, 4 entries under 3 modes" in text


def test_growth_is_the_running_sum_of_entries(run, capsys):
    rows = json.loads(shown(capsys, "growth", run, "--json"))
    curves = {}
    for row in rows:
        curves.setdefault(row["mode"], []).append(row["entries"])
    assert curves == {"navigation_loop": [2] * 4, "premature_give_up": [1] * 4, "fell_asleep": [0, 0, 0, 1]}
    table = csv.DictReader(io.StringIO(shown(capsys, "growth", run, "--csv")))
    assert [{name: str(value) for name, value in row.items()} for row in rows] == list(table)
    assert ["fell_asleep", "▁▁▁█", "1"] in cells(shown(capsys, "growth", run))


def test_export_writes_every_failure(run, tmp_path, capsys):
    lines = [json.loads(line) for line in shown(capsys, "export", run).splitlines()]
    assert [line["id"] for line in lines] == [1, 2, 3, 4, 5] and "trajectory" not in lines[0]
    assert lines[4]["lesson"] == "wake, 起来" and lines[4]["critical_step"] == 1
    out = tmp_path / "all.csv"
    assert "5 failures in" in shown(capsys, "export", run, "--out", out, "--trajectories")
    with out.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["task_id"] for row in rows] == [line["task_id"] for line in lines]
    assert json.loads(rows[4]["trajectory"])[2]["action"] == "take egg"
    shown(capsys, "export", run, "--out", tmp_path / "all.jsonl", "--trajectories")
    first = json.loads((tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["trajectory"][1]["observation"] == "a kitchen" and first["env_id"] == TOY


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}"], "say for example: roleagent failures modes {run}"),
        (["show", "{run}", "99"], "there is no failure 99"),
        (["modes", "{run}/empty"], "no run folder"),
        (["modes", "{run}/missing.db"], "no run folder"),
        (["modes", "sqlite:///{run}/missing.db"], "has filed no failures"),
        (["modes", "sqlite://"], "holds no failure library"),
        (["modes", "nonsense://x"], "cannot open the failure library nonsense://x"),
        (["modes", "{run}/config.yaml"], "file is not a database"),
        (["export", "{run}", "--out", "{run}/nowhere/x.csv"], "No such file"),
    ],
)
def test_errors_are_one_line(run, capsys, arguments, words):
    names = sorted(path.name for path in run.iterdir())
    assert main(["failures", *(argument.format(run=run) for argument in arguments)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("roleagent failures: ") and words.format(run=run) in line
    assert {path.name for path in run.iterdir()} <= {*names, "failures.db-wal", "failures.db-shm"}
