"""Runs with method=agent_r: what they leave, resumed in the same bits, in two processes, and without examples."""

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
import yaml
from programs import TOY_RUN, load, run_both

from roleagent.agents.builders import EnvSplit, open_analyst
from roleagent.agents.policies.hf import HFPolicy
from roleagent.config import load as load_config
from roleagent.files import read_json_lines
from roleagent.learners.agent_r import iterate
from roleagent.learners.agent_r import learning as imitation
from roleagent.learners.agent_r import learning as preference
from roleagent.learners.agent_r.data import RevisionData
from roleagent.learners.agent_r.judges import open_judge
from roleagent.learners.agent_r.search_trees import stored_trees
from roleagent.learners.run import evaluation
from roleagent.learners.run.folder import RunFolder
from roleagent.random_streams import random_stream

pytestmark = pytest.mark.slow
differences = load("benchmarks/parts/run_differences").differences
train, evaluate = load("train"), load("evaluate")

AGENT_R = {
    **TOY_RUN,
    "method": "agent_r",
    # A few tasks learned by heart: they are won and lost at temperature 1.
    "env": {**TOY_RUN["env"], "kwargs": {"shares": {"bring": 0.05, "heat": 0, "cool": 0, "clean": 0}}},
    "policy": {**TOY_RUN["policy"], "hidden_size": 64, "heads": 4, "kv_heads": 4, "mlp_size": 128},
    "warmstart": {"episodes": 60, "epochs": 6, "batch_tokens": 800, "lr": 1e-2},
    "rollout": {"action_tokens": 12},
    "options": {
        "search": {"tasks": 4, "num_children": 4, "simulations": 3},
        # Drawn mistakes lie where the world forgives them more often, so that a few trees give spliced paths.
        "revision": {"iterations": 2, "epochs": [2, 1], "judge": "random", "splice": "searched"},
    },
    "aiw": True,  # so that failures choose the tasks of the second iteration
    "curriculum": {"analyst": "rule"},
}


@pytest.fixture(scope="module", autouse=True)
def two_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iterate, "BATCH_TREES", 2)
        yield


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "agent_r.yaml"
    path.write_text(yaml.safe_dump(AGENT_R))
    return path


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main(["--config", str(config), f"run_dir={folder}"]) == 0
    return folder


@pytest.fixture(scope="module")
def warm(whole):
    """The policy of the warm start, as arguments of a run."""
    last = sorted(path for path in (whole / "checkpoints").iterdir() if path.name < "step-5")[-1]
    return [f"policy.path={last / 'policy'}", "warmstart.episodes=0"]


def rows_of(folder, iteration):
    files = sorted(folder.glob(f"revision/iteration-{iteration:03d}/*.gz"))
    return [row for path in files for row in read_json_lines(path)]


def test_a_run_searches_splices_imitates_and_measures(whole):
    counters = json.loads((whole / "result.json").read_text())["counters"]
    assert counters["trees"] == 8
    assert counters["examples_good"] > 0 and counters["examples_revision"] > 0
    for iteration in (1, 2):
        rows = rows_of(whole, iteration)
        tasks = json.loads((whole / f"revision/iteration-{iteration:03d}/tasks.json").read_text())["tasks"]
        assert [row["task"]["task_id"] for row in rows] == tasks
        summary = json.loads((whole / f"revision/iteration-{iteration:03d}.json").read_text())
        assert summary["trees"] == 4 and 0 <= summary["without_good_share"] <= 1
        after = json.loads((whole / f"revision/after-{iteration:03d}.json").read_text())
        assert after["n"] == 5 and after["policy_version"] > 0
    logged = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    revised = [row for row in logged if row["stage"] == "revise"]
    assert [row["revision"] for row in revised if "held_out_success" in row] == [1, 2]
    assert any(row.get("revision_loss", 0) > 0 for row in revised)
    assert len({row["step"] for row in revised}) == len(revised)


def test_search_data_and_evaluation_share_no_task_and_verdicts_are_kept(whole):
    held_out = {one["task_id"] for one in json.loads((whole / "before.json").read_text())["records"]}
    searched = {tree.task.task_id for _, tree in stored_trees(whole)}
    rows = [row for number in (1, 2) for row in rows_of(whole, number)]
    assert {one["task_id"] for row in rows for one in row["examples"]} <= searched and not searched & held_out
    for row in rows:
        kinds = [kind for kind, _, _ in row["verdicts"].values()]
        assert kinds.count("bad") == row["counts"].get("verdict_bad", 0)


def test_a_search_that_another_number_of_ranks_continues_loses_no_tree_and_repeats_none(config, tmp_path):
    tasks, options = [f"task-{number}" for number in range(96)], load_config(config)
    folder = RunFolder(tmp_path / "run", options, False)
    searched = []
    for ranks, batches in ((2, 1), (1, None)):
        run = SimpleNamespace(
            config=options,
            display=MagicMock(),
            folder=folder,
            progress=SimpleNamespace(searched=0),
            ranks=SimpleNamespace(size=ranks, once=lambda act: act()),
        )
        sampler = SimpleNamespace(sample=lambda count: tasks)
        for batch in itertools.islice(iterate.tree_batches(run, sampler, 1), batches):
            searched += batch.task_ids
            batch.path.touch()
    assert searched == tasks


class Killed:
    """Interrupts a run in the n-th call of a function of a module."""

    def __init__(self, monkeypatch, name, at, module=iterate):
        self.calls, self.at, self.function = 0, at, getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return self.function(*arguments)


def test_killed_in_every_part_of_an_iteration_it_ends_in_the_same_bits(config, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "killed")
    for path in (folder / "checkpoints").glob("step-5*"):
        shutil.rmtree(path)
    for name in ("revision", "search"):
        shutil.rmtree(folder / name)
    for name in ("after.json", "result.json"):
        (folder / name).unlink()
    arguments = ["--config", str(config), f"run_dir={folder}", "--resume"]
    updates = Counter(
        row["revision"] for row in map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())
        if row["stage"] == "revise" and "loss" in row
    )  # fmt: skip
    assert set(updates) == {1, 2}
    for name, at in (
        ("write_trees", 2),  # the second batch is searched, and lost
        ("_write_counts", 1),  # the same: trees are written last, or the counts would be lost
        ("write_json_lines", 1),  # its trees are there, and not their examples
        ("imitation_step", 2),  # all trees are searched, and one update is lost
        ("write_trees", 1),  # the first batch of the second iteration
        ("evaluate_split", 1),  # both iterations have learned; the last evaluation is lost
    ):
        with pytest.MonkeyPatch.context() as patch:
            module = {"imitation_step": imitation, "evaluate_split": evaluation}.get(name, iterate)
            Killed(patch, name, at, module)
            assert train.main(arguments) == 130, name
    assert train.main(arguments) == 0
    assert differences(whole, folder) == []


def test_two_processes_make_the_data_that_one_makes_of_their_trees(config, warm, tmp_path):
    folder = tmp_path / "both"
    options = ["options.revision.judge=rule", "options.search.tasks=5", "options.revision.iterations=1"]
    said = run_both("--config", config, f"run_dir={folder}", *warm, *options)
    assert [status for status, _, _ in said] == [0, 0], said
    rows, trees = rows_of(folder, 1), [tree for _, tree in stored_trees(folder)]
    assert len(trees) == 5 == len({tree.task.task_id for tree in trees})

    alone = load_config(folder / "config.yaml")
    split = EnvSplit.open(alone, "train")
    policy = HFPolicy.from_path(warm[0].partition("=")[2], torch.Generator())
    data = RevisionData(split, policy, open_judge(alone, policy, None), open_analyst(alone, policy), 0.5)
    for number, (row, tree) in enumerate(zip(rows, trees, strict=True)):
        [made] = data.make([tree], [random_stream(0, "revision examples", 1, number)])
        assert row == json.loads(json.dumps(made.to_json(), default=str))


def test_an_iteration_without_examples_is_passed_over(config, warm, tmp_path, monkeypatch, capsys):
    folder, select, calls = tmp_path / "empty", iterate.select, []

    def once(*arguments):
        calls.append(arguments)
        return select(*arguments) if len(calls) == 1 else ([], Counter())

    monkeypatch.setattr(iterate, "select", once)
    assert train.main(["--config", str(config), f"run_dir={folder}", *warm]) == 0
    assert "iteration 2 has nothing to learn from" in capsys.readouterr().out
    after = [json.loads((folder / f"revision/after-{number:03d}.json").read_text()) for number in (1, 2)]
    assert after[0]["policy_version"] == after[1]["policy_version"] > 0


def test_its_failures_are_kept_and_gone_on_from(whole, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = ["--agent", str(whole), "--split", "valid", "--tasks", "12", "--temperature", "1"]
    assert evaluate.main([*common, "--keep-failures", "failures.jsonl", "--keep-signals", "signals.jsonl"]) == 0
    before = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert evaluate.main([*common, "--cut-failures", "failures.jsonl"]) == 0
    after = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < after["n"] <= round(before["n"] * (1 - before["success"]))
    assert {f"loops_{length}" for length in range(1, 6)} <= after["behavior"].keys()
    limit = ["--set", "env.kwargs.max_steps=2", "--out", "limited.jsonl"]  # the paper's has 50, from the cut on
    assert evaluate.main([*common, "--cut-failures", "failures.jsonl", *limit]) == 0
    cuts = {row["task_id"]: row["cut"] for row in map(json.loads, Path("failures.jsonl").read_text().splitlines())}
    played = [row for row in map(json.loads, Path("limited.jsonl").read_text().splitlines()) if "task_id" in row]
    # A signal is a reply, and no command of the environment.
    assert played and all(
        row["steps"] - row["behavior"].get("revisions", 0) <= cuts[row["task_id"]] + 2 for row in played
    )
    for path, seed, reason in (
        ("failures.jsonl", ["--seed", "5"], "another evaluation"),
        ("later.jsonl", [], "12 episodes of this evaluation are already played"),
    ):
        assert evaluate.main([*common, *seed, "--keep-failures", path]) == 2 and reason in capsys.readouterr().err


def test_eto_prefers_the_good_path_of_each_pair_and_resumes(config, warm, tmp_path, monkeypatch):
    monkeypatch.setattr(preference, "BATCH_PAIRS", 2)
    options = ["method=eto", "options.revision.lr=1e-3"]
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    assert train.main(["--config", str(config), f"run_dir={whole}", *warm, *options]) == 0
    counters = json.loads((whole / "result.json").read_text())["counters"]
    assert counters["examples_pair"] == counters["pairs"] > 0
    logged = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert any("margin" in row for row in logged if row["stage"] == "eto")
    with pytest.MonkeyPatch.context() as patch:
        Killed(patch, "preference_step", 2, preference)
        assert train.main(["--config", str(config), f"run_dir={folder}", *warm, *options]) == 130
    assert train.main(["--config", str(config), f"run_dir={folder}", *warm, *options, "--resume"]) == 0
    assert differences(whole, folder) == []
