"""Optimizers, AdamW and Muon with AdamW beside it, and the learning rate over a stage of training.

Two things decide the learning rate. Over the first updates it grows to its full height, so that the optimizer's
averages are of something before they move anything (``optim.warmup_steps``); over the whole stage it follows
``optim.schedule``. The share of a stage that is done is the caller's to say: it may be counted in updates or
iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
    # Full for the first half, then straight down to a tenth.
    "constant_then_linear": lambda share: max(0.1, min(1.0, 2.0 * (1.0 - share))),
}
"""From the share of a stage that is done, in [0, 1], to the factor of the peak rate, in [0, 1]."""


def rate(peak: float, schedule: str, share: float, steps: int, warmup: int) -> float:
    """The learning rate of one update.

    Args:
        peak: the highest.
        schedule: one of :data:`SCHEDULES`.
        share: how much of the stage is done; what is outside [0, 1] counts as its nearer end.
        steps: updates before this one.
        warmup: updates over which the rate grows in equal steps.

    >>> [rate(1.0, "constant_then_linear", share, steps=9, warmup=5) for share in (0.2, 0.75, 1.0)]
    [1.0, 0.5, 0.1]
    >>> [rate(1.0, "linear", 0.5, steps, warmup=4) for steps in (0, 1, 3, 4)]
    [0.125, 0.25, 0.5, 0.5]
    >>> round(rate(1.0, "cosine", 0.25, steps=9, warmup=5), 4)
    0.8536
    """
    grown = min(1.0, (steps + 1) / max(1, warmup))
    return peak * SCHEDULES[schedule](min(1.0, max(0.0, share))) * grown


def build_optimizer(
    kind: str, model: torch.nn.Module, lr: float, weight_decay: float, beta2: float, on_cpu: bool = False
) -> Any:
    """An optimizer over all parameters of ``model`` that are trained: adapters alone, where there are adapters.

    Args:
        kind: ``"adamw"``, or ``"muon"``: the weight matrices of the hidden layers by Muon (orthogonalized momentum),
            scaled so that one learning rate suits both, and everything else (embeddings, head, biases, norms) by AdamW.
            A small model from scratch needs about half as many tokens that way. Muon needs whole matrices, so it
            goes with ZeRO stage 0 only.
        lr: learning rate.
        weight_decay: decoupled.
        beta2: of AdamW.
        on_cpu: whether the states of a model on an accelerator are on the CPU: AdamW is then DeepSpeed's, which is
            several times as fast there, and is compiled for a minute when it is first used.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    if kind == "adamw" and on_cpu:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        adam: Any = DeepSpeedCPUAdam  # which takes its decay for a whole number
        return adam(trained, lr=lr, betas=(0.9, beta2), weight_decay=weight_decay, adamw_mode=True)
    if kind == "adamw":
        return torch.optim.AdamW(trained, lr=lr, betas=(0.9, beta2), weight_decay=weight_decay, fused=True)
    tables = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    heads = [m.get_output_embeddings() for m in model.modules() if isinstance(m, PreTrainedModel)]
    tables |= {id(head.weight) for head in heads if head is not None}
    hidden = [p for p in trained if p.dim() == 2 and id(p) not in tables]
    chosen = {id(p) for p in hidden}
    rest = [p for p in trained if id(p) not in chosen]
    parts: list[Optimizer] = [Muon(hidden, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")]
    if rest:  # a model whose adapters alone are trained has nothing else
        parts.append(torch.optim.AdamW(rest, lr=lr, betas=(0.9, beta2), weight_decay=weight_decay))
    return CombinedOptimizer(parts)


class Muon(torch.optim.Muon):
    """torch's Muon, which on a CPU orthogonalizes in float32, matrices of equal shape in one batched product.

    torch casts to bfloat16. A processor without AVX512_BF16 or AMX multiplies that 20 times slower than float32; one
    with them is no faster for small matrices.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        groups: list[dict[str, Any]] = self.param_groups
        if any(p.device.type != "cpu" for group in groups for p in group["params"]):
            super().step(closure)
            return
        for group in groups:
            updates: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                momentum = state["momentum_buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(momentum, group["momentum"]).float()  # Nesterov
                rows, columns = sorted(update.shape)
                updates.setdefault((rows, columns), []).append((p, update))
            for (_, columns), pairs in updates.items():
                wide = torch.stack([u if u.shape[1] == columns else u.T for _, u in pairs])
                scale = group["lr"] * 0.2 * math.sqrt(columns)  # match_rms_adamw
                for (p, _), whole in zip(pairs, orthogonalized(wide, group["ns_coefficients"]), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(whole if p.shape[1] == columns else whole.T, alpha=-scale)


def orthogonalized(matrices: Tensor, coefficients: tuple[float, float, float], steps: int = 5) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly: singular values end between about 0.7 and 1.2 (Newton-Schulz).

    Args:
        matrices: ``(n, rows, columns)``, at least as many columns as rows.
        coefficients: of the quintic that each step applies to the singular values.
        steps: of the iteration.

    >>> found = orthogonalized(torch.diag(torch.tensor([3.0, 1.0]))[None], (3.4445, -4.775, 2.0315))
    >>> bool(torch.linalg.svdvals(found).min() > 0.6)
    True
    """
    a, b, c = coefficients
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


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
