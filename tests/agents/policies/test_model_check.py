"""Models that look at a window, count positions or scale logits on their own are refused."""

import pytest
import torch
import transformers
from tiny import qwen, tokenizer

from roleagent.agents.policies.hf import HFPolicy, PolicyError
from roleagent.learners.engine.logprobs import check_scorer

WORDS = tokenizer()
SIZES = {"vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"eos_token_id": WORDS.eos_token_id, "bos_token_id": None, "pad_token_id": None}
LLAMA = {**SIZES, **ENDS, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 256}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [3.0] * 4,
    "original_max_position_embeddings": 64,
}


def made(name, **options):
    """A model of random weights."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def opened(model, context=200):
    return HFPolicy(model, WORDS, torch.Generator(), context)


WINDOWED = ("Mistral", "Mixtral", "Phi3", "Starcoder2", "Qwen2", "Ministral3")


def windowed(name, window):
    more = {"Mixtral": {"num_local_experts": 2}, "Qwen2": {"use_sliding_window": True, "max_window_layers": 1}}
    return made(name, **LLAMA, **more.get(name, {}), sliding_window=window)


@pytest.mark.parametrize("name", WINDOWED)
def test_a_window_is_refused_where_a_conversation_can_cross_it(name):
    model = windowed(name, 32)
    with pytest.raises(PolicyError, match=rf"{name}ForCausalLM .*window of 32 tokens.*policy\.context=32"):
        opened(model)
    assert opened(model, 32).context_length == 32


REFUSED = {
    "GPTNeo": {
        **ENDS,
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 32,
        "max_position_embeddings": 256,
    },
    "Rwkv": {**ENDS, "vocab_size": len(WORDS), "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2},
    "Bloom": {**ENDS, "vocab_size": len(WORDS), "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "Falcon": {**SIZES, **ENDS, "alibi": True},
    "Mamba": {**ENDS, "vocab_size": len(WORDS), "hidden_size": 32, "num_hidden_layers": 2},
    "Gemma2": {**LLAMA, "head_dim": 8},
    "Cohere": LLAMA,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_reads_texts_in_its_own_way_is_refused_by_name(name):
    with pytest.raises(PolicyError, match=f"{name}ForCausalLM") as caught:
        opened(made(name, **REFUSED[name]))
    assert len(str(caught.value).splitlines()) == 1


def test_long_rope_is_refused_beyond_its_short_context():
    model = made("Phi3", **LLAMA, rope_parameters=LONG, original_max_position_embeddings=64)
    with pytest.raises(PolicyError, match=r"positions in texts of more than 64 tokens.*policy\.context=64"):
        opened(model)
    assert opened(model, 64).context_length == 64


SOUND = {
    "Mistral": {**LLAMA, "sliding_window": None},
    "OPT": {**SIZES, **ENDS, "ffn_dim": 64, "word_embed_proj_dim": 32},
    "GPTNeoX": {**SIZES, **ENDS, "intermediate_size": 64},
    "Gemma3": {**LLAMA, "head_dim": 8, "sliding_window": 512},
    "Llama": {
        **LLAMA,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}


@pytest.mark.parametrize("name", SOUND)
def test_a_model_that_is_read_as_it_reads_itself_is_taken(name):
    options = SOUND[name]
    name = {"Gemma3": "Gemma3Text"}.get(name, name)
    config = getattr(transformers, f"{name}Config")(**options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    assert opened(model).context_length == 200
    check_scorer(model, 200)


@pytest.mark.parametrize(("name", "options"), [("Granite", {"logits_scaling": 4.0}), ("Cohere", {})])
def test_the_learner_refuses_a_model_that_it_would_score_differently(name, options):
    with pytest.raises(PolicyError, match=f"the learner cannot train {name}ForCausalLM"):
        check_scorer(made(name, **LLAMA, **options), 200)
    check_scorer(qwen().model, 256)
