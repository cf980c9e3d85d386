"""Log-probabilities of sampled tokens, and entropies, without the vocabulary's worth of memory per token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 1024
"""Rows of logits that are turned into probabilities at a time."""


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float = 1.0, chunk: int = CHUNK) -> Tensor:
    """Log-probability of ``token_ids`` under ``logits`` at a temperature, without a second tensor of logits' size.

    Args:
        logits: (…, V); row i is the distribution that token i is drawn from, so shift before calling.
        token_ids: (…), in [0, V).
        temperature: of the sampling, > 0.
        chunk: rows worked on at a time.

    Returns:
        (…), float32, differentiable in ``logits``.
    """
    if temperature <= 0:
        raise ValueError(f"log-probabilities need a temperature above 0, not {temperature}")
    rows = _TokenLogprobs.apply(logits.reshape(-1, logits.shape[-1]), token_ids.reshape(-1), temperature, chunk)
    return rows.reshape(token_ids.shape)


def head_logprobs(
    hidden: Tensor, head: torch.nn.Module, token_ids: Tensor, temperature: float = 1.0, chunk: int = CHUNK
) -> Tensor:
    """As :func:`token_logprobs`, from hidden states (N, D): the logits (N, V) never exist as a whole.

    Each chunk's logits are computed again in the backward pass, which costs a sixth more time and saves two thirds of
    the memory at a vocabulary of 32,000.
    """

    def piece(states: Tensor, targets: Tensor) -> Tensor:
        return token_logprobs(head(states), targets, temperature, chunk)

    if not torch.is_grad_enabled() or len(hidden) <= chunk:
        return torch.cat([piece(*pair) for pair in _chunks(hidden, token_ids, chunk)])
    parts = [checkpoint(piece, *pair, use_reentrant=False) for pair in _chunks(hidden, token_ids, chunk)]
    return torch.cat(parts)  # pyright: ignore[reportArgumentType]


@torch.no_grad()
def entropies(logits: Tensor, temperature: float = 1.0, chunk: int = CHUNK) -> Tensor:
    """Entropy (nats) of each row of ``logits`` (…, V) → (…), for the log; no gradient."""
    rows = logits.reshape(-1, logits.shape[-1])
    parts = [torch.distributions.Categorical(logits=part.float() / temperature).entropy() for part in rows.split(chunk)]
    return torch.cat(parts).reshape(logits.shape[:-1])


def _chunks(hidden: Tensor, token_ids: Tensor, chunk: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(hidden.split(chunk), token_ids.split(chunk), strict=True))


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(logits/τ)[token]; keeps one number per row for the backward pass instead of the softmax."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, token_ids: Tensor, temperature: float, chunk: int) -> Tensor:
        normaliser = torch.cat([(part.float() / temperature).logsumexp(-1) for part in logits.split(chunk)])
        chosen = logits.gather(-1, token_ids[:, None])[:, 0].float() / temperature
        ctx.save_for_backward(logits, token_ids, normaliser)
        ctx.temperature, ctx.chunk = temperature, chunk
        return chosen - normaliser

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        logits, token_ids, normaliser = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        pieces = (tensor.split(ctx.chunk) for tensor in (gradient, logits, token_ids, normaliser, upstream[0]))
        for out, part, token, log_z, up in zip(*pieces, strict=True):
            slope = (part.float() / ctx.temperature - log_z[:, None]).exp_().neg_()  # d/dz log p = 1[token] - p
            slope.scatter_add_(-1, token[:, None], torch.ones_like(slope[:, :1]))
            out.copy_(slope.mul_(up[:, None] / ctx.temperature))
        return gradient, None, None, None


__all__ = ["CHUNK", "entropies", "head_logprobs", "token_logprobs"]
