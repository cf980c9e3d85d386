"""The state of a household game, which agents do not see, and an agent that scripts its failures with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import gymnasium

from roleagent.envs.alfworld.engine.simulator import TREATMENTS, Simulator
from roleagent.envs.alfworld.goals import PROPERTIES, STATIONS, parse_goal
from roleagent.envs.alfworld.text import kind_of
from roleagent.envs.failures.scripted_episode import Impossible, ScriptedEpisode


class House(Protocol):
    """A game in progress, seen from behind the scenes.

    Attributes:
        item: the kind of thing that the task is about.
        target: the kind of place that it shall end in; ``""`` where the task names none.
        treatment: ``"clean"``, ``"heat"``, ``"cool"`` or ``""``.
        lamp: the kind of lamp under which the item is to be looked at, or ``""``.
        wording: of putting a thing down at a place.
        places: all that can be walked to.
    """

    item: str
    target: str
    treatment: str
    lamp: str
    wording: str
    places: tuple[str, ...]

    @property
    def held(self) -> str:
        """The object in the hand, or ``""``."""
        ...

    @property
    def spot(self) -> object:
        """The location of the agent."""
        ...

    def spot_of(self, place: str) -> object:
        """The location from which a receptacle is reached; several may share one."""
        ...

    def shut(self, place: str) -> bool:
        """Whether the place is closed now."""
        ...

    def contents(self, place: str) -> tuple[str, ...]:
        """The current contents of a receptacle, seen or not."""
        ...

    def stations(self) -> tuple[str, ...]:
        """The places where the task's treatment is done."""
        ...

    def accepts(self, place: str, thing: str) -> bool:
        """Whether the thing may be put down there."""
        ...

    def serves(self, thing: str) -> bool:
        """Whether the thing can be carried, and treated as the task wants it."""
        ...

    def treated(self) -> bool:
        """Whether what is in the hand has had the treatment of the task."""
        ...


class AlfredHouse:
    """A game of ALFWorld in the native simulator."""

    def __init__(self, simulator: Simulator):
        self._simulator = simulator
        game = self._game = simulator.game
        goal = parse_goal(game.source.goal)
        if goal is None:
            raise Impossible
        self.item = goal.obj
        self.treatment = PROPERTIES[goal.task_type][0] if goal.task_type in STATIONS else ""
        self.lamp = goal.place if goal.place.endswith("lamp") else ""
        self.target = "" if self.lamp else goal.place
        verb, preposition = game.version.put
        self.wording = f"{verb} {{}} {preposition} {{}}"
        self.places = game.appliances

    @property
    def held(self) -> str:
        held = self._simulator.held
        return "" if held is None else self._game.objects[held]

    @property
    def spot(self) -> object:
        return self._simulator.place

    def spot_of(self, place: str) -> object:
        return self._game.place[self._number(place)]

    def shut(self, place: str) -> bool:
        return not self._simulator.accessible(self._number(place))

    def contents(self, place: str) -> tuple[str, ...]:
        return tuple(self._game.objects[o] for o in self._simulator.contents[self._number(place)])

    def stations(self) -> tuple[str, ...]:
        if not self.treatment:
            return ()
        return tuple(place for place in self.places if self._number(place) in self._game.stations[self.treatment])

    def accepts(self, place: str, thing: str) -> bool:
        return self._game.object_numbers[thing] in self._game.fits[self._number(place)]

    def serves(self, thing: str) -> bool:
        needed = ("pickupable", *([TREATMENTS[self.treatment][0]] if self.treatment else []))
        return all(self._game.object_numbers[thing] in self._game.able[ability] for ability in needed)

    def treated(self) -> bool:
        held = self._simulator.held
        return not self.treatment or (TREATMENTS[self.treatment][1], held) in self._simulator.facts

    def _number(self, place: str) -> int:
        return self._game.receptacle_numbers[place]


def house_of(env: gymnasium.Env) -> House:
    """The house behind an ALFWorld environment that has been reset.

    Raises:
        Impossible: its state is not accessible (TextWorld plays it), or the task is worded in no known way.
    """
    base: Any = env.unwrapped
    engine = getattr(base, "_engine", None)
    if not isinstance(engine, Simulator):
        raise Impossible
    return AlfredHouse(engine)


class Visitor:
    """An agent in a house, with the building blocks of right and wrong behavior.

    Args:
        episode: just begun.
        house: the game behind it.
    """

    def __init__(self, episode: ScriptedEpisode, house: House):
        self.episode, self.house = episode, house

    @property
    def ready(self) -> bool:
        """Whether the right thing is in the hand and only has to be brought to its place."""
        return kind_of(self.house.held) == self.house.item and self.house.treated()

    def can(self, *verbs: str) -> list[str]:
        """The commands with these verbs that would work now."""
        return [c for c in self.episode.info["admissible_actions"] if c.partition(" ")[0] in verbs]

    def is_target(self, place: str) -> bool:
        """Whether the item belongs there."""
        return bool(self.house.target) and kind_of(place) == self.house.target

    def is_take(self, command: str) -> bool:
        """Whether the command takes up the kind of thing that the task is about."""
        verb, _, rest = command.partition(" ")
        return verb == "take" and kind_of(rest.partition(" from ")[0]) == self.house.item

    def is_last(self, command: str) -> bool:
        """Whether the command may be the one that solves the task."""
        return command.partition(" ")[0] in ("move", "put", "use")

    def makes_ready(self, command: str) -> bool:
        """Whether nothing is left to do after the command but to bring the item to its place."""
        treatment = self.house.treatment
        return command.startswith(f"{treatment} ") if treatment else self.is_take(command)

    def at(self, place: str) -> bool:
        """Whether the agent stands at this place."""
        return self.house.spot_of(place) == self.house.spot

    def elsewhere(self, places: Iterable[str]) -> list[str]:
        """The receptacles at other locations than the agent's."""
        return [place for place in places if not self.at(place)]

    def apart(self, places: Iterable[str]) -> list[str]:
        """The places, but only the first of those that share a spot."""
        return list({self.house.spot_of(place): place for place in reversed([*places])}.values())[::-1]

    def holds_item(self, place: str) -> bool:
        """Whether a thing that the task is about is there now."""
        return any(kind_of(thing) == self.house.item for thing in self.house.contents(place))

    def some_way(self, spare: int, before: Callable[[str], bool] | None = None) -> None:
        """Follows the expert for a random number of steps, perhaps none.

        Args:
            spare: steps that are to be left.
            before: goes no further than to where the expert would give such a command, or the one that may win.
        """
        haste = self.episode.rng.uniform(0.03, 0.35)

        def enough(command: str) -> bool:
            stop = self.is_last(command) or (before is not None and before(command))
            return stop or self.episode.left <= spare or self.episode.chance(haste)

        self.episode.follow(enough)

    def visit(self, place: str, opening: bool = True) -> None:
        """Walks to a place, if the agent is not there, and opens it if that is wanted."""
        if not self.at(place):
            self.episode.do(f"go to {place}")
        if opening and self.house.shut(place):
            self.episode.do(f"open {place}")

    def put(self, place: str) -> None:
        """Puts down the object in the hand.

        Raises:
            Impossible: it cannot be put there.
        """
        if self.house.wording.format(self.house.held, place) not in self.can("move", "put"):
            raise Impossible
        self.try_to_put(self.house.held, place)

    def try_to_put(self, thing: str, place: str) -> None:
        """Gives the command to put an object down, whether it works or not."""
        self.episode.do(self.house.wording.format(thing, place))

    def idle(self) -> None:
        """Looks around for one step."""
        self.episode.do(self.episode.pick([c for c in self.can("look", "inventory", "examine", "help")]))

    def offload(self) -> None:
        """Takes the task for done and only looks around until the end."""
        while True:
            self.idle()


__all__ = ["House", "Visitor", "house_of"]
