"""The rewards of the two roles: named terms, weighted in this one place.

==============  =========  ============  =========================================================================
term            of         when          what
==============  =========  ============  =========================================================================
``task``        ``agent``  every step    what the environment gives for the step
``prediction``  ``agent``  every step    similarity of predicted and real states, summed over horizons; for the log
``valid``       ``world``  every answer  1 as the form demands, 0.5 where it had to be repaired, 0 where it was none
``true``        ``world``  reflections   :func:`true_to`: what can be checked of it against the episode
``useful``      ``world``  later         1 for each game of a selected task that ``agent`` failed at, else 0
==============  =========  ============  =========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from roleagent.types import Reflection, Selection, Trajectory

WEIGHTS: Mapping[str, float] = {"task": 1.0, "prediction": 0.0, "valid": 0.25, "true": 0.25, "useful": 1.0}
"""Of the terms. A prediction's worth is decided where returns are modulated (paper, Eq. 6), not here."""
_QUOTED = re.compile(r"(?<!\w)(['\"`])(\S(?:[^'\"`]{0,78}\S)?)\1(?!\w)|[“‘]([^”’]{1,80})[”’]")
_COUNTED = (
    "times|steps|turns|places|actions|commands|replies|walks|tries|attempts|searches|queries|pages|products|things"
)
_NUMBERED = re.compile(rf"\b([a-z]{{3,}}) (\d{{1,4}})\b(?! (?:{_COUNTED})\b)")
_COUNTING = re.compile(  # words before a number that say how many or when, not which
    r"about|after|all|and|are|around|at|before|best|both|but|by|exactly|first|for|from|had|has|into|just|last|least"
    r"|made|more|most|nearly|next|not|only|other|out|over|past|steps?|than|that|the|then|these|those|times?|took"
    r"|turns?|under|until|was|were|when|with|within"
)


def total(terms: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """The reward: the weighted sum of the terms. A term without a weight is for the log only.

    >>> total({"valid": 0.5, "true": 1.0, "useful": 1.0}, WEIGHTS)
    1.375
    """
    return float(sum(weights.get(name, 0.0) * value for name, value in terms.items()))


def weighing(changed: Mapping[str, float] | None) -> dict[str, float]:
    """The weights, with some of them changed.

    Raises:
        ValueError: there is no such term.
    """
    unknown = sorted(set(changed or {}) - set(WEIGHTS))
    if unknown:
        raise ValueError(f"no such reward term: {', '.join(unknown)}; there are {', '.join(WEIGHTS)}")
    return {**WEIGHTS, **(changed or {})}


def valid(answer: Reflection | Selection | None) -> float:
    """1 for an answer as the form demands, 0.5 for one that had to be repaired, 0 for none.

    >>> valid(Selection((0,), dropped=1)), valid(Selection((), source="fallback")), valid(None)
    (0.5, 0.0, 0.0)
    """
    if answer is None or answer.source == "fallback":
        return 0.0
    repaired = answer.repaired or (isinstance(answer, Selection) and answer.dropped > 0)
    return 0.5 if repaired else 1.0


def things_named(text: str) -> tuple[str, ...]:
    """The verifiable names in a sentence: quoted words and numbered objects.

    >>> things_named("'open drawer 2' failed 3 times, and desk 1 was 2 of the last 4 places")
    ('open drawer 2', 'desk 1')
    """
    quoted = [" ".join((match[2] or match[3]).lower().split()) for match in _QUOTED.finditer(text)]
    rest = _QUOTED.sub(" ", text).lower()
    numbered = [" ".join(match.groups()) for match in _NUMBERED.finditer(rest) if not _COUNTING.fullmatch(match[1])]
    return tuple(dict.fromkeys((*filter(None, quoted), *numbered)))


def claims(reflection: Reflection, trajectory: Trajectory, named_step: int | None) -> list[bool]:
    """The verifiable claims of a reflection, and whether each is true of the episode.

    A thing named in the detail must occur in the episode. A critical step must exist and, where the detail names
    things, be a step at which one of them occurs.

    Args:
        reflection: as it was read.
        trajectory: the episode.
        named_step: the step that the reply names, 0-based, whether or not the episode has it.
    """
    steps = [_words(f"{turn.action} {turn.observation}") for turn in trajectory.turns]
    everything = " ".join((_words(f"{trajectory.task.goal} {trajectory.initial_observation}"), *steps))
    named = [_words(thing) for thing in things_named(reflection.detail)]
    named = [thing for thing in named if thing.strip()]
    found = [thing in everything for thing in named]
    if named_step is not None:
        exists = 0 <= named_step < len(steps)
        found.append(exists and (not named or any(thing in steps[named_step] for thing in named)))
    return found


def true_to(reflection: Reflection, trajectory: Trajectory, named_step: int | None, judged: str | None = None) -> float:
    """The share of a reflection's verifiable claims that are true of the episode, in [0, 1].

    The mean of two parts: the share of its :func:`claims` that hold, and whether its mode is the one that a judge
    found. A part that is missing is left out; where both are, nothing can be checked, which earns 0.

    Args:
        reflection: as it was read.
        trajectory: the episode.
        named_step: the step that the reply names, 0-based, whether or not the episode has it.
        judged: the judge's mode; None without a judge.
    """
    parts = []
    if checked := claims(reflection, trajectory, named_step):
        parts.append(sum(checked) / len(checked))
    if judged is not None:
        parts.append(float(reflection.mode == judged))
    return sum(parts) / len(parts) if parts else 0.0


def _words(text: str) -> str:
    """Words and numbers only, in lower case, with blanks around each: "desk 1" is not in "desk 12"."""
    return " ".join(("", *re.findall(r"[^\W_]+", text.lower()), ""))
