"""Scores of an answer: exact match, token F1 and containment, as in the literature.

All three compare normal forms (lower case, no ASCII punctuation, no articles, single spaces) and take the best over
the golden answers. Where a golden answer has no normal form ("The", "?"), an answer must repeat it letter by letter:
otherwise any article would be right, and any text would contain it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from roleagent.envs.searchqa.text import normalize

_VERDICTS = frozenset({"yes", "no", "noanswer"})


class Score(NamedTuple):
    """Exact match (0 or 1), token F1 (in [0, 1]) and containment of a golden answer (0 or 1)."""

    em: float = 0.0
    f1: float = 0.0
    sub_em: float = 0.0


def judge(answer: str, golden: Iterable[str]) -> Score:
    """Scores an answer against every golden answer.

    >>> judge("the Dog!", ["a cat", "dog"])
    Score(em=1.0, f1=1.0, sub_em=1.0)
    >>> judge("It was Paris.", ["Paris", "Paris, France"])
    Score(em=0.0, f1=0.5, sub_em=1.0)
    >>> judge("theatre", ["The"]), judge("no, never", ["no"]).f1
    (Score(em=0.0, f1=0.0, sub_em=0.0), 0.0)
    """
    scores = [_compare(answer, gold) for gold in golden]
    return Score(*(max(kind) for kind in zip(*scores, strict=True))) if scores else Score()


def _compare(answer: str, gold: str) -> Score:
    given, wanted = normalize(answer), normalize(gold)
    if not wanted:
        same = float(answer.strip().lower() == gold.strip().lower())
        return Score(same, same, same)
    return Score(float(given == wanted), _f1(given, wanted), float(wanted in given))


def _f1(given: str, wanted: str) -> float:
    """The harmonic mean of precision and recall over words; a verdict is right or wrong, never half right.

    >>> _f1("red old house", "old house"), _f1("yes", "yes and no")
    (0.8, 0.0)
    """
    if given != wanted and (given in _VERDICTS or wanted in _VERDICTS):
        return 0.0
    words, gold = given.split(), wanted.split()
    common = (Counter(words) & Counter(gold)).total()
    return 2 * common / (len(words) + len(gold))


__all__ = ["Score", "judge"]
