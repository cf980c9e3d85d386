"""A fork continues a checkpoint with other options: without a change in the bits of the run itself."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from programs import load, run

from roleagent.cli import main as roleagent
from roleagent.config import ConfigError, to_dict
from roleagent.experiments.forks import plan_of
from roleagent.files import damage, replace_checked
from roleagent.learners.run.folder import read_config
from roleagent.learners.run.forks import fork, forked

differences = load("benchmarks/parts/run_differences").differences
train = load("train")


def test_a_fork_without_a_change_ends_in_the_bits_of_the_run(finished, tmp_path):
    whole = finished[0]
    fork(whole, 1, [], tmp_path / "fork")
    assert not (tmp_path / "fork" / "after.json").exists()
    status, _, err = run("train", "--resume", tmp_path / "fork")  # as the run itself: with as many threads
    assert status == 0, err
    rest = [line for line in differences(whole, tmp_path / "fork") if "in one of them only" not in line]
    assert rest == []
    last = json.loads((tmp_path / "fork" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 3 and last["grad_norm"] > 0 and last["curriculum_failures"] > 0


CHANGES = (["aiw=off"], ["method=grpo", "wia=off", "curriculum.analyst=replay"], ["seed=7"])


@pytest.mark.parametrize("options", [*CHANGES, ["curriculum.analyst=frozen", "optim.lr=1e-3"]])
def test_a_fork_with_a_change_trains_from_the_checkpoint_on(finished, tmp_path, options):
    whole = finished[0]
    fork(whole, 2, options, tmp_path / "fork")
    assert train.main(["--resume", str(tmp_path / "fork")]) == 0
    rows, own = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (whole, tmp_path / "fork")
    )
    assert own[:-1] == rows[:-1] and own[-1] != rows[-1]
    assert (own[-1]["stage"], own[-1]["step"]) == ("train", 3)
    assert ("curriculum_failures" in own[-1]) == (options != ["aiw=off"])


def test_a_mechanism_can_begin_in_a_fork(finished, tmp_path):
    fork(finished[0], 1, ["aiw=off", "train.until=2"], tmp_path / "without")
    assert train.main(["--resume", str(tmp_path / "without")]) == 0
    fork(tmp_path / "without", 2, ["aiw=on", "train.until=3"], tmp_path / "with")
    assert train.main(["--resume", str(tmp_path / "with")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "with" / "metrics.jsonl").read_text().splitlines()]
    assert "curriculum_failures" not in rows[-2] and rows[-1]["curriculum_failures"] > 0
    with pytest.raises(ConfigError, match="this run has aiw=off"):
        fork(tmp_path / "without", 2, ["aiw=on", "curriculum.analyst=frozen"], tmp_path / "frozen")


def test_a_run_of_its_own_has_nothing_frozen(tmp_path, capsys):
    words = ["--config", "configs/toy.yaml", "curriculum.analyst=frozen", f"run_dir={tmp_path}/run"]
    assert train.main(words) == 2
    assert "it is an arm of `roleagent fork`" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_trains_the_arms_and_reports_their_difference(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the run itself
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])))
    whole, out = finished[0], tmp_path / "forks"
    command = ["fork", str(whole), "--at", "2", "optim.lr=0", "--repeats", "2", "--jobs", "1", "--out", str(out)]
    assert roleagent(command) == 0
    capsys.readouterr()
    forks = out / "seed2"
    assert {path.name for path in forks.iterdir() if path.is_dir()} == {
        *("fork2-unchanged", "fork2-optim_lr_0", "fork2-repeat1-unchanged", "fork2-repeat1-optim_lr_0")
    }
    ends = [json.loads((folder / "after.json").read_text())["records"] for folder in (whole, forks / "fork2-unchanged")]
    assert ends[0] == ends[1]  # the unchanged arm is the run itself
    page = (out / "report.md").read_text()
    assert "| optim.lr=0 over unchanged | 2 |" in page and "| optim.lr=0 over unchanged | checkpoint |" in page
    before = {path: path.stat().st_mtime_ns for path in forks.rglob("result.json")}
    assert roleagent(command) == 0  # nothing is left to do
    assert before == {path: path.stat().st_mtime_ns for path in forks.rglob("result.json")}


@pytest.mark.parametrize(
    "words, seen",
    [
        (["--at", "9", "aiw=off"], "nothing left to fork at 9"),
        (["--at", "1", "policy.layers=3"], "the arm 'policy.layers=3': policy.layers cannot change"),
        (["--at", "1", "aiw=on"], "the arm 'aiw=on' changes nothing"),
        (["--at", "1", "--arms", "none.yaml"], "cannot read the arms"),
        (["--at", "1", "--at", "2", "optim.lr=0"], "forks from several checkpoints need a length"),
        (["--at", "1", "optim.lr=0", "--length", "50"], "forks of 50 iterations at 1 end after 51, and the run has 3"),
        (["--at", "1", "train.until=2"], "the arm 'train.until=2': train.until does not change how a policy learns"),
        (["--at", "1", "run_dir=x"], "the arm 'run_dir=x': run_dir does not change how a policy learns"),
        (["--at", "1", "train.keep_checkpoints=3"], "all forks have that of the run"),
        (["--at", "1", "optim.weight_decay=0.5"], "without optim.weight_decay*"),
    ],
)
def test_a_mistake_in_the_command_is_one_line(finished, capsys, words, seen):
    assert roleagent(["fork", str(finished[0]), *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert seen in line


@pytest.mark.parametrize(
    "text, seen",
    [
        ("aiw=off: {options: [wia=off]}", "the arm 'aiw=off' is on the command line and in"),
        ("unchanged: {options: [optim.lr=0]}", "the arm 'unchanged' is the run itself"),
        ("arms: {a: {options: [wia=off]}, b: {options: [wia=off], over: [b]}}", "the arm 'b' is compared with itself"),
        ("a: {options: [wia=off]}\na: {options: [optim.lr=0]}", "the key 'a' stands twice"),
    ],
)
def test_an_arm_has_one_meaning(finished, tmp_path, capsys, text, seen):
    arms = tmp_path / "arms.yaml"
    arms.write_text(text)
    assert roleagent(["fork", str(finished[0]), "--at", "1", "aiw=off", "--arms", str(arms)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert seen in line and str(arms) in line


def test_folders_of_other_forks_are_refused_before_anything_is_trained(finished, tmp_path, capsys):
    out = tmp_path / "forks"
    fork(finished[0], 1, ["optim.lr=1e-3"], out / "seed2" / "fork1-aiw_off")
    assert roleagent(["fork", str(finished[0]), "--at", "1", "aiw=off", "--out", str(out)]) == 2
    assert "fork1-aiw_off holds another run: name another folder" in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in (out / "seed2").iterdir()] == ["fork1-aiw_off"] and not (out / "report.md").exists()
    longer, shorter = (plan_of(finished[0], [1], ["aiw=off"], None, length) for length in (0, 1))
    assert not {*folders(longer, out)} & {*folders(shorter, out)}


def folders(plan, out):
    return [path for by_branch in plan.folders(plan.jobs(), out).values() for path in by_branch.values()]


@pytest.mark.parametrize("name", ["training", "evaluation"])
def test_changed_data_are_refused_before_anything_is_played(finished, tmp_path, capsys, name):
    folder = tmp_path / "fork"
    fork(finished[0], 1, ["optim.lr=1e-3"], folder)
    logged = (folder / "metrics.jsonl").read_text()
    known = json.loads((folder / "splits.json").read_text())
    (folder / "splits.json").unlink()  # it is a second name of the run's
    (folder / "splits.json").write_text(json.dumps({**known, name: {**known[name], "digest": "0123456789abcdef"}}))
    assert train.main(["--resume", str(folder)]) == 2
    assert f"the tasks, data or tools of the {name} have changed since" in capsys.readouterr().err.splitlines()[-1]
    assert (folder / "metrics.jsonl").read_text() == logged


def test_a_curriculum_by_types_has_no_choices_to_freeze(finished):
    config = read_config(finished[0])
    by_types = replace(config, curriculum=replace(config.curriculum, analyst="types"))
    with pytest.raises(ConfigError, match=r"this run has curriculum\.analyst=types"):
        forked(by_types, ["curriculum.analyst=frozen"])


def test_another_seed_draws_other_tasks_and_the_run_keeps_its_own(finished, tmp_path):
    """The generators of a sampler are in the checkpoint."""

    def sampler(folder):
        checkpoint = folder / "checkpoints" / "step-500001"
        assert not damage(checkpoint)
        return json.loads((checkpoint / "state.json").read_text())["sampler"]

    own = sampler(finished[0])
    fork(finished[0], 1, ["optim.lr=1e-3"], tmp_path / "same")
    fork(finished[0], 1, ["seed=7"], tmp_path / "other")
    other = sampler(tmp_path / "other")
    assert sampler(tmp_path / "same") == sampler(finished[0]) == own
    assert other.keys() == own.keys() and other["rng"] != own["rng"]


def test_repeats_of_an_arm_with_a_seed_differ(finished):
    plan = plan_of(finished[0], [1], ["seed=7", "aiw=off"], None, repeats=3)
    jobs = [job for job in plan.jobs() if job.arm == "seed=7"]
    seeds = {[one for one in plan._fork_options(job, job.branch) if one.startswith("seed=")][-1] for job in jobs}
    assert len(jobs) == len(seeds) == 3


def test_a_method_with_a_price_of_its_own_can_be_left(finished):
    run = read_config(finished[0])
    assert (left := forked(run, ["method=dapo"])).estimator.rewards["overlong"] == -0.1
    assert forked(left, ["method=grpo"]).estimator == forked(run, ["method=grpo"]).estimator


def test_a_fork_with_a_penalty_compares_with_the_warm_start(finished, tmp_path):
    run = shutil.copytree(finished[0], tmp_path / "run")
    shutil.rmtree(run / "reference")
    config = to_dict(read_config(run))
    config["loss"]["kl"] = 0.0
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    fork(run, 2, ["loss.kl=0.01"], tmp_path / "fork")
    assert train.main(["--resume", str(tmp_path / "fork")]) == 0
    shutil.rmtree(run / "checkpoints" / "step-500000")
    for given in (["loss.kl=0.01"], ["method=grpo", "distill.teacher=self"]):
        with pytest.raises(ConfigError, match=rf"{given[-1]} needs .* which .* has not kept"):
            fork(run, 2, given, tmp_path / "other")


def test_another_method_brings_its_settings(finished):
    config = read_config(finished[0])
    assert forked(config, ["method=gspo"]).loss.importance_level == "sequence"
    assert forked(config, ["method=gspo", "loss.importance_level=token"]).loss.importance_level == "token"


@pytest.mark.parametrize(
    "at, options, seen",
    [
        (7, [], "no checkpoint after iteration 7; it has those after 0, 1, 2, 3"),
        (3, [], "ends at iteration 3: nothing is left after 3"),
        (1, ["env.id=RoleAgent/Office-v0"], "cannot change in a fork"),
        (1, ["policy.layers=3", "aiw=off"], "policy.layers cannot change in a fork"),
        (1, ["rollout.eval_temperature=1"], "rollout.eval_temperature cannot change in a fork"),
        (1, ["aiw=of"], "aiw must be"),
        (1, ["rollout.temprature=1"], "did you mean 'rollout.temperature'?"),
        (1, ["method=ppo"], "method=ppo needs a critic"),
        (1, ["method=agent_r"], "method=agent_r is none"),
        (1, ["method=distill"], "set distill.teacher"),
        (1, ["rollout.async_level=1"], "rollout.async_level=1 samples during the update"),
        (1, ["aiw=off", "curriculum.epsilon=0.1"], "curriculum.epsilon has no effect"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(finished, tmp_path, at, options, seen):
    with pytest.raises(ConfigError) as caught:
        fork(finished[0], at, options, tmp_path / "fork")
    assert seen in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "fork").exists()


def test_another_fork_in_the_folder_and_a_damaged_run_are_refused(finished, tmp_path, monkeypatch):
    fork(finished[0], 1, [], tmp_path / "fork")
    fork(finished[0], 1, [], tmp_path / "fork")
    monkeypatch.chdir(tmp_path)
    fork(finished[0], 1, [], Path("fork"))
    with pytest.raises(ConfigError, match="holds another run"):
        fork(finished[0], 2, [], tmp_path / "fork")
    whole = shutil.copytree(finished[0], tmp_path / "whole")
    checkpoint = whole / "checkpoints" / "step-500001"
    replace_checked(checkpoint, "state.json", (checkpoint / "state.json").read_text() + " ")
    with pytest.raises(ConfigError, match="holds another run"):  # a run with the same options, trained anew
        fork(whole, 1, [], tmp_path / "fork")
    (checkpoint / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"state\.json is damaged"):
        fork(whole, 1, [], tmp_path / "other")
    (whole / "failures.db").write_text("no database, but long enough for SQLite to look at it as one")
    with pytest.raises(ConfigError, match=r"failures\.db cannot be read"):
        fork(whole, 2, [], tmp_path / "other")
    (whole / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has no metrics\.jsonl"):
        fork(whole, 2, [], tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_that_forgets_its_suite_ends_with_a_status_of_its_own(finished, tmp_path, capsys):
    assert roleagent(["failures", "freeze", str(finished[0]), "--out", str(tmp_path / "suite.json")]) == 0
    suite = json.loads((tmp_path / "suite.json").read_text())
    tasks = len(suite["tasks"])
    options = [f"train.suite={tmp_path / 'suite.json'}", "train.stop_on_regression=0.01"]
    fork(finished[0], 1, [*options, "optim.lr=1", "optim.warmup_steps=0"], tmp_path / "fork")  # which forgets all
    capsys.readouterr()
    assert train.main(["--resume", str(tmp_path / "fork")]) == 4
    said = capsys.readouterr().err
    assert "regression at iteration 2: 0 of" in said  # after its success at iteration 1, where the fork begins
    modes = json.loads((tmp_path / "fork" / "suite-000002.json").read_text())["modes"]
    assert sum(row["forgotten"] for row in modes.values()) > 0
    assert all(row["tasks"] <= tasks for row in modes.values())
    assert not (tmp_path / "fork" / "after.json").exists()
    assert train.main(["--resume", str(tmp_path / "fork"), "train.stop_on_regression=0", "train.until=2"]) == 0
    (tmp_path / "one.json").write_text(json.dumps(suite | {"tasks": suite["tasks"][:1]}))  # another suite
    words = [f"train.suite={tmp_path / 'one.json'}", "train.stop_on_regression=0.01", "train.until=3"]
    assert train.main(["--resume", str(tmp_path / "fork"), *words]) == 0
    assert roleagent(["failures", "suite", str(tmp_path / "fork"), "--json"]) == 0
    assert '"all": {"2": {"tasks": 1, "solved": 0}}' in capsys.readouterr().out
