"""Checks that a model is sampled from as the model that it is.

The sampler (:mod:`roleagent.agents.policies.sampling`) gives a model its own attention mask, positions and cache.
Architectures that look at a window, count positions from the cache or scale their logits may ignore that without an
error. The check reads a text in pieces, in rows of different lengths and in branches, and compares the logits with the
model's plain ``forward``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from roleagent.agents.policies.branches import Branches
from roleagent.agents.policies.kv_cache import SlotCache
from roleagent.agents.policies.protocol import PolicyError
from roleagent.agents.policies.sampling import SHARED_PREFIXES, Decoder, prefill_rows
from roleagent.types import Request

SHORT = 24
"""Tokens of the text, where the model has no window."""
LONGEST = 8192
"""Tokens of the longest text that is read. A longer window is not tried: the model is refused beyond it."""
_PIECES = (4, 1, 0)  # tokens left at the end of each piece
_BEHIND = 2  # tokens that the second row is shorter
_FEW = 8  # tokens whose positions are looked at
_WINDOW = re.compile(r"window|chunk|local")
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}  # of logits, relative to their spread
_COARSE = 0.3  # likewise, of models in 16 bits: their rounding alone comes to 0.15, a window that is ignored to 0.7


def check_model(model: PreTrainedModel, context_length: int) -> None:
    """Refuses a model that the sampler would read differently from its own ``forward``.

    Args:
        context_length: most tokens of a text; a window at least as wide is never noticed.

    Raises:
        PolicyError: it names the model, and what to change.
    """
    name, config = type(model).__name__, model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", "eager", SHARED_PREFIXES):
        raise PolicyError(f"the local policy needs attention by sdpa or eager, not {config._attn_implementation}")
    for option in ("logits_scaling", "logit_scale", "final_logit_softcapping"):
        if getattr(config, option, None) not in (None, 1):
            raise PolicyError(f"{name} changes its logits ({option}), which learner and sampler do not")
    windows = _windows(model, context_length)
    with evaluating(model), torch.no_grad():
        text = text_for(model, context_length)
        apart = _tried(name, lambda: _apart(model, text))
        narrow = next((window for window in windows if window >= LONGEST), 0)
        if apart > tolerance(model):
            short = (window for window in windows if 2 * _PIECES[0] <= window < LONGEST)
            narrow = next((window for window in short if _apart(model, text[:window]) <= tolerance(model)), 0)
            if not narrow:
                raise PolicyError(
                    f"the local policy cannot sample from {name}: through its cache the model gives other logits than "
                    f"by its own forward (they are {apart:.2g} of their spread apart); choose a model with full "
                    "attention and rotary positions"
                )
        if narrow:
            raise PolicyError(
                f"{name} attends to a window of {narrow} tokens, which the local policy does not: set "
                f"policy.context={narrow} or less, or choose a model with full attention"
            )
        if not _tried(name, lambda: _has_fixed_positions(model, context_length)):
            low, high = _FEW + 1, context_length
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _has_fixed_positions(model, middle) else (low, middle)
            raise PolicyError(
                f"{name} changes its positions in texts of more than {low} tokens, and cached tokens keep theirs: set "
                f"policy.context={low} or less"
            )


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
    return model(input_ids=text[None], use_cache=False, logits_to_keep=count).logits[0, -count:].float()


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


def _apart(model: PreTrainedModel, text: Tensor) -> float:
    """How far the sampler's logits are from the model's own."""
    ids, found, wanted = text.tolist(), [], []
    decoder, cache = Decoder(model), _empty_cache(model, 2, len(text) + 5)
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


def _has_fixed_positions(model: PreTrainedModel, context_length: int) -> bool:
    """Whether tokens are read the same, however far the text behind them goes."""
    states, tokens = [], text_for(model, _FEW + 1)[None]
    places = torch.arange(_FEW + 1, device=model.device)[None]
    mask = (places[:, None] <= places[:, :, None])[:, None]
    for last in (_FEW, context_length - 1):
        positions = torch.where(places == _FEW, last, places)
        cache = _empty_cache(model, 1, _FEW + 1)
        states.append(Decoder(model).states(cache, tokens, positions, places, mask)[0, :_FEW].float())
    return _distance(*states) <= tolerance(model)


def _tried(name: str, check: Callable[[], Any]) -> Any:
    """The result of a check; what the model raises in it is a refusal."""
    try:
        return check()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # an architecture may raise anything where it is not called as it expects
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PolicyError(
            f"the local policy cannot sample from {name}, which takes no mask, positions or cache of its callers "
            f"({type(error).__name__}: {reason})"
        ) from error


@contextlib.contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Without dropout."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


__all__ = ["check_model", "evaluating", "known_tokens", "plain_logits", "text_for", "tolerance"]
