"""What cannot be played or trained is refused in one line; quantized weights are loaded as what they stand for."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import qwen, tokenizer
from transformers import BartConfig, BartForConditionalGeneration, BertConfig, BertModel, ViTConfig, ViTModel

from roleagent.agents.policies.hf import HFPolicy, PolicyError, check_path

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def saved(folder, model=None, **more):
    """A model's folder, with further settings in its configuration."""
    words = tokenizer()
    (model or qwen().model).save_pretrained(folder)
    words.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | more))


def bart(folder):
    sizes = {
        f"{part}_{name}": 2 for part in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")
    }
    saved(folder, BartForConditionalGeneration(BartConfig(vocab_size=360, d_model=32, **sizes)))


def without(*names):
    def made(folder):
        saved(folder)
        for name in names:
            (folder / name).unlink()

    return made


def pickled(folder):
    without("model.safetensors")(folder)
    torch.save({}, folder / "pytorch_model.bin")


def adapter(folder):
    (folder / "adapter_config.json").write_text("{}")


REFUSED = {
    "encoder": (
        lambda folder: saved(folder, BertModel(BertConfig(vocab_size=360, **SIZES))),
        r"the weights lack .*: they are damaged, or of a model that writes no text",
    ),
    "encoder and decoder": (bart, "bart is no causal language model: choose one"),
    "images": (lambda folder: saved(folder, ViTModel(ViTConfig(**SIZES))), "vit is no causal language model: choose"),
    "no weights": (without("model.safetensors"), r"the folder has no weights \(model\.safetensors\)"),
    "pickled": (pickled, r"pickled files \(\.bin\) are not loaded: write them anew with transformers' save_pretrained"),
    "adapter": (adapter, "an adapter without its model"),
    "no tokenizer": (
        without("tokenizer.json", "tokenizer_config.json"),
        r"the folder has no tokenizer \(tokenizer\.json\)",
    ),
    "4 bits": (
        lambda folder: saved(folder, quantization_config={"quant_method": "gptq", "bits": 4}),
        r"quantized \(gptq\) and cannot be trained: name its original weights",
    ),
    "a package for quantized weights is missing": (
        lambda folder: saved(folder, quantization_config={"quant_method": "torchao"}),
        r"quantized \(torchao\) and cannot be trained: name its original weights",
    ),
    "reward model": (
        lambda folder: saved(folder, architectures=["Qwen2ForSequenceClassification"]),
        "Qwen2ForSequenceClassification is no causal language model: choose one",
    ),
    "activation": (lambda folder: saved(folder, hidden_act="foo"), "its configuration names 'foo', which transformers"),
    "code of its own": (
        lambda folder: saved(folder, model_type="kimi_k2", auto_map={"AutoConfig": "own.Config"}),
        "code of its own, which is not run: choose a model whose model_type and tokenizer transformers has",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_played_is_refused_in_one_line(name, tmp_path):
    make, reason = REFUSED[name]
    make(tmp_path)
    with pytest.raises(PolicyError, match=reason) as caught:
        check_path(tmp_path)
        HFPolicy.from_path(tmp_path, torch.Generator())
    assert len(str(caught.value).splitlines()) == 1


def test_weights_in_8_bits_are_loaded_as_ordinary_ones_and_saved_so(tmp_path):
    """As DeepSeek-V3's; gpt-oss's in 4 bits go the same way."""
    plain = dict(qwen().model.named_parameters())
    quantized = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    saved(tmp_path, quantization_config=quantized)
    weights = load_file(tmp_path / "model.safetensors")
    for name in [name for name in weights if name.endswith("proj.weight")]:
        scale = weights[name].abs().max() / 448
        weights |= {name: (weights[name] / scale).to(torch.float8_e4m3fn), f"{name}_scale_inv": scale.reshape(1, 1)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    policy = HFPolicy.from_path(tmp_path, torch.Generator())
    for name, weight in policy.model.named_parameters():
        assert weight.dtype == torch.float32 and weight.requires_grad
        torch.testing.assert_close(weight, plain[name], atol=0.04 * float(plain[name].detach().abs().max()), rtol=0.0)
    policy.model.save_pretrained(tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again" / "config.json").read_text())
