"""GraphGPO (arXiv 2605.26684): credit by the distance to success in the graph of all episodes' states.

The episodes of a task form one graph: states are its nodes, turns its edges. The distance of a state is the length of
the shortest path from it to a success, through any episode's edges; so a good step of a lost episode counts as one. A
turn is worth γ^d of the state that it leads to (0 where no success can be reached), compared with all turns from the
same state, and the trajectory's advantage is added as in Eq. 8. (Written after the paper's abstract: its
normalization may differ.)

    python train.py --config configs/toy.yaml method=examples.methods.graph_gpo:GraphGPO
"""

from __future__ import annotations

from collections import defaultdict, deque

from roleagent import Group
from roleagent.learners.advantages import (
    Advantages,
    States,
    joint_advantages,
    outcome_advantages,
    state_advantages,
    states_of,
)
from roleagent.learners.method import Method

GOAL = -2
"""The node that won episodes end in."""


class GraphGPO(Method):
    """GiGPO with the value of a transition in place of the discounted return."""

    settings = {"wia": False, "aiw": False}
    compares_states = True

    def advantages(self, group: Group) -> Advantages:
        outcomes, states = outcome_advantages(group, self.estimator), states_of(group, self.estimator)
        won = [trajectory.success for trajectory in group.trajectories]
        distance, gamma = distances(states, won), self.estimator.options.gamma
        worth = [
            [gamma ** distance[after] if after in distance else 0.0 for after in successors(row, success)]
            for row, success in zip(states, won, strict=True)
        ]
        of_states = state_advantages(worth, states, self.estimator)
        values = joint_advantages(outcomes, of_states, self.estimator.options.alpha)
        return Advantages(values, states, of_states, outcomes)


def successors(row: list[int], won: bool) -> list[int]:
    """The node that each turn of an episode leads to; -1 where it is unknown."""
    return [*row[1:], GOAL if won else -1][: len(row)]


def distances(states: States, won: list[bool]) -> dict[int, int]:
    """The turns from each node to the goal, by breadth-first search from it; nodes without a way to it are missing.

    >>> distances([[0, 1, 2], [0, 2], [3, 1]], [True, False, False])  # the second has a shortcut, the third is lost
    {-2: 0, 2: 1, 1: 2, 0: 2, 3: 3}
    """
    before: defaultdict[int, set[int]] = defaultdict(set)
    for row, success in zip(states, won, strict=True):
        for state, after in zip(row, successors(row, success), strict=True):
            if state >= 0 and after != -1:
                before[after].add(state)
    found, waiting = {GOAL: 0}, deque([GOAL])
    while waiting:
        node = waiting.popleft()
        for state in sorted(before[node], reverse=True):
            if state not in found:
                found[state] = found[node] + 1
                waiting.append(state)
    return found
