"""The arithmetic that a run reports is what torch counts in the model's products."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

from roleagent.learners.engine.flops import flop_of_token

SIZES = dict(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
TOKENS = 4  # so few that attention's own products do not count


def counted(model, backward):
    ids = torch.arange(TOKENS)[None]
    with FlopCounterMode(display=False) as counter:
        loss = model(input_ids=ids).logits.sum()
        if backward:
            loss.backward()
    return counter.get_total_flops() / TOKENS


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_dense_model(tied, frozen):
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=tied))
    if frozen:  # as under adapters: gradients pass through the layers, and one matrix learns
        model.requires_grad_(False)
        model.model.layers[0].self_attn.q_proj.weight.requires_grad_(True)
    forward, update = flop_of_token(model)
    assert forward == pytest.approx(counted(model, False), rel=0.03)
    # The first layer's inputs need no gradient, so the bound is a little above what a frozen model computes.
    assert update == pytest.approx(counted(model, True), rel=0.15 if frozen else 0.03)


def test_a_mixture_of_experts_has_no_such_number():
    sizes = SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    assert flop_of_token(Qwen2MoeForCausalLM(Qwen2MoeConfig(**sizes))) is None
