"""Tasks of a grammar, for the tests of all grammars."""

import string

import numpy as np

from roleagent.tasks.grammar import Refused


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


def hostile_line(rng, grammar):
    """A line that a bad model may write: noise, control characters, tags, wrong numbers, cut or doubled fields."""
    names, kinds = list(grammar.fields), rng.randrange(5)
    if kinds == 0:
        return "".join(rng.choice(string.printable + "\x00\u202e<>=é") for _ in range(rng.randrange(60)))
    pairs = [f"{name}={rng.choice((*grammar.fields[name], 'NaN', '-1', '1e9', '<tasks>', 'x' * 50))}" for name in names]
    if kinds == 1:
        pairs[rng.randrange(len(pairs))] = rng.choice(["", "=", "==", "</tasks>", "a=b=c", "\x1b[2J", names[0] + "="])
    elif kinds == 2:
        pairs = rng.sample(pairs, rng.randrange(len(pairs) + 1))
    elif kinds == 3:
        pairs += rng.sample(pairs, 1)
    return " ".join(pairs)


def well_formed_line(rng, grammar):
    return " ".join(f"{name}={rng.choice(choices)}" for name, choices in grammar.fields.items())
