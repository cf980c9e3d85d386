"""The rewards of a turn, and their sums.

Environments and wrappers name the terms of a step in ``info["rewards"]``, which :class:`~roleagent.types.Turn` keeps;
they are weighted and summed here alone. Other terms follow from any turn (:data:`TERMS`). They count events, so most of
them need a negative weight: ``estimator.rewards.format_error=-0.1``.

Process rewards of tool calls are normalized so that the task's reward dominates (Agent-R1, after PRIME). The terms
``tool`` (share of a turn's calls that succeeded) and ``process`` (the tools' own rewards) are the process terms; they
weigh 0 until ``estimator.rewards`` gives them a weight. Penalties such as ``tool_error`` are no process terms and stay
as they are. ``estimator.process_norm``:

=========  ============================================================================================================
``none``   as they are
``prime``  r̃_t = r_t / (max |Σ_{k≥t} r_k| + 1e-6), the maximum over all turns of the *group*
=========  ============================================================================================================

With ``prime`` no process return of an episode exceeds 1, so it is at most the sum of the weights. In a
group without successful episodes the process terms are the only difference, and teach calling for its own sake:
``estimator.process_gate=live`` leaves them out where all episodes have the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from roleagent.types import Group, Trajectory, Turn, is_flat

TERMS: dict[str, Callable[[Turn], float]] = {
    "format_error": lambda turn: float(turn.info.get("format_error") is not None),
    "invalid_action": lambda turn: float(not turn.info.get("valid_action", True)),
    "turn": lambda turn: 1.0,
}
"""Terms of any turn: 1 for a malformed reply, for a command without effect, and for every turn. ``overlong``
(:func:`overlong`) is the fourth."""


def overlong(length: int, limit: int, buffer: float) -> float:
    """The position of a reply's end in the last part of its token limit, in [0, 1] (DAPO's soft penalty, unsigned).

    Args:
        length: tokens of the reply.
        limit: most tokens of a reply; 0 for none.
        buffer: the last part, as a share of the limit, in (0, 1].

    >>> [overlong(length, limit=20, buffer=0.5) for length in (10, 15, 20)]
    [0.0, 0.5, 1.0]
    """
    if not limit:
        return 0.0
    return min(1.0, max(0.0, (length - limit * (1.0 - buffer)) / (limit * buffer)))


@dataclass(frozen=True, slots=True)
class Rewards:
    """The weight of each term.

    Attributes:
        weights: by name; by default 1 for ``task`` and 0 for all others.
        reply_limit: most tokens of a reply, for ``overlong``; 0 for none.
        buffer: see :func:`overlong`.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    reply_limit: int = 0
    buffer: float = 0.2

    def term(self, name: str, turn: Turn) -> float:
        """One unweighted term of a turn; 0 if the turn has no such term."""
        if name == "overlong":
            return overlong(len(turn.completion.token_ids), self.reply_limit, self.buffer)
        return TERMS[name](turn) if name in TERMS else turn.rewards.get(name, 0.0)

    def task(self, turn: Turn) -> float:
        """The weighted ``task`` term, the paper's r_t."""
        return self.weights.get("task", 1.0) * turn.rewards.get("task", 0.0)

    def others(self, turn: Turn) -> float:
        """The weighted sum of all other terms."""
        return sum(weight * self.term(name, turn) for name, weight in self.weights.items() if name != "task")

    def weighted(self, turn: Turn) -> dict[str, float]:
        """The terms of :meth:`of` by name, those that are not 0."""
        names = ("task", *(name for name in self.weights if name != "task"))
        values = {name: self.weights.get(name, 1.0) * self.term(name, turn) for name in names}
        return {name: value for name, value in values.items() if value}

    def of(self, turn: Turn) -> float:
        """The reward of the turn."""
        return self.task(turn) + self.others(turn)

    def outcome(self, trajectory: Trajectory) -> float:
        """R^E(τ): the sum of its turns' rewards; by default the sum of the task terms, as in the paper."""
        return float(sum(map(self.of, trajectory.turns)))


Values = list[list[float]]
"""One list per trajectory, one value per turn."""

EPSILON = 1e-6
"""Added to what is divided by."""


def returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Discounted returns-to-go, Σ_{k≥t} γ^{k-t} r_k.

    >>> returns([0.0, 0.0, 1.0], gamma=0.5)
    [0.25, 0.5, 1.0]
    """
    values: list[float] = []
    value = 0.0
    for reward in reversed(rewards):  # R_t = r_t + γ·R_{t+1}: one pass from the end, instead of a sum per turn
        value = reward + gamma * value
        values.append(value)
    return values[::-1]


def has_zero_variance(group: Group) -> bool:
    """Whether all rollouts have the same task reward, so that comparing them teaches nothing.

    The trajectory advantage of a zero-variance group is 0. If all failed, every advantage of every estimator is 0; if
    all succeeded, the state advantages may still prefer short solutions (Eq. 8).
    """
    return is_flat([trajectory.outcome for trajectory in group.trajectories])


def reward_variance(group: Group, rewards: Rewards) -> float:
    """The variance of the weighted rewards of a group's episodes; 0 for differences that are rounding."""
    outcomes = [rewards.outcome(trajectory) for trajectory in group.trajectories]
    return 0.0 if is_flat(outcomes) else float(np.var(outcomes))


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
) -> list[Group]:
    """The groups with normalized process terms; unchanged if none of them weighs.

    Args:
        groups: of this rank.
        weights: of the reward terms.
        norm, gate: ``estimator.process_norm`` and ``estimator.process_gate``.
    """
    changed = list(groups)
    for name in weighing(weights) if norm != "none" else ():
        for number, group in enumerate(groups):
            changed[number] = _with_rewards(changed[number], partial(_scaled, name, largest_return(group, name)))
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


def _scaled(name: str, largest: float, turn: Turn, trajectory: Trajectory) -> dict[str, float]:
    """The normalized term of a turn, if it has the term."""
    if name not in turn.rewards:
        return {}
    return {name: turn.rewards[name] / (largest + EPSILON)}


def largest_return(group: Group, name: str) -> float:
    """The largest |Σ_{k≥t} r_k| of a term over all turns of a group; undiscounted."""
    rows = ([turn.rewards.get(name, 0.0) for turn in trajectory.turns] for trajectory in group.trajectories)
    return max((abs(value) for row in rows for value in returns(row, 1.0)), default=0.0)


Shuffle = Callable[[Sequence[float]], list[float]]
"""Deals values anew."""


def shuffle_process(groups: Sequence[Group], weights: Mapping[str, float], shuffle: Shuffle) -> list[Group]:
    """The same values of each process term on other turns, among those of the batch that have the term."""
    changed = list(groups)
    for name in weighing(weights):
        rewards = [turn.rewards for group in changed for one in group.trajectories for turn in one.turns]
        values = iter(shuffle([row[name] for row in rewards if name in row]))

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
        only += has_zero_variance(group) and not is_flat(sums)
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
