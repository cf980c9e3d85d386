"""Similarity of texts, and groups of equal states.

:func:`lms` is the longest-matching-subsequence similarity of the paper (Eq. 4), :func:`group_states` the state groups
of Eq. 7. Both are pure functions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import combinations

import numpy as np
from rapidfuzz.distance import Indel
from rapidfuzz.process import cdist

from roleagent.imports import load_object
from roleagent.options import ConfigError

_BLOCK = 256  # texts compared in one call: large enough to keep the call's overhead down, small enough for the cache
_SCORER = Indel.normalized_similarity


def lms(a: str, b: str) -> float:
    """2·|LCS(a, b)| / (|a| + |b|) over characters, in [0, 1]; symmetric, 1 for equal texts.

    >>> lms("You see an egg.", "You see an egg."), lms("abc", "xyz"), round(lms("abcd", "acd"), 3)
    (1.0, 0.0, 0.857)
    """
    return _SCORER(a, b)


def lms_tokens(a: str, b: str) -> float:
    """Like :func:`lms`, over words; the length of a wrong word does not matter.

    >>> lms_tokens("go to desk 1", "go to desk 12")
    0.75
    """
    return _SCORER(a.split(), b.split())


def difflib_ratio(a: str, b: str) -> float:
    """The ratio of ``difflib.SequenceMatcher``, by which GiGPO's and the authors' code compare, in [0, 1].

    It takes the longest common block first, so it finds less than the longest common subsequence: it is at most
    :func:`lms`. It is not symmetric, and above 200 characters leaves out frequent ones.

    >>> round(lms("bacbc", "bcabc"), 3), difflib_ratio("bacbc", "bcabc")
    (0.8, 0.4)
    """
    return SequenceMatcher(None, a, b).ratio()


Similarity = Callable[[str, str], float]
"""Maps two texts to [0, 1]."""

SIMILARITIES: dict[str, Similarity] = {"lcs": lms, "difflib": difflib_ratio}


def similarity_of(name: str) -> Similarity:
    """The function of ``estimator.similarity``: one of :data:`SIMILARITIES`, or a user's ``module:function``.

    Raises:
        ConfigError: there is no such function.
    """
    function = SIMILARITIES[name] if name in SIMILARITIES else load_object(name)
    if not callable(function):
        raise ConfigError(f"estimator.similarity={name} is no function of two texts")
    return function  # pyright: ignore[reportReturnType] - what it returns is seen when it is called


def group_states(
    states: Sequence[str | None], threshold: float | None = None, similarity: Similarity = lms
) -> list[int]:
    """Labels states; two states have the same label if and only if they count as the same.

    Args:
        states: texts; None is a state that cannot be known.
        threshold: None: equal texts are the same. In (0, 1]: texts that are at least so similar are the same, and so
            are texts linked by a chain of such pairs (connected components, so that no order of the states matters).
        similarity: of two texts; where it is not symmetric, the pair counts that is more similar.

    Returns:
        One label per state, 0, 1, … in order of first appearance; -1 for None, which is never grouped.

    Raises:
        ValueError: the threshold is outside (0, 1].

    >>> group_states(["a shelf", "a desk", None, "a shelf"])
    [0, 1, -1, 0]
    >>> group_states(["cabinet 1 is closed", "cabinet 7 is closed", "nothing"], threshold=0.9)
    [0, 0, 1]
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise ValueError(f"the similarity threshold must be in (0, 1], not {threshold}")
    texts = list(dict.fromkeys(state for state in states if state is not None))
    if threshold is None:
        component = {text: position for position, text in enumerate(texts)}
    else:
        component = dict(zip(texts, _components(len(texts), _similar(texts, threshold, similarity)), strict=True))
    labels: dict[int, int] = {}
    return [-1 if state is None else labels.setdefault(component[state], len(labels)) for state in states]


def _similar(texts: Sequence[str], threshold: float, similarity: Similarity) -> Iterator[tuple[int, int]]:
    """The positions of all pairs of ``texts`` (all different) that are at least so similar."""
    if similarity is lms:
        yield from _lms_pairs(texts, threshold)
        return
    # difflib's ratio is at most lms, which is fast: only the pairs that lms finds can be similar.
    by_lms = similarity is difflib_ratio
    pairs = _lms_pairs(texts, threshold - 1e-6) if by_lms else combinations(range(len(texts)), 2)
    for i, j in pairs:
        if max(similarity(texts[i], texts[j]), similarity(texts[j], texts[i])) >= threshold:
            yield i, j


def _lms_pairs(texts: Sequence[str], threshold: float) -> Iterator[tuple[int, int]]:
    """The positions of the pairs with ``lms >= threshold``."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    by_length = [texts[index] for index in order]
    lengths = [len(text) for text in by_length]
    for start in range(0, len(texts), _BLOCK):
        rows = by_length[start : start + _BLOCK]
        # |LCS| ≤ the shorter length, so a pair can only reach the threshold t if 2·short ≥ t·(short + long).
        longest = lengths[start + len(rows) - 1] * (2 - threshold) / threshold
        end = bisect_right(lengths, longest + 1e-9)
        # The scorer's own cutoff loses pairs that meet the threshold exactly (1 - 0.8 < 0.2), hence the second look.
        similar = cdist(rows, by_length[start:end], scorer=_SCORER, score_cutoff=threshold - 1e-6, dtype=np.float64)
        for row, column in zip(*np.nonzero(similar >= threshold), strict=True):
            if row != column:
                yield order[start + int(row)], order[start + int(column)]


def _components(count: int, pairs: Iterator[tuple[int, int]]) -> list[int]:
    """The connected component of each of so many nodes."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for i, j in pairs:
        parent[root(i)] = root(j)
    return [root(node) for node in range(count)]


def common_prefix(left: Sequence[int] | str, right: Sequence[int] | str) -> int:
    """Length of the longest common prefix of two token sequences, or texts.

    >>> common_prefix([1, 2, 3], (1, 2, 4, 5))
    2
    """
    n = min(len(left), len(right))
    if tuple(left[:n]) == tuple(right[:n]):
        return n
    return next(position for position in range(n) if left[position] != right[position])
