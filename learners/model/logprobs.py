"""Log-probabilities of sampled tokens, and entropies, without the vocabulary's worth of memory for every token.

Both are taken from the same pass over the logits, a block of rows at a time, in float32 whatever the model's type. The
gradient has a closed form, d log p(y) / dz = 1[y] - p, so a backward pass needs the logits and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BLOCK = 2**22
"""Logits in a block: 16 MiB in float32. What fits into one block is kept for the backward pass, and not more."""

LEAST_ROWS = 64
"""Rows in a block at least, however large the vocabulary: fewer would read the whole head for next to nothing."""


def block_rows(vocabulary: int) -> int:
    """Rows of logits that are worked on at a time.

    >>> block_rows(2048), block_rows(32_000), block_rows(152_064)
    (2048, 131, 64)
    """
    return max(LEAST_ROWS, BLOCK // vocabulary)


def head_logprobs(
    hidden: Tensor,
    head: nn.Module,
    token_ids: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
    rows: int = 0,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens, from the hidden states that a head makes logits of; (N, V) logits never exist.

    More than one block of logits is computed a second time in the backward pass, and the head's gradient grows block
    by block in one place.

    Args:
        hidden: (N, D).
        head: from hidden states to logits (…, V).
        token_ids: (N,), in [0, V).
        temperature: of the sampling, > 0.
        entropy: whether entropies are wanted.
        rows: worked on at a time; 0: see :func:`block_rows`.

    Returns:
        (N,) log-probabilities, float32, differentiable in ``hidden`` and the head's weights; and the (N,) entropies
        of the distributions in nats, without gradient, or none of them.

    Raises:
        ValueError: a temperature that is not above 0.
    """
    weight: Any = head.weight
    if _is_plain(head):
        temperature, rows = _checked(temperature, rows, weight.shape[0])
        given = (hidden, weight, head.bias)
        learns = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given)
        return _OfHead.apply(*given, token_ids, temperature, rows, entropy, learns)

    # An adapter, or a weight that ZeRO 3 keeps in pieces and gathers when its module is called: through the module.
    temperature, rows = _checked(temperature, rows, getattr(weight, "ds_shape", weight.shape)[0])

    def block(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return _OfLogits.apply(head(states), targets, temperature, entropy)

    pairs = list(zip(hidden.split(rows), token_ids.split(rows), strict=True))
    if not torch.is_grad_enabled() or len(pairs) == 1:
        found = [block(*pair) for pair in pairs]
    else:
        found = [checkpoint(block, *pair, use_reentrant=False) for pair in pairs]
    logprobs, entropies = zip(*found, strict=True)  # pyright: ignore[reportArgumentType]
    return torch.cat(logprobs), torch.cat(entropies)


def _is_plain(head: nn.Module) -> bool:
    """Whether the head is nothing but a whole matrix, so that its product need not go through the module."""
    return type(head) is nn.Linear and not hasattr(head.weight, "ds_id") and not head._forward_hooks


def _checked(temperature: float, rows: int, vocabulary: int) -> tuple[float, int]:
    if temperature <= 0:
        raise ValueError(f"log-probabilities need a temperature above 0, not {temperature}")
    return temperature, rows or block_rows(vocabulary)


def _read(logits: Tensor, token_ids: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(n,) log-probabilities, (n,) normalizers and (n,) entropies, or none, of a block of logits (n, V)."""
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    chosen = scaled.gather(-1, token_ids[:, None])[:, 0]
    if not entropy:
        normalizer = scaled.logsumexp(-1)
        return chosen - normalizer, normalizer, chosen.new_empty(0)
    top = scaled.amax(-1, keepdim=True)
    shifted = scaled - top
    powers = shifted.exp()
    total = powers.sum(-1)
    # H = log Z - E[z]. A logit of -inf has probability 0 and no part in the mean.
    mean = torch.linalg.vecdot(powers, shifted.clamp_(min=torch.finfo(torch.float32).min)) / total
    normalizer = top[:, 0] + total.log()
    return chosen - normalizer, normalizer, total.log() - mean


def _slope(logits: Tensor, token_ids: Tensor, normalizer: Tensor, upstream: Tensor, temperature: float) -> Tensor:
    """(n, V): what the gradient of the log-probabilities makes of ``upstream`` (n,); float32."""
    scaled = logits.float() if temperature == 1.0 else logits.float() / temperature
    share = upstream[:, None] / temperature
    slope = (scaled - normalizer[:, None]).exp_().mul_(-share)
    return slope.scatter_add_(-1, token_ids[:, None], share)


class _OfLogits(torch.autograd.Function):
    """Log-probabilities and entropies of a block; keeps one number per row for the backward pass, not the softmax."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, token_ids: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        logprobs, normalizer, entropies = _read(logits, token_ids, temperature, entropy)
        ctx.save_for_backward(logits, token_ids, normalizer)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        logits, token_ids, normalizer = ctx.saved_tensors
        slope = _slope(logits, token_ids, normalizer, upstream[0], ctx.temperature)
        return slope.to(logits.dtype), None, None, None


class _OfHead(torch.autograd.Function):
    """Log-probabilities and entropies from hidden states and a matrix; logits live for one block."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        token_ids: Tensor,
        temperature: float,
        rows: int,
        entropy: bool,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        found = []
        kept = None
        for states, targets in zip(hidden.split(rows), token_ids.split(rows), strict=True):
            logits = nn.functional.linear(states, weight, bias)
            found.append(_read(logits, targets, temperature, entropy))
            if learns and len(hidden) <= rows:
                kept = logits
        logprobs, normalizer, entropies = (torch.cat(parts) for parts in zip(*found, strict=True))
        if learns:
            ctx.save_for_backward(hidden, weight, bias, token_ids, normalizer, kept)
            ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        hidden, weight, bias, token_ids, normalizer, kept = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        of_weight = of_bias = None
        # Blocks are added up in float32: in bfloat16 the later ones would be lost in the sum.
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight, dtype=torch.float32)
        if bias is not None and ctx.needs_input_grad[2]:
            of_bias = torch.zeros_like(bias, dtype=torch.float32)
        start = 0
        pieces = (tensor.split(ctx.rows) for tensor in (hidden, token_ids, normalizer, upstream[0]))
        for states, targets, log_z, up in zip(*pieces, strict=True):
            logits = nn.functional.linear(states, weight, bias) if kept is None else kept
            slope = _slope(logits, targets, log_z, up, ctx.temperature).to(hidden.dtype)
            if of_hidden is not None:
                torch.mm(slope, weight, out=of_hidden[start : start + len(states)])
            if of_weight is not None:
                if of_weight.dtype == slope.dtype:
                    of_weight.addmm_(slope.t(), states)
                else:
                    of_weight.add_(slope.t() @ states)
            if of_bias is not None:
                of_bias.add_(slope.sum(0, dtype=torch.float32))
            start += len(states)
        of_weight = None if of_weight is None else of_weight.to(weight.dtype)
        of_bias = None if of_bias is None or bias is None else of_bias.to(bias.dtype)
        return of_hidden, of_weight, of_bias, None, None, None, None, None


__all__ = ["block_rows", "head_logprobs"]
