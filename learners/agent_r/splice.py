"""Pairs of good and bad paths of a search tree, and spliced trajectories: a bad path up to its first mistake, a
revision thought, and a good path's remaining steps (Agent-R, arXiv 2501.11425, Eq. 3, 4 and 7-10).

A path is a leaf of the tree. A pair shares its first t steps, the initial trajectory τ^i; behind them the bad path goes
wrong.

A revision trajectory is

    τ^r = (τ^i, a^b_{t+1} … o^b_{t′}, rs, a^g_{t+1} … o^g_{T_g}).

It is a claim about the world, since the good steps were never played behind the bad ones. :func:`splice` plays them, so
that what is imitated has happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np

from roleagent.agents.rollout import Rollout
from roleagent.config import ConfigError
from roleagent.envs.wrappers.notes import REVISED, after_note, note_error
from roleagent.failures.verdicts import JudgedPath
from roleagent.learners.agent_r.options import RevisionConfig
from roleagent.learners.agent_r.search import Node, Tree, common_ancestor
from roleagent.learners.sft.demonstrations import Demonstration, Step, reset_to
from roleagent.types import Completion, Trajectory, Turn, reward_terms

Truth = Literal["same", "valid", "false"]
WAIT, WAITED = "wait", "ok."
"""The revision signal as a command, and its answer (``prompt.revisions=action``), as published."""


@dataclass(frozen=True)
class Splice:
    """A revision trajectory.

    Attributes:
        demonstration: its steps with their replies. Bad steps are not imitated; the revision signal and the good steps
            are.
        truth: ``same``: the world answers the good steps as it did on their own path; ``valid``: with other
            observations and the same final reward; ``false``: else.
        outcome: the final reward in the world.
        cut: t′, the number of steps before the revision signal.
        bad_step: the command of the last bad step.
        over: whether the episode ended before the last good step.
    """

    demonstration: Demonstration
    truth: Truth
    outcome: float
    cut: int
    bad_step: str
    over: bool = False


@dataclass(frozen=True)
class _Played:
    """What the world answers to a sequence of turns, up to the end of the episode."""

    start: Demonstration
    answers: list[tuple[str, dict[str, Any]]]
    outcome: float


def replay(env: gymnasium.Env, env_id: str, task_id: str, turns: Sequence[Turn]) -> _Played:
    """Plays the commands of recorded turns again; a note is answered without the world."""
    task, observation, info = reset_to(env, env_id, task_id)
    start, answers, outcome = Demonstration(task, observation, info, ()), [], 0.0
    for turn in turns:
        if turn.info.get("revision"):
            info = after_note(info)
            answers.append((REVISED, info))
            continue
        observation, reward, terminated, truncated, info = env.step(turn.action)
        info = {**info, "format_error": turn.info.get("format_error")}
        outcome += reward_terms(info, reward)["task"]
        answers.append((observation, info))
        if terminated or truncated:
            break
    return _Played(start, answers, outcome)


def splice(
    env: gymnasium.Env, bad: Trajectory, good: Trajectory, shared: int, cut: int, signal: Step | None, played: bool
) -> Splice:
    """A revision trajectory, played in the world.

    Args:
        env: a base environment, which takes bare commands.
        bad: τ^b.
        good: τ^g.
        shared: t, the steps of τ^i.
        cut: t′ in (t, T_b].
        signal: of :func:`signal_of`; None: nothing stands between bad and good steps.
        played: whether the steps carry what the world answers; else what was recorded
            (``options.revision.splice=published``).

    Raises:
        ValueError: the cut lies on the shared part or behind the end.
    """
    if not shared < cut <= len(bad.turns):
        raise ValueError(f"the transition point {cut} lies outside ({shared}, {len(bad.turns)}]")
    before, after = bad.turns[:cut], good.turns[shared:]
    found = replay(env, bad.task.env_id, bad.task.task_id, (*before, *after))
    complete = len(found.answers) == cut + len(after)
    same = complete and all(
        answer == turn.observation for (answer, _), turn in zip(found.answers[cut:], after, strict=True)
    )
    if len(found.answers) <= cut or abs(found.outcome - good.outcome) > 1e-9:
        truth: Truth = "false"
    else:
        truth = "same" if same else "valid"
    recorded = [(turn.observation, dict(turn.info)) for turn in (*before, *after)]
    answers = found.answers if played else recorded
    steps = [
        _step(turn, number >= cut, *answer)
        for number, (turn, answer) in enumerate(zip((*before, *after), answers, strict=False))
    ]
    if signal is not None:
        info = answers[min(cut, len(answers)) - 1][1]
        steps.insert(cut, replace(signal, info=after_note(info)))
    demonstration = replace(found.start, steps=tuple(steps))
    return Splice(demonstration, truth, found.outcome, cut, before[-1].action, not complete)


def signal_of(form: str, thought: str, rollout: Rollout) -> Step | None:
    """The revision signal in the form of ``prompt.revisions``: a note, the command ``wait``, or nothing."""
    if form == "note":
        return Step(f"revise[{thought}]", True, REVISED, {})
    if form == "none":
        return None
    said = "" if rollout.prompt.think == "none" else f"<think>{rollout.policy.literal(thought)}</think>"
    reply = rollout.text_reply(said + rollout.reader.write(WAIT, rollout.policy.literal), rollout.action_stops)
    return Step(WAIT, True, WAITED, {}, reply)


def search_on(
    rollout: Rollout, bad: Sequence[tuple[Trajectory, int, Step | None]], width: int
) -> list[list[Trajectory]]:
    """Goes on behind bad steps: ``width`` episodes of the policy for each of them, all side by side.

    Args:
        rollout: of the acting policy.
        bad: bad paths with their cut t′ and the signal that follows.
        width: episodes of each.

    Returns:
        for each bad path the episodes, from their beginning; the first t′ + 1 turns are given (t′ without a signal).
    """
    if not bad:
        return []
    openings = []
    for path, cut, signal in bad:
        said = [] if signal is None else [reply_of(signal, rollout.of(path.task.task_id))]
        openings.append([*(turn.completion for turn in path.turns[:cut]), *said])
    groups = rollout.play(
        [path.task.task_id for path, _, _ in bad], width, rollout.config.temperature, openings=openings
    )
    return [list(group.trajectories) for group in groups]


def reply_of(step: Step, rollout: Rollout) -> Completion:
    """The reply of a step: the one that was sampled, or the one that its command is read from."""
    if step.reply is not None:
        return step.reply
    return rollout.text_reply(rollout.reader.write(step.command, rollout.policy.literal), rollout.action_stops)


def continued(env: gymnasium.Env, trajectory: Trajectory, cut: int, has_signal: bool) -> Splice:
    """A recovery that was played (:func:`search_on`) as a revision trajectory."""
    _, observation, info = reset_to(env, trajectory.task.env_id, trajectory.task.task_id)
    steps = [
        _step(turn, number >= cut, turn.observation, dict(turn.info)) for number, turn in enumerate(trajectory.turns)
    ]
    if has_signal:
        steps[cut] = replace(steps[cut], imitated=True)
    demonstration = Demonstration(trajectory.task, observation, info, tuple(steps))
    return Splice(demonstration, "same", trajectory.outcome, cut, trajectory.turns[cut - 1].action)


def whole(env: gymnasium.Env, trajectory: Trajectory) -> Demonstration:
    """A good trajectory, imitated from the policy's first step."""
    _, observation, info = reset_to(env, trajectory.task.env_id, trajectory.task.task_id)
    steps = tuple(_step(turn, True, turn.observation, dict(turn.info)) for turn in trajectory.turns)
    return Demonstration(trajectory.task, observation, info, steps)


def has_too_many_notes(steps: Sequence[Step], most: int) -> bool:
    """Whether the wrapper would refuse a note of these steps: two in a row, or more than an episode may have."""
    past, previous = 0, False
    for step in steps:
        is_note = bool(step.info.get("revision")) and step.command != WAIT
        if is_note and note_error(past, previous, most):
            return True
        past, previous = past + is_note, is_note
    return False


def _step(turn: Turn, imitated: bool, observation: str, info: dict[str, Any]) -> Step:
    """A turn as a step.

    A reply that could not be read is shown and not imitated, as an expert's (``options.search.expert_prefix``).
    """
    own = turn.info.get("format_error") is None and not turn.info.get("given")
    return Step(turn.action, imitated and own, observation, info, turn.completion)


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
    """Whether β separates two final rewards: by their difference, or, as Eq. 4 has it, as a bound between them.

    >>> gap, bound = RevisionConfig(beta=0.2), RevisionConfig(beta=0.2, separation="bound")
    >>> is_separated(0.5, 0.6, gap), is_separated(0.3, 0.6, gap), is_separated(0.3, 0.6, bound)
    (False, True, False)
    >>> is_separated(0.15, 0.25, gap), is_separated(0.15, 0.25, bound)
    (False, True)
    """
    if options.separation == "bound":
        return bad < options.beta - _EPSILON and good > options.beta + _EPSILON
    return good - bad > options.beta + _EPSILON


def leaves_of(tree: Tree) -> list[Node]:
    """The leaves of a tree whose environment did not fail.

    Raises:
        ConfigError: a final reward outside [0, 1], the scale of α and β.
    """
    leaves = [] if tree.error else [leaf for leaf in tree.leaves() if leaf.depth]
    for leaf in leaves:
        if not -_EPSILON <= leaf.outcome <= 1 + _EPSILON:
            raise ConfigError(
                f"the final reward of {tree.task.task_id} is {leaf.outcome:g}: options.revision.alpha and beta compare "
                "rewards in [0, 1]; choose a reward of the environment on this scale (env.kwargs)"
            )
    return leaves


def good_leaves(leaves: Sequence[Node], alpha: float) -> list[Node]:
    """The good ones."""
    return [leaf for leaf in leaves if is_good(leaf.outcome, alpha)]


def make_pairs(tree: Tree, alpha: float, options: RevisionConfig, rng: np.random.Generator) -> list[Pair]:
    """The pairs of a tree.

    ``options.pairing=nearest``: bad leaves that differ in their last step alone are one. Each goes with the good leaf
    with which it shares most steps, then the one of higher reward, then the shorter one. ``all``, as published: each
    bad leaf goes with every good one.

    Args:
        alpha: of the iteration.
        options: which leaves are paired, β, and how it separates their rewards.
        rng: draws the pairs that are kept of more than ``options.pairs_per_tree``.
    """
    leaves, nearest = leaves_of(tree), options.pairing == "nearest"
    good, pairs = good_leaves(leaves, alpha), []
    for bad in distinct(leaves) if nearest else leaves:
        partners = [leaf for leaf in good if is_separated(bad.outcome, leaf.outcome, options)]
        if nearest:
            rng.permutation(len(partners))  # unused: without it, the draws that follow would not be those of older runs
            partners.sort(key=lambda leaf: (-common_ancestor(bad, leaf).depth, -leaf.outcome, leaf.depth))
            partners = partners[:1]
        pairs += [Pair(bad, partner, common_ancestor(bad, partner).depth) for partner in partners]
    pairs = [pair for pair in pairs if pair.shared < min(pair.bad.depth, pair.good.depth)]
    kept = sorted(rng.permutation(len(pairs))[: options.pairs_per_tree or None])
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
