"""Converts text to index terms, exactly like Lucene's English analyzer.

Words (:mod:`~roleagent.envs.retrieval.lexical.words`) lose a possessive ``'s`` and their case; the most common English
words are dropped, the others stemmed (:mod:`~roleagent.envs.retrieval.lexical.porter`). Documents and queries are
treated alike.
"""

from __future__ import annotations

from itertools import chain

from roleagent.envs.retrieval.lexical.porter import stem
from roleagent.envs.retrieval.lexical.words import words

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())

_POSSESSIVES = tuple(apostrophe + s for apostrophe in "'\u2019\uff07" for s in "sS")


def analyze(text: str) -> list[str]:
    """The terms of a text, in order, repetitions kept.

    >>> analyze("The dog's running shoes, 3.5 inches")
    ['dog', 'run', 'shoe', '3.5', 'inch']
    """
    # No word contains a space, and the pieces between spaces repeat themselves: each is analyzed once.
    return list(chain.from_iterable(map(_pieces.__getitem__, text.split(" "))))


def _terms(piece: str) -> tuple[str, ...]:
    lowered = (_lower(word[:-2] if word.endswith(_POSSESSIVES) else word) for word in words(piece))
    return tuple(_stem(word) for word in lowered if word not in STOP_WORDS)


def _lower(word: str) -> str:
    """Lower case character by character: no final sigma, no dot above after a dotted i."""
    return word.lower() if word.isascii() else "".join(letter.lower()[0] for letter in word)


def _stem(word: str) -> str:
    """The stem, found on UTF-16 units as Java does: a character beyond U+FFFF counts as two letters that differ."""
    if word.isascii() or max(word) <= "\uffff":
        return stem(word)
    units = memoryview(word.encode("utf-16-le", "surrogatepass")).cast("H")
    stemmed = stem("".join(map(chr, units)))
    return stemmed.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class _Pieces(dict[str, tuple[str, ...]]):
    """The terms of pieces of text. Short pieces are kept, up to a number that bounds the memory."""

    MOST, LONGEST = 1 << 17, 64

    def __missing__(self, piece: str) -> tuple[str, ...]:
        terms = _terms(piece)
        if len(piece) <= self.LONGEST:
            if len(self) >= self.MOST:
                self.clear()
            self[piece] = terms
        return terms


_pieces = _Pieces()

__all__ = ["STOP_WORDS", "analyze"]
