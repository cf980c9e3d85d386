"""Tasks of a grammar, for the tests of all grammars."""

import numpy as np

from roleagent.task_grammar import Refused


def written(grammar, count, seed=0):
    """Base tasks, and tasks with fields drawn at random."""
    rng = np.random.default_rng(seed)
    while count:
        spec = grammar.base(rng)
        try:
            for _ in range(int(rng.integers(3))):
                spec = grammar.vary(spec, rng)
        except Refused:
            continue
        yield spec
        count -= 1
