"""Runs with genenv=on and a table, or a model, as simulator: what they leave, resumed in the same bits, and in two
processes."""

import gzip
import itertools
import json
import shutil

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from fake_openai import serving
from programs import TOY_RUN, cut_short, load, run_both
from safetensors.torch import load_file

from roleagent.agents.builders import EnvSplit
from roleagent.agents.chat.endpoint import KEYS
from roleagent.agents.task_simulator import write_tasks
from roleagent.cli import main as roleagent
from roleagent.config import from_dict
from roleagent.curricula.samplers import UniformSampler
from roleagent.learners.run.display import Display
from roleagent.learners.run.launch import open_run
from roleagent.tasks.grammar import grammar_of

differences = load("benchmarks/parts/run_differences").differences
train = load("train")

GENENV = {
    **TOY_RUN,
    "genenv": True,
    # Groups of two: the band is as wide as possible, so that every record trains the table.
    "simulator": {"kind": "table", "probe": 2, "variations": 2, "shares": [0.67, 0.33], "k_min": 0.5},
    "curriculum": {"analyst": "rule"},
    "train": {"iterations": 3, "evaluate_every": 2, "keep_checkpoints": 20},
}


# A model of this size needs more rounds to write as base tasks are drawn, and fewer to write tasks at all.
KINDS = {
    "table": {},
    "own": {"kind": "model"},
    "shared": {"kind": "model", "weights": "shared"},
}
MOST_TOKENS = 60  # of a reply
DEMONSTRATIONS = {"shared": {"episodes": 60, "epochs": 12}}  # what an agent needs to write tasks at all


@pytest.fixture(scope="module", autouse=True)
def few_rounds():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roleagent.learners.genenv.training.ROUNDS", 5)
        yield


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def config(kind, tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "genenv.yaml"
    tree = GENENV | {
        "policy": {**GENENV["policy"], "vocabulary": 600},
        "simulator": {**GENENV["simulator"], **KINDS[kind]},
        "warmstart": {**GENENV["warmstart"], **DEMONSTRATIONS.get(kind, {})},
    }
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert train.main(["--config", str(config), f"run_dir={folder}"]) == 0
    return folder


def trained(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["stage"] == "train"]


def events(folder, iteration):
    packed = (folder / "tasks" / f"iteration-{iteration:06d}.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


@pytest.mark.slow
def test_a_run_writes_plays_and_replays_tasks_and_learns_from_them(kind, whole):
    rows = trained(whole)
    assert [row["genenv_fresh"] for row in rows] == [2, 2, 2] and rows[-1]["genenv_replayed"] == 1
    assert rows[-1]["genenv_pool"] == 6 and rows[-1]["genenv_kl"] > 0 and rows[-1]["simulator_seconds"] > 0
    assert {"genenv_probe_initial_success", "genenv_probe_present_live"} <= rows[1].keys()
    assert "genenv_probe_initial_success" not in rows[0]
    for number in (1, 2, 3):
        lines = events(whole, number)
        written = {line["task_id"] for line in lines if line["event"] == "written" and "refused" not in line}
        assert written == {line["task_id"] for line in lines if line["event"] == "fresh"} and len(written) == 2
    first = {line["task_id"] for line in events(whole, 1)}
    assert {line["task_id"] for line in events(whole, 2) if line["event"] == "replayed"} <= first
    counters = json.loads((whole / "result.json").read_text())["counters"]
    assert counters["genenv_accepted"] == counters["genenv_fresh"] == 6
    if kind != "table":  # of neither the 200 proposals behind a warm start nor the probe's
        for row in rows:
            assert 0 < row["genenv_tokens"] <= MOST_TOKENS * (row["genenv_proposed"] - row["genenv_variations"])


def test_credit_is_that_of_the_configuration(tmp_path):
    """Eq. 2 is over a batch, and no option led there."""
    loaded = from_dict({**GENENV, "run_dir": str(tmp_path / "run"), "simulator": {"kind": "table", "credit": "batch"}})
    split = EnvSplit.open(loaded, "train")
    with open_run(loaded, split, Display("", quiet=True), False) as run:
        sampler = run.method.sampler(run, split, UniformSampler(split.task_split, np.random.default_rng(0)))
    assert sampler.credit == "batch"


@pytest.mark.parametrize(("kind", "share"), [("table", 0.2), ("base", 0), ("static", 0), ("endpoint", 0)])
def test_a_control_writes_no_variations_of_tasks_in_the_band(tmp_path, monkeypatch, kind, share):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving(lambda body, number: "") as fake:
        served = {"endpoint": {"url": fake.url}} if kind == "endpoint" else {}
        loaded = from_dict({**GENENV, "run_dir": str(tmp_path / "run"), "simulator": {"kind": kind}, **served})
        split = EnvSplit.open(loaded, "train")
        with open_run(loaded, split, Display("", quiet=True), False) as run:
            sampler = run.method.sampler(run, split, UniformSampler(split.task_split, np.random.default_rng(0)))
    assert sampler.writer.variation_share == share


OWN = """
from roleagent.curricula.alignment import Alignment
from roleagent.curricula.samplers import UniformSampler
from roleagent.learners.genenv.method import GenEnv
from roleagent.learners.method import GRPO


class First(UniformSampler):
    def sample(self, n, rng=None):
        return [self.task_split.task_ids[0]] * n


class InOrder(GRPO):
    def sampler(self, run, split, chosen):
        return First(split.task_split, run.stream("sampler"))


class Harder(GenEnv, InOrder):
    def alignment(self):
        return Alignment(alpha=1 / 3)


class Around:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Wrapped(GenEnv, GRPO):
    def sampler(self, run, split, chosen):
        return Around(super().sampler(run, split, chosen))
"""


@pytest.mark.parametrize(
    "options, alpha", [({"method": "own_genenv:InOrder"}, 0.5), ({"method": "own_genenv:Harder"}, 1 / 3)]
)
def test_a_users_method_chooses_the_base_tasks_and_may_change_the_reward(options, alpha, tmp_path, monkeypatch):
    """With genenv=on, and in a class derived from GenEnv, which has it by itself."""
    (tmp_path / "own_genenv.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    switch = {"genenv": True} if alpha == 0.5 else {}
    plain = {name: value for name, value in GENENV.items() if name not in ("genenv", "method")}
    loaded = from_dict({**plain, **switch, **options, "run_dir": "run", "simulator": {"kind": "table"}})
    split = EnvSplit.training(loaded)
    with open_run(loaded, split, Display("", quiet=True), False) as run:
        sampler = run.method.sampler(run, split, UniformSampler(split.task_split, np.random.default_rng(0)))
        tasks = sampler.sample(40)
    assert sampler.alignment.alpha == alpha
    listed = [task_id for task_id in tasks if task_id in split.task_split.task_ids]
    assert 10 <= len(listed) < 40 and set(listed) == {split.task_split.task_ids[0]}


@pytest.mark.slow
def test_a_sampler_around_the_written_tasks_hides_neither_their_log_nor_the_probe(tmp_path, monkeypatch):
    (tmp_path / "own_genenv.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    config, folder = tmp_path / "genenv.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump({**GENENV, "method": "own_genenv:Wrapped"}))
    options = ("train.iterations=1", "train.evaluate_every=1", "warmstart.epochs=1")
    assert train.main(["--config", str(config), f"run_dir={folder}", *options]) == 0
    assert {line["event"] for line in events(folder, 1)} == {"written", "fresh"}
    assert "genenv_probe_initial_success" in trained(folder)[0]


@pytest.mark.slow
def test_propose_asks_the_simulator_of_the_newest_checkpoint(kind, whole, capsys):
    assert roleagent(["tasks", "propose", str(whole), "--count", "20"]) == 0
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 20 and "20 proposed: 0 accepted" not in shown.err
    if kind == "own":
        [*_, newest] = sorted((whole / "checkpoints").iterdir())
        saved, start = (load_file(folder / "simulator" / "model.safetensors") for folder in (newest, whole))
        assert any(not torch.equal(saved[name], start[name]) for name in start)


@pytest.mark.slow
def test_a_model_that_writes_nothing_usable_is_named_and_the_split_takes_its_place(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("roleagent.learners.genenv.training.ROUNDS", 0)
    config, folder = tmp_path / "genenv.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(GENENV))
    options = ("simulator.kind=model", "train.iterations=1", "warmstart.epochs=1")
    assert train.main(["--config", str(config), f"run_dir={folder}", *options]) == 0
    assert "warning: ModelSimulator: none of 8 proposals was accepted" in capsys.readouterr().out
    [row] = trained(folder)
    assert row["genenv_fallback"] == 2 and row["genenv_fresh"] == row["genenv_pool"] == 0


@pytest.mark.slow
def test_a_server_writes_the_tasks_of_a_run(tmp_path, monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    grammar, rng = grammar_of(gymnasium.make("RoleAgent/Toy-v0", generated_tasks=True)), np.random.default_rng(0)
    config, folder = tmp_path / "genenv.yaml", tmp_path / "run"
    config.write_text(yaml.safe_dump(GENENV))
    with serving(lambda body, number: write_tasks([grammar.write(grammar.base(rng)) for _ in range(2)])) as fake:
        options = ("simulator.kind=endpoint", f"endpoint.url={fake.url}", "endpoint.prices=[2, 0]")
        few = ("train.iterations=2", "train.evaluate_every=0", "warmstart.epochs=1")
        assert train.main(["--config", str(config), f"run_dir={folder}", *options, *few]) == 0
    rows = trained(folder)
    assert [row["genenv_fresh"] for row in rows] == [2, 2] and rows[-1]["genenv_pool"] == 4
    assert all(row["genenv_requests"] >= 1 and row["genenv_tokens"] >= 3 and row["genenv_cost"] > 0 for row in rows)


@pytest.mark.slow
def test_a_server_writes_free_tasks_whose_gold_calls_are_run(tmp_path, monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    numbers = itertools.count(100)

    def task(first, answer):
        calls = [{"name": "calculate", "arguments": {"expression": f"{first} + 7"}}]
        return json.dumps({"prompt": f"What is {first} and 7?", "answer": answer, "judge": "number", "calls": calls})

    def answer(body, number):
        return write_tasks([task(first := next(numbers), first + 7), task(next(numbers), 5)])

    config, folder = tmp_path / "genenv.yaml", tmp_path / "run"
    tree = {
        "env": {"id": "RoleAgent/ToolEnv-v0", "eval_split": "valid", "eval_tasks": 2},
        "policy": {**GENENV["policy"], "context": 1024},
        "rollout": {**GENENV["rollout"], "action_tokens": 40},
    }
    config.write_text(yaml.safe_dump({**GENENV, **tree, "wia": False, "aiw": False}))
    with serving(answer) as fake:
        options = ("simulator.kind=endpoint", f"endpoint.url={fake.url}", "simulator.probe=0")
        few = ("train.iterations=2", "train.evaluate_every=0", "warmstart.epochs=1")
        assert train.main(["--config", str(config), f"run_dir={folder}", *options, *few]) == 0
    rows = trained(folder)
    assert [row["genenv_fresh"] for row in rows] == [2, 2] and rows[-1]["genenv_pool"] == 4
    assert all(row["genenv_refused_unsolvable"] == 1 for row in rows)
    played = [line for line in events(folder, 2) if line["event"] == "fresh"]
    assert len(played) == 2 and all(line["task_id"].startswith("written/") for line in played)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(2, 3), (3,)])  # before and after a probe
def test_a_run_that_lost_its_last_iterations_ends_in_the_same_bits(config, whole, lost, tmp_path):
    # As if it had been killed in the first of them, when it had logged already.
    folder = cut_short(shutil.copytree(whole, tmp_path / "killed"), *(500000 + number for number in lost))
    assert train.main(["--config", str(config), f"run_dir={folder}", "--resume"]) == 0
    assert differences(whole, folder) == []


@pytest.mark.long
def test_two_processes_play_the_tasks_that_one_would(config, whole, tmp_path):
    folder = tmp_path / "both"
    said = run_both("--config", config, f"run_dir={folder}")
    assert [status for status, _, _ in said] == [0, 0], said
    written = [[line for line in events(run, 1) if line["event"] == "written"] for run in (whole, folder)]
    assert written[0] == written[1]
    for number, row in enumerate(trained(folder), start=1):
        assert row["genenv_fresh"] == 2
        played = [line["task_id"] for line in events(folder, number) if line["event"] != "written"]
        assert len(played) == len(set(played)) == row["genenv_fresh"] + row["genenv_replayed"]
    assert trained(folder)[-1]["genenv_pool"] == 6 and "genenv_probe_present_live" in trained(folder)[1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["env.id=RoleAgent/TravelPlanner-v0"], "no task grammar"),
        (["env.id=RoleAgent/ToolEnv-v0", "simulator.kind=table"], "ToolEnv-v0 are free text"),
        (["simulator.shares=[0.8,0.3]"], "must sum to at most 1"),
        (["simulator.shares=[0,0.5]"], "must begin with a number above 0"),
        (["simulator.shares=[0.5]"], "must have more entries"),
        (["simulator.kind=model", "method=sft", "train.tokens=1"], "works with reinforcement, not with method=sft"),
        (["simulator.kind=table", "method=agent_r"], "works with reinforcement, not with method=agent_r"),
        (["simulator.kind=nowhere:Simulator"], "cannot load 'nowhere:Simulator'"),
        (["simulator.kind=model", "policy.context=96"], "no room for a situation and a task"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(tmp_path, capsys, options, words):
    config = tmp_path / "genenv.yaml"
    config.write_text(yaml.safe_dump(GENENV))
    assert train.main(["--config", str(config), f"run_dir={tmp_path / 'run'}", *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words in line and not list(
        (tmp_path / "run").glob("checkpoints/step-*")
    )  # the agent has learned nothing yet
