"""An experiment: mistakes in its plan, its figures by hand, and all of it once in small."""

import csv
import gzip
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
import yaml
from failures import failed
from programs import default_signals, result_of, run, status

from roleagent.agents.evaluation.records import PROTOCOL, Record, RecordFile
from roleagent.config import ConfigError, from_dict, load, to_dict
from roleagent.curricula import FailureLibrary
from roleagent.experiments import figures, report
from roleagent.experiments.figures import ArmRuns
from roleagent.experiments.plan import FORKED_RUN, Branch, Evaluation, Plan, find_plan, shipped
from roleagent.experiments.runner import Experiment, main
from roleagent.experiments.runs import Run, costs_of, gpus_of_runs
from roleagent.files import Lock
from roleagent.tasks.split import wilson

PLAN = {
    "title": "A tiny experiment",
    "config": "configs/toy.yaml",
    "seeds": [0, 1],
    "options": [
        *("env.eval_tasks=4", "policy.hidden_size=32", "policy.layers=1", "policy.heads=2", "policy.kv_heads=1"),
        *("policy.mlp_size=32", "warmstart.episodes=12", "warmstart.predictions=0.5", "curriculum.analyst=rule"),
        *("rollout.num_groups=2", "rollout.group_size=2", "train.iterations=2", "train.evaluate_every=1"),
    ],
    "arms": {
        "GRPO": {"options": ["method=grpo", "wia=off", "aiw=off"], "minutes": 12},
        "Role-Agent": {"over": ["GRPO"], "minutes": 12},
        "H two": {"options": ["prompt.horizon=2"], "over": ["warm start of H two"], "own_start": True, "seeds": [0]},
    },
    "evaluations": [{"temperature": 1.0, "repeats": 2}, {"temperature": 0.0, "in_training": True}],
    "start_minutes": 6,
    "note": "Nothing is tuned here.",
}


@pytest.fixture
def written(tmp_path):
    """Writes a plan with changes to its keys; returns its path."""

    def write(**changes):
        file = tmp_path / "tiny.yaml"
        file.write_text(yaml.safe_dump({**PLAN, **changes}, sort_keys=False))
        return file

    return write


def arm(**changes):
    return {"arms": {**PLAN["arms"], "GiGPO": changes}}


@pytest.mark.parametrize(
    "changes, seen",
    [
        (arm(over=["GPRO"]), "'GiGPO' is compared with 'GPRO', which is no other arm; did you mean GRPO?"),
        (arm(options=["method=gigpo", "rollout.temprature=1"]), "did you mean 'rollout.temperature'?"),
        (arm(options=["method=gigpoo"]), "the arm 'GiGPO': method must be one of"),
        (arm(options=["seed=3"]), "the experiment itself sets seed"),
        (arm(optoins=[]), "unknown key 'arms.GiGPO.optoins'"),
        ({"seeds": []}, "the arm 'GRPO' has no seeds"),
        ({"seeds": ["one"]}, "seeds.0 must be of type int, not 'one'"),
        ({"seeds": [0, 0]}, "has a seed twice"),
        ({"arms": {}}, "it has no arms"),
        ({"arms": {"H 2": {}, "h_2": {}}}, "the arms 'H 2' and 'h_2' have the same folder"),
        ({"config": "configs/toi.yaml"}, "cannot read the configuration configs/toi.yaml"),
        ({"evaluations": [{"temperature": 0.5, "in_training": True}]}, "at temperature 0"),
        ({"evaluations": []}, "evaluations is empty"),
        (
            {"paper": [{"title": "Table 1", "shows": "success", "arms": ["GPRO"]}]},
            "'Table 1' has a row 'GPRO', which is no arm",
        ),
        ({"paper": [{"title": "Table 1", "shows": "sucess"}]}, "paper.0.shows must be one of"),
        (
            {"paper": [{"title": "Time", "shows": "seconds", "published": {"predictions": 1.0}}]},
            "'Time' has a published figure of 'predictions'; there are generation, prediction",
        ),
        ({"fork": {"at": []}}, "fork.at names the iterations"),
        ({"fork": {"at": [2]}}, "a run of 2 iterations has nothing left to fork at 2"),
        ({"fork": {"at": [1], "lenght": 3}}, "unknown key 'fork.lenght'"),
        ({"fork": {"at": [1]}, "arms": {"small": {"options": ["policy.layers=3"]}}}, "policy.layers cannot change"),
        ({"fork": {"at": [1]}, "arms": {"small": {}}}, "the arm 'small' changes nothing"),
        (
            {
                "fork": {"at": [1]},
                "options": [*PLAN["options"], "loss.kl=0"],
                "arms": {"near": {"options": ["loss.kl=0.1"]}},
            },
            "the forked run does not keep: add train.keep_warmstart=on",
        ),
    ],
)
def test_a_mistake_in_a_plan_is_one_line(written, changes, seen):
    with pytest.raises(ConfigError) as caught:
        Plan.read(written(**changes))
    assert seen in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "option, seen",
    [
        ("rollout.async_level=1", "rollout.async_level=1 samples during the update"),
        ("policy.path=nowhere", "cannot load a causal language model from nowhere"),
        ("agent.command=no-such-program", "agent.command: there is no program no-such-program"),
    ],
)
def test_an_arm_that_cannot_run_here_ends_the_experiment_before_it_trains(option, seen, written, capsys, tmp_path):
    plan = str(written(arms={"GRPO": {}, "another": {"options": [option]}}))
    assert main([plan, "--out", str(tmp_path / "out"), "--arms", "another"]) == 2
    assert f"the arm 'another': {seen}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words, seen",
    [
        (
            ["genenv_toi"],
            "no experiment 'genenv_toi': give a file or the name of a shipped one; did you mean genenv_toy?",
        ),
        (["genenv_toy", "--arms", "unifrom"], "no arm 'unifrom'; did you mean uniform?"),
        (["genenv_toy", "--seeds", "7"], "the plan has no seed 7; it has 0, 1, 2, 3, 4"),
        (["genenv_toy", "--set", "optim.lr=fast"], "optim.lr must be of type float"),
        (["genenv_toy", "--jobs", "0"], "not an integer of at least 1"),
        (["genenv_toy", "--report"], "nothing to report"),
        (["genenv_toy", "--rehearse"], "genenv_toy.yaml: it has no rehearsal: list options there"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words, seen, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert status(main, words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert seen in line


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_experiment_can_be_run(name):
    assert Plan.read(find_plan(name)).jobs()


def test_the_plan_is_shown_and_data_are_asked_for_before_anything_begins(written, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TINY_DATA", raising=False)
    words = [str(written(needs=["TINY_DATA"])), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert main([*words, "--plan"]) == 0
    # three starts of 6 minutes, four runs of 12, and one that is taken to need the mean of the others
    shown = capsys.readouterr().out
    assert "about 1.2 hours with 1 at a time, by the plan\n" in shown and "TINY_DATA is not set" in shown
    assert main(words) == 2 and "TINY_DATA is not set" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_first_iterations_of_a_run_give_an_estimate(written, tmp_path):
    arms = {"GRPO": {}, "GiGPO": {"options": ["method=gigpo"]}}
    plan = Plan.read(written(arms=arms, seeds=[0], start_minutes=None))
    experiment = Experiment(plan, tmp_path, plan.jobs(), 1)
    assert "no estimate yet" in experiment.estimate()
    job = plan.jobs()[0]
    run = Run(plan.folders([job], tmp_path)[job.arm][0], plan.config, [*plan.options_of(job), "train.iterations=4"])
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(yaml.safe_dump(to_dict(run.config)))
    row = json.dumps({"stage": "train", "step": 1, "seconds": 600.0})
    (run.folder / "metrics.jsonl").write_text(f"{row}\n{row[:20]}")  # the second one is being written
    # A quarter of 40 minutes is done; the other run and the start are taken to last 40 minutes, too.
    assert experiment.estimate() == "about 1.8 hours with 1 at a time, by the runs so far"


def test_a_fork_is_taken_to_last_as_long_as_its_part_of_the_run(written, tmp_path):
    plan = Plan.read(
        written(
            arms={"slow": {"options": ["optim.lr=0"]}}, seeds=[0], start_minutes=None, fork={"at": [1], "length": 1}
        )
    )
    experiment = Experiment(plan, tmp_path, plan.jobs(), 1)
    [run] = plan.folders(plan.jobs(), tmp_path)[FORKED_RUN].values()
    run.mkdir(parents=True)
    config = load(plan.config, [*plan.options, "train.iterations=10", "train.until=1"])
    (run / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    (run / "metrics.jsonl").write_text(json.dumps({"stage": "train", "step": 1, "seconds": 600.0}) + "\n")
    at_ten = Experiment(replace(plan, fork=replace(plan.fork, at=(10,))), tmp_path, plan.jobs(), 1)
    assert (experiment.estimate(), at_ten.estimate()) == (
        "about 20 minutes with 1 at a time, by the runs so far",
        "about 2 minutes with 1 at a time, by the runs so far",
    )


def test_a_terminated_experiment_ends_its_run(written, tmp_path):
    options = [*PLAN["options"], "warmstart.epochs=10000"]
    plan = written(options=options, arms={"GRPO": {}}, seeds=[0], start_minutes=None)
    words = ["experiment", str(plan), "--out", str(tmp_path / "out"), "--jobs", "1"]
    command = [sys.executable, "-m", "roleagent", *words]
    experiment = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default_signals)
    log = tmp_path / "out/seed0/start/metrics.jsonl"
    while not log.exists():
        assert experiment.poll() is None, experiment.communicate()[1]
        time.sleep(0.1)
    experiment.terminate()
    _, said = experiment.communicate()
    assert experiment.returncode == 130 and said.endswith("stopped; the same command continues\n")
    Lock(log.parent).release()  # no process trains into it


def test_a_report_reads_the_options_that_the_runs_had(written, tmp_path):
    arms = {"GRPO": {"options": ["optim.lr=1e-3"]}, "GiGPO": {"options": ["method=gigpo"]}}
    plan = Plan.read(written(arms=arms, seeds=[0]))
    given = ["env.kwargs.max_steps=9", "optim.lr=1.0e-05", "train.iterations=7"]
    earlier = Plan.read(written(arms=arms, seeds=[0]), given)
    for job in earlier.jobs():
        folder = earlier.folders([job], tmp_path)[job.arm][job.seed]
        a_run(folder, [True] * 4, [0.5] * 4)
        for evaluation in plan.evaluations:
            evaluation.result(folder).write_text('{"errors": 0}')
        config = Run(folder, earlier.config, earlier.options_of(job)).config
        (folder / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    assert report.options_of_runs(plan, tmp_path) == given
    assert report.options_of_runs(earlier, tmp_path) == []


def test_runs_at_a_time_have_gpus_of_their_own(tmp_path, monkeypatch):
    for count, visible, runs, processes, found in (
        (0, None, 2, 1, [None, None]),
        (4, None, 2, 2, ["0,1", "2,3"]),
        (1, None, 2, 1, ["0", "0"]),
        (2, "5,7", 3, 1, ["5", "7", "5"]),
    ):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus_of_runs(runs, processes) == found
    with pytest.raises(ConfigError, match="3 runs at a time, of 2 processes each, need 6 GPUs, and there are 2"):
        gpus_of_runs(3, 2)
    one = Run(tmp_path / "run", "configs/toy.yaml", [])
    one.gpus = "5,7"
    seen = tmp_path / "seen"
    assert one.carry_out(["sh", "-c", f"echo $CUDA_VISIBLE_DEVICES > {seen}"]) == 0
    assert seen.read_text() == "5,7\n"


def test_modes_are_those_of_a_task_in_its_own_environment(tmp_path):
    toy = {"id": "RoleAgent/Toy-v0", "train_split": "train", "eval_split": "train"}
    several = {"env": [{**toy, "name": "one"}, {**toy, "name": "two"}], "run_dir": str(tmp_path)}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(from_dict(several))))
    library = FailureLibrary(tmp_path / "failures.db")
    for name, mode in (("one", "loop"), ("two", "wandering")):
        trajectory, reflection = failed("boil-egg-1", mode)
        task = replace(trajectory.task, env_id=f"{name}:{toy['id']}")  # as a run with both names it
        library.record([(replace(trajectory, task=task), reflection)], iteration=1)
    library.close()
    assert figures._modes(1, tmp_path) == {"one/boil-egg-1": "loop", "two/boil-egg-1": "wandering"}


def test_runs_come_seed_by_seed(written):
    plan = Plan.read(written())
    names = ["GRPO, seed 0", "Role-Agent, seed 0", "H two, seed 0", "GRPO, seed 1", "Role-Agent, seed 1"]
    assert [job.name for job in plan.jobs()] == names
    assert [job.name for job in plan.jobs(seeds=[1], arms=["GRPO"])] == ["GRPO, seed 1"]
    assert plan.jobs()[2].start == "warm start of H two, seed 0"


def test_what_is_not_finished_is_not_used(tmp_path):
    """A checkpoint that is being written, an evaluation of other repeats, and one that left episodes out."""
    start = Run(tmp_path / "start", "configs/toy.yaml", ["train.iterations=0"])
    for name in ("step-000400", "step-500000.partial"):
        (start.folder / "checkpoints" / name).mkdir(parents=True)
    assert start.start() is None
    (start.folder / "checkpoints" / "step-500000.partial").rename(start.folder / "checkpoints" / "step-500000")
    assert start.start() == start.folder / "checkpoints" / "step-500000"

    once, twice = Evaluation(1.0), Evaluation(1.0, repeats=2)
    once.result(start.folder).write_text('{"errors": 1}')
    assert not once.is_finished(start.folder)
    once.result(start.folder).write_text('{"errors": 0}')
    assert once.is_finished(start.folder) and not twice.is_finished(start.folder)


def test_a_warm_start_is_evaluated_once_for_all_arms_that_play_alike(tmp_path):
    start = Run(tmp_path / "start", "configs/toy.yaml", ["train.iterations=0"])

    def measured(run, seen, weights=b"weights"):
        policy = run.folder / "checkpoints" / "step-500000" / "policy"
        policy.mkdir(parents=True, exist_ok=True)
        (policy / "model.safetensors").write_bytes(weights)
        (run.folder / "config.yaml").write_text(yaml.safe_dump(to_dict(run.config)))
        (run.folder / "before.json").write_text(seen)

    def known(name, *options):
        file = start.control(name, *options).folder / "before.json"
        return file.read_text() if file.exists() else None

    measured(start, "with predictions")
    measured(Run(tmp_path / "start-other", start.file, ["wia=off"]), "of other weights", b"others")
    assert known("Role-Agent") == known("GiGPO with predictions", "method=gigpo", "wia=on") == "with predictions"
    assert known("GRPO", "method=grpo", "wia=off") is None
    measured(start.control("GRPO", "method=grpo", "wia=off"), "without predictions")
    assert known("GiGPO", "method=gigpo", "wia=off") == "without predictions"
    assert known("GiGPO, surer", "method=gigpo", "wia=off", "rollout.eval_temperature=0.5") is None


def a_run(folder, won, predicted):
    """A finished run folder that holds the given figures: who won of four tasks, and how well each was predicted."""
    folder.mkdir(parents=True)
    task_split = {"env_id": "RoleAgent/Toy-v0", "split": "valid", "tasks": 4, "digest": "d"}
    for evaluation in (Evaluation(0.0), Evaluation(1.0), Evaluation(1.0, repeats=2)):
        file = RecordFile(evaluation.records(folder), {"protocol": PROTOCOL, **task_split})
        for number, (one, score) in enumerate(zip(won, predicted, strict=True)):
            kind, scored = "heat" if number % 2 else "cool", {"score": 0.5 + one / 2}
            behavior = {"loops_1": float(number)}
            file.append(
                Record(f"task{number}", kind, one, float(one), 5, "won", score, metrics=scored, behavior=behavior)
            )
        evaluation.result(folder).write_text('{"errors": 0}')
    (folder / "result.json").write_text("{}")
    rows = [
        {"stage": "train", "step": step, "environment_steps": 100, "prediction_score": 0.5, "predictions_scored": 9}
        | {
            "prediction_correlation": 0.56,
            "prediction_information": -0.07,
            "prediction_information_action": 0.01,
            "failure_recall": 0.0,
        }
        | {"predictions_absent": 0, "zero_variance_groups": step, "seconds": 2.0}
        | {"update_seconds": 1.5, "other_seconds": 0.5}
        for step in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "trajectories").mkdir()
    with gzip.open(folder / "trajectories" / "iteration-000001.jsonl.gz", "wt") as stream:
        for group, because, rewards in ((0, None, (1, 0)), (1, None, (1, 1)), (2, "loop", (0, 0)), (3, "loop", (0, 1))):
            for reward in rewards:
                row = {"group": group, "chosen_because": because, "reward": reward, "won": reward == 1}
                stream.write(json.dumps(row) + "\n")
    # Evaluations between may be of fewer tasks: curves are of those that all have, 4 to cool and 8 to heat.
    for name, (cool, heat), more in (("before", (0, 0), 9), ("iteration-000001", (0, 3), 0), ("after", (1, 8), 9)):
        played = [("cool", number < cool) for number in range(4)] + [("heat", number < heat) for number in range(8)]
        records = [
            asdict(Record(f"t{number}", kind, one, one, 5, "won", metrics={"score": 0.5 + one / 2}))
            for number, (kind, one) in enumerate([*played, *more * [("heat", True)]])
        ]
        (folder / f"{name}.json").write_text(json.dumps({"records": records}))


@pytest.fixture
def arms(tmp_path):
    """Two arms of two seeds: the second one wins a task more with each."""
    for seed in (0, 1):
        a_run(tmp_path / f"a{seed}", [True, False, False, bool(seed)], [0.9, 0.2, 0.4, 0.8])
        a_run(tmp_path / f"b{seed}", [True, True, False, bool(seed)], [0.9, 0.2, 0.4, 0.8])
    return [ArmRuns(name, {seed: tmp_path / f"{name}{seed}" for seed in (0, 1)}) for name in "ab"]


def test_latex_has_the_interval_over_tasks(tmp_path):
    """Two seeds without success have no interval over seeds, and still one over tasks."""
    for seed in (0, 1):
        a_run(tmp_path / f"a{seed}", [False] * 4, [0.5] * 4)
    arm = ArmRuns("a", {seed: tmp_path / f"a{seed}" for seed in (0, 1)})
    table = report.success_latex(replace(Plan.read(find_plan("genenv_toy")), evaluations=(Evaluation(0.0),)), [arm])
    low, high = wilson(0, 4)
    assert f"a & 2 & $0.0$ & $[{100 * low:.1f}, {100 * high:.1f}]$ & $0.0$ & --" in table


def test_figures_by_hand(arms, tmp_path):
    greedy = Evaluation(0.0)
    found = figures.success(arms[0], greedy)
    assert found["all"].value == 3 / 8 and found["seeds"] == [0.25, 0.5]
    assert found["over_seeds"] == (0.375, 0.0, 1.0)  # two seeds leave everything open that a rate can be
    assert {name: rate.value for name, rate in found["by_type"].items()} == {"cool": 0.5, "heat": 0.25}
    assert figures.behavior(arms[0].records(greedy)) == {"steps": 5.0, "loops_1": 1.5}
    gained = figures.difference(*arms, greedy)
    assert gained.gaps == (0.25, 0.25) and gained.over_seeds is None  # equal gaps do not say how others would be
    assert figures.detectable([0.0, 0.2]) == pytest.approx(0.1 * (12.7062 + 1.3764), rel=1e-4)  # quantiles of tables
    assert gained.over_tasks.value == 0.25 and gained.alone == (0, 2)
    assert gained.mcnemar is None  # two seeds: pairs of the same task are not independent
    alone = [ArmRuns(arm.name, {0: arm.runs[0]}) for arm in arms]
    assert figures.difference(*alone, greedy).mcnemar == 1.0
    assert figures.difference(*arms, Evaluation(1.0, repeats=2)).mcnemar is None
    assert figures.efficiency(arms[0], 0.5)["steps"] == {0: (150, True), 1: (150, True)}
    assert arms[0].mean("zero_variance_groups") == 1.5 and arms[0].mean("no such number") is None
    gained = figures.difference(*arms, greedy, measure="score")  # 0.5 and half of what success would be
    assert gained.gaps == (0.125, 0.125) and gained.over_tasks.value == 0.125 and gained.alone is None
    scored = ArmRuns("a", arms[0].runs, measure="score")
    assert figures.success(scored, greedy)["seeds"] == [0.625, 0.75]
    assert figures.efficiency(scored, 0.75)["steps"] == {0: (150, True), 1: (150, True)}
    of_type = figures.difference(*arms, greedy, measure="success/heat")  # tasks 1 and 3
    assert of_type.gaps == (0.5, 0.5) and of_type.over_tasks.value == 0.5 and of_type.alone == (0, 2)
    assert figures.difference(*arms, greedy, measure="success/cool").gaps == (0.0, 0.0)
    assert figures.difference(*arms, greedy, measure="success/task[13]").gaps == (0.5, 0.5)
    rare = ArmRuns("a", arms[0].runs, measure="success/cool")
    assert figures.success(rare, greedy)["seeds"] == [0.5, 0.5]
    assert figures.efficiency(rare, 0.25)["steps"] == {0: (200, True), 1: (200, True)}
    r = figures.prediction_correlation(arms[0], greedy)
    means = (0.9 + 0.9 + 0.8) / 3, (0.2 + 0.4 + 0.2 + 0.4 + 0.8) / 5
    assert r["n"] == 8 and (r["above"], r["below"]) == pytest.approx(means)
    scores, won = np.array([0.9, 0.2, 0.4, 0.8]), np.array([[1, 0, 0, 0], [1, 0, 0, 1]])  # two seeds of other success
    deviations = scores - scores.mean(), won - won.mean(1, keepdims=True)
    whole = 2 * (deviations[0] @ deviations[0]), (deviations[1] ** 2).sum()
    assert r["r"].value == pytest.approx((deviations[1] @ deviations[0]).sum() / (whole[0] * whole[1]) ** 0.5)
    assert figures.prediction_correlation(scored, greedy)["r"] == pytest.approx(r["r"])
    a_run(tmp_path / "c0", [True, False, False, True], [0.0] * 4)  # nothing was predicted
    assert figures.prediction_correlation(ArmRuns("c", {0: tmp_path / "c0"}), greedy) is None
    chosen = figures.origins(arms[0])
    assert chosen["curriculum"] == figures.Origin(groups=4, reward=0.25, zero_variance=0.5, never_won=0.5)
    assert chosen["chance"] == figures.Origin(groups=4, reward=0.75, zero_variance=0.5, never_won=0.0)


def test_the_fit_of_written_tasks_is_a_table_by_seed():

    def log(initial, **late):
        probe = {"genenv_probe_initial_live": initial, "genenv_probe_present_live": 0.6}
        before = [{"step": 1, "genenv_fresh_success": 0.9, **probe}, {"step": 2, "genenv_fresh_success": 0.7}]
        return [*before, {"step": 3, **{f"genenv_{name}": value for name, value in late.items()}}]

    arm, plain = ArmRuns("GenEnv", {}), ArmRuns("uniform", {})
    arm.__dict__["logs"] = {0: log(0.4, fresh_success=0.5, forgetting=0.25), 3: log(0.3, fresh_success=0.3)}
    plain.__dict__["logs"] = {0: [{"step": 1}]}
    found = figures.written_tasks(arm)
    assert found[0] == pytest.approx(
        {"initial_live": 0.4, "present_live": 0.6, "live_ratio": 1.5, "fresh_success": 0.5, "forgetting": 0.25}
    )
    assert found[3]["live_ratio"] == pytest.approx(2.0) and not figures.written_tasks(plain)
    page = [*report._written_tasks([plain, arm])]
    assert "| GenEnv | 40, 30 (mean 35) | 60, 60 (mean 60) | 1.50, 2.00 (mean 1.75) | 50, 30 (mean 40) |" in page[3]
    assert len(page) == 5 and page[3].endswith("| – | – | 25 |") and not [*report._written_tasks([plain])]


@pytest.mark.slow
def test_an_experiment_from_its_plan_to_its_report(written, tmp_path, capfd):
    out, arms = tmp_path / "out", {name: PLAN["arms"][name] for name in ("GRPO", "Role-Agent")}
    words = [str(written(arms=arms, seeds=[0])), "--out", str(out), "--jobs", "2"]
    assert main(words) == 0, capfd.readouterr().err
    shown = capfd.readouterr().out
    assert json.loads(shown.splitlines()[-1])["seeds"]["Role-Agent"] == [0]
    page = (out / "report.md").read_text()
    for text in ("Role-Agent over GRPO", "Nothing is tuned here.", "pictures/success.svg", "predictive reward"):
        assert text in page
    for name in ("success", "forest"):
        assert (out / "pictures" / f"{name}.svg").read_text().lstrip().startswith("<?xml")
        assert (out / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (out / "differences.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["arm"], row["over"], row["temperature"], row["low"]) for row in rows] == [
        ("Role-Agent", "GRPO", "1.0", ""),
        ("Role-Agent", "GRPO", "0.0", ""),
    ]
    with (out / "success.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 6  # two arms and their start, two evaluations
    log = (out / "seed0" / "start-grpo.log").read_text()
    assert "$ roleagent evaluate --temperature 1" in log and "success, with 95 % intervals" in log
    assert len(costs_of(out / "seed0" / "start-grpo")) == 2  # training and one evaluation
    assert "left: about" in shown
    assert r"Role-Agent & GRPO & success & 1 & 1 &" in (out / "differences.tex").read_text()
    before = [(out / "seed0" / f"start{name}" / "before.json").read_text() for name in ("", "-role-agent")]
    assert before[0] == before[1]
    weights = [out / "seed0" / f"start{name}" / "checkpoints" / "step-500000" / "policy" for name in ("", "-grpo")]
    assert (weights[0] / "model.safetensors").read_bytes() == (weights[1] / "model.safetensors").read_bytes()
    kept = (out / "seed0" / "start-grpo" / "checkpoints").iterdir()
    assert {path.name for path in kept} == {"step-500000", "step-500002"}  # 17 of a real model filled a disk
    (out / "seed0" / "start-grpo.costs.json").unlink()  # the command was killed, and its last run finished alone
    assert main(words) == 0
    assert "nothing is left to do" in capfd.readouterr().out and (out / "report.md").read_text() == page
    assert main([str(written(arms=arms, seeds=[0], measure="socre")), "--out", str(out), "--report"]) == 2
    assert "no episode has a measure 'socre'; there are success" in capfd.readouterr().err
    assert main([str(written(arms=arms, seeds=[0])), *words[1:], "--set", "train.iterations=1"]) == 2
    assert "was trained with other options: name another folder with --out" in capfd.readouterr().err
    assert (out / "report.md").read_text() == page


PUBLISHED = {
    **{name: name.lower() for name in ("PPO", "RLOO", "GRPO", "GiGPO")},
    **{
        "no Agent-In-World": "aiw_off",
        "no predictive reward": "wia_off",
        "alpha 0.5": "alpha_05",
        "alpha 2": "alpha_2",
    },
    **{"H 10 %": "horizon_10", "H 20 %": "horizon_20"},
}
"""The arms of `published_alfworld`, and their files."""


def test_the_arms_of_the_published_experiment_are_the_published_files():
    plan = Plan.read(find_plan("published_alfworld"))
    assert {*plan.arms} == {*PUBLISHED, "Role-Agent"} and len(plan.seeds) == 3
    for arm, file in PUBLISHED.items():
        planned = load(plan.config, [*plan.options, *plan.arms[arm].options])
        assert planned == load(f"configs/published/ablations/alfworld_{file}.yaml"), arm


def test_runs_that_take_eight_gpus_are_planned_one_after_the_other(tmp_path, monkeypatch, capsys):
    """Two cores were two machines of eight GPUs."""
    monkeypatch.setattr("roleagent.experiments.runner.CORES", 2)
    assert main(["published_alfworld", "--plan", "--out", str(tmp_path)]) == 0
    shown = "about 207.9 hours with 1 at a time, by the plan, whose minutes are of a run on eight H100"
    assert shown in capsys.readouterr().out


@pytest.mark.slow
def test_the_minutes_of_the_published_experiment_are_those_of_the_cost_model():
    status, shown, errors = run("benchmarks/cluster", "--plan", "published_alfworld", "--gpus", 8)
    assert status == 0, errors
    arms = Plan.read(find_plan("published_alfworld")).arms
    assert result_of(shown)["minutes"] == {name: arm.minutes for name, arm in arms.items()}


@pytest.mark.long
def test_a_rehearsal_fills_every_cell_of_the_published_tables(tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    words = ["published_alfworld", "--rehearse", "--seeds", "0", "--out", str(tmp_path), "--set", "train.iterations=1"]
    assert main(words) == 0, capfd.readouterr().err
    page = (tmp_path / "report.md").read_text()
    paper = page.partition("## Tables and figures of the paper")[2].partition("\n## ")[0]
    plan = Plan.read(find_plan("published_alfworld"))
    found = dict(re.findall(r"### (.+?)\n+(.+?)(?=\n+###|\Z)", paper, re.S))
    assert [*found] == [item.title for item in plan.paper]
    for item in plan.paper:
        text = found[item.title]
        if text.startswith("!"):
            picture = re.search(r"\((.+)\)", text)[1]
            assert "<path" in (tmp_path / picture).read_text()
            continue
        cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.strip().splitlines()]
        header, _, *rows = cells
        assert [row[0] for row in rows if row[0] != "published"] == [*item.arms]
        for row in rows:
            known = row[0] in item.published or item.shows == "seconds"
            empty = {name for name, cell in zip(header, row, strict=True) if cell == "–"} - {"published"}
            if item.shows == "correlation":  # which an iteration of equal outcomes has not
                empty -= {"correlation", "episodes", "mean score, won", "mean score, lost"}
            assert not empty or row[0] == "published", (item.title, row)
            assert "published" not in header or known == (row[header.index("published")] != "–")


def test_forks_are_compared_along_the_run_and_by_what_they_share(tmp_path):
    won = {"unchanged": [(1, 0), (0, 0), (1, 1)], "changed": [(1, 1), (0, 1), (1, 1)]}  # of two tasks, by branch
    branches = [Branch(0, 4, 0), Branch(1, 4, 0), Branch(0, 8, 0)]
    arms = []
    for name, outcomes in won.items():
        folders = {branch: tmp_path / f"{name}-{number}" for number, branch in enumerate(branches)}
        for folder, outcome in zip(folders.values(), outcomes, strict=True):
            a_run(folder, [bool(one) for one in outcome], [0.5] * 2)
        arms.append(ArmRuns(name, folders))
    evaluation = Evaluation(1.0)
    found = figures.difference(*arms, evaluation)
    assert found.gaps == (0.5, 0.5, 0.0) and found.over_seeds.value == pytest.approx((0.25 + 0.5) / 2)
    gains = {gain.at: gain.gained.value for gain in figures.ledger(*arms, evaluation) if not gain.task_type}
    assert gains == {4: 0.5, 8: 0.0}
    assert figures.zeros(*arms, evaluation) == (3, 3)  # two tasks of four alike: every interval reaches 0
    for side, outcomes in zip(arms, ({4: (1, 0), 6: (1, 1)}, {4: (1, 1), 6: (1, 1)}), strict=True):
        for folder in side.runs.values():
            (folder / "fork.json").write_text('{"at": 2}')
            for iteration, won in outcomes.items():
                records = [
                    {"task_id": f"task{task}", "won": bool(one), "stop_reason": "won" if one else "max_steps"}
                    for task, one in enumerate(won)
                ]
                (folder / f"iteration-{iteration:06d}.json").write_text(json.dumps({"records": records}))
    (arms[1].runs[branches[2]] / "iteration-000006.json").unlink()
    assert figures.task_ledger(*arms) == []  # no fork has played a task yet
    for side, won in zip(arms, ((0, 1), (1, 1)), strict=True):
        folder = side.runs[branches[0]]
        rows = [
            {"group": number, "task_id": task, "task_type": "heat", "won": bool(one), "chosen_because": because}
            for number, (task, one, because) in enumerate(zip(("a", "b"), won, ("loop", None), strict=True))
        ]
        text = "".join(json.dumps(row) + "\n" for row in (*rows, {**rows[0], "group": 2, "task_id": side.name}))
        with gzip.open(folder / "trajectories" / "iteration-000003.jsonl.gz", "wt") as stream:
            stream.write(text)
    own = arms[0].runs[branches[0]]
    (own / "config.yaml").write_text(yaml.safe_dump(to_dict(load("configs/toy.yaml"))))
    library = FailureLibrary(own / "failures.db")
    library.record([failed("a", "old")], iteration=1)
    library.record([failed("a", "loop")], iteration=4)
    library.record([failed("a", "later")], iteration=5)
    library.close()
    found = {(gain.at, gain.by, gain.name): (gain.tasks, gain.gained.value) for gain in figures.task_ledger(*arms)}
    assert found == {
        (4, "type", "heat"): (2, 0.5),
        (4, "mode", "loop"): (1, 1.0),
        (4, "mode", "no failure yet"): (1, 0.0),
        (4, "origin", "curriculum"): (1, 1.0),
        (4, "origin", "chance"): (1, 0.0),
    }
    found = [(one.iterations, one.forks, one.alike, one.deviation) for one in figures.partings(*arms)]
    assert found == [(2, 3, 0.5, 0.0), (4, 2, 1.0, 0.0)]
    spreads = {one.shared: (one.pairs, one.deviation) for one in figures.spreads(*arms, evaluation)}
    assert spreads == {
        "checkpoint and random numbers": (3, pytest.approx(np.std([0.5, 0.5, 0.0], ddof=1))),
        "nothing": (2, pytest.approx(np.std([0.0, 1.0], ddof=1))),
    }
