"""The example of three functions: its files are what its program writes, and its calls solve its tasks."""

import json

import pytest
from programs import ROOT, load

from roleagent import config
from roleagent.envs.tools.env import ToolEnv

FOLDER = ROOT / "examples" / "three_functions"
three = load("examples/three_functions/tools")


def rows(split):
    return [json.loads(line) for line in (FOLDER / f"{split}.jsonl").read_text().splitlines()]


def test_the_files_are_what_the_program_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(three, "__file__", str(tmp_path / "tools.py"))
    three.main()
    for split in ("train", "valid"):
        assert (tmp_path / f"{split}.jsonl").read_bytes() == (FOLDER / f"{split}.jsonl").read_bytes()


def test_no_task_is_in_both_files_and_each_takes_one_to_four_calls():
    train, valid = rows("train"), rows("valid")
    prompts = [row["prompt"] for row in train + valid]
    assert len(set(prompts)) == len(prompts) == len(list(three.tasks()))
    assert {len(row["calls"]) for row in train} == {len(row["calls"]) for row in valid} == {1, 2, 3, 4}


@pytest.mark.parametrize("split", ["train", "valid"])
def test_the_calls_of_every_task_solve_it(split, monkeypatch):
    monkeypatch.chdir(ROOT)
    env = ToolEnv(**config.load("configs/smollm2_tools.yaml").env.kwargs, split=split)
    for index in range(len(env.task_split.task_ids)):
        env.reset(options={"task_id": env.task_split.task_ids[index]})
        for command in env.walkthrough():
            _, _, terminated, _, info = env.step(command)
        assert terminated and info["won"]
