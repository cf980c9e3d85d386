"""Prediction score and action quality within states: the arithmetic, and a run of the program on a tiny model."""

import json

import numpy as np
import pytest
from programs import load, result_of, run
from tiny import qwen


def replies(*pairs, command="look"):
    rows = [{"score": score, "steps_before": 5, "steps_after": 5 - quality} for score, quality in pairs]
    return [{"error": None, "valid": True, "command": command, **row} for row in rows]


def test_states_are_compared_within_themselves():
    figures = load("benchmarks/parts/thought_figures")
    easy = replies((0.9, 1), (0.7, 0))  # the better prediction, the better action; all scores higher than below
    hard = replies((0.3, 0), (0.1, -1))
    rng = np.random.default_rng(0)
    assert figures.within([easy, hard], rng) == {"r": 1.0, "interval": [1.0, 1.0], "states": 2}
    against = replies((0.1, 1), (0.3, 0))
    found = figures.within([easy, against], rng)
    assert found["r"] == 0.0 and found["interval"] == [-1.0, 1.0]
    assert figures.within([replies((0.5, 1), (0.5, 0))], rng)["r"] is None


@pytest.mark.long
def test_a_model_is_asked_and_the_same_command_goes_on(tmp_path):
    model = tmp_path / "model"
    policy = qwen()
    policy.model.save_pretrained(model)
    policy.tokenizer.save_pretrained(model)
    small = ("--states", 2, "--replies", 2, "--batch", 2, "--action-tokens", 6, "--prediction-tokens", 4)
    options = ("--models", model, *small, "--worlds", "toy", "--context", 256, "--out", tmp_path / "out")
    status, shown, errors = run("benchmarks/thoughts", *options)
    assert status == 0, errors
    found = result_of(shown)["model"]["toy"]
    assert (found["states"], found["replies"]) == (2, 4)
    file = tmp_path / "out" / "model-toy.jsonl"
    lines = file.read_text().splitlines()
    file.write_text(lines[0] + "\n")
    assert result_of(run("benchmarks/thoughts", *options)[1])["model"]["toy"]["score"] == found["score"]
    again = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["reply"] for rows in again for row in rows] == [
        row["reply"] for line in lines for row in json.loads(line)
    ]
    status, _, errors = run("benchmarks/thoughts", *options, "--seed", 1)
    assert status == 2 and "other states" in errors


@pytest.mark.long
def test_without_a_model_there_is_one_clear_line(tmp_path):
    status, _, errors = run("benchmarks/thoughts", "--models", tmp_path / "none")
    assert status == 2 and "cannot load" in errors.splitlines()[-1]
