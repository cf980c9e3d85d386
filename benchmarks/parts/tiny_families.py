"""Tiny models with random weights, one for each family of causal language models that researchers train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

_BASE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": None,
    "bos_token_id": None,
}
_PLAIN = {**_BASE, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 8192}
_HEADS = {**_PLAIN, "head_dim": 8}
_EXPERTS = {**_HEADS, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    **_PLAIN,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_SPARSE = {"index_topk": 32, "index_n_heads": 32, "index_head_dim": 16}
WINDOW = 32
"""Tokens that windows have: most texts cross them."""
_WINDOWED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_ROPE = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e4,
        "mrope_section": [1, 1, 0],
        "partial_rotary_factor": 0.5,
        "mrope_interleaved": True,
    }
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 16, "mamba_n_groups": 1}
_FEW = {"num_local_experts": 4, "num_experts_per_tok": 2}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3": ("llama", _PLAIN),
    "Llama 4": ("llama4_text", {**_HEADS, **_FEW, "attention_chunk_size": WINDOW, "intermediate_size_mlp": 64}),
    "Qwen2.5": ("qwen2", _PLAIN),
    "Qwen3": ("qwen3", _HEADS),
    "Qwen3-MoE": ("qwen3_moe", _EXPERTS),
    "Qwen3-Next": ("qwen3_next", {**_EXPERTS, **_LINEAR, "shared_expert_intermediate_size": 32}),
    "Qwen3.5": ("qwen3_5_text", {**_HEADS, **_LINEAR, **_ROPE}),
    "Qwen3.5-MoE": ("qwen3_5_moe_text", {**_EXPERTS, **_LINEAR, **_ROPE, "shared_expert_intermediate_size": 32}),
    "Gemma 2": ("gemma2", {**_HEADS, "sliding_window": WINDOW}),
    "Gemma 3": ("gemma3_text", {**_HEADS, **_WINDOWED}),
    "Gemma 3n": (
        "gemma3n_text",
        {
            **_HEADS,
            **_WINDOWED,
            "num_kv_shared_layers": 0,
            "hidden_size_per_layer_input": 8,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
        },
    ),
    "Gemma 4": ("gemma4_text", {**_HEADS, **_WINDOWED, "global_head_dim": 8, "hidden_size_per_layer_input": 8}),
    "gpt-oss": ("gpt_oss", {**_HEADS, **_WINDOWED, **_FEW}),
    "SmolLM3": ("smollm3", _PLAIN),
    "Phi-3": ("phi3", {**_PLAIN, "sliding_window": WINDOW}),
    "Phi-4": ("phi3", {**_PLAIN, "sliding_window": None}),
    "Phi-3.5-MoE": ("phimoe", {**_PLAIN, "num_local_experts": 4}),
    "Mistral": ("mistral", {**_HEADS, "sliding_window": None}),
    "Mistral with a window": ("mistral", {**_HEADS, "sliding_window": WINDOW}),
    "Ministral 3": ("ministral3", _HEADS),
    "Mixtral": ("mixtral", {**_PLAIN, "num_local_experts": 4}),
    "OLMo 2": ("olmo2", _PLAIN),
    "OLMo 3": ("olmo3", {**_PLAIN, **_WINDOWED}),
    "OLMo hybrid": ("olmo_hybrid", {**_HEADS, **_LINEAR, "linear_num_value_heads": 2}),
    "Granite 3": ("granite", {**_PLAIN, "logits_scaling": 4.0}),
    "Granite-MoE": ("granitemoe", {**_PLAIN, **_FEW, "logits_scaling": 4.0}),
    "Granite 4 hybrid": (
        "granitemoehybrid",
        {
            **_PLAIN,
            **_FEW,
            **_MAMBA,
            "logits_scaling": 4.0,
            "shared_intermediate_size": 32,
            "layer_types": ["mamba", "attention"],
            "position_embedding_type": "rope",
        },
    ),
    "Cohere": ("cohere", _PLAIN),
    "Cohere 2": ("cohere2", {**_PLAIN, **_WINDOWED}),
    "nanochat": ("nanochat", _PLAIN),
    "DeepSeek-V2": ("deepseek_v2", _LATENT),
    "DeepSeek-V3, Kimi-K2": ("deepseek_v3", _LATENT),
    "DeepSeek-V3.2": ("deepseek_v32", {**_LATENT, **_SPARSE}),
    "DeepSeek-V4": ("deepseek_v4", {**_HEADS, "sliding_window": WINDOW}),
    "GLM-4": ("glm4", _HEADS),
    "GLM-4.5": ("glm4_moe", {**_EXPERTS, "first_k_dense_replace": 1}),
    "GLM-5": ("glm_moe_dsa", {**_LATENT, **_SPARSE}),
    "Kimi Linear": (
        "kimi_linear",
        {
            **_LATENT,
            **_EXPERTS,
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "MiniMax": ("minimax", {**_EXPERTS, "layer_types": ["linear_attention", "full_attention"], "block_size": 16}),
    "MiniMax-M2": ("minimax_m2", _EXPERTS),
    "MiMo-V2-Flash": ("mimo_v2_flash", {**_EXPERTS, "sliding_window": WINDOW}),
    "Hunyuan dense": ("hunyuan_v1_dense", _HEADS),
    "Seed-OSS": ("seed_oss", _HEADS),
    "ERNIE 4.5": ("ernie4_5", _HEADS),
    "EXAONE 4": ("exaone4", {**_HEADS, "sliding_window": WINDOW}),
    "dots.llm1": ("dots1", {**_EXPERTS, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}),
    "Apertus": ("apertus", _PLAIN),
    "LFM2": ("lfm2", {**_PLAIN, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "LFM2-MoE": (
        "lfm2_moe",
        {**_EXPERTS, "layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    ),
    "LFM3": ("lfm3", {**_PLAIN, "layer_types": ["conv", "full_attention"]}),
    "Mamba": ("mamba", {**_BASE, "state_size": 8}),
    "Mamba 2": (
        "mamba2",
        {**_BASE, "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    ),
    "Falcon-H1": ("falcon_h1", {**_HEADS, **_MAMBA, "mamba_d_ssm": 64}),
    "Nemotron-H": (
        "nemotron_h",
        {
            **_HEADS,
            "layers_block_type": ["mamba", "attention"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 16,
            "n_groups": 1,
            "chunk_size": 16,
        },
    ),
    "Jamba": (
        "jamba",
        {**_EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    "Bamba": ("bamba", {**_PLAIN, **_MAMBA, "attn_layer_indices": [1]}),
    "Zamba 2": (
        "zamba2",
        {
            **_PLAIN,
            "mamba_d_state": 16,
            "mamba_ngroups": 1,
            "n_mamba_heads": 8,
            "chunk_size": 16,
            "layers_block_type": ["mamba", "hybrid"],
            "num_mem_blocks": 1,
            "adapter_rank": 4,
        },
    ),
    "RecurrentGemma": (
        "recurrent_gemma",
        {**_HEADS, "lru_width": 32, "attention_window_size": WINDOW, "block_types": ["recurrent", "attention"]},
    ),
    "RWKV 4": ("rwkv", {**_BASE, "attention_hidden_size": 32}),
    "StableLM": ("stablelm", _PLAIN),
    "StarCoder 2": ("starcoder2", {**_PLAIN, "sliding_window": WINDOW}),
    "BitNet": ("bitnet", _PLAIN),
    "BLOOM": ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "pad_token_id": None, "bos_token_id": None}),
    "Falcon with ALiBi": ("falcon", {**_BASE, "alibi": True}),
    "MPT": ("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 8192}),
    "GPT-2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 8192, "bos_token_id": None}),
    "GPT-Neo": (
        "gpt_neo",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "max_position_embeddings": 8192,
            "bos_token_id": None,
        },
    ),
    "GPT-NeoX": ("gpt_neox", _PLAIN),
    "OPT": ("opt", {**_BASE, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 8192}),
}
_IMAGES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_SQUARES = {**_IMAGES, "image_size": 28, "patch_size": 14}
_TEXTS = {name: FAMILIES[name][1] for name in ("Gemma 3", "Gemma 4", "Qwen3", "Mistral")}
FAMILIES |= {
    "Gemma 3 with images": (
        "gemma3",
        {"text_config": _TEXTS["Gemma 3"], "vision_config": _SQUARES, "mm_tokens_per_image": 4},
    ),
    "Gemma 4 with images": (
        "gemma4",
        {
            "text_config": {**_TEXTS["Gemma 4"], "pad_token_id": 0},
            "vision_config": {**_IMAGES, "num_key_value_heads": 2, "head_dim": 16},
            "audio_config": None,
        },
    ),
    "Qwen3-VL": (
        "qwen3_vl",
        {
            "text_config": {
                **_TEXTS["Qwen3"],
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [1, 1, 2],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "hidden_size": 32,
                "depth": 1,
                "num_heads": 2,
                "intermediate_size": 32,
                "out_hidden_size": 32,
                "deepstack_visual_indexes": [0],
            },
        },
    ),
    "Mistral 3 with images": (
        "mistral3",
        {
            "text_config": {**_TEXTS["Mistral"], "model_type": "mistral"},
            "vision_config": {**_SQUARES, "model_type": "pixtral", "head_dim": 16},
        },
    ),
}
"""By their public names: transformers' name of the architecture, and the options that make a tiny one."""


_WIDTHS = ("hidden_size", "head_dim", "global_head_dim", "mrope_section", "n_embd")


def widened(options: Mapping[str, Any], factor: int) -> dict[str, Any]:
    """Options of a model whose attention heads are wider."""

    def wide(name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return widened(value, factor)
        if name not in _WIDTHS:
            return value
        return [factor * size for size in value] if isinstance(value, list) else factor * value

    return {name: wide(name, value) for name, value in options.items()}


def build(family: str, vocabulary: int, end: int, factor: int = 1) -> PreTrainedModel:
    """A model with random weights, always the same, large enough that every part of it shows in its logits.

    Args:
        vocabulary: tokens that it knows.
        end: the token that ends a reply.
        factor: by which attention heads are wider; the least have 8 numbers.
    """
    kind, narrow = FAMILIES[family]
    options = widened(narrow, factor)
    words = {"vocab_size": vocabulary, "vocab_size_per_layer_input": vocabulary, "eos_token_id": end}
    if "text_config" in options:
        config = AutoConfig.for_model(kind, **{**options, "text_config": {**options["text_config"], **words}})
        model = AutoModelForImageTextToText.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options, **words))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.2, generator=generator)
    return model.eval()


__all__ = ["FAMILIES", "WINDOW", "build"]
