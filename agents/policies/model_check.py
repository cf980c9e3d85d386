"""Finds how a model can be sampled from, so that it plays as the model that it is.

The fast path (:mod:`roleagent.agents.policies.sampling`) gives a model its own attention mask, positions and cache.
Architectures that look at a window, keep states or count positions may ignore that without an error. The check reads a
text in pieces, in rows of different lengths and in branches, and compares the logits with the model's plain
``forward``. Where they differ, the general path is taken (:mod:`roleagent.agents.policies.own_cache`): the model's own
forward and cache, of which the same is asked.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roleagent.agents.policies.branches import Branches
from roleagent.agents.policies.kv_cache import SlotCache
from roleagent.agents.policies.own_cache import Means, OwnForward, join, select
from roleagent.agents.policies.protocol import Policy, PolicyError
from roleagent.agents.policies.sampling import (
    NO_NUMBERS,
    SHARED_PREFIXES,
    Decoder,
    OwnHead,
    body_of,
    prefill_rows,
)
from roleagent.slow_notice import waiting
from roleagent.types import Request

SHORT = 24
"""Tokens of the text, where the model has no window."""
LONGEST = 2048
"""Tokens of the longest text that is read. A longer window is not tried: such a model takes the general path."""
_PIECES = (4, 1, 0)  # tokens left at the end of each piece
_BEHIND = 2  # tokens that the second row is shorter
_REPLIES, _DRAWN = 8, 8  # of a sampler that is compared: replies, of as many engines, and tokens of each
_ATTENTION = ("sdpa", "eager", SHARED_PREFIXES)  # which take any mask and type
_FEW = 8  # tokens whose positions are looked at
_WINDOW = re.compile(r"window|chunk|local|index_topk|compress")
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}  # of logits, relative to their spread
_COARSE = 0.3  # likewise, of models in 16 bits: their rounding alone comes to 0.15, a window that is ignored to 0.7


@dataclass(frozen=True)
class SamplingPath:
    """How a model is sampled from.

    Attributes:
        means: what the model's own cache can be used for; None: the fast path, with a cache of this project.
        own_head: whether the fast path leaves the logits to the model's own ``forward``.
        reason: why the fast path is not taken, or not whole; empty where it is.
    """

    means: Means | None = None
    own_head: bool = False
    reason: str = ""

    def __str__(self) -> str:
        if self.means is None:
            return f"one cache for all episodes{', logits by the model (' + self.reason + ')' if self.own_head else ''}"
        if not self.means.caches:
            how = "the model's own forward, without a cache: every token reads its whole text again"
        else:
            limits = {
                "every prompt is read as a whole": not self.means.continues,
                "one episode after another": not self.means.joins,
                "texts of equal length together": self.means.joins and not self.means.pads,
            }
            how = ", ".join(["the model's own forward and cache", *(name for name, limit in limits.items() if limit)])
        return f"{how} ({self.reason})"


def find_sampling_path(model: PreTrainedModel, context_length: int) -> SamplingPath:
    """The fastest way to sample from a model whose logits are those of its own ``forward``.

    Args:
        context_length: most tokens of a text; a window at least as wide is never noticed.

    Raises:
        PolicyError: the model's own ``forward`` fails, or is not causal; it names the model, and what to change.
    """
    with waiting("the ways to sample to be compared"), evaluating(model), torch.no_grad():
        text = text_for(model, context_length)
        try:
            _check_forward(model, text, context_length)
        except (PolicyError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # an architecture may raise anything
            raise PolicyError(f"{type(model).__name__} cannot read a text: {_reason(error)}") from error
        own_head, reason = _fast_path(model, text, context_length)
        if not reason:
            why = "they are capped or scaled" if own_head else ""
            return SamplingPath(own_head=own_head, reason=why)
        return SamplingPath(_means(model, text), reason=reason)


@torch.no_grad()
def check_sampler(model: PreTrainedModel, known: int, sampler: Policy) -> None:
    """Refuses a sampler that draws tokens with other probabilities than the model's own ``forward`` gives them.

    It may compute with fewer bits. A layer that it reads in another way is further off, and so are weights that did not
    arrive.

    Args:
        model: whole, and where it computes.
        known: sampled tokens are below it.
        sampler: with the weights of the model.

    Raises:
        PolicyError: it names the model, and says what to do.
    """
    with waiting("the sampler to be compared with the model"), evaluating(model):
        text = text_for(model, sampler.context_length - _DRAWN)
        asked = [Request(tuple(text.tolist()), slot, _DRAWN, frozenset()) for slot in range(_REPLIES)]
        for reply in {reply.token_ids: reply for reply in sampler.generate(asked, 1.0)}.values():
            drawn = torch.tensor(reply.token_ids, device=text.device)
            logits = plain_logits(model, torch.cat([text, drawn]), len(drawn) + 1)[:-1, :known]
            own = logits.log_softmax(-1).gather(1, drawn[:, None])[:, 0].cpu()
            apart = float((own - torch.tensor(reply.logprobs)).abs().max())
            if not apart <= _COARSE * float(logits.std()):
                raise PolicyError(
                    f"what samples gives tokens log-probabilities up to {apart:.2g} nats from those of "
                    f"{type(model).__name__}'s own forward, so it computes another model; set rollout.backend=local"
                )


def _check_forward(model: PreTrainedModel, text: Tensor, context_length: int) -> None:
    """Refuses a model that reads a token in another way when more follows: what it writes token by token would have
    other probabilities than in the whole text, which the learner reads.

    Raises:
        PolicyError: it names the model, and what to change.
    """
    if plain_logits(model, text, 1).isnan().any():
        raise PolicyError(NO_NUMBERS)
    if (length := _longest(len(text), lambda length: _is_causal(model, text[:length]))) < len(text):
        what = "looks ahead"
    elif (length := _longest(context_length, lambda length: _has_fixed_positions(model, length))) < context_length:
        what = "changes its positions"
    else:
        return
    shorter = f", or set policy.context={length} or less" if length > SHORT else ""
    raise PolicyError(
        f"{type(model).__name__} {what} in texts of more than {length} tokens: choose a causal language model{shorter}"
    )


def _longest(most: int, holds: Callable[[int], bool]) -> int:
    """The greatest length up to ``most`` that something holds for, if it holds for all shorter ones."""
    if holds(most):
        return most
    low, high = _FEW, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _fast_path(model: PreTrainedModel, text: Tensor, context_length: int) -> tuple[bool, str]:
    """Whether the fast path needs the model's own head, and why the path cannot be taken, if so."""
    if (attention := _attention(model)) not in _ATTENTION:
        return False, f"its attention is {attention}"
    windows = _windows(model, context_length)
    wide = next((window for window in windows if window >= LONGEST), 0)
    if wide:
        return False, f"its {wide} tokens wide window is too long to be tried"
    try:
        heads = heads_of(model, text)
        for length in (len(text), *(window for window in windows if 2 * _PIECES[0] <= window)):
            for own_head in heads:
                if _apart(model, text[:length], own_head) <= tolerance(model):
                    return own_head, "" if length == len(text) else f"it attends to a window of {length} tokens"
    except torch.OutOfMemoryError:
        raise
    except Exception:  # an architecture may raise anything where it is not called as it expects
        return False, "it takes no mask, positions or cache of others"
    return False, "it keeps more of a text than keys and values"


def heads_of(model: PreTrainedModel, text: Tensor) -> tuple[bool, ...]:
    """Whether the model's own ``forward`` must make the logits, as the ways to be tried: no, or yes and then no.

    Both make them of the same states, so that rounding hides no cap of a model in 16 bits. They also differ where
    ``forward`` reads the states past its body (OPT), and the head alone is right.
    """

    def alike() -> bool:
        states = body_of(model)(input_ids=text[None, :SHORT], use_cache=False).last_hidden_state[0]
        head: Any = model.get_output_embeddings()
        plain = head(states.to(head.weight.dtype))
        return _distance(plain, OwnHead(model)(states).float()) <= max(1e-3, 2 * torch.finfo(plain.dtype).eps)

    return (False,) if _holds(alike) else (True, False)


def _means(model: PreTrainedModel, text: Tensor) -> Means:
    """What a model's own cache can be used for: each use is tried, and gives the logits of its plain ``forward``."""
    forward = OwnForward(model)
    ids, others = text[None], text.flip(0)[None]
    known = {id(row): plain_logits(model, row[0], 4 + _BEHIND) for row in (ids, others)}

    def read(row: Tensor, start: int, end: int, cache: Any = None) -> tuple[Tensor, Any]:
        return forward.read(row[:, start:end], cache, [start] if start else ())

    def agrees(found: Tensor, row: Tensor, left: int) -> bool:
        return _distance(found, known[id(row)][-1 - left][None]) <= tolerance(model)

    def caches() -> bool:
        logits, cache = read(ids, 0, -2)
        good = agrees(logits, ids, 2)
        read(others, len(text) - 2, len(text) - 1, select(cache, [0], len(text) - 2))  # a copy goes its own way
        for left in (1, 0):
            end = len(text) - left
            logits, cache = read(ids, end - 1, end, cache)
            good &= agrees(logits, ids, left)
        return good and (cache is not None)

    def continues() -> bool:
        half = len(text) // 2
        logits, cache = read(ids, half, len(text) - 1, read(ids, 0, half)[1])
        return agrees(logits, ids, 1) and agrees(read(ids, len(text) - 1, len(text), cache)[0], ids, 0)

    def joins(behind: int) -> bool:
        """Two rows, of which the second ends ``behind`` tokens earlier, give two tokens; the second continues alone."""
        rows, lefts, good = (ids, others), [3, 3 + behind], True
        caches = [read(row, 0, len(text) - left)[1] for row, left in zip(rows, lefts, strict=True)]
        cache = join(caches, [len(text) - left for left in lefts])
        for _ in range(2):
            ends = [len(text) - left for left in lefts]
            new = torch.cat([row[:, end : end + 1] for row, end in zip(rows, ends, strict=True)])
            logits, cache = forward.read(new, cache, ends)
            lefts = [left - 1 for left in lefts]
            good &= all(map(agrees, logits.split(1), rows, lefts))
        end = len(text) - lefts[1]
        logits, _ = read(others, end, end + 1, select(cache, [1], end))
        return good and agrees(logits, others, lefts[1] - 1)

    if not _holds(caches):
        return Means(caches=False, continues=False, joins=True, pads=False)
    pads = _holds(lambda: joins(_BEHIND))
    return Means(True, _holds(continues), pads or _holds(lambda: joins(0)), pads)


def _holds(check: Callable[[], bool]) -> bool:
    """Whether a check succeeds; one that raises does not."""
    try:
        return check()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # an architecture may raise anything where it cannot do what is asked
        return False


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}, {(str(error).strip() or 'without a message').splitlines()[0]}"


def known_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The number that all token ids of a tokenizer are below.

    The model may have more: vocabularies are padded. The tokenizer may have more special tokens that no text of ours
    has (Gemma 3's marks of pictures, which its models of text lack).

    Raises:
        PolicyError: a text may have tokens that the model lacks, or the tokenizer is of another model.
    """
    rows = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    ids = tokenizer.get_vocab()
    asked = {tokenizer.eos_token, tokenizer.pad_token}
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    unused = {text for text in added - asked if text not in str(tokenizer.chat_template or "")}
    known = 1 + max((number for number in ids.values() if number < rows), default=-1)
    if lacking := sorted(text for text, number in ids.items() if number >= rows and text not in unused):
        raise PolicyError(
            f"the tokenizer has tokens that {type(model).__name__} lacks ({', '.join(map(repr, lacking[:3]))}; "
            f"{len(lacking)} in all): its embeddings have {rows} rows. Resize the model "
            f"(model.resize_token_embeddings({max(ids.values()) + 1})) and save it with this tokenizer, or use the "
            "model's own tokenizer"
        )
    if 2 * known < rows:
        raise PolicyError(
            f"the tokenizer has {known} tokens and {type(model).__name__} {rows}: it belongs to another model"
        )
    return known


def text_for(model: PreTrainedModel, context_length: int) -> Tensor:
    """Random tokens, always the same, ``(n,)``: a text longer than the model's windows, or a short one."""
    crossed = [window + max(8, window // 4) for window in _windows(model, context_length) if window < LONGEST]
    length = min(max([SHORT, *crossed]), context_length, LONGEST)
    vocabulary = len(model.get_input_embeddings().weight)  # type: ignore[arg-type]
    return torch.randint(vocabulary, (length,), generator=torch.Generator().manual_seed(0)).to(model.device)


def plain_logits(model: PreTrainedModel, text: Tensor, count: int) -> Tensor:
    """The logits ``(count, vocabulary)`` behind the last tokens of a text, by the model's plain ``forward``."""
    keep = {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    return model(input_ids=text[None], use_cache=False, **keep).logits[0, -count:].float()


def tolerance(model: PreTrainedModel) -> float:
    """How far logits may be apart, relative to their spread."""
    return _TOLERANCE.get(model.dtype, _COARSE)


def _distance(found: Tensor, known: Tensor) -> float:
    """How far rows ``(n, width)`` are apart, relative to their spread: that of the row that is farthest."""
    spread = (known - known.mean(-1, keepdim=True)).norm(dim=-1).clamp(min=1e-6)
    return float(((found.float() - known).norm(dim=-1) / spread).max())


def _windows(model: PreTrainedModel, context_length: int) -> list[int]:
    """The numbers in a model's configuration that may be a window that a text crosses, ascending."""

    def numbers(settings: Mapping[str, Any]) -> Iterator[int]:
        for name, value in settings.items():
            if isinstance(value, Mapping):
                yield from numbers(value)
            elif _WINDOW.search(str(name)) and type(value) is int:
                yield value

    return sorted(number for number in set(numbers(model.config.to_dict())) if 1 < number < context_length)


def _empty_cache(model: PreTrainedModel, rows: int, capacity: int) -> SlotCache:
    cache = SlotCache(model.config.get_text_config().num_hidden_layers, model.device)
    cache.open(range(rows), capacity)
    return cache


def _apart(model: PreTrainedModel, text: Tensor, own_head: bool = False) -> float:
    """How far the fast path's logits are from the model's own."""
    ids, found, wanted = text.tolist(), [], []
    decoder, cache = Decoder(model, own_head=own_head), _empty_cache(model, 2, len(text) + 5)
    read = 0
    for left in _PIECES:
        ends = (len(ids) - left, len(ids) - left - _BEHIND)
        found.append(prefill_rows(decoder, cache, [ids[:end] for end in ends], [read, max(0, read - _BEHIND)]))
        wanted += [end - len(ids) - 1 for end in ends]
        read = ends[0]
    table = Branches([[Request(tuple(ids[:end]), 0, 1, frozenset()) for end in ends]], model.device)
    table.open(decoder, cache.fork(table.slots, table.base + table.count * table.columns))
    wanted += wanted[-2:]
    return _distance(torch.cat([*found, table.logits]), plain_logits(model, text, 1 - min(wanted))[wanted])


def _is_causal(model: PreTrainedModel, text: Tensor) -> bool:
    """Whether the last tokens of a text do not change what is before them."""
    count = min(64, len(text) - 2)
    longer = plain_logits(model, text, count + 2)[:-2]
    return _distance(longer, plain_logits(model, text[:-2], count)) <= tolerance(model)


def _has_fixed_positions(model: PreTrainedModel, length: int) -> bool:
    """Whether tokens are read the same, however far the text behind them goes, up to ``length`` tokens."""
    if length <= _FEW or "position_ids" not in inspect.signature(model.forward).parameters:
        return True
    tokens, near = text_for(model, _FEW + 1)[None], torch.arange(_FEW + 1, device=model.device)[None]
    far = torch.where(near == _FEW, length - 1, near)
    one, other = (model(input_ids=tokens, position_ids=at, use_cache=False).logits[0, :_FEW] for at in (near, far))
    return _distance(one, other.float()) <= tolerance(model)


@contextlib.contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout, and in float32: shorter products (TF32) and weights (bfloat16) round too much.

    A model stays in 16 bits where its device has no room for more, or its attention is of 16 bits alone.
    """
    training, precision = model.training, torch.get_float32_matmul_precision()
    short = [one for one in (*model.parameters(), *model.buffers()) if one.dtype in (torch.bfloat16, torch.float16)]
    if 2 * sum(one.numel() for one in short) > _room(model.device) or _attention(model) not in _ATTENTION:
        short = []
    types = [one.dtype for one in short]
    model.eval()
    torch.set_float32_matmul_precision("highest")
    try:
        for one in short:
            one.data = one.data.float()
        yield
    finally:
        for one, dtype in zip(short, types, strict=True):
            one.data = one.data.to(dtype)
        torch.set_float32_matmul_precision(precision)
        model.train(training)


def _room(device: torch.device) -> float:
    """Free bytes of a device, but for a tenth."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    return 0.9 * free


def _attention(model: PreTrainedModel) -> str:
    return str(model.config.get_text_config()._attn_implementation)


__all__ = [
    "SamplingPath",
    "check_sampler",
    "evaluating",
    "find_sampling_path",
    "heads_of",
    "known_tokens",
    "plain_logits",
    "text_for",
    "tolerance",
]
