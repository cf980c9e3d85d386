"""What DeepSpeed is told, from the configuration of a run."""

from __future__ import annotations

from typing import Any

from roleagent.config import Config


def deepspeed_settings(config: Config) -> dict[str, Any]:
    """The dictionary for ``deepspeed.initialize``."""
    stage = config.deepspeed.zero_stage
    settings: dict[str, Any] = {
        # The learner cuts micro-batches itself and says which one ends an update.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.optim.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage},
        "wall_clock_breakdown": False,
    }
    if config.policy.dtype == "bfloat16":
        # Without partitioned optimiser states DeepSpeed's bf16 follows another rounding; stage 1 does not.
        settings["zero_optimization"]["stage"] = max(1, stage)
        settings["bf16"] = {"enabled": True}
    if config.deepspeed.offload:
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu"}
    return settings
