"""The revision test, loops and revision signals."""

import json
from dataclasses import replace

import numpy as np
import pytest
from programs import load
from tiny import qwen
from trees import grow, kitchen, note

from roleagent.agents.evaluation.records import behavior_of, loops
from roleagent.agents.evaluation.revision import Failure, append_failure, begin_failures, read_failures, revise_failures
from roleagent.agents.evaluation.statistics import summarize
from roleagent.learners.run.checkpoints import save_policy

TASK = "bring-egg-table-1"
GOOD = ["go to basket", "take egg from basket", "go to table", "move egg to table"]
LOST = ["go to counter", "look", "go to table", "look"]
evaluate = load("evaluate")


@pytest.fixture(scope="module")
def world():
    return kitchen("env.kwargs={max_steps: 6}")


def episode(world, path):
    tree = grow(*world, TASK, [path])
    return tree.trajectory(tree.leaves()[0])


def test_the_longest_run_of_a_block_is_counted_for_each_length():
    assert loops([], 2) == {"loops_1": 0, "loops_2": 0}
    assert loops(list("abab")) == {"loops_1": 0, "loops_2": 1, "loops_3": 0, "loops_4": 0, "loops_5": 0}
    assert loops(list("xxxxabcabcabc"), 3) == {"loops_1": 3, "loops_2": 1, "loops_3": 2}


def test_signals_are_counted_and_those_behind_a_right_step_are_false_alarms(world):
    found = behavior_of(episode(world, [*GOOD[:2], note(), "look"]))
    assert found["revisions"] == 1 and found["false_alarms"] == 1
    wrong = behavior_of(episode(world, ["go to nowhere", note(), *GOOD]))
    assert (wrong["revisions"], wrong["false_alarms"]) == (1, 0)
    assert "revisions" not in behavior_of(episode(world, GOOD))


def test_a_failure_is_cut_within_the_episode_and_survives_its_file(world, tmp_path):
    lost, path = episode(world, LOST), tmp_path / "new" / "failures.jsonl"
    cuts = {Failure.of(lost, np.random.default_rng(seed)).cut for seed in range(30)}
    assert cuts == {1, 2, 3}
    assert Failure.of(episode(world, GOOD), np.random.default_rng(0)) is None
    failure = Failure.of(lost, np.random.default_rng(0))
    begin_failures(path, 0)
    for one in (replace(failure, cut=1), failure):
        append_failure(path, one)
    assert read_failures(path) == [failure]
    with path.open("a") as stream:
        stream.write('{"task_id": "a", "comm')  # the disk was full
    begin_failures(path, 2)
    append_failure(path, replace(failure, cut=1))
    assert read_failures(path) == [replace(failure, cut=1)]
    path.write_text(json.dumps({"task_id": TASK, "commands": LOST, "cut": 4}) + "\n")
    with pytest.raises(ValueError, match="outside"):
        read_failures(path)


def test_an_episode_is_cut_before_its_first_signal(world):
    won = Failure.at_signal(episode(world, [*GOOD[:2], note(), GOOD[2], note(), GOOD[3]]))
    assert won == Failure(TASK, tuple(GOOD), 2)
    for path in (GOOD, [note(), *GOOD], [*GOOD[:3], note()]):
        assert Failure.at_signal(episode(world, path)) is None, "no signal, or none between two commands"


def test_a_policy_goes_on_behind_the_cut_with_the_whole_limit(world):
    split, policy = world
    [record] = revise_failures(split, policy, [Failure(TASK, tuple(LOST), 3)], 1.0)
    assert record.steps == 3 + 6 or record.won, "the limit of six steps counts from the cut"
    assert record.behavior["loops_1"] >= 0
    assert summarize([record])["behavior"]["loops_1"]["mean"] == record.behavior["loops_1"]


def test_evaluate_py_goes_on_from_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path, model = tmp_path / "failures.jsonl", tmp_path / "model"
    save_policy(qwen(context=2000), model)
    append_failure(path, Failure("bring-egg-table-7", tuple(LOST), 2))
    common = ["--env", "RoleAgent/Toy-v0", "--split", "valid", "--cut-failures", str(path)]
    arguments = ["--agent", str(model), *common, "--max-tokens", "4", "--set", "prompt.think=none"]
    assert evaluate.main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["n"], result["tasks"], result["success"], result["steps"]) == (1, 1, 0.0, 2 + 15)
    assert len(result["cut_failures"]) == 16
    assert evaluate.main([*arguments, "--set", "prompt.revisions=note"]) == 0
    with_notes = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert with_notes["records"] != result["records"], "episodes with and without notes are two evaluations"
    assert evaluate.main(["--agent", "random", *common]) == 2
    assert "need a local policy" in capsys.readouterr().err
    assert evaluate.main(["--agent", str(model), *common[:-1], str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err
