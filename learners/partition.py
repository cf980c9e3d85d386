"""A model that its processes hold in parts (ZeRO stage 3), beside one that each of them holds whole."""

from __future__ import annotations

import copy

import torch
from transformers import PreTrainedModel


def copy_on_cpu(model: PreTrainedModel) -> PreTrainedModel:
    """The same model once more, its parameters in main memory: the accelerator need not hold two whole ones.

    DeepSpeed moves each parameter to the accelerator and leaves only this process's part of it there. Tied weights
    stay tied.
    """
    copies: dict[int, object] = {
        id(weight): torch.nn.Parameter(weight.detach().to("cpu", copy=True), weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, copies)


@torch.no_grad()
def gather_into(whole: torch.nn.Module, parts: torch.nn.Module) -> None:
    """Copies the trained parameters of a partitioned model into a whole one of the same build.

    One parameter after another is put together, so that never more than one is there twice. Every rank must call it.
    """
    from deepspeed.runtime.zero import GatheredParameters

    own = dict(whole.named_parameters())
    for name, weight in parts.named_parameters():
        if weight.requires_grad:
            with GatheredParameters([weight]):
                own[name].copy_(weight)


def compute_again(model: PreTrainedModel) -> None:
    """Activation checkpointing: in training a layer keeps its input alone, and is computed again for the gradient."""
    # transformers is about to drop the second name, and older ones do not have the first.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    # The other way compares what it computes again with tensors that stage 3 has taken apart by then.
    enable({"use_reentrant": True})
    model.enable_input_require_grads()  # frozen embeddings would otherwise cut the layers off the gradient
