"""A frozen suite: which failures of a run are in it, and what its evaluations show."""

import json

import pytest
import yaml

from roleagent.cli import main
from roleagent.config import Config, ConfigError, to_dict
from roleagent.curricula.suite import Suite, SuiteTask, outcomes
from roleagent.files import write_json_lines


@pytest.fixture
def run(tmp_path):
    """A run folder with four iterations: by task the outcomes of two episodes, a mode for a failed one."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(Config())))
    iterations = [
        {"never": ["loop", "loop"], "at once": [None, None], "later": ["loop", "lost"], "mixed": ["loop", None]},
        {"never": ["loop", "lost"], "later": ["loop", "loop"], "rare": ["asleep", "asleep"]},
        {"later": [None, "asleep"], "rare": [None, None]},
        {"rare": ["lost", "lost"]},
    ]
    for number, played in enumerate(iterations, 1):
        rows = [
            {"task_id": task, "task_type": "heat", "won": mode is None, "analysis": mode and {"mode": mode}}
            for task, modes in played.items()
            for mode in modes
        ]
        write_json_lines(tmp_path / "trajectories" / f"iteration-{number:06d}.jsonl.gz", rows)
    return tmp_path


def test_a_suite_has_what_failed_and_was_solved_in_a_later_iteration(run, capsys):
    assert main(["failures", "freeze", str(run), "--out", str(run / "frozen.json")]) == 0
    assert "2 tasks of RoleAgent/ALFWorld-v0:train" in capsys.readouterr().out
    suite = Suite.read(run / "frozen.json")
    assert suite.tasks == (
        SuiteTask("later", "heat", ("loop", "lost"), failed=1, solved=3),
        SuiteTask("rare", "heat", ("asleep",), failed=2, solved=3),
    )
    assert [task.task_id for task in Suite.of_run(run, "E", "train", 1).tasks] == ["rare"]


def test_mistakes_are_one_line(run, tmp_path, capsys):
    for file in run.glob("trajectories/*"):
        file.unlink()
    (run / "other.json").write_text('{"env_id": "E"}')
    for words, seen in (
        (["freeze", run], "has solved no failure yet"),
        (["freeze", tmp_path / "none"], "is no run folder"),
        (["freeze", run, "--out", run / "suite-000040.json"], "is the name of an evaluation"),
        (["suite", run], "has played no suite"),
    ):
        assert main(["failures", *map(str, words)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert seen in line
    with pytest.raises(ConfigError, match="no frozen suite"):
        Suite.read(run / "other.json")


def test_the_matrix_shows_what_was_forgotten_and_its_status_whether_it_is_lost(run, capsys):
    suite = Suite("E", "train", (SuiteTask("a", "heat", ("loop",), 1, 2), SuiteTask("b", "heat", ("lost",), 1, 3)))
    before = {"a": True, "b": True}
    for iteration, solved, failed in ((5, "a", ""), (10, "ab", ""), (15, "b", ""), (20, "b", "a")):
        ends = {task: "error" if task in failed else "won" if task in solved else "max_steps" for task in "ab"}
        records = [{"task_id": task, "won": end == "won", "stop_reason": end} for task, end in ends.items()]
        now = outcomes({"records": records})
        found = {"records": records, "modes": suite.changes(before, now)}
        (run / f"suite-{iteration:06d}.json").write_text(json.dumps(found))
        before = now
    other = {"records": [{"task_id": task, "won": True, "stop_reason": "won"} for task in ("a", "c", "d")], "modes": {}}
    (run / "suite-000002.json").write_text(json.dumps(other))  # of another suite
    suite.write(run / "suite-20.json")  # the user's
    assert main(["failures", "suite", str(run)]) == 0  # the environment failed in one task, which is no loss
    capsys.readouterr()
    (run / "suite-000020.json").unlink()
    assert main(["failures", "suite", str(run)]) == 1  # for scripts: fewer are solved than at best
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if row and row[0] != "failure mode"] == [
        ["all", "2", "1", "2", "1"],
        ["loop", "1", "1", "1", "0 −1"],
        ["lost", "1", "0 −1", "1 +1", "1"],
    ]
    (run / "suite-000015.json").unlink()
    assert main(["failures", "suite", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lost"]["10"]["regained"] == 1
