"""What a turn earned: named terms, each with its weight, become one number here and nowhere else.

Environments and wrappers name the terms of a step in ``info["rewards"]``, which :class:`~roleagent.types.Turn` keeps.
Beside those, some can be read off any turn (:data:`TERMS`). They count what happened, so most of them want a negative
weight: ``estimator.rewards.format_error=-0.1``.
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
"""Terms that need nothing but the turn: 1 where the reply could not be read, where the command did nothing, and of
every turn. ``overlong`` (:func:`overlong`) is the fourth."""


def overlong(length: int, limit: int, buffer: float) -> float:
    """How far a reply reached into the last part of its token limit, in [0, 1] (DAPO's soft penalty, without its sign).

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
        weights: by name; ``task`` weighs 1 unless it is named, every other term 0.
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
        """One term of a turn, unweighed; 0 where the turn has no such term."""
        if name == "overlong":
            return overlong(len(turn.completion.token_ids), self.reply_limit, self.buffer)
        return TERMS[name](turn) if name in TERMS else turn.rewards.get(name, 0.0)

    def task(self, turn: Turn) -> float:
        """The weighed ``task`` term: what the method calls r_t."""
        return self.weights.get("task", 1.0) * turn.rewards.get("task", 0.0)

    def others(self, turn: Turn) -> float:
        """Everything else, weighed and added up."""
        return sum(weight * self.term(name, turn) for name, weight in self.weights.items() if name != "task")

    def of(self, turn: Turn) -> float:
        """All that the turn earned."""
        return self.task(turn) + self.others(turn)

    def outcome(self, trajectory: Trajectory) -> float:
        """R^E(τ): all that its turns earned. By default the sum of the task terms, as the method has it."""
        return float(sum(map(self.of, trajectory.turns)))
