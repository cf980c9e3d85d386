"""Selection in a search tree: UCT (Agent-R, Eq. 5), or a draw."""

from __future__ import annotations

import math

import numpy as np

from roleagent.agents.search.tree import Node, Tree


def uct_score(child: Node, exploration: float) -> float:
    """Q(s) + c √(log N_p(s) / N(s)) (Eq. 5); infinite for a child without a visit.

    Args:
        child: not the root.
        exploration: c_uct ≥ 0.
    """
    if not child.visits or child.parent is None:
        return math.inf
    return child.value_sum / child.visits + exploration * math.sqrt(math.log(child.parent.visits) / child.visits)


def select(tree: Tree, node: Node, exploration: float | None, rng: np.random.Generator) -> Node | None:
    """The child with the largest score; ties are drawn. Leaves and exhausted children are not chosen.

    Args:
        exploration: c_uct; None: any child is drawn.

    Returns:
        the child; None if there is none to choose: then the node is exhausted, and nodes above it may be, too.
    """
    choices = node.open_children
    if not choices:
        for above in node.ancestors():
            if above.open_children:
                break
            above.exhausted = True
        return None
    tree.chosen += 1
    if exploration is not None:
        scores = [uct_score(child, exploration) for child in choices]
        best = max(scores)
        tree.chosen_by_uct += len(choices) > 1 and not math.isinf(best)
        choices = [child for child, score in zip(choices, scores, strict=True) if score == best]
    return choices[int(rng.integers(len(choices)))] if len(choices) > 1 else choices[0]


__all__ = ["select", "uct_score"]
