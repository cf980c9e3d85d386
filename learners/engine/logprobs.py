"""Log-probabilities and entropies of sampled tokens, and the micro-batches and models that they are computed with.

Both are taken from the same pass over the logits, a block of rows at a time, in float32 whatever the model's type, so
that no token needs the vocabulary's worth of memory. The gradient has a closed form, d log p(y) / dz = 1[y] - p, so a
backward pass needs the logits and nothing else. The vocabulary is only computed for sampled tokens: prompts and
observations cost nothing there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from roleagent.agents.policies.model_check import (
    evaluating,
    heads_of,
    plain_logits,
    text_for,
    tolerance,
)
from roleagent.agents.policies.protocol import PolicyError
from roleagent.agents.policies.sampling import OwnHead, body_of
from roleagent.learners.batch import Column
from roleagent.learners.engine.prefix_sharing import (
    Prefixes,
    can_share,
    distinct_states,
    find_prefixes,
    plan_by_prefix,
    select_rows,
)
from roleagent.learners.engine.routers import Routers
from roleagent.slow_notice import waiting
from roleagent.types import ACTION, CONTEXT, Segment


def copy_on_cpu(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of the model with its parameters in main memory: the accelerator need not hold two whole models.

    Tied weights stay tied.
    """
    copies: dict[int, object] = {
        id(weight): torch.nn.Parameter(weight.detach().to("cpu", copy=True), weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, copies)


def partition(module: torch.nn.Module, settings: Mapping[str, Any]) -> None:
    """Moves one parameter after another to the accelerator and keeps only this process's part of it.

    ``deepspeed.initialize`` alone would move the whole module there first. Every rank must call it.
    """
    from deepspeed.runtime.zero import Init

    Init(module=module, config_dict_or_path=dict(settings))


@torch.no_grad()
def gather_into(whole: torch.nn.Module, parts: torch.nn.Module) -> None:
    """Copies the trained parameters of a partitioned model into a whole one of the same architecture.

    Parameters are gathered one after another, so never more than one exists twice. Every rank must call it.
    """
    from deepspeed.runtime.zero import GatheredParameters

    own = dict(whole.named_parameters())
    for name, weight in parts.named_parameters():
        if weight.requires_grad:
            with GatheredParameters([weight]):
                own[name].copy_(weight)


def enable_activation_checkpointing(model: PreTrainedModel) -> None:
    """Activation checkpointing: a layer keeps only its input in training and is recomputed for the gradient."""
    if any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return  # the stage before did it
    # Newer versions of transformers drop the second name, older ones lack the first.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    # The other variant compares recomputed tensors with ones that stage 3 has partitioned by then.
    enable({"use_reentrant": True})
    # Only frozen embeddings need the hook: without it the layers get no gradient.
    model.disable_input_require_grads()
    if not model.get_input_embeddings().weight.requires_grad:
        model.enable_input_require_grads()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B segments, padded on the right to the longest, T; and their N trained tokens, row after row.

    Attributes:
        token_ids: int64 (B, T).
        rows: int64 (N,): the segment of each trained token, ascending.
        positions: int64 (N,): its place in the segment. The logits of ``[rows, positions - 1]`` predict it: a model
            that selects them first spends nothing on the vocabulary of prompts and observations.
        token_kind: int64 (N,): ACTION, PREDICTION or TEXT.
        columns: float32 (N,), by name.
        prefixes: which tokens are the same.
    """

    token_ids: Tensor
    rows: Tensor
    positions: Tensor
    token_kind: Tensor
    columns: Mapping[str, Tensor]
    prefixes: Prefixes

    def to(self, device: torch.device | str) -> MicroBatch:
        """The same micro-batch on another device."""
        columns = {name: values.to(device) for name, values in self.columns.items()}
        tensors = (values.to(device) for values in (self.token_ids, self.rows, self.positions, self.token_kind))
        return MicroBatch(*tensors, columns, self.prefixes.to(device))


def collate(segments: Sequence[Segment], pad_id: int, columns: Mapping[str, Column] | None = None) -> MicroBatch:
    """Stacks segments into one :class:`MicroBatch`.

    Args:
        segments: at least one.
        pad_id: the token that fills the rows. No real token attends to it.
        columns: by name, one array per segment.

    Raises:
        ValueError: no segments.
    """
    if not segments:
        raise ValueError("a micro-batch needs at least one segment")
    token_ids = np.full((len(segments), max(map(len, segments))), pad_id, np.int64)
    for row, segment in enumerate(segments):
        token_ids[row, : len(segment)] = segment.token_ids
    trained = [np.flatnonzero(segment.token_kind) for segment in segments]

    def of_trained(values: Sequence[np.ndarray], dtype: torch.dtype) -> Tensor:
        chosen = [np.asarray(row)[places] for row, places in zip(values, trained, strict=True)]
        return torch.from_numpy(np.concatenate(chosen)).to(dtype)

    return MicroBatch(
        token_ids=torch.from_numpy(token_ids),
        rows=torch.from_numpy(np.repeat(np.arange(len(segments)), [len(places) for places in trained])),
        positions=torch.from_numpy(np.concatenate(trained)),
        token_kind=of_trained([segment.token_kind for segment in segments], torch.int64),
        columns={name: of_trained(values, torch.float32) for name, values in (columns or {}).items()},
        prefixes=find_prefixes([segment.token_ids for segment in segments]),
    )


def plan_by_length(segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
    """Numbers of segments of similar length, together at most ``max_tokens`` tokens with their padding.

    Sorted by length, segments need almost no padding. The longest come first, so a budget that does not fit into memory
    fails at once. A segment longer than the budget is a micro-batch of its own.

    >>> of_length = lambda n: Segment((0,) * n, (1,) * n, (0.0,) * n, (0.0,) * n)
    >>> plan_by_length([of_length(3), of_length(9), of_length(4), of_length(2)], max_tokens=8)
    [[1], [2, 0], [3]]
    """
    if max_tokens < 1:
        raise ValueError(f"a micro-batch needs at least one token, not {max_tokens}")
    waiting = sorted(range(len(segments)), key=lambda index: (-len(segments[index]), index))
    batches: list[list[int]] = []
    while waiting:
        size = max(1, max_tokens // max(1, len(segments[waiting[0]])))
        batches.append(waiting[:size])
        waiting = waiting[size:]
    return batches


@dataclass(frozen=True, slots=True)
class TokenScores:
    """The trained tokens of a micro-batch, one after another: the input of an objective. All tensors are ``(N,)``.

    Attributes:
        logprobs: under the model that learns, at the sampling temperature, in nats, with gradient.
        entropies: of the distributions that the tokens were drawn from, in nats, without gradient; empty unless asked
            for.
        token_kind: ``Segment.token_kind`` of each token.
        segments: the number of each token's segment within the micro-batch, ascending.
        columns: the caller's columns (:meth:`Engine.update`), by name.
    """

    logprobs: Tensor
    entropies: Tensor
    token_kind: Tensor
    segments: Tensor
    columns: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a model's tokens are scored, so that they get the probabilities of its own ``forward``.

    Attributes:
        shares: whether equal beginnings are computed once; if not, every row is, and shorter ones are padded.
        own_head: whether the model's own ``forward`` makes the logits of the trained tokens, and not the matrix of its
            head alone.
        reason: why it is not the fastest way; empty where it is.
    """

    shares: bool
    own_head: bool = False
    reason: str = ""

    def __str__(self) -> str:
        how = "equal beginnings are computed once" if self.shares else "every row by itself, padded on the right"
        return f"{how}{', logits by the model' if self.own_head else ''}{f' ({self.reason})' if self.reason else ''}"


class TokenScorer(torch.nn.Module):
    """A causal language model that scores sampled tokens instead of returning logits.

    Args:
        model: the model.
        scoring: how (:func:`find_scoring`); by default as most models allow.
    """

    def __init__(self, model: PreTrainedModel, scoring: Scoring | None = None):
        super().__init__()
        self.model = model
        self.scoring = scoring or Scoring(can_share(body_of(model)))
        self.routers = Routers(model)

    def plan(self, segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
        """Numbers of segments, micro-batch by micro-batch, that are cheap together (:func:`plan_for`)."""
        return plan_for(self.scoring.shares, segments, max_tokens)

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """``(N,)`` log-probabilities of the trained tokens, and ``(N,)`` entropies or an empty tensor."""
        # A token that several rows sampled behind the same beginning is scored once.
        distinct = batch.prefixes.numbers[batch.rows, batch.positions]
        numbers, places = distinct.unique(return_inverse=True)
        at = batch.prefixes.places[numbers]
        before = batch.prefixes.numbers.reshape(-1)[at - 1]
        head: Any = self.model.get_output_embeddings()
        self.routers.read(None if self.scoring.shares else batch.prefixes.places)
        hidden = select_rows(hidden_states(body_of(self.model), batch, self.scoring.shares), before)
        own = OwnHead(self.model) if self.scoring.own_head else None
        token_ids = batch.token_ids.reshape(-1)[at]
        values, entropies = head_logprobs(hidden, head, token_ids, temperature, entropy, own=own)
        return select_rows(values, places), entropies[places] if entropy else entropies


def hidden_states(body: PreTrainedModel, batch: MicroBatch, shares: bool) -> Tensor:
    """(U, D) final hidden states of the distinct tokens."""
    if shares:
        return distinct_states(body, batch.token_ids, batch.prefixes)
    # Padding is on the right: no real token can see it, so plain causal attention is exact without a mask.
    hidden = body(input_ids=batch.token_ids, use_cache=False).last_hidden_state
    return select_rows(hidden.flatten(0, 1), batch.prefixes.places)


def plan_for(shares: bool, segments: Sequence[Segment], max_tokens: int) -> list[list[int]]:
    """Numbers of segments, micro-batch by micro-batch: by common prefix, or by length if the model cannot share."""
    return (plan_by_prefix if shares else plan_by_length)(segments, max_tokens)


def find_scoring(model: PreTrainedModel, context_length: int) -> Scoring:
    """The fastest way to score a model's tokens that gives them the probabilities of its own ``forward``.

    Args:
        model: whole, and where it computes.
        context_length: most tokens of a text.

    Raises:
        PolicyError: there is none; it names the model.
    """
    text, count = text_for(model, context_length), 8
    # The second row leaves the first in its middle and ends earlier.
    half = len(text) // 2
    rows = [text, torch.cat([text[:half], text[half:-2].flip(0)])]
    segments = []
    for ids in (np.array(row.tolist()) for row in rows):
        kinds = np.where(np.arange(len(ids)) >= len(ids) - count, ACTION, CONTEXT)
        segments.append(Segment(ids, kinds, np.zeros(len(ids)), np.zeros(len(ids))))
    batch = collate(segments, 0).to(model.device)

    def apart(scoring: Scoring) -> float:
        try:
            logprobs, _ = TokenScorer(model, scoring)(batch, 1.0)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # an architecture may raise anything where it is not called as it expects
            return float("inf")
        # Whatever the logits are, float32 rounds a log-probability: of 70,000 words nearly alike that is more than they
        # are apart.
        rounding = 8 * torch.finfo(torch.float32).eps * known.abs()
        beyond = ((logprobs - known).abs() - rounding).clamp(min=0.0)
        return float((beyond / logits.std().clamp(min=1e-6)).max())

    with waiting("the ways to score tokens to be compared"), evaluating(model), torch.no_grad():
        logits = torch.cat([plain_logits(model, row, count + 1)[:-1] for row in rows])
        last = torch.cat([row[-count:] for row in rows])
        known = logits.log_softmax(-1).gather(1, last[:, None])[:, 0]
        distances, heads = [], heads_of(model, text)
        for shares in (True, False) if can_share(body_of(model)) else (False,):
            for own_head in heads:
                reasons = {
                    "beginnings cannot be shared in its layers": not shares,
                    "its logits are capped or scaled": own_head,
                }
                way = Scoring(shares, own_head, ", ".join(reason for reason, holds in reasons.items() if holds))
                distances.append(apart(way))
                if distances[-1] <= tolerance(model):
                    return way
    raise PolicyError(
        f"{type(model).__name__} cannot be trained: no way of scoring gives its tokens the probabilities of its own "
        f"forward (the nearest is {min(distances):.2g} of the logits' spread apart); choose another model"
    )


def token_scores(batch: MicroBatch, logprobs: Tensor, entropies: Tensor) -> TokenScores:
    """A scorer's results beside the columns of the same tokens."""
    return TokenScores(logprobs, entropies, batch.token_kind, batch.rows, batch.columns)


BLOCK = 2**22
"""Logits in a block: 16 MiB in float32. What fits into one block is kept for the backward pass, and not more."""

LEAST_ROWS = {"cpu": 64}
"""Rows in a block at least, however large the vocabulary: fewer would read the whole head for next to nothing. An
accelerator needs 512 to be busy (300 MiB at 150,000 words)."""


def block_rows(vocabulary: int, device: str = "cpu") -> int:
    """Rows of logits that are worked on at a time.

    >>> block_rows(2048), block_rows(32_000), block_rows(152_064), block_rows(152_064, "cuda")
    (2048, 131, 64, 512)
    """
    return max(LEAST_ROWS.get(device, 512), BLOCK // vocabulary)


def head_logprobs(
    hidden: Tensor,
    head: nn.Module,
    token_ids: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
    rows: int = 0,
    own: OwnHead | None = None,
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
        own: the model's own way from hidden states to logits, in which the head is but a part.

    Returns:
        (N,) log-probabilities, float32, differentiable in ``hidden`` and the head's weights; and the (N,) entropies
        of the distributions in nats, without gradient, or none of them.

    Raises:
        ValueError: a temperature that is not above 0.
    """
    weight: Any = head.weight
    # ZeRO 3 keeps a weight in pieces, and its shape as `ds_shape`.
    temperature, rows = _checked(temperature, rows, getattr(weight, "ds_shape", weight.shape)[0], hidden.device)
    partitioned = type(head) is nn.Linear and hasattr(weight, "ds_id")
    if own is None:
        hidden = hidden.to(weight.dtype)  # Mamba's states are float32
    if own is None and (partitioned or _is_plain(head)):

        def whole(states: Tensor) -> tuple[Tensor, Tensor]:
            given = (states, head.weight, head.bias)
            learns = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in given)
            return _OfHead.apply(*given, token_ids, temperature, rows, entropy, learns)

        return _called_once(head, whole, hidden) if partitioned else whole(hidden)

    # An adapter or the model's own head: through the module. ZeRO 3 gathers its weight once per call, so it is called
    # once: on another rank there may be fewer blocks.
    def block(states: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return _OfLogits.apply((own or head)(states), targets, temperature, entropy)

    rows = max(1, len(hidden)) if hasattr(weight, "ds_id") else rows
    pairs = list(zip(hidden.split(rows), token_ids.split(rows), strict=True))
    if not torch.is_grad_enabled() or len(pairs) == 1:
        blocks = [block(*pair) for pair in pairs]
    else:
        blocks = [checkpoint(block, *pair, use_reentrant=False) for pair in pairs]
    logprobs, entropies = zip(*blocks, strict=True)  # pyright: ignore[reportArgumentType]
    return torch.cat(logprobs), torch.cat(entropies)


def _is_plain(head: nn.Module) -> bool:
    """Whether the head is nothing but a whole matrix, so that its product need not go through the module."""
    return type(head) is nn.Linear and not head._forward_hooks


def _called_once(
    head: nn.Module, forward: Callable[[Tensor], tuple[Tensor, Tensor]], hidden: Tensor
) -> tuple[Tensor, Tensor]:
    """Calls a module with another forward function.

    ZeRO 3 gathers a weight when its module is called, which is a collective operation. The number of blocks depends on
    a rank's own tokens, so calls block by block would wait for ranks that have no more: the module is called once, and
    the blocks are within.
    """
    head.forward = forward
    try:
        return head(hidden)
    finally:
        del head.forward  # the class has its own


def _checked(temperature: float, rows: int, vocabulary: int, device: torch.device) -> tuple[float, int]:
    if temperature <= 0:
        raise ValueError(f"log-probabilities need a temperature above 0, not {temperature}")
    return temperature, rows or block_rows(vocabulary, device.type)


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
        blocks = []
        kept = None
        for states, targets in zip(hidden.split(rows), token_ids.split(rows), strict=True):
            logits = nn.functional.linear(states, weight, bias)
            blocks.append(_read(logits, targets, temperature, entropy))
            if learns and len(hidden) <= rows:
                kept = logits
        logprobs, normalizer, entropies = (torch.cat(parts) for parts in zip(*blocks, strict=True))
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
