"""The search of Agent-R: many trees side by side.

A tree is played as an episode is: its search awaits the policy's replies, and :mod:`roleagent.agents.episode` samples
those of all trees in one call.

Each simulation goes from the root of a tree to a leaf. It expands the nodes on its way: the policy samples
``num_children`` replies, and those with the same command are one child. Each child is played at once. Every new leaf
adds its outcome to all nodes above it.

Nodes are states of an episode, edges are replies of the policy. A path from the root is an episode, token for token
what a rollout with the same replies records. Which node is expanded next is chosen by UCT (Eq. 5).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.episode import Ask, Batch, Scheduler
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rendering import Conversation
from roleagent.agents.rollout import Rollout
from roleagent.config import ConfigError
from roleagent.envs.failures.scripted_episode import ScriptedEpisode
from roleagent.envs.mixture import Mixture
from roleagent.envs.restoring import RecordedStep, Restorer
from roleagent.imports import error_line
from roleagent.learners.agent_r.options import SearchConfig
from roleagent.slow_notice import count
from roleagent.types import Completion, Request, Task, Trajectory, Turn, ending, grouping_state, reward_terms


def uct_score(child: Node, exploration: float) -> float:
    """Q(s) + c √(log N_p(s) / N(s)) (Eq. 5); infinite for a child without a visit.

    Args:
        child: not the root.
        exploration: c_uct ≥ 0.
    """
    if not child.visits or child.parent is None:
        return math.inf
    return child.value_sum / child.visits + exploration * math.sqrt(math.log(child.parent.visits) / child.visits)


def select(tree: Tree, node: Node, exploration: float, rng: np.random.Generator) -> Node | None:
    """The child with the largest score; ties are drawn. Leaves and exhausted children are not chosen.

    Args:
        exploration: c_uct.

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
    scores = [uct_score(child, exploration) for child in choices]
    best = max(scores)
    tree.chosen_by_uct += len(choices) > 1 and not math.isinf(best)
    choices = [child for child, score in zip(choices, scores, strict=True) if score == best]
    return choices[int(rng.integers(len(choices)))] if len(choices) > 1 else choices[0]


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
        """Whether the reply is an expert's (``options.search.expert_prefix``)."""
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
        simulations: finished simulations.
        expansions: nodes that were expanded, simulated ones included.
        chosen: selections of a child.
        chosen_by_uct: of these, selections between children that had all been visited; the others draw an unvisited
            child.
        error: of an environment that failed; such a tree has no use.
    """

    task: Task
    root: Node
    nodes: list[Node] = field(default_factory=list)
    simulations: int = 0
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
                    rewards=reward_terms(step.info, step.reward),
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


@dataclass
class SearchStats:
    """Counters of searches.

    Attributes:
        calls: of a policy that samples in batches.
        requests: sampled replies; one call each is what a sequential search makes.
        tokens: sampled tokens.
        snapshots, replays, mismatches: of :class:`~roleagent.envs.restoring.Restorer`.
        errors: trees whose environment failed.
    """

    trees: int = 0
    simulations: int = 0
    expansions: int = 0
    chosen: int = 0
    chosen_by_uct: int = 0
    leaves: int = 0
    calls: int = 0
    requests: int = 0
    tokens: int = 0
    snapshots: int = 0
    replays: int = 0
    mismatches: int = 0
    errors: int = 0

    @property
    def uct_share(self) -> float:
        """Selections between children that had all been visited, of all selections."""
        return self.chosen_by_uct / self.chosen if self.chosen else 0.0

    def add(self, **numbers: int) -> None:
        """Adds to counters."""
        for name, number in numbers.items():
            setattr(self, name, getattr(self, name) + number)


class _WorldFailed(Exception):
    """The environment of a tree failed; the message is its error."""


class _World:
    """The environment of one tree, and the node whose state it is in."""

    env_id = ""  # of the present task

    def __init__(self, env: gymnasium.Env):
        self.env = env
        self.restorer = Restorer(env)
        self._task_id = ""
        self._at: Node | None = None

    def begin(self, task_id: str) -> Tree:
        """A new tree of a task."""
        self._task_id = task_id
        observation, info = self.env.reset(options={"task_id": task_id})
        root = Node(observation=observation, info=info)
        root.snapshot = self.restorer.save()
        self._at = root
        return Tree(Task.of(self.env_id, task_id, info), root)

    @property
    def commands(self) -> gymnasium.Env:
        """The environment below the layer that reads replies: it takes bare commands."""
        if isinstance(self.env, Mixture):
            return self.env.commands()
        return self.env.env if isinstance(self.env, gymnasium.Wrapper) else self.env

    def restart(self) -> None:
        """Back to the root, behind which nothing has been recorded."""
        self.env.reset(options={"task_id": self._task_id})

    def play(self, node: Node, child: Node) -> None:
        """Plays the child's reply in the state of the node, and records the result in the child."""
        if self._at is not node:
            steps = [
                RecordedStep(step.reply, step.observation, step.reward, step.terminated or step.truncated)
                for step in node.path()
            ]
            self.restorer.restore(node.snapshot, self._task_id, steps)
        self._at = None
        child.observation, reward, terminated, truncated, child.info = self.env.step(child.reply)
        count("turns")
        child.reward, child.terminated, child.truncated = float(reward), bool(terminated), bool(truncated)
        terms = reward_terms(child.info, reward)
        child.outcome = node.outcome + terms["task"]
        child.command = child.info.get("command", child.command)
        if terminated or truncated:
            child.stop_reason = ending(child.info, child.terminated, terms)
        else:
            child.snapshot, self._at = self.restorer.save(), child


class Search:
    """Searches tasks of a split.

    Args:
        rollout: gives policy, prompts, reader and token limits; its horizon is 0.
        make: builds an environment with its wrappers, as of the rollout.
        options: of the search.

    Attributes:
        stats: counters since the search was made.
    """

    def __init__(self, rollout: Rollout, make: Callable[[], gymnasium.Env], options: SearchConfig):
        if rollout.horizon:
            raise ConfigError("a search has no predictions: set wia=off")
        self.rollout, self.options, self.stats = rollout, options, SearchStats()
        self._make = make
        self._worlds: list[_World] = []

    @classmethod
    def open(cls, split: EnvSplit, policy: Policy) -> Search:
        """The configured search on a split."""
        plain = split.without_predictions()
        return cls(plain.rollout(policy), plain.make_wrapped, split.config.options.search)

    def search(
        self,
        task_ids: Sequence[str],
        rngs: Sequence[np.random.Generator],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Tree]:
        """Searches some tasks side by side.

        Args:
            task_ids: one tree each.
            rngs: of each tree's draws.
            progress: called after every call of the policy with (finished, all) trees.

        Returns:
            the trees in order, without snapshots and conversations. That of a failed environment has an ``error``.
        """
        while len(self._worlds) < len(task_ids):
            self._worlds.append(_World(self._make()))
        worlds = self._worlds[: len(task_ids)]
        for world, task_id in zip(worlds, task_ids, strict=True):
            world.env_id = self.rollout.of(task_id).env_id
        trees = [_begin(world, task_id) for world, task_id in zip(worlds, task_ids, strict=True)]
        for world, tree, rng in zip(worlds, trees, rngs, strict=True):
            if not tree.error:
                rollout = self.rollout.of(tree.task.task_id)
                tree.root.conversation = rollout.open(tree.root.observation, tree.root.info)
                if self.options.expert_prefix:
                    self._play_head(rollout, world, tree, rng)

        async def search(index: int, slot: int) -> None:
            try:
                await _TreeSearch(self, slot, worlds[index], trees[index]).play(rngs[index])
            except _WorldFailed as error:
                trees[index].error = str(error)

        def finished(played: float, every: int) -> None:
            if progress is not None:
                progress(int(played), every)

        backend = self.rollout.backend(self.rollout.config.temperature)
        list(Scheduler(backend, lambda actions: {}, search, len(trees), progress=finished).run())
        self.stats.add(calls=backend.calls if isinstance(backend, Batch) else 0)
        self.rollout.policy.clear_cache()
        self._count(trees)
        for place, tree in enumerate(trees):
            if tree.error:
                self._renew(place)
        return trees

    def _renew(self, place: int) -> None:
        """Replaces an environment that failed, if another one can be made."""
        with suppress(Exception):
            self._worlds[place].env.close()
        with suppress(Exception):
            self._worlds[place] = _World(self._make())

    def close(self) -> None:
        """Closes the environments."""
        for world in self._worlds:
            world.env.close()
        self._worlds = []

    def _play_head(self, rollout: Rollout, world: _World, tree: Tree, rng: np.random.Generator) -> None:
        """Plays the first commands of an expert's episode; the search goes on from there. A lost episode gives none."""
        policy, reader, node = rollout.policy, rollout.reader, tree.root
        try:
            expert = ScriptedEpisode(world.commands, tree.task.task_id, rng)
            commands = [turn.action for turn in expert.turns] if expert.finish() else []
            world.restart()
            for command in commands[: min(int(self.options.expert_prefix * len(commands)), self.options.depth - 1)]:
                reply, prompt = reader.write(command, policy.literal), self.conversation(rollout, node).action_prompt()
                said = rollout.text_reply(reply, rollout.action_stops)
                child = Node(parent=node, command=command, reply=reply, prompt_ids=prompt, completion=said)
                world.play(node, child)
                child.info = {**child.info, "given": True}
                tree.add(child)
                node.snapshot, node = None, child
        except (Exception, SystemExit) as error:
            tree.error = error_line(error)

    def conversation(self, rollout: Rollout, node: Node) -> Conversation:
        """The conversation up to a node."""
        if node.conversation is None:
            assert node.parent is not None
            assert node.completion is not None
            conversation = copy.copy(self.conversation(rollout, node.parent))
            stream = (*node.prompt_ids, *node.completion.token_ids)
            command = rollout.reader.read(node.reply).command
            conversation.advance(stream, node.completion.token_ids, command, node.observation, node.info)
            node.conversation = conversation
        return node.conversation

    def _count(self, trees: Sequence[Tree]) -> None:
        for tree in trees:
            tree.release()
            self.stats.add(
                trees=1,
                simulations=tree.simulations,
                expansions=tree.expansions,
                chosen=tree.chosen,
                chosen_by_uct=tree.chosen_by_uct,
                leaves=len(tree.leaves()),
                errors=bool(tree.error),
            )
        for world in self._worlds:
            restorer = world.restorer
            self.stats.add(snapshots=restorer.snapshots, replays=restorer.replays, mismatches=restorer.mismatches)
            world.restorer = Restorer(world.env, restorer.replay)


class _TreeSearch:
    """The search in one tree."""

    def __init__(self, search: Search, place: int, world: _World, tree: Tree):
        self._search, self._place, self._world, self._tree = search, place, world, tree
        self._options = search.options

    async def play(self, rng: np.random.Generator) -> None:
        """Simulates until the tree is finished.

        Raises:
            _WorldFailed: its environment failed.
        """
        tree, options = self._tree, self._options
        start, alone = tree.start, options.rollouts > 0 and options.num_children == 1
        while not (tree.error or start.is_leaf or start.exhausted or tree.simulations >= options.simulations):
            node: Node | None = start
            if alone:  # without siblings there is nothing to choose: every path begins anew
                await self._play_on(start)
                node = None
            while node is not None:
                fresh = not node.expanded
                if fresh:
                    await self._expand(node, options.num_children, simulated=False)
                    if node.is_leaf:  # no room for another reply
                        break
                chosen = select(tree, node, options.uct, rng)
                if chosen is not None and fresh and options.rollouts:
                    await self._play_on(chosen)
                    break
                node = chosen
            tree.simulations += 1

    async def _play_on(self, start: Node) -> None:
        """Rollouts: one reply after another down to a leaf."""
        for _ in range(self._options.rollouts):
            node = start
            while not node.is_leaf:
                await self._expand(node, 1, simulated=True)
                node = node if node.is_leaf else node.children[-1]

    async def _expand(self, node: Node, width: int, simulated: bool) -> None:
        """Samples replies in a node's state, and adds a child for each command; each is played at once."""
        rollout = self._search.rollout.of(self._tree.task.task_id)
        prompt, limit = self._search.conversation(rollout, node).action_prompt(), rollout.config.action_tokens
        if len(prompt) + limit > rollout.policy.context_length:
            node.stop_reason, node.truncated = "context", True
            node.back_up()
            return
        self._tree.expansions += 1
        first = self._place * self._options.num_children  # the siblings of a tree have neighboring slots
        completions: list[Completion] = await Ask(
            [Request(prompt, first + copy, limit, rollout.action_stops) for copy in range(width)]
        )
        self._search.stats.add(requests=width, tokens=sum(len(completion.token_ids) for completion in completions))
        by_command: dict[str, Node] = {}
        for completion in completions:
            reply = rollout.renderer.read(completion.token_ids)
            command = rollout.reader.read(reply).command
            if command in by_command:
                by_command[command].multiplicity += 1
                continue
            child = Node(parent=node, command=command, reply=reply, prompt_ids=prompt, completion=completion)
            child.simulated = simulated
            by_command[command] = child
        for child in by_command.values():
            try:
                self._world.play(node, child)
            except (Exception, SystemExit) as error:  # whatever an environment raises
                raise _WorldFailed(error_line(error)) from error
            self._tree.add(child)
            if not child.is_leaf and child.depth >= self._options.depth:
                child.stop_reason = "depth"
            if child.is_leaf:
                child.snapshot = None
                child.back_up()
        if not simulated:
            node.snapshot = None  # nothing else is played from here


def _begin(world: _World, task_id: str) -> Tree:
    try:
        return world.begin(task_id)
    except (Exception, SystemExit) as error:
        return Tree(Task(world.env_id, task_id), Node(), error=error_line(error))
