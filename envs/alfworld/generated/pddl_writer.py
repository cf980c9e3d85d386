"""The PDDL problem text of a game, in the shape of the official files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from roleagent.envs.alfworld.engine.affordances import (
    CLEANABLE,
    COOLABLE,
    HEATABLE,
    SLICEABLE,
    TOGGLEABLE,
    VESSELS,
    accepts,
)
from roleagent.envs.alfworld.generated.layout import Scene
from roleagent.envs.alfworld.generated.rooms import ROOMS

OBJECT_TYPES = tuple(
    sorted({"Bathtub", "DeskLamp", "Sink"}.union(*(room.stock for room in ROOMS), *(r.fixtures for r in ROOMS)))
)
RECEPTACLE_TYPES = tuple(sorted(set().union(*(room.furniture for room in ROOMS))))


@dataclass(frozen=True, slots=True)
class Thing:
    """One object of a game.

    Attributes:
        id: its identifier in the problem.
        kind: its type, e.g. ``"Mug"``.
        location: where an agent stands to reach it.
        place: identifier of the receptacle that holds it; None for what belongs to the room.
    """

    id: str
    kind: str
    location: str
    place: str | None


def problem_text(name: str, scene: Scene, things: Sequence[Thing], goal: str) -> str:
    """The problem as PDDL.

    Args:
        name: a word that names the problem.
        scene: the room.
        things: everything in it that has an object type.
        goal: the condition, see :func:`roleagent.envs.alfworld.goals.pddl_condition`.
    """
    portable = [thing for thing in things if thing.place is not None and thing.kind not in TOGGLEABLE]
    kinds = sorted({thing.kind for thing in portable})
    places = dict.fromkeys(receptacle.kind for receptacle in scene.receptacles)
    locations = dict.fromkeys(
        [scene.start, *(r.location for r in scene.receptacles), *(thing.location for thing in things)]
    )
    objects = [
        "agent1 - agent",
        *(f"{kind} - object" for kind in OBJECT_TYPES),
        *(f"{kind}Type - otype" for kind in OBJECT_TYPES),
        *(f"{kind}Type - rtype" for kind in RECEPTACLE_TYPES),
        *(f"{thing.id} - object" for thing in things),
        *(f"{receptacle.id} - receptacle" for receptacle in scene.receptacles),
        *(f"{location} - location" for location in locations),
    ]
    properties: Mapping[str, frozenset[str]] = {
        "isReceptacleObject": VESSELS,
        "cleanable": CLEANABLE,
        "heatable": HEATABLE,
        "coolable": COOLABLE,
        "toggleable": TOGGLEABLE,
        "sliceable": SLICEABLE,
    }
    facts = [
        *(f"receptacleType {r.id} {r.kind}Type" for r in scene.receptacles),
        *(f"objectType {thing.id} {thing.kind}Type" for thing in things),
        *(f"canContain {place}Type {kind}Type" for place in places for kind in kinds if accepts(place, kind)),
        *(f"pickupable {thing.id}" for thing in portable),
        *(f"openable {r.id}" for r in scene.receptacles if r.openable),
        f"atLocation agent1 {scene.start}",
        *(f"{able} {thing.id}" for able, which in properties.items() for thing in things if thing.kind in which),
        *(f"inReceptacle {thing.id} {thing.place}" for thing in things if thing.place is not None),
        *(f"receptacleAtLocation {r.id} {r.location}" for r in scene.receptacles),
        *(f"objectAtLocation {thing.id} {thing.location}" for thing in things),
    ]
    indent = "\n        "
    return (
        f"\n(define (problem plan_{name})\n(:domain alfred)\n(:objects\n"
        + indent.join(objects)
        + f"{indent})\n\n(:init"
        + "".join(f"{indent}({fact})" for fact in facts)
        + f"{indent})\n\n(:goal\n{goal}\n)\n)\n"
    )
