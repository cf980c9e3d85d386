"""``roleagent doctor``: what it says of good, bad and strange machines, and that none of them stops it."""

import json
import os
import re
import subprocess
import sys

import pytest

from roleagent.cli import main
from roleagent.env_card import card_of
from roleagent.envs.alfworld.official import games as official
from roleagent.envs.searchqa.data import benchmarks
from roleagent.envs.textcraft.data.dataset import open_book
from roleagent.reports.doctor import doctor, installed, machine

DATA = ("ALFWORLD_DATA", "WEBSHOP_DATA", "SEARCHQA_DATA")
ROLEAGENT = (sys.executable, "-m", "roleagent.cli")


@pytest.fixture(autouse=True)
def newcomer(monkeypatch):
    for name in DATA:
        monkeypatch.delenv(name, raising=False)


def test_this_machine_as_a_person_sees_it():
    environment = {name: value for name, value in os.environ.items() if name not in DATA} | {"COLUMNS": "80"}
    done = subprocess.run([*ROLEAGENT, "doctor", "--quick"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "\nTraining would work here" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if len(line) > 80 and " " in line[28:].strip()] == []  # a path may be longer
    for summary in ("torch", "cores", "memory", "ALFWorld", "pyserini"):
        assert sum(summary in line for line in lines), summary


def test_json_and_the_exit_status(monkeypatch, capsys, tmp_path):
    assert main(["doctor", "--quick", "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["works"]
    assert {finding["section"] for finding in reported["findings"]} == {"packages", "machine", "data", "extras"}
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert main(["doctor", "--quick", "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    [problem] = [finding for finding in reported["findings"] if finding["grade"] == "problem"]
    assert (problem["name"], problem["section"]) == ("ALFWorld", "data")
    assert problem["advice"]


def test_checks_that_fail_are_findings(monkeypatch, capsys):
    """Whatever a machine lacks, the other checks go on."""

    def strange(*_, **__):
        raise PermissionError("[odd] machine\nof two lines")

    for name in ("processor", "cores", "memory", "disk", "models", "java", "variables_that_hurt"):
        monkeypatch.setattr(machine, name, strange)
    monkeypatch.setattr(installed, "packages", lambda: sys.exit("no metadata"))
    assert main(["doctor", "--quick"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("check failed: PermissionError: [odd] machine of two") == 7
    assert "SystemExit: no metadata" in shown
    assert "generated games" in shown


# --- packages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "summary"),
    [
        ("raise ImportError('undefined symbol: ncclX')", "ImportError: undefined symbol: ncclX"),
        ("import os; os.abort()", "exit status -6"),
        ("print('hello'); raise SystemExit(3)", "exit status 3"),
    ],
)
def test_a_broken_package_is_named_and_holds_nothing_up(content, summary, tmp_path, monkeypatch):
    (tmp_path / "broken_one.py").write_text(content)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = installed.imports("broken_one", 60)
    assert (found.grade, found.name) == ("problem", "import")
    assert "import broken_one: " in found.text and summary in found.text
    assert "broken_one" in found.advice
    assert installed.imports("broken_one", 60, "vllm").grade == "note"
    assert installed.imports("json, csv", 60).grade == "good"


# --- the machine ------------------------------------------------------------------------------------------------------


GPU = {"name": "NVIDIA H100", "memory": 80 * 2**30, "kind": "90", "usable": True, "bf16": True}
DRIVER = {"name": "NVIDIA H100", "driver": "535.1"}


@pytest.mark.parametrize(
    ("torch", "driver", "grade", "summary"),
    [
        ({"cuda": "12.8", "gpus": [GPU]}, DRIVER, "good", "80.0 GB, bfloat16, driver 535.1"),
        ({"cuda": "12.8", "gpus": [GPU | {"usable": False}]}, DRIVER, "problem", "no code for sm_90"),
        ({"cuda": "12.8", "gpus": [GPU | {"bf16": False}]}, DRIVER, "note", "no bfloat16"),
        ({"cuda": None, "gpus": []}, DRIVER, "problem", "built without CUDA"),
        ({"cuda": "13.0", "gpus": [], "error": "driver too old"}, DRIVER, "problem", "driver 535.1.*cannot.*too old"),
        ({"cuda": None, "gpus": []}, None, "note", "none"),
    ],
)
def test_gpus_and_builds_that_do_not_fit(torch, driver, grade, summary, monkeypatch):
    monkeypatch.setattr(machine, "asked", lambda *_: {"version": "2.9", "error": ""} | torch)
    monkeypatch.setattr(machine, "_driver", lambda _: driver)
    [found] = machine.gpus(60)
    assert found.grade == grade
    assert re.search(summary, found.text)
    assert bool(found.advice) == (grade != "good")


# --- data -------------------------------------------------------------------------------------------------------------


def found(name):
    return list(doctor.data_status(card_of(f"RoleAgent/{name}-v0")))


def test_data_folders_with_everything(tmp_path, monkeypatch):
    for number in range(3):
        game = tmp_path / "alfworld" / "train" / "a-task" / f"trial-{number}" / "game.tw-pddl"
        game.parent.mkdir(parents=True)
        game.write_text(json.dumps({"pddl_problem": "x" * 300, "solvable": True}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "alfworld"))
    for name, arguments in {
        "webshop": ["webshop", "generate", "--products", "40"],
        "searchqa": ["searchqa", "generate"],
        "textcraft": ["textcraft", "generate"],
    }.items():
        assert main([*arguments, "--out", str(tmp_path / name)]) == 0
        monkeypatch.setenv(f"{name.upper()}_DATA", str(tmp_path / name))
    [games], [products], [recipes] = found("ALFWorld"), found("WebShop"), found("TextCraft")
    assert (recipes.grade, recipes.text[:9]) == ("good", "544 goals")
    assert (games.grade, games.text[:13]) == ("note", "train 3 games")
    assert "missing: valid_train, valid_seen, valid_unseen" in games.text
    assert (products.grade, products.text[:11]) == ("good", "40 products")
    questions, passages = found("SearchQA")
    assert questions.grade == passages.grade == "good"
    corpus = tmp_path / "searchqa" / "corpus.jsonl"
    assert passages.text.startswith(f"{len(corpus.read_text().splitlines()):,} in")
    corpus.unlink()
    assert [finding.grade for finding in found("SearchQA")] == ["good", "note"]

    path = next((tmp_path / "alfworld").rglob("game.tw-pddl"))
    path.write_text(path.read_text()[:200])
    official.list_games.cache_clear()
    [games] = found("ALFWorld")
    assert games.grade == "problem" and path.parent.name in games.text
    next((tmp_path / "webshop").glob("items_ins_v2*")).unlink()
    assert "no items_ins_v2" in found("WebShop")[0].text
    (tmp_path / "searchqa" / "test.jsonl").write_text("no JSON\n")
    benchmarks.load_questions.cache_clear()
    assert found("SearchQA")[0].grade == "problem"
    (tmp_path / "textcraft" / "jar.json").write_text("{}")
    open_book.cache_clear()
    assert found("TextCraft")[0].grade == "problem"


def test_games_of_two_versions_are_noticed(official_games, tmp_path, monkeypatch):
    """A policy that learned from one version won 6 % of the other's games, and 74 % of its own."""
    monkeypatch.setenv("ALFWORLD_DATA", str(official_games["current"]))
    assert "versions" not in found("ALFWorld")[0].text
    for version, split in (("current", "train"), ("older", "valid_seen")):
        (tmp_path / split).symlink_to(official.split_folder(official_games[version], "valid_seen"))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    [games] = found("ALFWorld")
    assert games.grade == "note" and "of two versions" in games.text and "one release" in games.advice


# --- a game of each ---------------------------------------------------------------------------------------------------


def test_a_game_is_played_to_its_end(monkeypatch, tmp_path):
    won = doctor.episode(card_of("RoleAgent/Toy-v0"), 60)
    assert won.grade == "good" and "won in" in won.text
    monkeypatch.setenv("WEBSHOP_DATA", str(tmp_path))
    lost = doctor.episode(card_of("RoleAgent/WebShop-v0"), 60)
    assert lost.grade == "problem" and "no items_shuffle" in lost.text
    assert doctor.episode(card_of("RoleAgent/Toy-v0"), seconds=0.01).grade == "note"
