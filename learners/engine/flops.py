"""Floating-point operations of an update, and what share of a GPU's peak they are."""

from __future__ import annotations

from typing import Any

import torch

PEAKS = {
    **{"B200": 2250.0, "H200": 989.0, "H100 PCIe": 756.0, "H100": 989.0, "A100": 312.0},
    **{"L40S": 362.0, "A10G": 70.0, "A10": 125.0, "L4": 121.0, "4090": 165.0},
}
"""Dense bfloat16 of GPUs, in TFLOP/s, from their data sheets, by a part of the name; the first that fits counts."""


def flop_of_token(model: Any) -> tuple[int, int] | None:
    """Floating-point operations per token: of a forward pass, and of a forward and backward pass.

    Two per weight forward, two backward for the inputs, and two for each trained weight. Attention's products, which
    grow with the context, are left out, and so is what activation checkpointing computes again: a lower bound.

    Args:
        model: of transformers.

    Returns:
        None of a mixture of experts, whose tokens pass through a part of the weights only.
    """
    if any("expert" in name for name, _ in model.named_parameters()):
        return None
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outputs is not None and outputs.weight is inputs.weight
    looked_up = {} if tied else {id(weight) for weight in inputs.parameters()}
    sizes = [
        (getattr(weight, "ds_numel", weight.numel()), weight.requires_grad)  # ZeRO 3 leaves an empty one in place
        for weight in model.parameters()
        if id(weight) not in looked_up
    ]
    every, trained = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
    return 2 * every, 4 * every + 2 * trained


def peak(dtype: torch.dtype) -> float | None:
    """TFLOP/s that this process's GPU reaches at most in ``dtype``; None where :data:`PEAKS` does not say."""
    if dtype != torch.bfloat16 or not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((speed for part, speed in PEAKS.items() if part in name), None)
