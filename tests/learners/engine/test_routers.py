"""Mixtures of experts: the balancing loss that is logged is transformers' own, on both paths and in a run."""

import numpy as np
import pytest
import torch
from programs import load, metrics
from tiny import tokenizer

from roleagent.agents.policies.hf import HFPolicy, PolicyError
from roleagent.config import from_dict
from roleagent.learners.engine.engine import Learner
from roleagent.learners.update import policy_step
from roleagent.types import Segment

WORDS = tokenizer()
families, train = load("benchmarks/parts/tiny_families"), load("train").main


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("name", ["Qwen3-MoE", "Mixtral", "gpt-oss", "Qwen3.5-MoE"])
def test_the_balancing_loss_of_an_update_is_that_of_transformers(name, again):
    """Rows of unequal lengths in two micro-batches; gpt-oss and Qwen3.5 pad them."""
    model = families.build(name, len(WORDS), WORDS.eos_token_id)
    policy = HFPolicy(model, WORDS, torch.Generator(), 256)
    options = {"micro_batch_tokens": 90, "lr": 1e-3}
    config = from_dict({"method": "grpo", "optim": options, "deepspeed": {"activation_checkpointing": again}})
    learner, rng = Learner(policy, config, 1e-3), np.random.default_rng(0)
    texts = [rng.integers(5, 300, size) for size in (40, 33, 25, 11)]
    rows, mask = torch.zeros(4, 40, dtype=torch.int64), torch.zeros(4, 40)
    for row, text in enumerate(texts):
        rows[row, : len(text)], mask[row, : len(text)] = torch.from_numpy(text), 1
    with torch.no_grad():
        model.eval()
        wanted = model(input_ids=rows, attention_mask=mask, output_router_logits=True).aux_loss
    segments = [
        Segment(text, np.array([0, *[1] * (len(text) - 1)]), np.zeros(len(text)), np.ones(len(text))) for text in texts
    ]
    columns = {key: [np.ones(len(text)) for text in texts] for key in ("weights", "advantages", "sampler", "reference")}
    found = policy_step(learner, segments, columns, 1.0, fresh=True)
    learner.close()
    assert found["router_loss"] == pytest.approx(float(wanted), rel=1e-5)
    assert 2.0 < found["router_loss"] < 4.0


def test_layers_whose_routers_are_counted_are_not_compiled():
    policy = HFPolicy(families.build("Mixtral", len(WORDS), WORDS.eos_token_id), WORDS, torch.Generator(), 256)
    with pytest.raises(PolicyError, match="does not know the layers of MixtralForCausalLM"):
        Learner(policy, from_dict({"method": "grpo", "optim": {"compile": True}}), 1e-3)


def test_a_run_says_that_routers_are_not_balanced_and_logs_how_they_spread_tokens(tmp_path, capsys):
    words = tokenizer("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>")
    families.build("Mixtral", len(words), words.eos_token_id).save_pretrained(tmp_path / "model")
    words.save_pretrained(tmp_path / "model")
    options = [
        f"policy.path={tmp_path / 'model'}",
        "policy.context=2048",
        "env.id=RoleAgent/Toy-v0",
        "env.eval_tasks=1",
    ]
    short = ["warmstart.episodes=0", "train.iterations=1", "rollout.num_groups=1", "rollout.group_size=2", "aiw=off"]
    short += ["rollout.action_tokens=4", "rollout.prediction_tokens=4", "env.kwargs={max_steps: 2}"]
    assert train([*options, *short, f"run_dir={tmp_path / 'run'}"]) == 0
    assert "routers: 4 experts, 2 for each token; their balancing loss is no part" in capsys.readouterr().out
    [row] = metrics(tmp_path / "run", "train")
    assert 2.0 < row["router_loss"] < 4.0
