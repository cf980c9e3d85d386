"""DeepSpeed's settings for the configuration of a run, and unsupported combinations."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from roleagent.config import Config, ConfigError, merged

_OURS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "optimizer",
    "scheduler",
)
"""What the learner decides itself: it cuts micro-batches by tokens, builds the optimizer and sets its rate."""


def zero_stage(config: Config) -> int:
    """The ZeRO stage that is run. In bfloat16 it is at least 1: stage 0 has no master weights in fp32 and rounds each
    step away."""
    stage = config.deepspeed.zero_stage
    return max(1, stage) if config.policy.dtype == "bfloat16" else stage


def deepspeed_settings(config: Config) -> dict[str, Any]:
    """The dictionary for ``deepspeed.initialize``; ``deepspeed.extra`` has the last word."""
    options = config.deepspeed
    zero: dict[str, Any] = {"stage": zero_stage(config)}
    if options.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if options.offload_parameters:
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    settings: dict[str, Any] = {
        # The learner cuts micro-batches itself and marks the one that ends an update.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        # DeepSpeed's own optimizer for the CPU is compiled on first use, which pays where there is an accelerator.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "wall_clock_breakdown": False,
    }
    if config.policy.dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
        # The sum over many micro-batches would lose its small terms in bfloat16.
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return merged(settings, options.extra)


def _check_extra(config: Config) -> None:
    """Has DeepSpeed read the settings, which it would otherwise do after the warm start's demonstrations."""
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        with contextlib.redirect_stdout(None):
            DeepSpeedConfig(deepspeed_settings(config))
    except Exception as error:  # pydantic's, assertions, and what Python makes of a value where a section should be
        raise ConfigError(f"DeepSpeed refuses deepspeed.extra: {' '.join(str(error).split())[:300]}") from error


def check_deepspeed(config: Config) -> None:
    """Refuses unsupported combinations of optimizer, DeepSpeed and adapters.

    Raises:
        ConfigError: one line with what to change.
    """
    options, stage = config.deepspeed, zero_stage(config)
    own_simulator = config.simulator_is_model and not config.shares_simulator  # which has a warm start
    imitates = config.warmstart.episodes > 0 or config.train.stage == "revise" or own_simulator
    for section in ("warmstart", "optim"):
        if getattr(config, section).optimizer == "muon" and stage > 0 and (section == "optim" or imitates):
            raise ConfigError(
                f"{section}.optimizer=muon works on whole matrices, which ZeRO (deepspeed.zero_stage > 0, or bfloat16) "
                "takes apart: choose adamw"
            )
    if options.offload_optimizer and stage < 1:
        raise ConfigError("deepspeed.offload_optimizer moves what ZeRO has taken apart: set deepspeed.zero_stage=2")
    if options.offload_parameters and stage < 3:
        raise ConfigError("deepspeed.offload_parameters moves the parts of the weights: set deepspeed.zero_stage=3")
    for key in _OURS:
        if key in options.extra:
            raise ConfigError(f"deepspeed.extra cannot set {key}: the learner decides that (see the section optim)")
    zero = options.extra.get("zero_optimization", {})
    if isinstance(zero, Mapping) and zero.get("stage", stage) != stage:
        raise ConfigError("deepspeed.extra cannot set the ZeRO stage: that is deepspeed.zero_stage")
    if options.extra:
        _check_extra(config)
    if config.lora.rank and not config.policy.path:
        raise ConfigError("lora.rank adapts a model that knows something already: name one with policy.path")
    if config.lora.rank and importlib.util.find_spec("peft") is None:
        raise ConfigError("lora.rank needs the package peft: pip install 'roleagent[lora]'")


__all__ = ["check_deepspeed", "deepspeed_settings", "zero_stage"]
