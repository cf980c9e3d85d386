"""Random numbers by name: what one part of a run draws does not depend on what others drew."""

from __future__ import annotations

import hashlib

import numpy as np


def random_stream(seed: int, *name: str | int) -> np.random.Generator:
    """The generator of a seed and a name; different names give independent numbers.

    The name is hashed, for numpy fills a short list of seeds with zeros: ``[7]`` and ``[7, 0]`` are one stream there.

    >>> names = [("dagger",), ("dagger", 0), ("dagger", 1), ("batch", 1), ("dagger", 1)]
    >>> drawn = [int(random_stream(7, *name).integers(2**62)) for name in names]
    >>> len(set(drawn)), drawn[2] == drawn[4]
    (4, True)
    """
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:16], "big")])
