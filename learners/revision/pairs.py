"""Good and bad paths of a search tree, and which of them make a pair (Agent-R, arXiv 2501.11425, Eq. 4 and 7–9).

A path is a leaf of the tree. A pair shares its first t steps, the initial trajectory τ^i; behind them the bad path goes
wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roleagent.agents.search.tree import Node, Tree, common_ancestor
from roleagent.config import ConfigError
from roleagent.config.revision import RevisionConfig
from roleagent.envs.wrappers.notes import note_of
from roleagent.failures.verdicts import JudgedPath

_EPSILON = 1e-9  # rewards are sums of floating-point numbers


@dataclass(frozen=True, eq=False)
class Pair:
    """A bad and a good leaf of one tree.

    Attributes:
        shared: t, the number of steps that both have.
    """

    bad: Node
    good: Node
    shared: int


def is_good(outcome: float, alpha: float) -> bool:
    """Whether a final reward is good: above α, or, where α is the best reward, at it.

    >>> is_good(0.5, 0.5), is_good(0.6, 0.5), is_good(1.0, 1.0)
    (False, True, True)
    """
    return outcome > alpha + _EPSILON if alpha < 1 else outcome >= 1 - _EPSILON


def is_separated(bad: float, good: float, options: RevisionConfig) -> bool:
    """Whether β lies between two final rewards: below their difference (``gap``), or between them (``bound``, Eq. 4).

    >>> is_separated(0.5, 0.6, RevisionConfig(beta=0.2)), is_separated(0.1, 0.3, RevisionConfig(beta=0.2, bad="bound"))
    (False, True)
    """
    if options.bad == "gap":
        return good - bad > options.beta + _EPSILON
    return bad < options.beta - _EPSILON and good > options.beta + _EPSILON


def leaves_of(tree: Tree) -> list[Node]:
    """The leaves of a tree whose environment did not fail.

    Raises:
        ConfigError: a final reward outside [0, 1], the scale of α and β.
    """
    leaves = [] if tree.error else [leaf for leaf in tree.leaves() if leaf.depth]
    for leaf in leaves:
        if not -_EPSILON <= leaf.outcome <= 1 + _EPSILON:
            raise ConfigError(
                f"the final reward of {tree.task.task_id} is {leaf.outcome:g}: revision.alpha and beta compare rewards "
                "in [0, 1]; choose a reward of the environment on this scale (env.kwargs)"
            )
    return leaves


def good_leaves(leaves: Sequence[Node], alpha: float, drop_loops: bool = False) -> list[Node]:
    """The good ones, perhaps without those that repeat a state and a command."""
    return [leaf for leaf in leaves if is_good(leaf.outcome, alpha) and not (drop_loops and has_loop(leaf))]


def has_loop(leaf: Node) -> bool:
    """Whether a path gives a command for the second time in the same state."""
    seen = set()
    for node in leaf.path():
        before = node.parent
        assert before is not None
        key = before.info.get("grouping_state") or before.info.get("state") or before.observation, node.command
        if key in seen and note_of(node.command) is None:
            return True
        seen.add(key)
    return False


def make_pairs(tree: Tree, options: RevisionConfig, alpha: float, rng: np.random.Generator) -> list[Pair]:
    """The pairs of a tree.

    Bad leaves that differ in their last step alone are one. Each goes with the good leaf with which it shares most
    steps, then the one of higher reward, then the shorter one (``pairing=any``: drawn ones).

    Args:
        alpha: of the iteration.
        rng: draws good leaves (``any``), and the pairs that are kept of more than ``pairs_per_tree``.
    """
    leaves = leaves_of(tree)
    good = good_leaves(leaves, alpha, options.loops == "drop")
    pairs: list[Pair] = []
    for bad in distinct(leaves):
        partners = [leaf for leaf in good if is_separated(bad.outcome, leaf.outcome, options)]
        order = [int(place) for place in rng.permutation(len(partners))]
        if options.pairing != "any":
            order.sort(
                key=lambda i: (-common_ancestor(bad, partners[i]).depth, -partners[i].outcome, partners[i].depth, i)
            )
        chosen = [partners[place] for place in order[: options.pairs_per_bad]]
        pairs += [Pair(bad, leaf, common_ancestor(bad, leaf).depth) for leaf in chosen]
    pairs = [pair for pair in pairs if pair.shared < min(pair.bad.depth, pair.good.depth)]
    kept = sorted(rng.permutation(len(pairs))[: options.pairs_per_tree])
    return [pairs[place] for place in kept]


def distinct(leaves: Sequence[Node]) -> list[Node]:
    """The first of the leaves that differ in their last step and not in their reward."""
    found: dict[tuple[int, float], Node] = {}
    for leaf in leaves:
        found.setdefault((id(leaf.parent), leaf.outcome), leaf)
    return list(found.values())


def judged_path(tree: Tree, pair: Pair) -> JudgedPath:
    """What a judge is given of a pair's bad path."""
    nodes = pair.bad.path()
    values = [node.value for node in (tree.root, *nodes)]
    return JudgedPath(tree.trajectory(pair.bad), pair.shared, tuple(node.number for node in nodes), tuple(values))


__all__ = [
    *("Pair", "distinct", "good_leaves", "has_loop", "is_good", "is_separated", "judged_path", "leaves_of"),
    "make_pairs",
]
