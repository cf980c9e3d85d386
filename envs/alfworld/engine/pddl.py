"""The PDDL problem of a game: objects, initial facts and goal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion
from roleagent.envs.alfworld.engine.goal_condition import Fact, parse_expression

_CONDITIONS = ("isclean", "ishot", "iscool", "issliced", "istoggled")
# What the simulator understands: predicates and the types of their arguments.
SIGNATURES: dict[str, Fact] = {
    "atlocation": ("agent", "location"),
    "receptacleatlocation": ("receptacle", "location"),
    "objectatlocation": ("object", "location"),
    "receptacletype": ("receptacle", "rtype"),
    "objecttype": ("object", "otype"),
    "cancontain": ("rtype", "otype"),
    "inreceptacle": ("object", "receptacle"),
    "inreceptacleobject": ("object", "object"),
    "isreceptacleobject": ("object",),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "holds": ("agent", "object"),
    **dict.fromkeys(("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable"), ("object",)),
    **dict.fromkeys(_CONDITIONS, ("object",)),
    # The domain knows these too, but no text and no action depends on them.
    **dict.fromkeys(("moveable", "ison", "isreceptacleobjectfull"), ("object",)),
    "full": ("receptacle",),
    "wasinreceptacle": ("object", "receptacle"),
}
CHANGING = frozenset({"atlocation", "objectatlocation", "inreceptacle", "opened", "holds", *_CONDITIONS})
"""The predicates whose facts change during a game."""
_SECTIONS = re.compile(
    r"\(\s*:objects\b(?P<objects>.*?)\)\s*\(\s*:init\b(?P<init>.*)\(\s*:goal\b(?P<goal>.*)", re.DOTALL
)
_FACT = re.compile(r"\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, read; everything in lower case.

    Attributes:
        types: the type of every declared name.
        facts: the initial facts by predicate; every predicate that the domain knows has an entry.
        goal: the goal as nested lists.
    """

    types: Mapping[str, str]
    facts: Mapping[str, set[Fact]]
    goal: list[Any]

    @classmethod
    def parse(cls, text: str) -> Problem:
        """Reads the text of a problem.

        Raises:
            UnknownGameVersion: it is not written as ALFWorld's problems are.
        """
        text = text.lower()
        if ";" in text:
            text = re.sub(r";[^\n]*", "", text)
        sections = _SECTIONS.search(text)
        if sections is None:
            raise UnknownGameVersion("the PDDL problem lacks :objects, :init or :goal")
        types = _declared(sections["objects"])
        return cls(types, _initial_facts(sections["init"], types), parse_expression(sections["goal"]))

    def of_type(self) -> dict[str, list[str]]:
        """All declared names, by type."""
        names: dict[str, list[str]] = {}
        for name, kind in self.types.items():
            names.setdefault(kind, []).append(name)
        return names


def _declared(section: str) -> dict[str, str]:
    """The type of every declared name."""
    types: dict[str, str] = {}
    waiting: list[str] = []
    tokens = iter(section.split())
    for token in tokens:
        if token == "-":
            kind = next(tokens, "")
            for name in waiting:
                if types.setdefault(name, kind) != kind:
                    raise UnknownGameVersion(f"{name} is declared twice")
            waiting = []
        else:
            waiting.append(token)
    if waiting or list(types.values()).count("agent") != 1:
        raise UnknownGameVersion("the PDDL problem declares a name without a type, or not exactly one agent")
    return types


def _initial_facts(section: str, types: Mapping[str, str]) -> dict[str, set[Fact]]:
    """The initial facts by predicate, checked against the types that the domain gives its predicates."""
    facts: dict[str, set[Fact]] = {predicate: set() for predicate in SIGNATURES}
    found = _FACT.findall(section)
    if len(found) != section.count("("):
        raise UnknownGameVersion("the initial state has something other than plain facts")
    for text in set(found):
        fact = tuple(text.split())
        if not fact or tuple([types.get(word) for word in fact[1:]]) != SIGNATURES.get(fact[0]):
            raise UnknownGameVersion(f"the initial state has an unknown fact: ({text.strip()})")
        facts[fact[0]].add(fact)
    if len(facts["atlocation"]) != 1 or facts["holds"]:
        raise UnknownGameVersion("the agent does not start at exactly one location with empty hands")
    return facts


__all__ = ["CHANGING", "SIGNATURES", "Problem"]
