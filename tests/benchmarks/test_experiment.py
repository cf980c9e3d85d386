"""An experiment: its plan, its figures by hand, and all of it once in small."""

import gzip
import importlib
import json

import numpy as np
import pytest
import yaml
from programs import ROOT, result_of, run

from roleagent.agents.evaluation.records import PROTOCOL, Record, RecordFile
from roleagent.config import ConfigError, load, to_dict

PLAN = {
    "title": "A tiny experiment",
    "config": "configs/toy.yaml",
    "options": [
        *("env.eval_tasks=4", "policy.hidden_size=32", "policy.layers=1", "policy.heads=2", "policy.kv_heads=1"),
        *("policy.mlp_size=32", "warmstart.episodes=12", "warmstart.predictions=0.5", "curriculum.analyst=rule"),
        *("rollout.num_groups=2", "rollout.group_size=2", "train.iterations=2", "train.evaluate_every=1"),
    ],
    "arms": {
        "GRPO": ["method=grpo", "wia=off", "aiw=off"],
        "Role-Agent": [],
        "Followup": ["prompt.predictions=followup", "loss.prediction_credit=advantage"],
        "H two": ["prompt.horizon=2"],
        "Untrained": ["wia=off", "train.iterations=0"],
    },
    "apart": ["H two"],
    "stages": [
        {"arms": ["GRPO", "Role-Agent"], "seeds": [0, 1]},
        {"arms": ["Followup", "H two", "Untrained"], "seeds": [0]},
    ],
    "pairs": [["GRPO", "Role-Agent"], ["warm start of H two", "H two"]],
    "evaluations": [{"temperature": 1.0, "repeats": 2}, {"temperature": 0.0, "in_training": True}],
    "threshold": 0.5,
    "core_minutes": {"warm start": 6, "GRPO": 12, "Role-Agent": 12},
    "note": "Nothing is tuned here.",
}


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    names = ("experiment_plan", "experiment_figures", "experiment_report", "training_runs")
    return {name: importlib.import_module(f"parts.{name}") for name in names}


@pytest.fixture
def written(tmp_path):
    """Writes a plan; changes to it by name."""

    def write(**changes):
        file = tmp_path / "tiny.yaml"
        file.write_text(yaml.safe_dump({**PLAN, **changes}))
        return file

    return write


@pytest.mark.parametrize(
    "changes, seen",
    [
        ({"pairs": [["GRPO", "GiGPO"]]}, "does not describe: GiGPO"),
        ({"stages": [{"arms": ["GRPO"]}]}, "'seeds'"),
        ({"evaluations": [{"temperature": 0.5, "in_training": True}]}, "once, at temperature"),
    ],
)
def test_a_plan_with_a_mistake_is_refused_in_a_line(programs, written, changes, seen):
    with pytest.raises(ConfigError, match=seen) as caught:
        programs["experiment_plan"].Plan.read(written(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "plans").glob("*.yaml")), ids=lambda file: file.stem)
def test_the_plans_of_the_project_can_be_carried_out(programs, file):
    plan = programs["experiment_plan"].Plan.read(file)
    assert {arm for stage in plan.stages for arm in stage.arms} == set(plan.arms)
    for options in plan.arms.values():
        load(ROOT / plan.config, [*plan.options, *options])


def test_what_is_missing_is_said_before_anything_begins(written, tmp_path, monkeypatch):
    monkeypatch.delenv("TINY_DATA", raising=False)
    options = ("--config", written(needs=["TINY_DATA"]), "--out", tmp_path / "out", "--jobs", 1)
    status, shown, errors = run("benchmarks/experiment", *options)
    assert status == 2 and "TINY_DATA is not set" in errors and not (tmp_path / "out").exists()
    assert "about 1.7 hours" in shown  # 2 warm starts of 6 minutes, 4 runs of 12, 4 of arms unknown (10)


def test_runs_come_stage_by_stage_and_seed_by_seed(programs, written):
    plan = programs["experiment_plan"].Plan.read(written())
    names = [job.name for job in plan.jobs()]
    first = ["GRPO, seed 0", "Role-Agent, seed 0", "GRPO, seed 1", "Role-Agent, seed 1"]
    assert names == [*first, "Followup, seed 0", "H two, seed 0", "Untrained, seed 0"]
    assert [job.name for job in plan.jobs(seeds=[1], arms=["GRPO"])] == ["GRPO, seed 1"]
    assert [job.start for job in plan.jobs()][-2] == "warm start of H two, seed 0"


def test_what_a_warm_start_came_to_is_measured_once_for_all_that_play_alike(programs, tmp_path):
    runs = programs["training_runs"]
    start = runs.Run(tmp_path / "start", ROOT / "configs" / "toy.yaml", ["train.iterations=0"])

    def measured(run, seen, weights=b"weights"):
        policy = run.folder / "checkpoints" / "step-500000" / "policy"
        policy.mkdir(parents=True, exist_ok=True)
        (policy / "model.safetensors").write_bytes(weights)
        (policy.parent / "state.json").write_text('{"stage": "train", "step": 0}')
        (run.folder / "config.yaml").write_text(yaml.safe_dump(to_dict(run.config)))
        (run.folder / "before.json").write_text(seen)

    def known(name, *options):
        file = start.control(name, *options).folder / "before.json"
        return file.read_text() if file.exists() else None

    measured(start, "with predictions")
    measured(runs.Run(tmp_path / "start-other", start.file, ["wia=off"]), "of other weights", b"others")
    assert known("Role-Agent") == known("GiGPO with predictions", "method=gigpo", "wia=on") == "with predictions"
    assert known("GRPO", "method=grpo", "wia=off") is None
    measured(start.control("GRPO", "method=grpo", "wia=off"), "without predictions")
    assert known("GiGPO", "method=gigpo", "wia=off") == "without predictions"
    assert known("GiGPO, surer", "method=gigpo", "wia=off", "rollout.eval_temperature=0.5") is None


def a_run(folder, won, predicted):
    """A finished run folder that holds the given figures: who won of four tasks, and how well each was predicted."""
    folder.mkdir(parents=True)
    task_split = {"env_id": "RoleAgent/Toy-v0", "split": "valid", "tasks": 4, "digest": "d"}
    for temperature in (0, 1):
        file = RecordFile(folder / f"split-temperature-{temperature}.jsonl", {"protocol": PROTOCOL, **task_split})
        for number, (one, score) in enumerate(zip(won, predicted, strict=True)):
            kind, scored = "heat" if number % 2 else "cool", {"score": 0.5 + one / 2}
            file.append(Record(f"task{number}", kind, one, float(one), 5, "won", score, metrics=scored))
        file.path.with_suffix(".result.json").write_text("{}")
    (folder / "result.json").write_text("{}")
    rows = [
        {"stage": "train", "step": step, "environment_steps": 100, "prediction_score": 0.5, "predictions_scored": 9}
        | {"prediction_correlation": 0.56, "prediction_information": -0.07, "failure_recall": 0.0}
        | {"predictions_absent": 0, "zero_variance_groups": step, "seconds": 2.0}
        | {"update_seconds": 1.5, "other_seconds": 0.5}
        for step in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "trajectories").mkdir()
    with gzip.open(folder / "trajectories" / "iteration-000001.jsonl.gz", "wt") as stream:
        for group, because, rewards in ((0, None, (1, 0)), (1, None, (1, 1)), (2, "loop", (0, 0)), (3, "loop", (0, 1))):
            for reward in rewards:
                stream.write(json.dumps({"group": group, "chosen_because": because, "reward": reward}) + "\n")
    for name, success in (("before", 0.0), ("iteration-000001", 0.25), ("after", 0.75)):
        found = {"success": success, "metrics": {"score": {"mean": 0.5 + success / 2}}}
        (folder / f"{name}.json").write_text(json.dumps(found))


@pytest.fixture
def arms(programs, tmp_path):
    """Two arms of two seeds: the second one wins a task more with each."""
    figures = programs["experiment_figures"]
    for seed in (0, 1):
        a_run(tmp_path / f"a{seed}", [True, False, False, bool(seed)], [0.9, 0.2, 0.4, 0.8])
        a_run(tmp_path / f"b{seed}", [True, True, False, bool(seed)], [0.9, 0.2, 0.4, 0.8])
    return [figures.Arm(name, {seed: tmp_path / f"{name}{seed}" for seed in (0, 1)}) for name in "ab"]


def test_figures_by_hand(programs, arms, tmp_path):
    figures, plan = programs["experiment_figures"], programs["experiment_plan"]
    greedy = plan.Evaluation(0.0)
    found = figures.success(arms[0], greedy)
    assert found["all"].value == 3 / 8 and found["seeds"] == [0.25, 0.5]
    assert found["over_seeds"] == (0.375, 0.0, 1.0)  # two seeds leave everything open that a rate can be
    assert {name: rate.value for name, rate in found["by_type"].items()} == {"cool": 0.5, "heat": 0.25}
    gained = figures.difference(*arms, greedy)
    assert gained["gaps"] == [0.25, 0.25] and gained["over_seeds"] == (0.25, 0.25, 0.25)
    assert gained["detectable"] == 0.0
    assert figures.detectable([0.0, 0.2]) == pytest.approx(0.1 * (12.7062 + 1.3764), rel=1e-4)  # quantiles of tables
    assert gained["over_tasks"].value == 0.25 and gained["alone"] == (0, 2)
    assert gained["mcnemar"] is None  # two seeds: pairs of the same task are not independent
    alone = [figures.Arm(arm.name, {0: arm.runs[0]}) for arm in arms]
    assert figures.difference(*alone, greedy)["mcnemar"] == 1.0
    assert figures.difference(*arms, plan.Evaluation(1.0, repeats=2))["mcnemar"] is None
    assert figures.efficiency(arms[0], 0.5)["steps"] == {0: (150, True), 1: (150, True)}
    assert arms[0].mean("zero_variance_groups").value == 1.5 and arms[0].mean("no such number") is None
    gained = figures.difference(*arms, greedy, measure="score")  # 0.5 and half of what success would be
    assert gained["gaps"] == [0.125, 0.125] and gained["over_tasks"].value == 0.125 and gained["alone"] is None
    scored = figures.Arm("a", arms[0].runs, measure="score")
    assert figures.success(scored, greedy)["seeds"] == [0.625, 0.75]
    assert figures.efficiency(scored, 0.75)["steps"] == {0: (150, True), 1: (150, True)}
    r = figures.prediction_correlation(arms[0], greedy)
    means = (0.9 + 0.9 + 0.8) / 3, (0.2 + 0.4 + 0.2 + 0.4 + 0.8) / 5
    assert r["n"] == 8 and (r["above"], r["below"]) == pytest.approx(means)
    spread = np.std([0.9, 0.2, 0.4, 0.8] * 2)
    assert r["r"].value == pytest.approx((means[0] - means[1]) / spread * (3 / 8 * 5 / 8) ** 0.5)
    assert figures.prediction_correlation(scored, greedy)["r"] == pytest.approx(r["r"])
    a_run(tmp_path / "c0", [True, False, False, True], [0.0] * 4)  # nothing was predicted
    assert figures.prediction_correlation(figures.Arm("c", {0: tmp_path / "c0"}), greedy) is None
    chosen = figures.origins(arms[0])
    assert chosen["curriculum"] == figures.Origin(groups=4, reward=0.25, zero_variance=0.5, never_won=0.5)
    assert chosen["chance"] == figures.Origin(groups=4, reward=0.75, zero_variance=0.5, never_won=0.0)


def test_the_fit_of_written_tasks_is_a_table_by_seed(programs):
    figures, report = programs["experiment_figures"], programs["experiment_report"]

    def log(initial, **late):
        probe = {"genenv_probe_initial_live": initial, "genenv_probe_present_live": 0.6}
        before = [{"step": 1, "genenv_fresh_success": 0.9, **probe}, {"step": 2, "genenv_fresh_success": 0.7}]
        return [*before, {"step": 3, **{f"genenv_{name}": value for name, value in late.items()}}]

    arm, plain = figures.Arm("GenEnv", {}), figures.Arm("uniform", {})
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
def test_an_experiment_from_its_plan_to_its_report(written, tmp_path):
    out, arms = tmp_path / "out", {name: PLAN["arms"][name] for name in ("GRPO", "Role-Agent")}
    plan = {"arms": arms, "apart": [], "stages": [{"arms": [*arms], "seeds": [0]}], "pairs": [[*arms]]}
    status, shown, errors = run("benchmarks/experiment", "--config", written(**plan), "--out", out)
    assert status == 0, errors
    assert result_of(shown)["seeds"]["Role-Agent"] == [0]
    page = (out / "report.md").read_text()
    for text in ("Role-Agent over GRPO", "Nothing is tuned here.", "pictures/report_success.svg", "predictive reward"):
        assert text in page
    assert (out / "pictures" / "report_success.svg").exists()
    before = [(out / "seed0" / f"start{arm}" / "before.json").read_text() for arm in ("", "-role-agent")]
    assert before[0] == before[1]
    weights = [out / "seed0" / f"start{arm}" / "checkpoints" / "step-500000" / "policy" for arm in ("", "-grpo")]
    assert (weights[0] / "model.safetensors").read_bytes() == (weights[1] / "model.safetensors").read_bytes()
    (out / "seed0" / "start-grpo.costs.json").unlink()  # the program was killed, and its last run went on to its end
    again = run("benchmarks/experiment", "--config", written(**plan), "--out", out)
    assert again[0] == 0 and "left: nothing" in again[1] and "about 0.0 hours" in again[1]
    assert (out / "report.md").read_text() == page
    status, _, errors = run(
        "benchmarks/experiment", "--config", written(**plan, measure="socre"), "--out", out, "--report"
    )
    assert status == 2 and "no episode has a measure 'socre'; there are success" in errors
