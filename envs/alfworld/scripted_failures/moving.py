"""Household tasks that fail by how the agent moves about, or by its not moving any more."""

from __future__ import annotations

from collections.abc import Sequence

from roleagent.envs.alfworld.scripted_failures.house import Visitor
from roleagent.envs.failures.scripted_episode import Impossible


def navigation_loop(agent: Visitor) -> None:
    """Walks in a circle of two or three places, round after round, and does nothing there."""
    episode = agent.episode
    agent.some_way(spare=9, before=agent.makes_ready)
    circle = agent.apart(episode.shuffled(agent.elsewhere(agent.house.places)))
    circle = circle[: 3 if len(circle) > 2 and episode.chance(0.25) else 2]
    if here := [place for place in agent.house.places if agent.at(place)]:
        circle[-1] = episode.pick(here)
    dawdling = episode.pick((0.0, 0.0, 0.15))
    been = set(here)
    while True:
        for place in circle:
            if place in been:
                episode.mark_failure()
            been.add(place)
            agent.visit(place, opening=False)
            if episode.chance(dawdling):
                episode.do("look")


def repetitive_exploration(agent: Visitor) -> None:
    """Searches the same receptacles repeatedly, with empty hands, while the item is elsewhere."""
    episode = agent.episode
    barren = agent.apart(episode.shuffled([place for place in agent.house.places if not agent.holds_item(place)]))
    if len(barren) < 3:
        raise Impossible
    known = barren[: int(episode.rng.integers(3, min(len(barren), 2 + episode.left // 5) + 1))]
    walked = []
    for place in known:
        agent.visit(place)
        walked.append(place)
    care = episode.rng.uniform(0.0, 0.6)
    while True:
        place = _without_a_beat(episode.shuffled(agent.elsewhere(known)), walked)
        episode.mark_failure()
        walked.append(place)
        agent.visit(place, opening=episode.chance(0.5))
        looks = [c for c in agent.can("examine", "close", "open") if c.endswith(f" {place}")]
        if looks and episode.chance(care):
            episode.do(episode.pick(looks))


def _without_a_beat(choices: Sequence[str], walked: Sequence[str]) -> str:
    """The first place that does not make a short round of the last walks: that is another mistake."""
    for place in choices:
        walks = [*walked, place]
        if not any(walks[-n:] == walks[-2 * n : -n] for n in (2, 3)):
            return place
    return choices[0]


def exhaustive_exploration_failure(agent: Visitor) -> None:
    """Searches one place after the other, thoroughly and none twice, but never where the item is."""
    episode = agent.episode
    house = agent.house
    barren = episode.shuffled([place for place in house.places if not agent.holds_item(place)])
    full = [place for place in barren if house.contents(place) and not agent.is_target(place)]
    last = episode.pick(full)  # where the rest of the time can be spent: there is something to lift
    episode.mark_failure(single=False)
    order = [*(place for place in barren if place != last), last]
    for number, place in enumerate(order):
        if not agent.at(place):  # else it was within reach of the last one
            agent.visit(place)
            later = len(order) - number - 1
            _search_through(agent, place, until=episode.left * later // (later + 1))
    raise Impossible  # nothing was left to be searched, and time was


def _search_through(agent: Visitor, place: str, until: int) -> None:
    """Turns a place inside out until so many steps are left or nothing is new: looks, closes, opens, lifts things."""
    episode, looked = agent.episode, 0
    doors_left = 2
    while episode.left > until:
        lifts = [] if agent.is_target(place) else [c for c in agent.can("take") if c.endswith(f" from {place}")]
        doors = [c for c in agent.can("close", "open") if c.endswith(f" {place}")] if doors_left else []
        if looked < 2 and episode.chance(0.5):
            episode.do(episode.pick(agent.can("look", "examine")))
            looked += 1
            continue
        if lifts and (episode.chance(0.6) or not doors):
            episode.do(episode.pick(lifts))
            agent.put(place)
        elif doors:
            episode.do(doors[0])
            doors_left -= 1
        elif looked == 2:
            return
        looked = 0 if lifts or doors else looked


def wrong_target_location(agent: Visitor) -> None:
    """Carries the finished item from one wrong receptacle to the next, never to the target."""
    episode = agent.episode
    if not agent.house.target:
        raise Impossible
    episode.follow(lambda command: agent.ready)
    right = {agent.house.spot_of(place) for place in agent.house.places if agent.is_target(place)}
    wrong = agent.apart(place for place in agent.house.places if agent.house.spot_of(place) not in right)
    walked: list[str] = []
    dawdling = episode.rng.uniform(0.0, 0.3)
    episode.mark_failure()
    while True:
        choices = [place for place in episode.shuffled(agent.elsewhere(wrong)) if walked[-1:] != [place]]
        if not choices:
            raise Impossible
        place = _without_a_beat(choices, walked)
        walked.append(place)
        agent.visit(place, opening=episode.chance(0.3))
        if episode.chance(dawdling):
            agent.idle()


def premature_give_up(agent: Visitor) -> None:
    """Gives up before the task is solved: it only looks around, or opens and closes a door."""
    episode = agent.episode
    agent.some_way(spare=5)
    restless = episode.pick((0.0, 0.0, 0.5))
    episode.mark_failure()
    while True:
        if (doors := agent.can("open", "close")) and episode.chance(restless):
            episode.do(episode.pick(doors))
        else:
            agent.idle()


__all__ = [
    "exhaustive_exploration_failure",
    "navigation_loop",
    "premature_give_up",
    "repetitive_exploration",
    "wrong_target_location",
]
