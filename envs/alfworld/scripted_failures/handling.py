"""Scripted failures of handling: wrong, missing or invented objects."""

from __future__ import annotations

from roleagent.envs.alfworld.scripted_failures.house import Visitor
from roleagent.envs.alfworld.text import kind_of
from roleagent.envs.failures.scripted_episode import Impossible

# Nothing in any kitchen, bedroom or bathroom of the environments goes by these names.
_UNHEARD_OF = (
    *("accordion", "anvil", "armor", "balloon", "banjo", "barrel", "canoe", "crown", "drum", "easel", "fountain"),
    *("globe", "guitar", "hammock", "harp", "helmet", "ladder", "lantern", "map", "piano", "rope", "saddle"),
    *("scarecrow", "ski", "sled", "sword", "telescope", "tent", "toolbox", "trophy", "umbrella", "violin"),
)


def missing_precondition(agent: Visitor) -> None:
    """Leaves out a step that others depend on: brings the item untreated, or does not take it up, or open, first."""
    episode = agent.episode
    ways = [_never_taken]
    if agent.house.treatment:
        ways += [_untreated] * 3
    elif any(map(agent.house.shut, filter(agent.is_target, agent.house.places))):
        ways += [_never_opened] * 2
    episode.pick(ways)(agent)
    agent.offload()


def _untreated(agent: Visitor) -> None:
    episode, house = agent.episode, agent.house
    episode.follow(lambda command: kind_of(house.held) == house.item)
    if house.treated():
        raise Impossible
    if stations := agent.elsewhere(house.stations()):
        if episode.chance(0.3):  # from afar, which has no effect
            episode.mark_failure()
            episode.do(f"{house.treatment} {house.held} with {episode.pick(stations)}")
        elif episode.chance(0.3):  # goes there and does nothing
            agent.visit(episode.pick(stations), opening=False)
    place = episode.pick([place for place in house.places if agent.is_target(place)])
    agent.visit(place)
    episode.mark_failure()
    thing = house.held
    agent.put(place)
    if episode.chance(0.3):  # takes it for a matter of how it lies
        for _ in range(int(episode.rng.integers(1, 4))):
            episode.do(f"take {thing} from {place}")
            agent.put(place)


def _never_taken(agent: Visitor) -> None:
    episode, house = agent.episode, agent.house
    thing, _, home = episode.follow(agent.is_take).removeprefix("take ").partition(" from ")
    targets = episode.shuffled([place for place in house.places if agent.is_target(place) and place != home])
    if not targets:
        raise Impossible
    for station in house.stations()[:1]:
        agent.visit(station, opening=False)
        episode.mark_failure()
        episode.do(f"{house.treatment} {thing} with {station}")
    for place in targets[:4]:
        agent.visit(place)
        episode.mark_failure()
        agent.try_to_put(thing, place)
    if len(targets) == 1 and not house.treatment:
        agent.try_to_put(thing, targets[0])


def _never_opened(agent: Visitor) -> None:
    episode, house = agent.episode, agent.house
    episode.follow(lambda command: kind_of(house.held) == house.item)
    closed = episode.shuffled([place for place in house.places if agent.is_target(place) and house.shut(place)])
    if not closed:
        raise Impossible
    for place in (closed * 2)[: max(2, len(closed))]:
        agent.visit(place, opening=False)
        episode.mark_failure()
        agent.try_to_put(house.held, place)


def wrong_object_interaction(agent: Visitor) -> None:
    """Does the task with another object."""
    episode = agent.episode
    agent.some_way(spare=9, before=agent.is_take)
    for _ in range(2 if episode.chance(0.25) else 1):
        _serve_another(agent)
    agent.offload()


def _serve_another(agent: Visitor) -> None:
    """Takes a thing that the task is not about, treats it, and brings it to where the item should be."""
    episode, house = agent.episode, agent.house
    targets = [place for place in house.places if agent.is_target(place)]
    lamps = [place for place in house.places if house.lamp and house.lamp in map(kind_of, house.contents(place))]
    others = [
        (thing, home)
        for home in house.places
        if home not in targets
        for thing in house.contents(home)
        if kind_of(thing) not in (house.item, house.lamp) and house.serves(thing)
        if lamps or any(house.accepts(place, thing) for place in targets)
    ]
    thing, home = episode.pick(others)
    agent.visit(home)
    episode.mark_failure()
    episode.do(f"take {thing} from {home}")
    for station in house.stations()[:1]:
        agent.visit(station, opening=False)
        episode.do(f"{house.treatment} {thing} with {station}")
    place = episode.pick(lamps or [place for place in targets if house.accepts(place, thing)])
    agent.visit(place, opening=not lamps)
    if lamps:
        episode.do(episode.pick(agent.can("use")))
        agent.visit(home)
        agent.put(home)
    else:
        agent.put(place)


def wrong_receptacle(agent: Visitor) -> None:
    """Leaves the item, ready as it should be, in another place than the one asked for, and handles it no more."""
    episode = agent.episode
    house = agent.house
    if not house.target:
        raise Impossible
    episode.follow(lambda command: agent.ready)
    thing = house.held
    wrong = [place for place in house.places if not agent.is_target(place) and house.accepts(place, thing)]
    place = episode.pick(wrong)
    agent.visit(place)
    episode.mark_failure()
    agent.put(place)
    if episode.chance(0.25):  # thinks better of it, and of a place that is no better
        episode.do(f"take {thing} from {place}")
        place = episode.pick(wrong)
        agent.visit(place)
        agent.put(place)
    agent.offload()


def entity_confusion(agent: Visitor) -> None:
    """Gives commands about things and places that were never seen and are not there."""
    episode = agent.episode
    agent.some_way(spare=7, before=agent.is_take)
    share = episode.rng.uniform(0.5, 1.0)
    episode.mark_failure()
    _about_nothing(agent)
    while True:
        command = episode.expert.act()
        if agent.is_take(command) or agent.is_last(command) or episode.chance(share):
            _about_nothing(agent)
        else:
            episode.do(command)


def _about_nothing(agent: Visitor) -> None:
    """One command that names what does not exist: another thing altogether, or a number too high."""
    episode, house = agent.episode, agent.house
    numbered = any(place[-1].isdigit() for place in house.places[:1])
    number = f" {episode.rng.integers(1, 4)}" if numbered or episode.chance(0.5) else ""
    thing = episode.pick(_UNHEARD_OF) + number
    if episode.chance(0.5):
        thing = f"{house.item} {episode.rng.integers(6, 20)}"
    place = f"{kind_of(episode.pick(house.places))} {episode.rng.integers(50, 60)}"
    known = episode.pick([p for p in house.places if agent.at(p)] or house.places)
    episode.do(
        episode.pick(
            (
                f"take {thing} from {known}",
                f"take {thing} from {known}",
                f"go to {place}",
                f"open {place}",
                f"take {thing} from {place}",
                f"use {thing}",
            )
        )
    )


def repeated_failed_action(agent: Visitor) -> None:
    """Gives one command over and over although it has no effect; all that it names has been seen."""
    episode = agent.episode
    house = agent.house
    agent.some_way(spare=7, before=agent.makes_ready)
    place = next((t.action[6:] for t in reversed(episode.turns) if t.action.startswith("go to ")), "")
    if not place:
        place = episode.pick(house.places)
        agent.visit(place, opening=False)
    seen = {thing for turn in episode.turns for thing in _things(agent, turn.observation)}
    futile = [f"open {place}", f"close {place}", f"go to {place}"]
    futile += [f"take {thing} from {place}" for thing in sorted(seen) if not house.shut(place)]
    command = episode.pick([c for c in futile if c not in episode.info["admissible_actions"]])
    dawdling, straying = episode.pick((0.0, 0.0, 0.2)), episode.pick((0.0, 0.0, 0.1))
    episode.do(command)
    episode.mark_failure()  # to try it once is none
    while True:
        if episode.chance(dawdling):
            episode.do("look")
        if episode.chance(straying):  # goes away and comes back to try it once more
            agent.visit(episode.pick(agent.elsewhere(house.places)), opening=False)
            agent.visit(place, opening=False)
        episode.do(command)


def _things(agent: Visitor, text: str) -> list[str]:
    """The things of the house, other than the item, that a text names."""
    house = agent.house
    names = {thing for place in house.places for thing in house.contents(place)}
    words = f" {text.lower().replace(',', ' ').replace('.', ' ')} "
    return [name for name in names if f" {name} " in words and kind_of(name) != house.item]


__all__ = [
    "entity_confusion",
    "missing_precondition",
    "repeated_failed_action",
    "wrong_object_interaction",
    "wrong_receptacle",
]
