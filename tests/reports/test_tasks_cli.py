"""``roleagent tasks``: what people see of written tasks."""

import gzip
import json
import shutil

import gymnasium
import numpy as np
import pytest
import yaml

from roleagent.cli import main
from roleagent.config import Config, from_dict, to_dict
from roleagent.curricula.simulators import TableSimulator
from roleagent.reports.data.load_run import load_run
from roleagent.reports.data.load_tasks import load_tasks
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.tasks.grammar import grammar_of

LINE = "kind=heat item=egg place=counter containers=5 closed=2"
FORM = "a task is written as kind=value item=value place=value containers=value closed=value"
TASK = "heat-egg-counter-5x2-137"


@pytest.fixture
def run(tmp_path):
    """A run folder with one task that was played three times, one of a hostile name, and two refused proposals."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(Config())))
    write(tmp_path, 1, {"event": "written", "line": LINE, "varied": False, "context": 0, "task_id": TASK, "plan": 7})
    played = [
        {"event": "written", "line": "kind=\x1b[2J", "varied": False, "context": 0, "refused": "vocabulary"},
        {"event": "written", "line": LINE, "varied": True, "context": 1, "plan": 7, "refused": "duplicate"},
        {"event": "replayed", "task_id": TASK, "successes": 6, "attempts": 8},
    ]
    write(tmp_path, 2, *played)
    write(tmp_path, 9, {"event": "written", "line": LINE, "varied": True, "context": 0, "task_id": "x\x1b", "plan": 9})
    return tmp_path


def write(run, iteration, *events):
    (run / "tasks").mkdir(exist_ok=True)
    if iteration == 1:
        events += ({"event": "fresh", "task_id": TASK, "successes": 3, "attempts": 8, "reward": 0.9, "weight": 2.4},)
    lines = "".join(json.dumps({"iteration": iteration, **event}) + "\n" for event in events)
    (run / "tasks" / f"iteration-{iteration:06d}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))


def shown(capsys, *arguments, status=0):
    assert main(["tasks", *map(str, arguments)]) == status
    return capsys.readouterr()


def test_show_lists_what_was_written_and_how_it_was_played(run, capsys):
    out = shown(capsys, "show", run).out
    assert out.splitlines()[1:] == [
        f"1        7     {LINE}",
        f"{'':15}{TASK}  1: 3/8, 2r: 6/8",
        f"9        9     {LINE} (one field changed)",
        f"{'':15}x  not played",
        "4 proposed: 2 accepted, 2 refused (vocabulary 1, duplicate 1); 1 tasks played again",
    ]
    assert shown(capsys, "show", run, "--iteration", 1).out.splitlines()[-1].startswith("1 proposed: 1 accepted;")
    assert TASK not in shown(capsys, "show", run, "--limit", 1).out


def test_show_lists_what_was_refused_and_why(run, capsys):
    lines = shown(capsys, "show", run, "--refused").out.splitlines()
    assert lines[1:3] == ["2          vocabulary    kind=[2J", f"2          duplicate     {LINE} (one field changed)"]
    assert len(shown(capsys, "show", run, "--refused", "--task", "heat").out.splitlines()) == 3


def test_a_damaged_or_missing_log_is_one_line(run, capsys):
    assert "is no run folder" in shown(capsys, "show", run / "nope", status=2).err
    (run / "tasks" / "iteration-000003.jsonl.gz").write_bytes(b"\x1f\x8bno")
    err = shown(capsys, "show", run, status=2).err
    assert "iteration-000003.jsonl.gz is damaged" in err and err.count("\n") == 1
    for text in ("[]\n", "{}\n", '{"iteration": 1, "event": "fresh"}\n', "[" * 100_000):
        (run / "tasks" / "iteration-000003.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        with pytest.raises(RunDataError, match="is damaged"):
            load_tasks(run)
    shutil.rmtree(run / "tasks")
    assert "genenv=on" in shown(capsys, "show", run, status=2).err


def test_a_report_has_what_was_written(run):
    tasks = load_run(run)["written_tasks"]
    json.dumps(tasks, allow_nan=False)
    assert (tasks["proposed"], tasks["accepted"]) == (4, 2)
    assert tasks["refused"] == {"vocabulary": 1, "duplicate": 1}
    assert tasks["thirds"] == [(1, 3), (4, 6), (7, 9)]
    egg = {"field": "item", "value": "egg", "shares": [1.0, None, 1.0], "success": 0.375, "tasks": 2}
    assert egg in tasks["fields"] and len(tasks["fields"]) == 5
    first, second = tasks["lives"]
    assert [play["successes"] for play in first["plays"]] == [3, 6] and second["plays"] == []
    assert [one["reason"] for one in tasks["refusals"]] == ["vocabulary", "duplicate"]


def test_propose_writes_lines_that_check_reads(capsys):
    written = shown(capsys, "propose", "toy", "--count", 3)
    lines = written.out.splitlines()
    assert len(lines) == 3 and "3 proposed: 3 accepted" in written.err and "kind: bring heat" in written.err
    found = shown(capsys, "check", "Toy", *lines).out.splitlines()
    assert len(found) == 6 and found[0].endswith(lines[0]) and found[1].startswith("  plan of ")


def test_check_says_why_a_task_is_refused(capsys):
    out = shown(
        capsys, "check", "Toy", TASK, LINE.replace("heat", "fry"), "heat-egg-counter-x", "\x1b[2J", status=1
    ).out
    assert out.splitlines()[0] == f"{TASK}: {LINE}"
    assert [line for line in out.splitlines() if line.startswith("refused")] == [
        f"refused (vocabulary): {LINE.replace('heat', 'fry')}",
        f"refused (syntax): heat-egg-counter-x; {FORM}",
        f"refused (syntax): [2J; {FORM}",
    ]


def test_propose_asks_the_simulator_of_a_run_as_it_is_now(tmp_path, capsys):
    config = {"env": {"id": "RoleAgent/Toy-v0"}, "genenv": True, "simulator": {"kind": "table"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(from_dict(config))))
    grammar = grammar_of(gymnasium.make("RoleAgent/Toy-v0", generated_tasks=True))
    state = TableSimulator(grammar, np.random.default_rng(0)).state_dict()
    state["types"] = {name: float(name == "cool") for name in state["types"]}
    (tmp_path / "checkpoints" / "step-500003").mkdir(parents=True)
    saved = {"stage": "train", "step": 3, "sampler": {"simulator": state}}
    (tmp_path / "checkpoints" / "step-500003" / "state.json").write_text(json.dumps(saved))
    lines = shown(capsys, "propose", tmp_path).out.splitlines()
    assert len(lines) == 10 and all(line.startswith("kind=cool ") for line in lines)
    config["simulator"]["kind"] = "model"  # checking needs no simulator
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(from_dict(config))))
    assert shown(capsys, "check", tmp_path, lines[0]).out.startswith("cool-")
    assert "weights of its simulator" in shown(capsys, "propose", tmp_path, status=2).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["propose", "BFCL"], "has no task grammar"),
        (["propose", "Toi"], "did you mean RoleAgent/Toy-v0?"),
        (["check", "Toy", LINE, "--env-arg", "split=valid"], "generated tasks are for training"),
        (["propose", "."], "is no run folder"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, said, capsys):
    err = shown(capsys, *arguments, status=2).err
    assert said in err and err.count("\n") == 1
