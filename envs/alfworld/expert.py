"""The scripted expert, which sees only the agent's observations.

Official walkthroughs go straight to objects that no observation has shown, which cannot be learned from the text. This
expert reads the task sentence and the observations, searches the likely places first, and then acts. What it does next
depends on nothing but the transcript so far: what has been seen where, what is in the hand, what failed.

>>> expert = SearchExpert()
>>> expert.reset("put a clean mug in cabinet.", "You are in the middle of a room. Looking quickly around you, "
...              "you see a cabinet 1, a countertop 1, and a sinkbasin 1.")
>>> expert.act()
'go to countertop 1'
>>> expert.observe("go to countertop 1", "You arrive at countertop 1. On the countertop 1, you see a mug 2.")
>>> expert.act()
'take mug 2 from countertop 1'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import gymnasium
import numpy as np

from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.engine import affordances
from roleagent.envs.alfworld.generated import rooms
from roleagent.envs.alfworld.goals import Goal, parse_goal
from roleagent.envs.alfworld.text import kind_of

_NAME = r"[a-z]+ \d+"
_LISTED = re.compile(rf"\ban? ({_NAME})\b")
_SURROUNDINGS = re.compile(r"[Ll]ooking quickly around you, you see (.*)")
_CONTENTS = re.compile(rf"(?:On the ({_NAME})|[Tt]he ({_NAME}) is open\. In it), you see ([^.]*)")
_CLOSED = re.compile(rf"[Tt]he ({_NAME}) is closed|You close the ({_NAME})")
_FACING = re.compile(r"You are facing the ([^.]*)")
_TAKEN = re.compile(rf"You pick up the ({_NAME}) from the ({_NAME})")
_PUT = re.compile(rf"You (?:move|put) the ({_NAME}) (?:to|in/on|in|on) the ({_NAME})")
_CHANGED = re.compile(rf"You (clean|heat|cool) the ({_NAME}) using the ({_NAME})")
_CARRYING = re.compile(rf"You are carrying: an? ({_NAME})")

PUT_WORDINGS = ("move {} to {}", "put {} in/on {}")

_TYPE_NAMES = {kind.lower(): kind for room in rooms.ROOMS for kind in (*room.furniture, *room.stock)}
_TYPE_NAMES["desklamp"] = "DeskLamp"


@dataclass
class Sight:
    """The known contents of one receptacle.

    Attributes:
        contents: what lay in it, as far as known; None if it was never seen open.
        closed: whether it was last found closed.
        searched: whether it was looked into during the present round of searching.
    """

    contents: list[str] | None = None
    closed: bool = False
    searched: bool = False


@dataclass
class Belief:
    """The state of the game as far as the transcript shows it.

    Attributes:
        sights: every receptacle, in the order of the first listing.
        here: the receptacles within reach.
        held: the object in the hand.
        changed: what was cleaned, heated or cooled, as ``("clean", "mug 2")``.
        neighbors: receptacles that are reached from the same spot.
        refused: commands that did nothing where they should have worked.
        put_wordings: how things are laid down: the present and the older format of the games, until one has worked.
    """

    sights: dict[str, Sight] = field(default_factory=dict)
    here: set[str] = field(default_factory=set)
    held: str | None = None
    changed: set[tuple[str, str]] = field(default_factory=set)
    neighbors: dict[str, set[str]] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    put_wordings: tuple[str, ...] = PUT_WORDINGS

    def find(self, kind: str) -> Iterator[tuple[str, str]]:
        """Objects of a type that are known to lie somewhere, with the receptacle, in listing order."""
        for place, sight in self.sights.items():
            for name in sight.contents or ():
                if kind_of(name) == kind:
                    yield name, place

    def update(self, command: str, observation: str, meant: bool = False) -> None:
        """Reads the observation after a command."""
        if match := _SURROUNDINGS.search(observation):
            for name in _LISTED.findall(match[1]):
                self.sights.setdefault(name, Sight())
        if observation.strip() in ("Nothing happens.", "Nothing happens"):
            self._failed(command, meant)
            return
        if command.startswith("go to ") and observation.startswith("You arrive"):
            place = command.removeprefix("go to ").strip()
            self.here = {place} | self.neighbors.get(place, set())
        if match := _FACING.search(observation):
            self._together(set(re.findall(_NAME, match[1])))
        for match in _CLOSED.finditer(observation):
            self._sight(match[1] or match[2]).closed = True
        for match in _CONTENTS.finditer(observation):
            sight = self._sight(match[1] or match[2])
            sight.closed, sight.searched, sight.contents = False, True, _LISTED.findall(match[3])
        if match := _TAKEN.search(observation):
            self.held = match[1]
            contents = self._sight(match[2]).contents
            if contents and match[1] in contents:
                contents.remove(match[1])
        if match := _PUT.search(observation):
            self.held = None
            self.put_wordings = tuple(w for w in PUT_WORDINGS if w[:3] == match[0][4:7])
            sight = self._sight(match[2])
            sight.contents = [*(sight.contents or ()), match[1]]
        if match := _CHANGED.search(observation):
            self._change(match[1], match[2])
        if match := _CARRYING.search(observation):
            self.held = match[1]
        elif "You are not carrying anything" in observation:
            self.held = None

    def _sight(self, place: str) -> Sight:
        return self.sights.setdefault(place, Sight())

    def _change(self, verb: str, name: str) -> None:
        self.changed.add((verb, name))
        opposite = {"heat": "cool", "cool": "heat"}.get(verb)
        if opposite:
            self.changed.discard((opposite, name))

    def _together(self, places: set[str]) -> None:
        self.here = places
        for place in places:
            self.neighbors[place] = self.neighbors.get(place, set()) | places

    def _failed(self, command: str, meant: bool) -> None:
        """``meant``: the expert expected this command to work, so it is not to be tried again."""
        verb, _, rest = command.partition(" ")
        place = command.removeprefix("go to ")
        if place != command and self.here and place in self.sights:
            # The game has no way from a spot to itself: this receptacle is within reach already.
            self._together(self.here | {place})
        elif meant:
            self.refused.add(command)
            name, _, place = rest.partition(" from ")
            contents = self.sights[place].contents if verb == "take" and place in self.sights else None
            if contents and name in contents:
                contents.remove(name)


class SearchExpert:
    """Searches likely places first, then acts; recovers from other agents' commands.

    Args:
        rng: draws the places where demonstrations deviate; None always searches the likeliest place next.
        curiosity: the chance that the next place to search is drawn by likelihood instead of being the likeliest.
    """

    def __init__(self, rng: np.random.Generator | None = None, curiosity: float = 0.1):
        self.rng, self.curiosity = rng, curiosity
        self.goal: Goal | None = None
        self.belief = Belief()
        self._proposed: str | None = None

    def reset(self, goal: str, observation: str) -> None:
        """Starts an episode from the task sentence and the first observation."""
        self.goal = parse_goal(goal) or parse_goal(observation)
        self.belief = Belief()
        self._proposed = None
        self.belief.update("", observation)

    def observe(self, command: str, observation: str) -> None:
        """Takes in the command that was played, its own or not, and what came of it."""
        self.belief.update(command.strip(), observation, meant=command.strip() == self._proposed)
        self._proposed = None

    def act(self) -> str:
        """The next command; ``look`` if it has no plan."""
        wishes = self._wishes(self.goal) if self.goal else iter(())
        self._proposed = next((command for command in wishes if command not in self.belief.refused), None)
        if self._proposed is None:
            self.belief.refused.clear()  # nothing is left: whatever was in the way may be gone
        return self._proposed or "look"

    # Each method below yields commands, best first; the first that has not been refused is played.

    def _wishes(self, goal: Goal) -> Iterator[str]:
        belief = self.belief
        if belief.held is not None and kind_of(belief.held) != goal.obj:
            yield from self._lay_down(belief.held)
        elif belief.held is not None:
            yield from self._serve(goal, belief.held)
        else:
            yield from self._fetch(goal)

    def _serve(self, goal: Goal, held: str) -> Iterator[str]:
        """What to do with the right object in the hand."""
        belief = self.belief
        if goal.task_type == goals.LOOK:
            lamps = list(belief.find(goal.place))
            for lamp, place in lamps:
                yield from self._reach(place)
                yield f"use {lamp}"
            yield from self._search(goal.place)
            return
        if goal.task_type in goals.STATIONS:
            verb = goals.PROPERTIES[goal.task_type][0]
            if (verb, held) not in belief.changed:
                for station in self._places(goals.STATIONS[goal.task_type].lower()):
                    yield from self._reach(station)
                    yield f"{verb} {held} with {station}"
        for place in self._targets(goal):
            yield from self._reach(place, inside=True)
            for wording in self.belief.put_wordings:
                yield wording.format(held, place)

    def _fetch(self, goal: Goal) -> Iterator[str]:
        """Gets an object of the right type that is not where it belongs already."""
        done = self._targets(goal)[:1] if goal.task_type == goals.TWO else []
        done = self._targets(goal) if goal.task_type == goals.PICK else done
        for name, place in self.belief.find(goal.obj):
            if place not in done:
                yield from self._reach(place, inside=True)
                yield f"take {name} from {place}"
        yield from self._search(goal.obj)

    def _lay_down(self, held: str) -> Iterator[str]:
        """Frees the hand: here if possible, else where such things usually are."""
        likely = affordances.places_of(_TYPE_NAMES.get(kind_of(held), ""))
        order = sorted(
            self.belief.sights,
            key=lambda place: (place not in self.belief.here, -likely.get(_TYPE_NAMES.get(kind_of(place), ""), 0.0)),
        )
        for place in order:
            yield from self._reach(place, inside=True)
            for wording in self.belief.put_wordings:
                yield wording.format(held, place)

    def _search(self, kind: str) -> Iterator[str]:
        """Looks into the place that is likeliest per step among those not yet seen."""
        belief = self.belief
        unseen = [place for place, sight in belief.sights.items() if not sight.searched]
        if not unseen:  # something was overlooked: all of it again
            for sight in belief.sights.values():
                sight.searched = False
            unseen = [place for place in belief.sights if place not in belief.here]
        arrived = [place for place in unseen if place in belief.here]
        if arrived:
            yield from self._inspect(arrived[0])
        weights = self._likelihood(kind, unseen)
        order = sorted(unseen, key=lambda place: -weights[place])
        if order and self.rng is not None and self.rng.random() < self.curiosity:
            shares = np.array([weights[place] for place in order])
            order.insert(0, order[int(self.rng.choice(len(order), p=shares / shares.sum()))])
        for place in order:
            yield from self._inspect(place)

    def _inspect(self, place: str) -> Iterator[str]:
        if place not in self.belief.here:
            yield f"go to {place}"
        elif self.belief.sights[place].closed:
            yield f"open {place}"
        else:
            yield f"examine {place}"

    def _reach(self, place: str, inside: bool = False) -> Iterator[str]:
        if place not in self.belief.here:
            yield f"go to {place}"
        elif inside and self.belief.sights[place].closed:
            yield f"open {place}"
        elif inside and self.belief.sights[place].contents is None:
            yield f"examine {place}"

    def _places(self, kind: str) -> list[str]:
        return [place for place in self.belief.sights if kind_of(place) == kind]

    def _targets(self, goal: Goal) -> list[str]:
        """Receptacles of the target type, best first: with one of two in it, within reach, seen open, as listed."""

        def rank(place: str) -> tuple[bool, bool, bool]:
            sight = self.belief.sights[place]
            started = goal.task_type == goals.TWO and any(kind_of(name) == goal.obj for name in sight.contents or ())
            return not started, place not in self.belief.here, sight.closed or sight.contents is None

        return sorted(self._places(goal.place), key=rank)

    def _likelihood(self, kind: str, places: list[str]) -> dict[str, float]:
        """How likely each place holds such an object to fetch, per step that looking there takes."""
        shares = affordances.places_of(_TYPE_NAMES.get(kind, ""))
        weights = {}
        for place in places:
            type_name = _TYPE_NAMES.get(kind_of(place), "")
            pieces = len(self._places(kind_of(place)))
            steps = 2 if type_name in affordances.OPENABLE else 1
            weights[place] = (shares.get(type_name, 0.0) + 0.01) / pieces / steps
            if self.goal and kind_of(place) == self.goal.place and self.goal.task_type in (goals.PICK, goals.TWO):
                weights[place] /= 10  # an object that lay there already would be no task
        return weights


def make_expert(env: gymnasium.Env, rng: np.random.Generator) -> SearchExpert:
    """The expert for an environment."""
    return SearchExpert(rng)
