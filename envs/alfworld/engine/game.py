"""One ALFWorld game: its source, and the immutable form that the simulator plays.

A :class:`GameSource` is what the generator and the loader deliver: the fields of an official ``game.tw-pddl`` file that
matter. :class:`Game` is the same game read: things are numbered 0, 1, … in the order of their PDDL
ids, which is the order in which TextWorld lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from roleagent.envs.alfworld.engine.game_version import GameVersion, UnknownGameVersion, recognize
from roleagent.envs.alfworld.engine.goal_condition import Condition, Fact, compile_goal
from roleagent.envs.alfworld.engine.pddl import CHANGING, SIGNATURES, Problem
from roleagent.sharing import Immutable


@dataclass(frozen=True, slots=True)
class GameSource(Immutable):
    """A game as text.

    Attributes:
        task_id: the task's name in splits, logs and reports.
        task_type: one of ALFWorld's six, e.g. ``pick_and_place_simple``.
        problem: the PDDL problem (``pddl_problem`` of an official file).
        goal: the task sentence without ``Your task is to: `` and without the final full stop.
        walkthrough: commands that win from the start; empty where none is known.
        domain: the PDDL domain, or ``""`` for the domain and grammar that the ``alfworld`` package ships.
        grammar: the text grammar with the task sentence in it, or ``""`` as above.
    """

    task_id: str
    task_type: str
    problem: str
    goal: str
    walkthrough: tuple[str, ...] = ()
    domain: str = ""
    grammar: str = ""


@dataclass(frozen=True, slots=True)
class Game(Immutable):
    """A game, read. Receptacles, objects and locations are numbers; facts are tuples of a predicate and numbers.

    Attributes:
        source: the text it was read from.
        version: of the rules.
        receptacles, objects, locations: the names that the text uses, e.g. ``"cabinet 3"``.
        receptacle_numbers, object_numbers: the inverse.
        place: the location of each receptacle; None where it has none.
        here: the receptacles at each location that has any.
        openable: per receptacle, whether it can be opened.
        fits: per receptacle, the objects that may be put there.
        nested: the objects in or on each object that is itself a container.
        able: the objects that are ``pickupable``, ``cleanable``, …; also ``knife``.
        stations: the receptacles that ``clean``, ``heat`` and ``cool``.
        start: the location where the agent begins.
        contents: the objects in each receptacle at the start, ascending.
        facts: all changing facts at the start.
        won: the condition that ends the game.
    """

    source: GameSource
    version: GameVersion
    receptacles: tuple[str, ...]
    objects: tuple[str, ...]
    locations: tuple[str, ...]
    receptacle_numbers: Mapping[str, int]
    object_numbers: Mapping[str, int]
    place: tuple[int | None, ...]
    here: Mapping[int, tuple[int, ...]]
    openable: tuple[bool, ...]
    fits: tuple[frozenset[int], ...]
    nested: Mapping[int, tuple[int, ...]]
    able: Mapping[str, frozenset[int]]
    stations: Mapping[str, frozenset[int]]
    start: int
    contents: tuple[tuple[int, ...], ...]
    facts: frozenset[tuple[Any, ...]]
    won: Condition

    @property
    def appliances(self) -> tuple[str, ...]:
        """The receptacles with a location, in the order of the first observation."""
        return tuple(name for name, place in zip(self.receptacles, self.place, strict=True) if place is not None)

    def routes(self, place: int) -> list[str]:
        """The commands that walk away from a location."""
        return [
            f"go to {name}"
            for name, other in zip(self.receptacles, self.place, strict=True)
            if other is not None and other != place
        ]

    @classmethod
    def from_source(cls, source: GameSource) -> Game:
        """Reads a game; about 2 ms.

        Raises:
            UnknownGameVersion: the simulator does not know its rules, or cannot express its facts.
        """
        version = recognize(source.domain, source.grammar)
        problem = Problem.parse(source.problem)
        types, facts = problem.types, problem.facts

        ids: dict[str, list[str]] = {"receptacle": [], "object": [], "location": []}
        everything = sorted({word for group in facts.values() for fact in group for word in fact[1:]})
        for name in everything:
            ids.setdefault(types[name], []).append(name)
        shown = display_names(everything)
        number = {kind: {name: i for i, name in enumerate(names)} for kind, names in ids.items()}
        r_of, o_of, l_of = number["receptacle"], number["object"], number["location"]
        names = {kind: tuple(shown[name] for name in ids[kind]) for kind in ids}
        if len({*names["receptacle"], *names["object"]}) != len(r_of) + len(o_of):
            raise UnknownGameVersion("two things go by the same name")

        place: list[int | None] = [None] * len(r_of)
        for _, receptacle, location in facts["receptacleatlocation"]:
            if place[r_of[receptacle]] is not None:
                raise UnknownGameVersion(f"{receptacle} is at two locations")
            place[r_of[receptacle]] = l_of[location]
        here: dict[int, list[int]] = {}
        for r, location in enumerate(place):
            if location is not None:
                here.setdefault(location, []).append(r)

        kind_of: dict[str, set[str]] = {}
        for _, name, kind in facts["objecttype"] | facts["receptacletype"]:
            kind_of.setdefault(name, set()).add(kind)
        of_kind: dict[str, set[int]] = {}
        for _, name, kind in facts["objecttype"]:
            of_kind.setdefault(kind, set()).add(o_of[name])
        fitting: dict[str, set[int]] = {}
        for _, rtype, otype in facts["cancontain"]:
            fitting.setdefault(rtype, set()).update(of_kind.get(otype, ()))

        def stations(kinds: Iterable[str]) -> frozenset[int]:
            return frozenset(r_of[fact[1]] for fact in facts["receptacletype"] if fact[2] in kinds)

        able = {p: frozenset(o_of[fact[1]] for fact in facts[p]) for p in facts if SIGNATURES[p] == ("object",)}
        able["knife"] = frozenset(of_kind.get("knifetype", set()) | of_kind.get("butterknifetype", set()))
        nested: dict[int, list[int]] = {}
        for _, inner, outer in sorted(facts["inreceptacleobject"]):
            if inner != outer:
                nested.setdefault(o_of[outer], []).append(o_of[inner])
        contents: list[list[int]] = [[] for _ in r_of]
        for _, name, receptacle in sorted(facts["inreceptacle"]):
            contents[r_of[receptacle]].append(o_of[name])
        openable = {fact[1] for fact in facts["openable"]}

        def numbered(fact: Fact) -> tuple[Any, ...]:
            return (fact[0], *(number[types[word]][word] for word in fact[1:] if types[word] != "agent"))

        goal = compile_goal(problem.goal, facts, problem.of_type(), CHANGING)
        for fact in goal.facts:
            if any(word not in number.get(types.get(word, ""), ()) for word in fact[1:]):
                raise UnknownGameVersion("the goal names something that no fact does")
        return cls(
            source=source,
            version=version,
            receptacles=names["receptacle"],
            objects=names["object"],
            locations=names["location"],
            receptacle_numbers={name: r for r, name in enumerate(names["receptacle"])},
            object_numbers={name: o for o, name in enumerate(names["object"])},
            place=tuple(place),
            here={location: tuple(group) for location, group in here.items()},
            openable=tuple(name in openable for name in ids["receptacle"]),
            fits=tuple(
                frozenset().union(*(fitting.get(kind, ()) for kind in kind_of.get(name, ())))
                for name in ids["receptacle"]
            ),
            nested={outer: tuple(inner) for outer, inner in nested.items()},
            able=able,
            stations={
                "clean": stations(version.washers),
                "heat": stations(("microwavetype",)),
                "cool": stations(("fridgetype",)),
            },
            start=l_of[next(iter(facts["atlocation"]))[2]],
            contents=tuple(tuple(group) for group in contents),
            facts=frozenset(numbered(fact) for p in CHANGING for fact in facts[p]),
            won=Condition(
                tuple(tuple(frozenset(map(numbered, option)) for option in choice) for choice in goal.choices)
            ),
        )


class Engine(Protocol):
    """The engine of a game: the native simulator, or TextWorld."""

    won: bool

    @property
    def admissible_commands(self) -> list[str]: ...

    def reset(self) -> str: ...

    def step(self, command: str) -> str: ...


def display_names(ids: list[str]) -> dict[str, str]:
    """The name of each object in the text: of the sorted ids of a type, the first gets the highest number.

    >>> display_names(["loc_bar_1", "loc_bar_2", "sink_bar_1", "sink_bar_1_bar_sinkbasin"])
    {'loc_bar_1': 'loc 2', 'loc_bar_2': 'loc 1', 'sink_bar_1': 'sink 1', 'sink_bar_1_bar_sinkbasin': 'sinkbasin 1'}
    """
    kinds = {}
    left: dict[str, int] = {}
    for name in ids:
        kind, bar, _ = name.partition("_bar_")
        if bar:
            kinds[name] = kind = kind + "basin" if "basin" in name else kind
            left[kind] = left.get(kind, 0) + 1
    shown = {}
    for name in ids:
        if name in kinds:
            shown[name] = f"{kinds[name]} {left[kinds[name]]}"
            left[kinds[name]] -= 1
        else:
            shown[name] = name + " "  # not numbered; TextWorld keeps the space
    return shown


__all__ = ["Engine", "Game", "GameSource", "display_names"]
