"""A short training run on tools: what it logs, warns about and shows, with each mask."""

import json
import shutil

import pytest
from programs import ROOT, TOY_POLICY, adds_up, cut_short, episodes_of, load, metrics, overrides
from safetensors.torch import load_file

from roleagent.envs.tools.calls.command import read_command
from roleagent.reports.data.load_run import load_run

train = load("train")
TREE = {
    "policy": TOY_POLICY | {"context": 512, "vocabulary": 800},
    "warmstart": {"episodes": 100, "epochs": 9.0, "batch_tokens": 400, "shares": {"book": 1.0, "meet": 1.0}},
    "env": {"eval_tasks": 4, "kwargs": {"calls": [1], "max_steps": 3}},
    "rollout": {"num_groups": 4, "group_size": 3, "eval_sampled": 0},
    "train": {"iterations": 2},
}


def run(folder, *arguments, **more):
    options = [f"run_dir={folder}", *overrides(TREE), *overrides(more), *arguments]
    assert train.main(["--config", str(ROOT / "configs" / "office.yaml"), *options]) == 0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["stage"] == "train"]


@pytest.mark.parametrize("mask", [True, False])
def test_a_run_with_process_rewards(mask, tmp_path):
    rows = run(
        tmp_path / "run",
        method="ppo",
        estimator={"rewards": {"tool": 0.2}, "gae_level": "turn"},
        loss={"action_mask": mask},
        wia=False,
    )
    for row in rows:
        assert row["calls"] > 0 and row["calls_per_episode"] == row["calls"] / 12
        assert 0.1 < row["world_share"] < 0.9
        assert row["world_loss_share"] == (0.0 if mask else pytest.approx(row["world_share"], abs=0.01))
        assert row["process_nonzero"] == pytest.approx(row["reward_tool"] * 12)
    episodes = episodes_of(tmp_path / "run", 1)
    for one in episodes:
        adds_up(one, 1.0)
    assert all(one["whitening"] for one in episodes)
    turns = [turn for episode in episodes for turn in episode["turns"]]
    called = [turn for turn in turns if "calls" in turn]
    assert called and sum(len(turn["calls"]) for turn in turns if "calls" in turn) == rows[0]["calls"]
    for turn in called:
        [call], [read] = turn["calls"], read_command(turn["action"]).readable
        assert (call["name"], call["arguments"], call["result"]) == (read.name, read.arguments, turn["observation"])
        assert (call["error"] is None) == bool(turn["rewards"]["tool"])
    cards = [turn for episode in load_run(tmp_path / "run")["episodes"] for turn in episode["turns"]]
    logged = [turn["calls"] for turn in called]
    assert any(card["calls"] in logged for card in cards if card["calls"])


@pytest.mark.slow
def test_a_run_on_tools_goes_on_in_the_same_bits(tmp_path):
    """Offices and ids are drawn for every task, and states are copied for every episode: all of it comes again."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    more = {
        "method": "grpo",
        "estimator": {"rewards": {"tool": 0.2}},
        "train": {**TREE["train"], "keep_checkpoints": 9},
    }
    run(whole, **more)
    cut_short(shutil.copytree(whole, resumed), 500002)
    run(resumed, "--resume", **more)
    assert metrics(resumed, "train") == metrics(whole, "train")
    first, second = (
        load_file(folder / "checkpoints" / "step-500002" / "policy" / "model.safetensors")
        for folder in (whole, resumed)
    )
    assert first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)
