"""Verdicts about single actions: where a failed episode went wrong (Agent-R, arXiv 2501.11425, phase I).

A :class:`Judge` looks at bad paths of a search tree. The first action that it calls bad is the transition point t′: the
last one that a revision trajectory shows before the model admits its mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from roleagent.types import Trajectory

VerdictKind = Literal["good", "bad", "uncertain"]
KINDS: tuple[VerdictKind, ...] = get_args(VerdictKind)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's opinion of one action.

    Attributes:
        kind: the action helps much (good), harms much (bad), or neither or cannot be decided (uncertain).
        reason: in one sentence; ``""`` without one.
        source: the judge, or ``"fallback"`` for an answer that could not be read: it is uncertain.
        repaired: whether the answer had to be repaired to be read.
    """

    kind: VerdictKind
    reason: str = ""
    source: str = "rule"
    repaired: bool = False


UNREAD = Verdict("uncertain", source="fallback")
"""The verdict of an answer that could not be read: it convicts no action."""


@dataclass(frozen=True, slots=True)
class JudgedPath:
    """A bad path of T steps, and what a judge may know about it.

    Attributes:
        trajectory: of T turns.
        shared: t: the first steps, which a good path has too. They are not judged.
        edges: a number for each of the T steps; an edge that several paths of a tree share has the same one.
        values: Q, the mean final reward below a node, before the first step and after each: T + 1 numbers; None for a
            node without a visit.
    """

    trajectory: Trajectory
    shared: int
    edges: tuple[int, ...]
    values: tuple[float | None, ...] = ()


@runtime_checkable
class Judge(Protocol):
    """Judges the steps of bad paths."""

    def judge(self, paths: Sequence[JudgedPath]) -> list[list[Verdict]]:
        """For each path T − t verdicts, about the steps behind the shared ones; those of an edge are asked for once."""
        ...


def transition_point(shared: int, verdicts: Sequence[Verdict]) -> int | None:
    """t′ in (t, T]: the number of steps up to and including the first bad one; None if no step is bad.

    >>> transition_point(2, [Verdict("uncertain"), Verdict("bad"), Verdict("bad")])
    4
    >>> transition_point(2, [UNREAD, Verdict("good")]) is None
    True
    """
    first = next((place for place, verdict in enumerate(verdicts) if verdict.kind == "bad"), None)
    return None if first is None else shared + first + 1


__all__ = ["KINDS", "UNREAD", "Judge", "JudgedPath", "Verdict", "VerdictKind", "transition_point"]
