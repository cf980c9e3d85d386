"""From search trees to examples (Agent-R): pairs, verdicts, splices that the world confirms, and their tokens.

Everything is drawn from the stream of the tree, so its examples depend neither on the other trees nor on the number of
ranks. Examples are kept as text and as segments. A run may also imitate general conversations, which keep a pretrained
model from forgetting what it knew.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rendering import renderer_of
from roleagent.config import Config, ConfigError
from roleagent.config.settings import MAX_NOTES
from roleagent.envs.failures.command_noise import verb_of
from roleagent.envs.wrappers.notes import REVISION_THOUGHTS
from roleagent.failures.verdicts import Judge, JudgedPath, Verdict, transition_point
from roleagent.imports import error_line, load_class
from roleagent.learners.agent_r.judges import NO_INSTRUCTIONS
from roleagent.learners.agent_r.search import Node, Tree
from roleagent.learners.agent_r.splice import (
    Pair,
    Splice,
    continued,
    distinct,
    good_leaves,
    has_too_many_notes,
    is_good,
    is_separated,
    judged_path,
    leaves_of,
    make_pairs,
    search_on,
    signal_of,
    splice,
    whole,
)
from roleagent.learners.batch import trained_tokens
from roleagent.learners.sft.demonstrations import Demonstration, segments_from
from roleagent.markers import escape_markers
from roleagent.types import ACTION, CONTEXT, Analyst, Reflection, Segment, Trajectory

_ROLES = {"user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "system": "system"}

Conversation = Sequence[tuple[str, str]]
"""Role (``user`` or ``assistant``, in turns) and text of each message."""


def read_conversations(path: str) -> list[Conversation]:
    """The conversations of a file of JSON lines.

    A line has ``messages`` of ``role`` and ``content``, or, as in ShareGPT, ``conversations`` of ``from`` and
    ``value``. A system message is put before the first question.

    Raises:
        ConfigError: the file cannot be read, or a line has another form.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"options.revision.general: cannot read {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_conversation(json.loads(line)))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
                raise ConfigError(
                    f"options.revision.general: line {number} of {path} is no conversation: {error}"
                ) from error
    if not found:
        raise ConfigError(f"options.revision.general: {path} has no conversation")
    return found


def _conversation(row: Mapping[str, Any]) -> Conversation:
    if "messages" in row:
        messages = [(_ROLES[one["role"]], one["content"]) for one in row["messages"]]
    else:
        messages = [(_ROLES[one["from"]], one["value"]) for one in row["conversations"]]
    if not all(isinstance(text, str) for _, text in messages):
        raise ValueError("a message without text")
    if messages[0][0] == "system":
        (_, system), (role, text), *rest = messages
        messages = [(role, f"{system}\n\n{text}"), *rest]
    roles = [role for role, _ in messages]
    if roles != ["user", "assistant"] * (len(roles) // 2):
        raise ValueError("questions and answers must take turns")
    return messages


def tokenize_conversations(conversations: Sequence[Conversation], policy: HFPolicy) -> list[Segment]:
    """Conversations as segments: answers have weight. What does not fit into the context is cut after an answer."""
    renderer, found = renderer_of(policy), []
    for conversation in conversations:
        ids: list[int] = []
        kinds: list[int] = []
        for (_, question), (_, answer) in zip(conversation[::2], conversation[1::2], strict=True):
            text = policy.literal(question)
            asked = [*renderer.next_message(text, ids)] if ids else [*renderer.first_message(text)]
            said = [*renderer.write(policy.literal(answer)), policy.eos_id]
            if len(ids) + len(asked) + len(said) > policy.context_length:
                break
            ids += [*asked, *said]
            kinds += [CONTEXT] * len(asked) + [ACTION] * len(said)
        if ids:
            kind = np.array(kinds)
            found.append(Segment(np.array(ids), kind, np.zeros(len(ids)), (kind == ACTION).astype(np.float64)))
    return found


Part = Literal["good", "revision", "pair"]


@dataclass(frozen=True, eq=False)
class Example:
    """One trajectory to imitate.

    Attributes:
        part: a good trajectory is trained whole; of a revision trajectory the revision signal and the good steps; a
            pair is a preference (:mod:`roleagent.learners.agent_r.learning`).
        task_id: its task.
        edge: the tree's edge to which the path is cut; -1 for a good trajectory.
        text: what a reader of the run sees: commands, observations, what is imitated, and how the cut was found.
        segments: token columns. ``advantages`` is 1 on trained tokens and 0 on bad ones.
    """

    part: Part
    task_id: str
    edge: int
    text: Mapping[str, Any]
    segments: tuple[Segment, ...]

    @property
    def trained_tokens(self) -> int:
        """The number of tokens with weight."""
        return trained_tokens(self.segments)

    @property
    def key(self) -> tuple[bytes, ...]:
        """Equal for examples with the same tokens and weights."""
        return tuple(part for one in self.segments for part in (one.token_ids.tobytes(), one.advantages.tobytes()))

    def to_json(self) -> dict[str, Any]:
        """The example for a file; columns as runs of equal values."""
        rows = [
            {
                "ids": one.token_ids.tolist(),
                "runs": [
                    [int(kind), float(weight), len(list(run))]
                    for (kind, weight), run in groupby(zip(one.token_kind, one.advantages, strict=True))
                ],
            }
            for one in self.segments
        ]
        return {"part": self.part, "task_id": self.task_id, "edge": self.edge, **self.text, "segments": rows}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Example:
        """The inverse of :meth:`to_json`."""
        own = {"part", "task_id", "edge", "segments"}
        text = {name: value for name, value in found.items() if name not in own}
        segments = tuple(_segment(row["ids"], row["runs"]) for row in found["segments"])
        return cls(found["part"], found["task_id"], int(found["edge"]), text, segments)


def _segment(ids: Sequence[int], runs: Iterable[tuple[int, float, int]]) -> Segment:
    kinds, weights, lengths = (np.array(column) for column in zip(*runs, strict=True))
    return Segment(
        np.array(ids), np.repeat(kinds, lengths), np.zeros(len(ids)), np.repeat(weights, lengths).astype(np.float64)
    )


def select(
    examples: Sequence[Example], tokens: int, per_task: int, rng: np.random.Generator
) -> tuple[list[Example], Counter[str]]:
    """The examples that are imitated, and how many each filter drops.

    ``duplicate``: the same tokens and weights as another. ``per_task``: more than
    ``options.revision.per_task`` of a task and part, drawn evenly over the cuts. ``tokens``: beyond ``train.tokens``
    trained tokens, in random order.
    """
    dropped: Counter[str] = Counter()
    unique = list({example.key: example for example in reversed(examples)}.values())[::-1]
    dropped["duplicate"] += len(examples) - len(unique)
    by_task: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for place, example in enumerate(unique):
        by_task[example.part, example.task_id].append(place)
    kept = sorted(
        place
        for places in by_task.values()
        for place in even([unique[place].edge for place in places], places, per_task or len(places), rng)
    )
    dropped["per_task"] += len(unique) - len(kept)
    if tokens:
        order = [kept[place] for place in rng.permutation(len(kept))]
        totals = np.cumsum([unique[place].trained_tokens for place in order])
        kept, all_kept = sorted(order[: int(np.searchsorted(totals, tokens)) + 1]), len(kept)
        dropped["tokens"] += all_kept - len(kept)
    return [unique[place] for place in kept], dropped


def even(groups: Sequence[int], items: Sequence[int], most: int, rng: np.random.Generator) -> list[int]:
    """At most ``most`` items, drawn evenly over their groups.

    >>> drawn = even([1, 1, 1, 1, 2, 3], [10, 11, 12, 13, 20, 30], 4, np.random.default_rng(0))
    >>> sorted(item // 10 for item in drawn)
    [1, 1, 2, 3]
    """
    waiting: defaultdict[int, list[int]] = defaultdict(list)
    for place in rng.permutation(len(items)):
        waiting[groups[place]].append(items[place])
    found: list[int] = []
    while waiting and len(found) < most:
        for group in list(waiting):
            if len(found) < most:
                found.append(waiting[group].pop())
            if not waiting[group]:
                del waiting[group]
    return found


@dataclass
class TreeData:
    """What one tree gives.

    Attributes:
        tree: the search tree.
        examples: good and revision trajectories.
        leaves: the distinct leaves: whether each won, and for the failure library the bad ones with their analysis.
        verdicts: kind, reason and source by the number of the node; undecided ones without a reason are left out.
        counts: of this tree, by name.
    """

    tree: Tree
    examples: list[Example] = field(default_factory=list)
    leaves: list[dict[str, Any]] = field(default_factory=list)
    verdicts: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def count(self, leaves: Sequence[Node], good: Sequence[Node], pairs: Sequence[Pair]) -> None:
        """Counts the tree, its leaves and pairs, and whether it lacks good or bad leaves."""
        self.counts.update(trees=1, leaves=len(leaves), good_leaves=len(good), pairs=len(pairs))
        self.counts.update(without_good=not good, without_bad=len(good) == len(leaves))

    def drop(self) -> None:
        """Leaves a failed tree's examples and counts out."""
        self.counts = Counter(trees=1, failed_trees=1)
        self.examples.clear()

    def add_verdict(self, node: int, verdict: Verdict) -> None:
        """Counts a verdict about the action of a node, and keeps it if it is decided."""
        self.counts.update([f"verdict_{verdict.kind}", f"verdict_source_{verdict.source}"])
        self.counts["verdict_repaired"] += verdict.repaired
        if verdict.kind != "uncertain" or verdict.reason:
            self.verdicts[node] = (verdict.kind, verdict.reason, verdict.source)

    def to_json(self) -> dict[str, Any]:
        """The tree's data for a file."""
        return {
            "task": asdict(self.tree.task),
            "error": self.tree.error,
            "leaves": self.leaves,
            "verdicts": self.verdicts,
            "counts": dict(self.counts),
            "examples": [example.to_json() for example in self.examples],
        }


@dataclass
class _Cut:
    """A pair with its transition point t′ and what the splice is made of."""

    data: TreeData
    pair: Pair
    bad: Trajectory
    good: Trajectory
    cut: int
    verdict: Verdict
    thought: str


class RevisionData:
    """Makes examples of trees.

    Args:
        split: the training tasks.
        actor: the acting policy: it tokenizes, judges and, with ``options.revision.splice=searched``, plays.
        judge: finds the transition points.
        analyst: names the failure modes of bad leaves; None: there is no failure library.
        alpha: of the iteration.
    """

    def __init__(self, split: EnvSplit, actor: Policy, judge: Judge, analyst: Analyst | None, alpha: float):
        self.split, self.judge, self.analyst, self.alpha = split, judge, analyst, alpha
        self.options, self.signal = split.config.options.revision, split.config.prompt.revisions
        self.thoughts = read_templates(split.config.prompt.templates).revisions or REVISION_THOUGHTS
        self.rollout = split.without_predictions().rollout(actor)

    def make(self, trees: Sequence[Tree], streams: Sequence[np.random.Generator]) -> list[TreeData]:
        """The data of some trees; ``streams`` has a generator for each."""
        found = [TreeData(tree) for tree in trees]
        cuts = self._cuts(found, streams)
        for data in found:
            with self._replays(data):
                self._add_good(data)
        false = []
        for cut in cuts:
            with self._replays(cut.data):
                if not cut.data.tree.error and not self._add_splice(cut):
                    false.append(cut)
        false = [cut for cut in false if not cut.data.tree.error]
        if self.options.splice == "searched":
            self._search(false)
        self._add_leaves(found, cuts)
        return found

    @staticmethod
    @contextlib.contextmanager
    def _replays(data: TreeData) -> Iterator[None]:
        """An environment that fails in a replay fails the tree, as one that fails in the search."""
        try:
            yield
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            data.tree.error = error_line(error)

    def _cuts(self, found: Sequence[TreeData], streams: Sequence[np.random.Generator]) -> list[_Cut]:
        """The pairs of all trees with their transition points. All verdicts are one call of the judge."""
        pairs: list[tuple[TreeData, Pair, np.random.Generator]] = []
        paths: list[JudgedPath] = []
        for place, (data, rng) in enumerate(zip(found, streams, strict=True)):
            leaves = leaves_of(data.tree)
            good = good_leaves(leaves, self.alpha)
            made = make_pairs(data.tree, self.alpha, self.options, rng) if self.options.share else []
            data.count(leaves, good, made)
            pairs += [(data, pair, rng) for pair in made]
            for path in (judged_path(data.tree, pair) for pair in made):  # edges of different trees differ
                paths.append(replace(path, edges=tuple(edge * len(found) + place for edge in path.edges)))
        judged = self.judge.judge(paths)
        cuts, seen = [], set()
        for (data, pair, rng), verdicts in zip(pairs, judged, strict=True):
            thought = self.thoughts[int(rng.integers(len(self.thoughts)))]
            steps = pair.bad.path()[pair.shared :]
            for node, verdict in zip(steps, verdicts, strict=True):
                if id(node) not in seen:
                    seen.add(id(node))
                    data.add_verdict(node.number, verdict)
            cut = transition_point(pair.shared, verdicts)
            if cut is None:
                data.counts.update(dropped_no_verdict=1)
            else:
                verdict = verdicts[cut - pair.shared - 1]
                bad, good_path = data.tree.trajectory(pair.bad), data.tree.trajectory(pair.good)
                cuts.append(_Cut(data, pair, bad, good_path, cut, verdict, thought))
        return cuts

    # --- good trajectories ---

    def _add_good(self, data: TreeData) -> None:
        leaves = good_leaves(leaves_of(data.tree), self.alpha)
        if self.options.share == 1:
            return
        for leaf in sorted(distinct(leaves), key=lambda leaf: (-leaf.outcome, leaf.depth, leaf.number)):
            demonstration = whole(self.split.base, data.tree.trajectory(leaf))
            self._add(data, demonstration, -1, {"outcome": leaf.outcome}, leaf.depth)

    # --- revision trajectories ---

    def _add_splice(self, cut: _Cut) -> bool:
        """Adds a revision trajectory; False if the world refutes it and the search may look for another."""
        data, options = cut.data, self.options
        signal = signal_of(self.signal, cut.thought, self.rollout.of(cut.bad.task.task_id))
        published = options.splice == "published"
        made = splice(self.split.base, cut.bad, cut.good, cut.pair.shared, cut.cut, signal, not published)
        over = made.over and made.truth == "false"
        data.counts.update(splices=1, splice_false_over=over, **{f"splice_{made.truth}": 1})
        data.counts[f"truth/{verb_of(made.bad_step) or '(malformed)'}/{made.truth}"] += 1
        data.counts[f"bad_steps/{cut.cut - cut.pair.shared}/{made.truth}"] += 1
        if made.truth == "false" and not published:
            data.counts.update(dropped_false=options.splice == "verified")
            return False
        self._keep(cut, made, {"truth": made.truth})
        return True

    def _search(self, cuts: Sequence[_Cut]) -> None:
        """Where the world refutes a splice, the policy goes on from the bad state; the first good end is the suffix."""
        rollouts = [self.rollout.of(cut.bad.task.task_id) for cut in cuts]
        signals = [signal_of(self.signal, cut.thought, one) for cut, one in zip(cuts, rollouts, strict=True)]
        asked = [(cut.bad, cut.cut, signal) for cut, signal in zip(cuts, signals, strict=True)]
        with contextlib.closing(self.rollout.pool):
            played = search_on(self.rollout, asked, self.split.config.options.search.num_children)
        for cut, signal, episodes in zip(cuts, signals, played, strict=True):
            cut.data.counts.update(searched=1, searched_episodes=len(episodes))
            good = [one for one in episodes if self._recovers(cut, one)]
            if good:
                with self._replays(cut.data):
                    made = continued(self.split.base, good[0], cut.cut, signal is not None)
                    cut.data.counts.update(splice_searched=1)
                    self._keep(cut, made, {"truth": "searched"})
            else:
                cut.data.counts.update(dropped_false=1)

    def _recovers(self, cut: _Cut, episode: Trajectory) -> bool:
        rewards = cut.bad.outcome, episode.outcome
        good = is_good(episode.outcome, self.alpha) and is_separated(*rewards, self.options)
        return good and len(episode.turns) > cut.cut + (self.signal != "none")

    def _keep(self, cut: _Cut, made: Splice, found: dict[str, Any]) -> None:
        if self.signal == "note" and has_too_many_notes(made.demonstration.steps, MAX_NOTES):
            cut.data.counts.update(dropped_notes=1)
            return
        nodes = cut.pair.bad.path()
        about = {
            "cut": cut.cut,
            "shared": cut.pair.shared,
            "bad_steps": len(nodes),
            "outcome": made.outcome,
            "bad_outcome": cut.bad.outcome,
            "judge": cut.verdict.source,
            "reason": cut.verdict.reason,
            **found,
        }
        self._add(cut.data, made.demonstration, nodes[cut.cut - 1].number, about, len(made.demonstration.steps))

    def _add(self, data: TreeData, demonstration: Demonstration, edge: int, about: dict[str, Any], length: int) -> None:
        """Adds an example, unless it does not fit into the context or holds a marker of a chat template."""
        segments = segments_from(demonstration, self.rollout)
        if any(len(segment) > self.rollout.policy.context_length for segment in segments):
            data.counts.update(dropped_context=1)
        elif self._has_marker(demonstration):
            data.counts.update(dropped_marker=1)
        elif segments:
            steps = [[step.command, step.observation, int(step.imitated)] for step in demonstration.steps]
            text = {**about, "length": length, "first": demonstration.observation, "steps": steps}
            part = "good" if edge < 0 else "revision"
            data.examples.append(Example(part, data.tree.task.task_id, edge, text, tuple(segments)))

    def _has_marker(self, demonstration: Demonstration) -> bool:
        policy, texts = self.rollout.policy, [demonstration.observation]
        stops = self.rollout.of(demonstration.task.task_id).action_stops
        for step in demonstration.steps:
            ids = step.reply.token_ids if step.reply is not None else ()
            said = policy.decode(ids[:-1] if ids and ids[-1] in stops else ids)
            texts += [step.command, step.observation, said]
        return any(escape_markers(text) != text for text in texts)

    # --- failures ---

    def _add_leaves(self, found: Sequence[TreeData], cuts: Sequence[_Cut]) -> None:
        """The outcomes for the sampler, and bad leaves with their analysis; their critical step is t′."""
        points = {(id(cut.data), cut.pair.bad.number): cut.cut - 1 for cut in reversed(cuts)}
        failed: list[tuple[TreeData, Trajectory, int | None]] = []
        for data in found:
            if data.tree.error:  # in the search, or in a replay
                data.drop()
            for leaf in distinct(leaves_of(data.tree)):
                trajectory = data.tree.trajectory(leaf)
                if trajectory.success or self.analyst is None:
                    data.leaves.append({"won": trajectory.success, "outcome": trajectory.outcome})
                else:
                    failed.append((data, trajectory, points.get((id(data), leaf.number))))
        reflections = (
            self.analyst.reflect([trajectory for _, trajectory, _ in failed]) if self.analyst and failed else []
        )
        for (data, trajectory, step), reflection in zip(failed, reflections, strict=True):
            known = reflection if step is None else replace(reflection, critical_step=step)
            data.leaves.append(_failure(trajectory, known))


def _failure(trajectory: Trajectory, reflection: Reflection) -> dict[str, Any]:
    turns = [[turn.action, turn.observation, turn.rewards.get("task", 0.0)] for turn in trajectory.turns]
    return {
        "won": False,
        "outcome": trajectory.outcome,
        "first": trajectory.initial_observation,
        "stop_reason": trajectory.stop_reason,
        "turns": turns,
        "reflection": asdict(reflection),
    }


def check_revision(config: Config) -> None:
    """Refuses files and classes of ``options.revision`` that cannot be read.

    Raises:
        ConfigError: one line that explains what to change.
    """
    options = config.options.revision
    if options.general:
        read_conversations(options.general)
    if ":" in options.judge:
        load_class(options.judge, "judge")
    if options.judge == "step" and not config.policy.path:
        raise ConfigError(NO_INSTRUCTIONS)
    if config.options.search.expert_prefix and config.prompt.think == "required":
        raise ConfigError(
            "prompt.think=required refuses replies without a thought, and an expert's have none: set "
            "options.search.expert_prefix=0, or prompt.think=optional"
        )
