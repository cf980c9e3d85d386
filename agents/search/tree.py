"""Search trees: nodes are states of an episode, edges are replies of the policy.

A path from the root is an episode, token for token what a rollout with the same replies records.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from roleagent.agents.rendering import Conversation
from roleagent.types import Completion, Task, Trajectory, Turn, grouping_state


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """A state, and the reply that led to it.

    Attributes:
        number: its place in the order of creation, unique in its tree; the root is 0. It also numbers the edge.
        depth: replies from the root.
        command: the bare command that the reply held; ``""`` for the root and for a malformed reply.
        reply: the text of the reply.
        prompt_ids: the whole prompt of the reply; empty in a loaded tree.
        completion: the sampled reply; None for the root.
        observation: the text after the command; of the root the first one.
        info: the environment's report after the command.
        reward: of this step.
        outcome: the sum of the ``task`` terms from the root.
        stop_reason: of a leaf, as in :class:`~roleagent.types.Trajectory`; ``"depth"`` at the deepest level of the
            search. ``""``: the episode goes on.
        multiplicity: number of sampled siblings with this command; this is the first one.
        visits: leaves that were backed up through the node (N).
        value_sum: the sum of their outcomes.
        simulated: part of a simulated path: a child that selection does not see.
        exhausted: all of its children are leaves or exhausted.
        snapshot: of the environment, while the search may go on from here; else None.
        conversation: the same of the prompt.
    """

    number: int = 0
    parent: Node | None = None
    depth: int = 0
    command: str = ""
    reply: str = ""
    prompt_ids: tuple[int, ...] = ()
    completion: Completion | None = None
    observation: str = ""
    info: dict[str, Any] = field(default_factory=dict)
    reward: float = 0.0
    outcome: float = 0.0
    terminated: bool = False
    truncated: bool = False
    stop_reason: str = ""
    multiplicity: int = 1
    visits: int = 0
    value_sum: float = 0.0
    simulated: bool = False
    exhausted: bool = False
    children: list[Node] = field(default_factory=list)
    snapshot: Any = None
    conversation: Conversation | None = None

    @property
    def is_given(self) -> bool:
        """Whether the reply is an expert's (``search.head``)."""
        return bool(self.info.get("given"))

    @property
    def value(self) -> float | None:
        """Q, the mean outcome below the node; None without a visit."""
        return self.value_sum / self.visits if self.visits else None

    @property
    def is_leaf(self) -> bool:
        """Whether the episode ends here, or the search does."""
        return bool(self.stop_reason)

    @property
    def open_children(self) -> list[Node]:
        """The children that selection chooses from."""
        return [child for child in self.children if not (child.simulated or child.is_leaf or child.exhausted)]

    @property
    def expanded(self) -> bool:
        """Whether the node has children, apart from simulated ones."""
        return any(not child.simulated for child in self.children)

    def path(self) -> list[Node]:
        """The nodes from below the root to this one."""
        found: list[Node] = []
        node = self
        while node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def ancestors(self) -> Iterator[Node]:
        """The node itself, its parent, and so on up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def back_up(self) -> None:
        """Adds a leaf's outcome and one visit to itself and to all its ancestors."""
        for node in self.ancestors():
            node.visits += 1
            node.value_sum += self.outcome


@dataclass(slots=True, eq=False, repr=False)
class Tree:
    """The search tree of a task.

    Attributes:
        root: the state after ``reset``.
        nodes: all nodes by number.
        descents: finished descents.
        expansions: nodes that were expanded, simulated ones included.
        chosen: selections of a child.
        chosen_by_uct: of these, selections between children that had all been visited; the others draw an unvisited
            child.
        error: of an environment that failed; such a tree has no use.
    """

    task: Task
    root: Node
    nodes: list[Node] = field(default_factory=list)
    descents: int = 0
    expansions: int = 0
    chosen: int = 0
    chosen_by_uct: int = 0
    error: str = ""

    def __post_init__(self) -> None:
        if not self.nodes:
            self.nodes.append(self.root)

    def add(self, node: Node) -> None:
        """Makes a node the last child of its parent, and numbers it."""
        assert node.parent is not None
        node.number, node.depth = len(self.nodes), node.parent.depth + 1
        node.parent.children.append(node)
        self.nodes.append(node)

    @property
    def start(self) -> Node:
        """The node that the search begins with: the root, or the last one whose reply is given."""
        return next((node for node in reversed(self.nodes) if node.is_given), self.root)

    def leaves(self) -> list[Node]:
        """The leaves in the order of creation."""
        return [node for node in self.nodes if node.is_leaf]

    def trajectory(self, node: Node) -> Trajectory:
        """The path to a node as an episode; the prompts of a loaded tree are empty."""
        turns = []
        for step in node.path():
            before = step.parent.info if step.parent is not None else {}
            assert step.completion is not None
            turns.append(
                Turn(
                    step.prompt_ids,
                    step.completion,
                    step.command,
                    step.observation,
                    state=before.get("state"),
                    rewards=dict(step.info.get("rewards", {})),
                    info=step.info,
                    grouping_state=grouping_state(before),
                )
            )
        cut = not (node.terminated or node.truncated)
        reason = node.stop_reason if node.stop_reason not in ("", "depth") else "max_steps"
        first = self.root.observation
        return Trajectory(self.task, tuple(turns), node.terminated, node.truncated or cut, reason, first)

    def release(self) -> None:
        """Drops snapshots and conversations, which a finished search does not need."""
        for node in self.nodes:
            node.snapshot = node.conversation = None


def common_ancestor(one: Node, other: Node) -> Node:
    """The lowest node that both paths go through: the end of τ^i (Eq. 7-9)."""
    above = {id(node) for node in one.ancestors()}
    return next(node for node in other.ancestors() if id(node) in above)


__all__ = ["Node", "Tree", "common_ancestor"]
