"""The probabilities by which the failure curriculum draws its tasks."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator


def mixture(
    uniform: np.ndarray,
    retrieved: np.ndarray,
    waiting: np.ndarray,
    type_of: np.ndarray,
    epsilon: float,
    overlooked: float,
) -> np.ndarray:
    """(n,) probabilities p = (1 − ε)·uniform + ε·retrieved over the n tasks of a split.

    Args:
        uniform: (n,) probabilities of the base.
        retrieved: (n,) weights of the retrieved tasks; where all are 0 the result is ``uniform``.
        waiting: (n,) weights by which overlooked tasks are drawn.
        type_of: (n,) the type of each task, as a number.
        epsilon: ε in [0, 1).
        overlooked: share of the retrieved part in [0, 1] that goes to overlooked tasks of the same type.

    >>> mixture(np.full(2, 0.5), np.array([0.0, 3.0]), np.zeros(2), np.zeros(2), 0.5, 0.0).tolist()
    [0.25, 0.75]
    """
    if not retrieved.any():
        return uniform
    retrieved = retrieved / retrieved.sum()
    same_type = np.zeros_like(retrieved)
    for number in np.unique(type_of[retrieved > 0]):
        of_type = type_of == number
        same = waiting * of_type
        # Where every task of the type was just played, a retrieved task is drawn after all.
        same_type += retrieved[of_type].sum() * (same / same.sum() if same.any() else retrieved)
    retrieved = (1 - overlooked) * retrieved + overlooked * same_type
    return (1 - epsilon) * uniform + epsilon * retrieved


def one_of(weights: np.ndarray, rng: Generator) -> int | None:
    """A place drawn by its weight; None where there is no weight."""
    total = weights.sum()
    return int(rng.choice(len(weights), p=weights / total)) if total > 0 else None
