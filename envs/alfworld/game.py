"""One ALFWorld game: what it is made from, and the immutable form the simulator plays.

A :class:`GameSource` is what the generator and the loader deliver: the fields of an official ``game.tw-pddl`` file that
matter, whoever wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GameSource:
    """A game as text.

    Attributes:
        task_id: the task's name in panels, logs and reports.
        task_type: one of ALFWorld's six, e.g. ``pick_and_place_simple``.
        problem: the PDDL problem (``pddl_problem`` of an official file).
        goal: the task sentence without ``Your task is to: `` and without the final full stop.
        walkthrough: commands that win from the start; empty where none is known.
        domain: the PDDL domain, or ``""`` for the domain and grammar of the current official games.
        grammar: the text grammar with the task sentence in it, or ``""`` as above.
    """

    task_id: str
    task_type: str
    problem: str
    goal: str
    walkthrough: tuple[str, ...] = ()
    domain: str = ""
    grammar: str = ""


__all__ = ["GameSource"]
