"""Failure modes: taxonomies, detectors, and matching of free text to a mode."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rapidfuzz.distance import Indel
from rapidfuzz.process import extractOne

from roleagent.env_card import card_of
from roleagent.types import Trajectory

UNKNOWN = "unknown"
_MOST_CHARACTERS = 64  # of a mode that is in no taxonomy


class Finding(NamedTuple):
    """The result of a detector: the critical step (0-based), what happened, and what to do instead."""

    step: int | None
    detail: str
    lesson: str


@dataclass(frozen=True)
class FailureModes:
    """The taxonomy of an environment and its detectors.

    Attributes:
        meanings: by mode, a sentence about the agent.
        detectors: one function per mode, named after it; the first that finds something gives the dominant mode.
        read: turns an episode into what the detectors take; without it they take the trajectory.
        otherwise: mode and finding of an episode in which no detector finds anything.
    """

    meanings: Mapping[str, str] = field(default_factory=dict)
    detectors: tuple[Callable[[Any], Finding | None], ...] = ()
    read: Callable[[Trajectory], Any] = lambda trajectory: trajectory
    otherwise: Callable[[Any], tuple[str, Finding]] = lambda trace: (
        UNKNOWN,
        Finding(None, "no detector found anything", ""),
    )

    def diagnose(self, trajectory: Trajectory) -> tuple[str, Finding]:
        """The dominant failure mode of a failed episode and its finding, from the turns that were played."""
        places = [place for place, turn in enumerate(trajectory.turns) if turn.played]
        if trajectory.turns and not places:  # an agent program in a world of its own
            return UNKNOWN, Finding(None, "nothing reached the environment", "")
        trace = self.read(replace(trajectory, turns=tuple(trajectory.turns[place] for place in places)))
        named = ((detector.__name__, found) for detector in self.detectors if (found := detector(trace)))
        mode, finding = next(named, None) or self.otherwise(trace)
        step = finding.step
        return mode, finding if step is None else finding._replace(step=places[step])


def failure_modes_of(env_id: str) -> FailureModes:
    """The failure modes of an environment; empty if its card has none."""
    return card_of(env_id).load("failure_modes") or FailureModes()


def diagnose(trajectory: Trajectory) -> tuple[str, Finding]:
    """The dominant failure mode of a failed episode; ``unknown`` if its environment has no detectors."""
    return failure_modes_of(trajectory.task.env_id).diagnose(trajectory)


def taxonomy(env_id: str) -> tuple[str, ...]:
    """The names of an environment's failure modes; ``()`` if its card has none.

    >>> import roleagent
    >>> taxonomy("RoleAgent/WebShop-v0")[0], taxonomy("Someone/Else-v1")
    ('irrelevant_query', ())
    """
    return tuple(failure_modes_of(env_id).meanings)


def is_known(mode: str, env_id: str) -> bool:
    """Whether a mode belongs to the environment's taxonomy."""
    return mode in failure_modes_of(env_id).meanings


def match_mode(text: str, modes: tuple[str, ...]) -> str:
    """The mode that a text names: exactly, as a part, or with a typing error.

    A text that names none of them is a new mode. It is kept in normal form, so that the same name is the same mode.

    >>> match_mode("**Navigation Loop** (desk 1 and desk 2)", ("navigation_loop", "wrong_receptacle"))
    'navigation_loop'
    >>> match_mode("Wrong recepticle", ("navigation_loop", "wrong_receptacle"))
    'wrong_receptacle'
    >>> match_mode("Dropped the egg!", ("navigation_loop", "wrong_receptacle"))
    'dropped_the_egg'
    """
    name = _joined(text)
    if not name:
        return UNKNOWN
    if name in modes:
        return name
    named = [(f"_{name}_".find(f"_{mode}_"), mode) for mode in modes if f"_{mode}_" in f"_{name}_"]
    if named:
        return min(named)[1]
    near = extractOne(name, modes, scorer=Indel.normalized_similarity, score_cutoff=0.85)
    return near[0] if near else name[:_MOST_CHARACTERS].rstrip("_")


def _joined(text: str) -> str:
    return re.sub(r"[\W_]+", "_", text.lower()).strip("_")


def within(text: str, modes: Sequence[str]) -> str:
    """The one mode that a text mentions; ``""`` for none or several.

    >>> modes = ("navigation_loop", "wrong_receptacle")
    >>> within("A Navigation loop: the agent went to and fro.", modes), within("wrong answer?", modes)
    ('navigation_loop', '')
    """
    name = f"_{_joined(text)}_"
    named = [mode for mode in modes if f"_{mode}_" in name]
    return named[0] if len(named) == 1 else ""
