"""The comparison with a real model, on a tiny one: sides play the same episodes, and what is missing is left out."""

import pytest
from programs import result_of, run
from tiny import qwen

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}<assistant>"


def test_without_a_model_there_is_one_clear_line(tmp_path):
    status, _, errors = run("benchmarks/pretrained", "--model", tmp_path / "none")
    assert status == 1 and errors.strip() == (
        f"pretrained.py: there is no model in {tmp_path / 'none'}: name its folder with --model"
    )


@pytest.mark.long
def test_the_sides_play_the_same_episodes(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    model = tmp_path / "model"
    policy = qwen(context=8192, chat_template=TEMPLATE)
    policy.model.save_pretrained(model)
    policy.tokenizer.save_pretrained(model)
    sizes = ("--episodes", 1, 16, "--turns", 2, "--thoughts", 5, "--sequences", 8)
    status, shown, errors = run("benchmarks/pretrained", "--model", model, *sizes, "--sides", "ours", "generate")
    assert status == 0, errors
    found = result_of(shown)
    assert found["sampling_ratio_16"] > 0 and found["sampling_ratio_64"] == "not run: --episodes without 64"
    assert all(found[name].startswith("not run: ") for name in ("vs_vllm", "vs_llama_cpp"))
    assert set(found["tokens_per_second"]) == {"ours", "generate"}
    if "not run: TRL" not in str(found["learner_ratio"]):
        assert found["learner_ratio"] > 0 and found["memory_ratio"] > 0
