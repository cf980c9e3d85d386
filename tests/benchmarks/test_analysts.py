"""Several analysts about the same scripted failures: what they are asked, what is kept, and what the table shows."""

import json

import pytest
from programs import load, result_of, run
from tiny import qwen

from roleagent.envs.failures import play_failures, scripted_modes
from roleagent.failures.modes import taxonomy

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def answers():
    return load("benchmarks/parts/analyst_answers")


def test_what_models_are_asked(answers):
    """As in training; without the modes; with an example of each mode that is none of the failures asked about."""
    import gymnasium
    import numpy as np

    env = gymnasium.make("RoleAgent/Toy-v0")
    answers.prepare_examples(env, 0)
    mode = scripted_modes(env)[0]
    [failure] = play_failures(env, mode, 1, np.random.default_rng(0))
    asked = {name: kind(len, 100_000, 1000).reflection(failure.trajectory) for name, kind in answers.PROMPTS.items()}
    modes = taxonomy("RoleAgent/Toy-v0")
    assert all(f"- {name}:" in asked["shipped"] for name in modes)
    assert not any(f"- {name}:" in asked["bare"] for name in modes)
    for name in scripted_modes(env):
        assert f"DOMINANT_TYPE: {name}\n" in asked["examples"]
        assert f"DOMINANT_TYPE: {name}\n" not in asked["shipped"]
    assert len(asked["examples"]) - len(asked["shipped"]) < 300 * len(scripted_modes(env))
    record = asked["shipped"].partition("Below is the record")[2]
    assert all(text.endswith(record) for text in asked.values())


@pytest.mark.long
def test_analysts_side_by_side(tmp_path):
    model = tmp_path / "model"
    policy = qwen(context=2048, chat_template=TEMPLATE)
    policy.model.save_pretrained(model)
    policy.tokenizer.save_pretrained(model)
    options = ("--worlds", "toy", "--failures", 3, "--answers", tmp_path / "answers", "--context", 2048)
    options += ("--policy", model, "--prompts", "shipped", "bare", "--reflection-tokens", 6)
    status, shown, errors = run("benchmarks/analysts", *options)
    assert status == 0, errors
    found = result_of(shown)["analysts"]
    assert list(found) == ["rule", "model", "model, bare"]
    assert found["rule"]["toy"]["accuracy"] == {"n": 3, "share": 1.0, "interval": [0.4385, 1.0]}
    assert found["model"]["toy"]["malformed"] == 1.0 and found["model"]["toy"]["tokens"] == 6
    assert found["model"]["toy"]["prompt_tokens"] > found["model, bare"]["toy"]["prompt_tokens"]
    file = tmp_path / "answers" / "model.jsonl"
    lines = file.read_text().splitlines()
    assert len(lines) == 3 and json.loads(lines[0])["reply"]
    file.write_text(lines[0] + "\n")
    assert result_of(run("benchmarks/analysts", *options)[1])["analysts"]["model"]["toy"]["accuracy"]["n"] == 3
    assert file.read_text().splitlines()[0] == lines[0]
    status, _, errors = run("benchmarks/analysts", *options, "--seed", 1)
    assert status == 2 and "other failures" in errors
