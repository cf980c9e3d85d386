"""The rewards of a turn, and the returns and state groups that advantage estimators compare (Eq. 5-7).

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

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from roleagent.similarity import group_states
from roleagent.types import Group, Trajectory, Turn

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

    Raises:
        ValueError: a buffer out of range.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    reply_limit: int = 0
    buffer: float = 0.2

    def __post_init__(self) -> None:
        if not 0.0 < self.buffer <= 1.0:
            raise ValueError(f"estimator.overlong_buffer must be in (0, 1], not {self.buffer}")

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

States = list[list[int]]
"""One list per trajectory, per turn the number of its state within the group: 0, 1, …; -1: unknown."""

EPSILON = 1e-6
"""Added to a standard deviation before dividing by it."""


@dataclass(frozen=True, slots=True)
class EstimatorConfig:
    """The options of the estimators.

    Attributes:
        gamma: discount per turn, in [0, 1].
        alpha: weight of the trajectory advantage (Eq. 8), ≥ 0.
        norm: ``"std"`` divides by the population standard deviation, ``"mean"`` only subtracts the mean.
        similarity_threshold: states this similar (in (0, 1]) share a group; None groups equal states only.
        rewards: the reward of a turn; by default its ``task`` term.
        unscored: R_pre of a horizon without a state to score: ``"neutral"`` takes the mean of the scored ones,
            ``"zero"`` counts 0 (Eq. 5 as published); see :func:`predictive_returns`.
        state_of_failure: the state after a failed command, which changed nothing: ``"previous"`` is the state before
            it, ``"text"`` the text of the failure (as published).

    Raises:
        ValueError: a value out of range.
    """

    gamma: float = 0.95
    alpha: float = 1.0
    norm: str = "std"
    similarity_threshold: float | None = None
    rewards: Rewards = field(default_factory=Rewards)
    unscored: str = "neutral"
    state_of_failure: str = "previous"

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], not {self.gamma}")
        if self.alpha < 0.0:
            raise ValueError(f"alpha must not be negative, but is {self.alpha}")
        if self.norm not in ("std", "mean"):
            raise ValueError(f"norm must be 'std' or 'mean', not {self.norm!r}")
        if self.similarity_threshold is not None and not 0.0 < self.similarity_threshold <= 1.0:
            raise ValueError(f"similarity_threshold must be in (0, 1] or None, not {self.similarity_threshold}")
        if self.unscored not in ("neutral", "zero"):
            raise ValueError(f"unscored must be 'neutral' or 'zero', not {self.unscored!r}")
        if self.state_of_failure not in ("previous", "text"):
            raise ValueError(f"state_of_failure must be 'previous' or 'text', not {self.state_of_failure!r}")


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


def standardize(values: Sequence[float], norm: str = "std") -> list[float]:
    """Distance from the mean, in population standard deviations (``norm="std"``) or absolute (``norm="mean"``).

    Fewer than two values, or values without spread, carry no comparison and give 0.

    >>> [round(value, 3) for value in standardize([1.0, 0.0, 0.0, 1.0])]
    [1.0, -1.0, -1.0, 1.0]
    >>> standardize([3.0, 1.0], norm="mean"), standardize([7.0])
    ([1.0, -1.0], [0.0])
    """
    if len(values) < 2 or is_flat(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)  # fsum: the same result in whatever order the rollouts arrive
    centered = [value - mean for value in values]
    if norm == "mean":
        return centered
    deviation = math.sqrt(math.fsum(value * value for value in centered) / len(values))
    return [value / (deviation + EPSILON) for value in centered]


def discounted_returns(group: Group, config: EstimatorConfig) -> Values:
    """The discounted return of every turn, over all reward terms."""
    rewards = config.rewards
    return [returns([rewards.of(turn) for turn in trajectory.turns], config.gamma) for trajectory in group.trajectories]


def task_returns(trajectory: Trajectory, gamma: float, rewards: Rewards | None = None) -> list[float]:
    """R_task(a_t) of every turn (Eq. 5, left)."""
    return returns([(rewards or Rewards()).task(turn) for turn in trajectory.turns], gamma)


def predictive_return(turn: Turn, gamma: float) -> float:
    """R_pre(a_t) = Σ_h γ^{h-1} r̃_{t,h} over the scored horizons (Eq. 5, right, as published)."""
    if turn.prediction is None:
        return 0.0
    return math.fsum(gamma ** (score.horizon - 1) * score.score for score in turn.prediction.scores)


def predictive_returns(group: Group, config: EstimatorConfig) -> Values:
    """R_pre(a_t) of every turn (Eq. 5, right), in [0, Σ_{h=1..H} γ^{h-1}].

    A horizon has no score if the episode ends before it or its state is None. Eq. 5 counts 0 there
    (``unscored="zero"``), so a winning last step is worth less than the same win later. With ``"neutral"`` (an addition
    to the paper) R_pre is the mean score, weighted by γ^{h-1}, over the scored horizons, times Σ_{h=1..H} γ^{h-1}. This
    is Eq. 5 if all horizons are scored. A turn without scores takes the mean R_pre of its trajectory's scored turns,
    else the mean of the group's, else 0. An absent prediction is scored 0; a turn that was not asked for predictions
    has R_pre = 0.
    """
    if config.unscored == "zero":
        return [[predictive_return(turn, config.gamma) for turn in t.turns] for t in group.trajectories]
    # The last H steps of an episode have fewer horizons to score. Counting 0 there (Eq. 5) makes R_pre fall towards the
    # end whatever was predicted, and a short win worth less than a long one; so a missing horizon is taken as average.
    rows = [[_mean_return(turn, config.gamma) for turn in t.turns] for t in group.trajectories]
    scored = [[value for value in row if value is not None] for row in rows]
    typical = _mean([value for values in scored for value in values])
    filled: Values = []
    for row, values, trajectory in zip(rows, scored, group.trajectories, strict=True):
        usual = _mean(values) if values else typical
        silent = (0.0 if turn.prediction is None else usual for turn in trajectory.turns)
        filled.append([other if value is None else value for value, other in zip(row, silent, strict=True)])
    return filled


def _mean_return(turn: Turn, gamma: float) -> float | None:
    """The weighted mean of a turn's scores times Σ_{h=1..H} γ^{h-1}; None without scores."""
    mean = prediction_mean(turn, gamma)
    return None if mean is None else mean * _most(turn, gamma)


class ReturnTerms(NamedTuple):
    """The terms of every turn's return, R_task·(1 + R_pre) + R_others.

    Attributes:
        task: R_task(a_t), the discounted return of the ``task`` term (Eq. 5, left).
        predictive: the R_pre(a_t) that modulates it (Eq. 5, right); 0 where R_task is below 0.
        others: the discounted return of all other terms: penalties and process rewards.
    """

    task: Values
    predictive: Values
    others: Values


def return_terms(group: Group, config: EstimatorConfig) -> ReturnTerms:
    """The terms of every turn's return; :func:`modulated_returns` is their sum."""
    rewards = config.rewards
    tasks = [task_returns(trajectory, config.gamma, rewards) for trajectory in group.trajectories]
    rows = zip(tasks, predictive_returns(group, config), strict=True)
    return ReturnTerms(
        tasks,
        [[0.0 if task < 0 else pre for task, pre in zip(*row, strict=True)] for row in rows],
        [returns([rewards.others(turn) for turn in t.turns], config.gamma) for t in group.trajectories],
    )


def modulated_returns(group: Group, config: EstimatorConfig) -> Values:
    """R_t = R_task(a_t)·(1 + R_pre(a_t)) of every turn (Eq. 6), plus the unmodulated return of all other terms.

    The factor multiplies the return of *each* step, not the last reward: otherwise only the last prediction would
    count. A failed trajectory stays at 0. Penalties, and returns below 0, are not multiplied: that would punish good
    predictions.
    """
    rows = zip(*return_terms(group, config), strict=True)
    return [[task * (1.0 + pre) + other for task, pre, other in zip(*row, strict=True)] for row in rows]


def _most(turn: Turn, gamma: float) -> float:
    """The largest R_pre of a turn, Σ_{h=1..H} γ^{h-1}; 0 if it was not asked for predictions."""
    return math.fsum(gamma**ahead for ahead in range(len(turn.prediction.texts))) if turn.prediction else 0.0


def prediction_mean(turn: Turn, gamma: float) -> float | None:
    """The mean score of a turn's prediction, weighted by γ^{h-1}, in [0, 1]; None without scores."""
    scores = turn.prediction.scores if turn.prediction is not None else ()
    weight = math.fsum(gamma ** (score.horizon - 1) for score in scores)
    return predictive_return(turn, gamma) / weight if weight else None


def compared_turns(group: Group, config: EstimatorConfig) -> list[list[int]]:
    """Of each trajectory the turns whose predictions change an advantage of :func:`modulated_returns`.

    A prediction multiplies the task's return of its turn (Eq. 6), which A^S compares with those of other turns of the
    same state (Eq. 7). So its score has no effect where that return is not positive, or where no other turn shares the
    state. In a group whose episodes all have the same outcome it would be the only difference, and teach to prefer
    what is easy to predict: there no turn is compared.
    """
    chosen: list[list[int]] = [[] for _ in group.trajectories]
    if has_zero_variance(group):
        return chosen
    tasks = [task_returns(trajectory, config.gamma, config.rewards) for trajectory in group.trajectories]
    for positions in by_state(states_of(group, config)):
        for i, t in positions if len(positions) > 1 else ():
            if tasks[i][t] > 0:
                chosen[i].append(t)
    return [sorted(turns) for turns in chosen]


def states_of(group: Group, config: EstimatorConfig) -> States:
    """The state of every turn, numbered over all rollouts of the task (Eq. 7)."""
    states = tuple(state_of(turn, config) for trajectory in group.trajectories for turn in trajectory.turns)
    labels = iter(group_states(states, config.similarity_threshold))
    return [[next(labels) for _ in trajectory.turns] for trajectory in group.trajectories]


def state_of(turn: Turn, config: EstimatorConfig) -> str | None:
    """The state that a turn is compared by (``config.state_of_failure``); None if it is unknown."""
    return turn.grouping_state if config.state_of_failure == "previous" else turn.state


def by_state(states: States) -> list[list[tuple[int, int]]]:
    """Positions (trajectory, turn) by state, without turns of unknown state."""
    members: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(states):
        for t, label in enumerate(row):
            if label >= 0:
                members[label].append((i, t))
    return list(members.values())


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def is_flat(values: Sequence[float]) -> bool:
    return not values or max(values) - min(values) < 1e-9


def has_zero_variance(group: Group) -> bool:
    """Whether all rollouts have the same task reward, so that comparing them teaches nothing.

    The trajectory advantage of a zero-variance group is 0. If all failed, every advantage of every estimator is 0; if
    all succeeded, the state advantages may still prefer short solutions (Eq. 8).
    """
    return is_flat([trajectory.outcome for trajectory in group.trajectories])


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
