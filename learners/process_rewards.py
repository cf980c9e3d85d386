"""Process rewards of tool calls, normalized so that the task's reward dominates (Agent-R1, after PRIME).

The terms ``tool`` (share of a turn's calls that succeeded) and ``process`` (the tools' own rewards) are the process
terms; they weigh 0 until ``estimator.rewards`` gives them a weight. Penalties such as ``tool_error`` are no process
terms and stay as they are. ``estimator.process_norm``:

=========  ============================================================================================================
``none``   as they are
``prime``  r̃_t = r_t / (max |Σ_{k≥t} r_k| + 1e-6), the maximum over all turns of the *group*
``batch``  the same with the maximum over the whole batch, as published: what a call earns depends on other tasks
``turns``  divided by the number of turns of the episode
=========  ============================================================================================================

With ``prime`` and ``batch`` no process return of an episode exceeds 1, so it is at most the sum of the weights. In
a group without successful episodes the process terms are the only difference, and teach calling for its own sake:
``estimator.process_gate=live`` leaves them out where all episodes have the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from roleagent.learners.advantages import has_zero_variance
from roleagent.learners.returns import EPSILON, Values, returns
from roleagent.learners.rewards import Rewards
from roleagent.types import Group, Trajectory, Turn

PROCESS_TERMS = ("tool", "process")


def weighing(weights: Mapping[str, float]) -> tuple[str, ...]:
    """The process terms that have a weight.

    >>> weighing({"task": 1.0, "tool": 0.2, "process": 0.0})
    ('tool',)
    """
    return tuple(name for name in PROCESS_TERMS if weights.get(name))


def normalize_process(
    groups: Sequence[Group],
    weights: Mapping[str, float],
    norm: str = "prime",
    gate: str = "none",
    max_over_ranks: Callable[[float], float] = float,
) -> list[Group]:
    """The groups with normalized process terms; unchanged if none of them weighs.

    Args:
        groups: of this rank.
        weights: of the reward terms.
        norm, gate: ``estimator.process_norm`` and ``estimator.process_gate``.
        max_over_ranks: the maximum of a number over all ranks; ``batch`` calls it on every rank.
    """
    changed = list(groups)
    for name in weighing(weights) if norm != "none" else ():
        largest = [largest_return(group, name) for group in groups]
        if norm == "batch":
            largest = [max_over_ranks(max(largest, default=0.0))] * len(groups)
        for number, scale in enumerate(largest):
            changed[number] = _with_rewards(changed[number], partial(_scaled, name, norm, scale))
    if gate == "live":
        silent = dict.fromkeys(weighing(weights), 0.0)
        changed = [
            _with_rewards(group, lambda turn, trajectory: silent) if silent and has_zero_variance(group) else group
            for group in changed
        ]
    return changed


def _with_rewards(group: Group, change: Callable[[Turn, Trajectory], Mapping[str, float]]) -> Group:
    """A group whose turns have some other rewards, by name."""
    return replace(
        group,
        trajectories=tuple(
            replace(
                one, turns=tuple(replace(turn, rewards={**turn.rewards, **change(turn, one)}) for turn in one.turns)
            )
            for one in group.trajectories
        ),
    )


def _scaled(name: str, norm: str, largest: float, turn: Turn, trajectory: Trajectory) -> dict[str, float]:
    """The normalized term of a turn, if it has the term."""
    if name not in turn.rewards:
        return {}
    return {name: turn.rewards[name] / (len(trajectory.turns) if norm == "turns" else largest + EPSILON)}


def largest_return(group: Group, name: str) -> float:
    """The largest |Σ_{k≥t} r_k| of a term over all turns of a group; undiscounted."""
    rows = ([turn.rewards.get(name, 0.0) for turn in trajectory.turns] for trajectory in group.trajectories)
    return max((abs(value) for row in rows for value in returns(row, 1.0)), default=0.0)


def shuffle_process(groups: Sequence[Group], weights: Mapping[str, float], rng: np.random.Generator) -> list[Group]:
    """The same values of each process term on other turns, among those of the batch that have the term."""
    changed = list(groups)
    for name in weighing(weights):
        rewards = [turn.rewards for group in changed for one in group.trajectories for turn in one.turns]
        values = iter(rng.permutation([row[name] for row in rewards if name in row]).tolist())

        def drawn(turn: Turn, _: Trajectory, name: str = name, values: Iterator[float] = values) -> dict[str, float]:
            return {name: next(values)} if name in turn.rewards else {}

        changed = [_with_rewards(group, drawn) for group in changed]
    return changed


def process_rewards(group: Group, weights: Mapping[str, float]) -> Values | None:
    """The weighted sum of the process terms of each turn; None if none of them weighs."""
    terms = weighing(weights)
    if not terms:
        return None
    return [
        [sum(weights[name] * turn.rewards.get(name, 0.0) for name in terms) for turn in trajectory.turns]
        for trajectory in group.trajectories
    ]


def process_counters(
    groups: Sequence[Group], earned: Sequence[Values | None], rewards: Rewards, gamma: float, outcomes: bool
) -> dict[str, float]:
    """Whether process terms had an effect; empty if none weighs.

    Args:
        groups: the episodes, with the terms as they occurred.
        earned: of each group the normalized and weighted process reward of each turn (:func:`process_rewards`).
        rewards: the weights of all terms.
        gamma: discount per turn.
        outcomes: whether the estimator compares outcomes, so that a reward changes the return of all turns.

    Returns:
        ``process_nonzero``: turns with a process reward. ``process_share``: of the returns' absolute values, in
        [0, 1]. ``returns_changed``: share of the turns whose return process terms changed. ``process_only_groups``:
        groups in which process terms are the only difference, whether or not the gate leaves them out.
    """
    if not weighing(rewards.weights):
        return {}
    others = replace(rewards, weights={**rewards.weights, **dict.fromkeys(PROCESS_TERMS, 0.0)})
    turns = nonzero = changed = only = 0
    of_process = of_others = 0.0
    for group, rows in zip(groups, earned, strict=True):
        raw = process_rewards(group, rewards.weights)
        sums = [sum(row) for row in raw or ()]
        only += has_zero_variance(group) and bool(sums) and max(sums) - min(sums) > 1e-9
        for trajectory, row in zip(group.trajectories, rows or (), strict=True):
            to_go = returns(row, gamma)
            turns += len(row)
            nonzero += sum(value != 0 for value in row)
            changed += sum(bool(value) or (outcomes and any(row)) for value in to_go)
            of_process += sum(map(abs, to_go))
            of_others += sum(map(abs, returns([others.of(turn) for turn in trajectory.turns], gamma)))
    return {
        "process_nonzero": float(nonzero),
        "process_share": of_process / (of_process + of_others) if of_process else 0.0,
        "returns_changed": changed / turns if turns else 0.0,
        "process_only_groups": float(only),
    }


__all__ = [
    "PROCESS_TERMS",
    "largest_return",
    "normalize_process",
    "process_counters",
    "process_rewards",
    "shuffle_process",
    "weighing",
]
