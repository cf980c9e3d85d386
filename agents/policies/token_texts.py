"""The texts of single tokens, which together are the text of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from roleagent.agents.policies.protocol import Policy
from roleagent.similarity import common_prefix

_HALF = "\ufffd"  # the replacement character: bytes that are no complete character


def decoder(policy: Policy) -> Callable[[Sequence[int]], str]:
    """The text of tokens, special ones and the end of a reply included. An episode repeats most of its pairs."""
    tokenizer = policy.tokenizer

    @cache
    def decode(ids: tuple[int, ...]) -> str:
        return tokenizer.decode([*ids], skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return lambda ids: decode(tuple(ids))


def token_texts(ids: Sequence[int], decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> list[str]:
    """A piece of text for each token, which together are the text of all tokens.

    One character may be several tokens; all but its last are ``""``. A token's text may depend on those before it.

    Args:
        ids: tokens.
        decode: from tokens to text.
        before: a few tokens in front of them, as context.

    >>> halves = {1: b"\\xc3", 2: b"\\xa4", 3: b"t"}
    >>> token_texts([3, 1, 2], lambda ids: b"".join(halves[i] for i in ids).decode("utf-8", "replace"))
    ['t', '', 'ä']
    """
    whole = _beyond(decode(before), decode([*before, *ids]))
    pieces = _stepwise(ids, decode, before)
    if "".join(pieces) != whole:  # the text of tokens depends on more than their neighbors
        pieces = _from_the_start(ids, decode, before, whole)
    return pieces


def _stepwise(ids: Sequence[int], decode: Callable[[Sequence[int]], str], before: Sequence[int]) -> list[str]:
    """Every token decoded behind the one before it."""
    behind, pending, pieces = tuple(before), (), []
    for number, token in enumerate(ids, start=1):
        pending = (*pending, token)
        text = _beyond(decode(behind), decode((*behind, *pending)))
        if text.endswith(_HALF) and number < len(ids) and len(pending) < 8:
            pieces.append("")
        else:
            pieces.append(text)
            behind, pending = pending, ()
    return pieces


def _from_the_start(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], before: Sequence[int], whole: str
) -> list[str]:
    """Every token as its addition to all tokens before it, as far as they are a prefix of the whole."""
    start, known, pieces = decode(before), "", []
    for number in range(1, len(ids) + 1):
        text = _beyond(start, decode([*before, *ids[:number]])) if number < len(ids) else whole
        if len(text) < len(known) or not whole.startswith(text):
            text = known
        pieces.append(text[len(known) :])
        known = text
    return pieces


def _beyond(start: str, text: str) -> str:
    """The part of a text behind its common prefix with ``start``.

    >>> _beyond("ab", "abc"), _beyond("ab ", "abc")
    ('c', 'c')
    """
    return text[common_prefix(start, text) :]


__all__ = ["decoder", "token_texts"]
