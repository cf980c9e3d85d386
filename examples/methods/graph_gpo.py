"""GraphGPO (arXiv 2605.26684): credit by the distance to success in the graph of all episodes' states.

The episodes of a task form one graph: states are its nodes, turns its edges. The distance of a state is the length of
the shortest path from it to a success, through any episode's edges; so a good step of a lost episode counts as one. A
turn is worth 10·γ^d of the state that it leads to, and ten times its other rewards (``invalid_action``); it is compared
with all turns from the same state, and the trajectory's advantage is added as in Eq. 8. A state without a way to a
success is one turn further away than the farthest that has one. So it is in the authors' code, where a success counts
10, and so is γ = 0.1: a turn more is worth a tenth. More than eight turns from a success, differences are as small as
the constant beside the deviation, and A^S fades. Three turns from it a success is worth a thousandth, so a penalty of a
tenth outweighs all else: it teaches harmless commands, and the task is lost (docs/results.md).

    python train.py --config configs/toy.yaml method=examples.methods.graph_gpo:GraphGPO
"""

from __future__ import annotations

from collections import defaultdict, deque

from roleagent import Group, Turn
from roleagent.learners.advantages import (
    Advantages,
    States,
    joint_advantages,
    outcome_advantages,
    state_advantages,
    state_of,
    states_of,
)
from roleagent.learners.method import Method
from roleagent.types import grouping_state

SUCCESS = 10.0
"""What a success is worth."""

GOAL = -2
"""The node that won episodes end in."""


class GraphGPO(Method):
    """GiGPO with the value of a transition in place of the discounted return."""

    settings = {"wia": False, "aiw": False, "estimator": {"gamma": 0.1}}
    compares_states = True

    def advantages(self, group: Group) -> Advantages:
        outcomes, states = outcome_advantages(group, self.estimator), states_of(group, self.estimator)
        known = {
            state_of(turn, self.estimator): number
            for trajectory, row in zip(group.trajectories, states, strict=True)
            for turn, number in zip(trajectory.turns, row, strict=True)
        }
        episodes = group.trajectories
        previous = self.estimator.options.failed_command_state == "previous"  # a failure leads back to where it was
        last = [self._end_of(one.turns[-1], previous) if one.turns else None for one in episodes]
        ends = [GOAL if one.success else known.get(state, -1) for one, state in zip(episodes, last, strict=True)]
        distance, gamma = distances(states, ends), self.estimator.options.gamma
        beyond = max(distance.values()) + 1
        worth = [
            [
                SUCCESS * (gamma ** distance.get(after, beyond) + self.estimator.rewards.others(turn))
                for turn, after in zip(trajectory.turns, [*row[1:], end], strict=False)
            ]
            for trajectory, row, end in zip(episodes, states, ends, strict=True)
        ]
        of_states = state_advantages(worth, states, self.estimator)
        values = joint_advantages(outcomes, of_states, self.estimator.options.alpha)
        return Advantages(values, states, of_states, outcomes)

    @staticmethod
    def _end_of(turn: Turn, previous: bool) -> str | None:
        """The state that an episode ends in."""
        return grouping_state(turn.info) if previous else turn.next_state


def distances(states: States, ends: list[int]) -> dict[int, int]:
    """The turns from each node to the goal, by breadth-first search from it; nodes without a way to it are missing.

    Args:
        states: of each turn, by episode; -1: unknown.
        ends: the node that each episode ends in.

    >>> distances([[0, 1, 2], [0, 2], [3, 1]], [GOAL, -1, 2])  # the second has a shortcut
    {-2: 0, 2: 1, 1: 2, 0: 2, 3: 3}
    """
    before: defaultdict[int, set[int]] = defaultdict(set)
    for row, end in zip(states, ends, strict=True):
        for state, after in zip(row, [*row[1:], end] if row else [], strict=True):
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
