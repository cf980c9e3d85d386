"""Games that nobody generates: official ones with random facts added, for what the rules allow and data rarely have."""

import re
from dataclasses import replace

STATES = ("isClean", "isHot", "isCool", "isSliced", "isToggled")
ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable", "isReceptacleObject")


def odd_variant(source, rng):
    """The game with things in two receptacles, hot and cool from the start, nested, misplaced, sliceable knives …"""
    problem = source.problem
    initial = problem.partition("(:goal")[0]

    def args(predicate):
        return [tuple(words.split()) for words in re.findall(rf"\({predicate} ([^()]*)\)", initial)]

    receptacles = [r for r, _ in args("receptacleAtLocation")]
    spots = sorted({location for _, location in args("receptacleAtLocation")})
    objects = [o for o, _ in args("objectType")]
    added = []
    for o in rng.sample(objects, min(12, len(objects))):
        added += [f"{state} {o}" for state in STATES if rng.random() < 0.5]
        added += [f"{ability} {o}" for ability in ABILITIES if rng.random() < 0.3]
    for _ in range(rng.randint(5, 30)):
        o, other, r, spot = (rng.choice(names) for names in (objects, objects, receptacles, spots))
        added.append(
            rng.choice(
                (
                    f"inReceptacle {o} {r}",
                    f"objectAtLocation {o} {spot}",
                    f"inReceptacleObject {o} {other}",
                    f"openable {r}",
                    f"opened {r}",
                    f"wasInReceptacle {o} {r}",
                    f"{rng.choice(('isOn', 'moveable', 'isReceptacleObjectFull'))} {o}",
                    f"objectType {o} {rng.choice(('KnifeType', 'ButterKnifeType', 'MugType'))}",
                )
            )
        )
    if rng.random() < 0.5:
        problem = re.sub(r"\(atLocation agent1 \S+\)", f"(atLocation agent1 {rng.choice(spots)})", problem)
    meeting = rng.choice(spots)
    for r in rng.sample(receptacles, rng.randint(0, min(6, len(receptacles)))):
        problem = re.sub(
            rf"\(receptacleAtLocation {re.escape(r)} \S+\)", f"(receptacleAtLocation {r} {meeting})", problem
        )
    if rng.random() < 0.2:
        problem = problem.replace("SinkBasinType)", "SinkType)") if "SinkType - rtype" in problem else problem
    problem = problem.replace("(:init", "(:init\n" + "\n".join(f"({fact}) ; added" for fact in added), 1)
    return replace(source, problem=problem, task_id=f"{source.task_id} (odd)")
