"""The reward of a turn: named terms, weighted and summed in this one place.

Environments and wrappers name the terms of a step in ``info["rewards"]``, which :class:`~roleagent.types.Turn` keeps.
Other terms follow from any turn (:data:`TERMS`). They count events, so most of them need a negative weight:
``estimator.rewards.format_error=-0.1``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roleagent.types import Trajectory, Turn

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
