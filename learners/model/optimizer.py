"""Optimizers: AdamW, and Muon with AdamW beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from transformers import PreTrainedModel

BETAS = (0.9, 0.95)


def build_optimizer(kind: str, model: torch.nn.Module, lr: float, weight_decay: float, on_cpu: bool = False) -> Any:
    """An optimizer over all parameters of ``model`` that are trained: adapters alone, where there are adapters.

    Args:
        kind: ``"adamw"``, or ``"muon"``: the weight matrices of the hidden layers by Muon (orthogonalized momentum),
            scaled so that one learning rate suits both, and everything else (embeddings, head, biases, norms) by AdamW.
            A small model from scratch needs about half as many tokens that way. Muon needs whole matrices, so it
            goes with ZeRO stage 0 only.
        lr: learning rate.
        weight_decay: decoupled.
        on_cpu: whether the states of a model on an accelerator are on the CPU: AdamW is then DeepSpeed's, which is
            several times as fast there, and is compiled for a minute when it is first used.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if kind == "adamw" and on_cpu:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        adam: Any = DeepSpeedCPUAdam  # which takes its decay for a whole number
        return adam(trained, lr=lr, betas=BETAS, weight_decay=weight_decay, adamw_mode=True)
    if kind == "adamw":
        return torch.optim.AdamW(trained, lr=lr, betas=BETAS, weight_decay=weight_decay)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    heads = [m.get_output_embeddings() for m in model.modules() if isinstance(m, PreTrainedModel)]
    tables |= {id(head.weight) for head in heads if head is not None}
    hidden = [p for p in trained if p.dim() == 2 and id(p) not in tables]
    chosen = {id(p) for p in hidden}
    rest = [p for p in trained if id(p) not in chosen]
    parts: list[Optimizer] = [
        torch.optim.Muon(hidden, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
    ]
    if rest:  # a model whose adapters alone are trained has nothing else
        parts.append(torch.optim.AdamW(rest, lr=lr, betas=BETAS, weight_decay=weight_decay))
    return CombinedOptimizer(parts)


class CombinedOptimizer(Optimizer):
    """Several optimizers, side by side, as one. They keep their own states and share their parameter groups with it."""

    def __init__(self, parts: Sequence[Optimizer]):
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = list(parts)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            part.load_state_dict(state)
        # Loading gives the parts new groups; one dictionary each, shared again.
        self.param_groups[:] = [group for part in self.parts for group in part.param_groups]
