"""The goals of ALFWorld's six task types, as sentences and as PDDL conditions.

Every kind has two wordings. :func:`parse_goal` reads them back, so that an expert or an analyst knows what a task
wants from the same sentence that the agent sees.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PICK = "pick_and_place_simple"
LOOK = "look_at_obj_in_light"
CLEAN = "pick_clean_then_place_in_recep"
HEAT = "pick_heat_then_place_in_recep"
COOL = "pick_cool_then_place_in_recep"
TWO = "pick_two_obj_and_place"
TASK_TYPES = (PICK, LOOK, CLEAN, HEAT, COOL, TWO)

STATIONS = {CLEAN: "SinkBasin", HEAT: "Microwave", COOL: "Fridge"}
"""Where the object's state is changed, for the kinds that ask for it."""

PROPERTIES = {CLEAN: ("clean", "cleanable", "isClean"), HEAT: ("heat", "heatable", "isHot")}
PROPERTIES[COOL] = ("cool", "coolable", "isCool")
"""For the same kinds: the verb, what the object must be able to, and what it must become."""

WORDINGS = {
    PICK: ("put a {obj} in {place}", "put some {obj} on {place}"),
    LOOK: ("look at {obj} under the {place}", "examine the {obj} with the {place}"),
    CLEAN: ("put a clean {obj} in {place}", "clean some {obj} and put it in {place}"),
    HEAT: ("put a hot {obj} in {place}", "heat some {obj} and put it in {place}"),
    COOL: ("put a cool {obj} in {place}", "cool some {obj} and put it in {place}"),
    TWO: ("put two {obj} in {place}", "find two {obj} and put them in {place}"),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal in a task sentence.

    Attributes:
        task_type: one of :data:`TASK_TYPES`.
        obj: the kind of object, as the game's text writes it (``"mug"``).
        place: the kind of receptacle it shall end in; for ``look_at_obj_in_light`` the kind of lamp.
    """

    task_type: str
    obj: str
    place: str


_PATTERNS = [
    (task_type, re.compile(wording.format(obj=r"(?P<obj>\w+)", place=r"(?P<place>\w+)")))
    for task_type, wordings in WORDINGS.items()
    for wording in wordings
]


def parse_goal(text: str) -> Goal | None:
    """Reads a task sentence, alone or within an observation; None if no known pattern matches.

    >>> parse_goal("Your task is to: put a clean mug in cabinet.")
    Goal(task_type='pick_clean_then_place_in_recep', obj='mug', place='cabinet')
    >>> parse_goal("please tidy up") is None
    True
    """
    sentence = text.rpartition("Your task is to:")[2].strip().lower().rstrip(".")
    for task_type, pattern in _PATTERNS:
        if match := pattern.fullmatch(sentence):
            return Goal(task_type, match["obj"], match["place"])
    return None


def sentence(task_type: str, obj: str, place: str, wording: int = 0) -> str:
    """The task in words, without a full stop; ``wording`` is 0 or 1.

    >>> sentence("pick_two_obj_and_place", "CD", "Safe", 1)
    'find two cd and put them in safe'
    """
    return WORDINGS[task_type][wording].format(obj=obj.lower(), place=place.lower())


def pddl_condition(task_type: str, obj: str, place: str) -> str:
    """The goal of a problem file, for types named as in the game files (``"Mug"``, ``"Cabinet"``)."""
    if task_type == LOOK:
        lit = (
            f"(objectType ?ot {place}Type) (toggleable ?ot) (isToggled ?ot) "
            "(receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)"
        )
        return (
            "(and\n"
            f"    (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and {lit}))\n"
            f"    (exists (?o - object ?a - agent) (and (objectType ?o {obj}Type) (holds ?a ?o)))\n"
            ")"
        )

    def placed(variable: str) -> str:
        return f"(objectType {variable} {obj}Type) (receptacleType ?r {place}Type) (inReceptacle {variable} ?r)"

    if task_type == TWO:
        inner = f"(exists (?o2 - object) (and (not (= ?o1 ?o2)) {placed('?o2')}))"
        return f"(and (exists (?r - receptacle) (exists (?o1 - object) (and {placed('?o1')} {inner}))))"
    change = ""
    if task_type in PROPERTIES:
        _, able, become = PROPERTIES[task_type]
        change = f"({able} ?o) ({become} ?o) "
    return f"(and (exists (?r - receptacle) (exists (?o - object) (and {change}{placed('?o')}))))"
