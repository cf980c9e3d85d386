"""A native state machine of ALFWorld's text games, exact against TextWorld 1.7 and some thousand times faster.

It keeps the facts that change and describes them as TextWorld's grammar would. Its oddities are deliberate: each
is what the reference does.

- ``examine`` works on receptacles here and on what is held: a comma in the domain closes the branch for the rest.
- Going to a receptacle at the present location does nothing: TextWorld drops actions without an effect.
- ``heat``, ``cool``, ``clean`` and ``use`` ask for no open door, and ``slice`` goes by the location of the object.
- ``look`` lists as lying "next to it" what was taken out of a receptacle here and put into another one here.
- Listings go by PDDL id, admissible commands by their text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any

from roleagent.envs.alfworld.engine.game import Game

NOTHING = "Nothing happens."
BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"


class Simulator:
    """Plays one :class:`~roleagent.envs.alfworld.engine.game.Game`, any number of times.

    Attributes:
        won: whether the goal holds now.
        facts: the changing facts that hold now.
        contents: the objects in each receptacle, ascending; tuples, which copies share.
        held: the object in the agent's hand, or None.
        place: the location of the agent.
    """

    def __init__(self, game: Game):
        self.game = game
        self.won = False
        self.reset()

    def reset(self) -> str:
        """Back to the start; returns the first observation."""
        game = self.game
        self.facts: set[tuple[Any, ...]] = set(game.facts)
        self.contents = [*game.contents]
        self.held: int | None = None
        self.place = game.start
        self._moved: set[tuple[int, int]] = set()  # (object, receptacle that it was taken out of)
        self._admissible: list[str] | None = None
        self.won = game.won.holds(self.facts)
        return f"{BANNER}{self._view(game.appliances)}\n\nYour task is to: {game.source.goal}."

    def copy(self) -> Simulator:
        """A second player of the same game, in the same state."""
        other = copy(self)
        other.facts, other.contents = self.facts.copy(), self.contents.copy()
        other._moved = self._moved.copy()
        return other

    def step(self, command: str) -> str:
        """Executes a command and returns the observation; :data:`NOTHING` if the command is not possible."""
        verb, _, rest = command.strip().partition(" ")
        action = _ACTIONS.get(verb)
        return (action(self, verb, rest) if action else None) or NOTHING

    @property
    def state(self) -> str:
        """A digest of all facts: equal where the world is, whatever led there and whatever the last answer says."""
        return blake2b(repr(sorted(map(repr, self.facts))).encode(), digest_size=8).hexdigest()

    @property
    def admissible_commands(self) -> list[str]:
        """Everything that can be done now, sorted."""
        if self._admissible is None:
            self._admissible = sorted({*self._commands(), *self.game.routes(self.place)})
        return self._admissible.copy()

    def _commands(self) -> Iterator[str]:
        """What can be done without walking, some of it more than once."""
        game, held = self.game, self.held
        able, name = game.able, game.objects
        verb, preposition = game.version.put
        yield from ("inventory", "look")
        if game.version.help is not None:
            yield "help"
        for r in game.here.get(self.place, ()):
            receptacle, accessible = game.receptacles[r], self.accessible(r)
            yield f"examine {receptacle}"
            if game.openable[r]:
                yield f"{'close' if accessible else 'open'} {receptacle}"
            for o in self.contents[r]:
                if held is None and accessible and o in able["pickupable"]:
                    yield f"take {name[o]} from {receptacle}"
                if o in able["toggleable"]:
                    yield f"use {name[o]}"
            if held is not None:
                if accessible and held in game.fits[r]:
                    yield f"{verb} {name[held]} {preposition} {receptacle}"
                for treat, (ability, _, _) in TREATMENTS.items():
                    if r in game.stations[treat] and held in able[ability]:
                        yield f"{treat} {name[held]} with {receptacle}"
        if held is not None:
            yield f"examine {name[held]}"
            if held in able["knife"]:
                for o in able["sliceable"]:
                    if ("objectatlocation", o, self.place) in self.facts:
                        yield f"slice {name[o]} with {name[held]}"

    def _change(self, added: Iterable[tuple[Any, ...]] = (), removed: Iterable[tuple[Any, ...]] = ()) -> None:
        goal = self.game.won
        self.facts.difference_update(removed)
        self.facts.update(added)
        self._admissible = None
        if not (goal.facts.isdisjoint(added) and goal.facts.isdisjoint(removed)):
            self.won = goal.holds(self.facts)

    def _receptacle(self, name: str) -> int | None:
        """The receptacle of this name, if it is here."""
        r = self.game.receptacle_numbers.get(name)
        return r if r is not None and self.game.place[r] == self.place else None

    def accessible(self, r: int) -> bool:
        """Whether nothing closes the receptacle."""
        return not self.game.openable[r] or ("opened", r) in self.facts

    def _holds(self, name: str) -> bool:
        return self.held is not None and self.game.objects[self.held] == name

    # The actions. Each gets the verb and the words after it, and returns None where it does not apply.

    def _go(self, verb: str, rest: str) -> str | None:
        game = self.game
        r = game.receptacle_numbers.get(rest[3:]) if rest.startswith("to ") else None
        place = None if r is None else game.place[r]
        if r is None or place is None or place == self.place:
            return None
        self._change([("atlocation", place)], [("atlocation", self.place)])
        self.place = place
        name = game.locations[place] if game.version.names_location else game.receptacles[r]
        return f"You arrive at {name}. {self._inside(r)}"

    def _open(self, verb: str, rest: str) -> str | None:
        r = self._receptacle(rest)
        if r is None or self.accessible(r):
            return None
        self._change([("opened", r)])
        return f"You open the {rest}. {self._inside(r)}"

    def _close(self, verb: str, rest: str) -> str | None:
        r = self._receptacle(rest)
        if r is None or not self.game.openable[r] or not self.accessible(r):
            return None
        self._change(removed=[("opened", r)])
        return f"You close the {rest}."

    def _take(self, verb: str, rest: str) -> str | None:
        name, _, source = rest.partition(" from ")
        r, o = self._receptacle(source), self.game.object_numbers.get(name)
        if r is None or o is None or o not in self.contents[r] or o not in self.game.able["pickupable"]:
            return None
        if self.held is not None or not self.accessible(r):
            return None
        self._change([("holds", o)], [("inreceptacle", o, r), ("objectatlocation", o, self.place)])
        self.contents[r] = tuple(other for other in self.contents[r] if other != o)
        self.held = o
        self._moved.add((o, r))
        return f"You pick up the {name} from the {source}."

    def _put(self, verb: str, rest: str) -> str | None:
        expected, preposition = self.game.version.put
        name, _, target = rest.partition(f" {preposition} ")
        r, o = self._receptacle(target), self.held
        if verb != expected or r is None or o is None or not self._holds(name):
            return None
        if o not in self.game.fits[r] or not self.accessible(r):
            return None
        self._change([("inreceptacle", o, r), ("objectatlocation", o, self.place)], [("holds", o)])
        if o not in self.contents[r]:  # it may lie in two receptacles from the start
            self.contents[r] = tuple(sorted((*self.contents[r], o)))
        self.held = None
        self._moved.discard((o, r))
        return f"You {verb} the {name} {preposition} the {target}."

    def _treat(self, verb: str, rest: str) -> str | None:
        name, _, station = rest.partition(" with ")
        r, o = self._receptacle(station), self.held
        ability, gained, lost = TREATMENTS[verb]
        if r is None or o is None or not self._holds(name):
            return None
        if r not in self.game.stations[verb] or o not in self.game.able[ability]:
            return None
        self._change([(gained, o)], [(lost, o)])
        return f"You {verb} the {name} using the {station}."

    def _slice(self, verb: str, rest: str) -> str | None:
        name, _, knife = rest.partition(" with ")
        o, able = self.game.object_numbers.get(name), self.game.able
        if o not in able["sliceable"] or not self._holds(knife) or self.held not in able["knife"]:
            return None
        if ("objectatlocation", o, self.place) not in self.facts:
            return None
        self._change([("issliced", o)])
        return f"You sliced the {name} with the {knife}."

    def _use(self, verb: str, rest: str) -> str | None:
        o = self.game.object_numbers.get(rest)
        if o not in self.game.able["toggleable"]:
            return None
        if not any(o in self.contents[r] for r in self.game.here.get(self.place, ())):
            return None
        self._change([("istoggled", o)])
        return f"You turn on the {rest}."

    def _examine(self, verb: str, rest: str) -> str | None:
        r = self._receptacle(rest)
        if r is not None:
            return self._inside(r)
        return self._description(rest) if self._holds(rest) else None

    def _look(self, verb: str, rest: str) -> str | None:
        return None if rest else self._view()

    def _inventory(self, verb: str, rest: str) -> str | None:
        if rest:
            return None
        if self.held is None:
            return "You are not carrying anything."
        return f"You are carrying: a {self.game.objects[self.held]}."

    def _help(self, verb: str, rest: str) -> str | None:
        return None if rest else self.game.version.help

    # What is seen.

    def _view(self, appliances: Sequence[str] = ()) -> str:
        """The surroundings. Far from everything, only the first observation of a game names the ``appliances``."""
        here = self.game.here.get(self.place)
        if not here:
            seen = listing([f"a {name}" for name in appliances])
            return f"You are in the middle of a room. Looking quickly around you, you see {seen}."
        beside = self._named(
            o for o, r in sorted(self._moved) if r in here and ("objectatlocation", o, self.place) in self.facts
        )
        return f"You are facing the {listing([self.game.receptacles[r] for r in here])}. Next to it, you see {beside}."

    def _inside(self, r: int) -> str:
        name = self.game.receptacles[r]
        if not self.game.openable[r]:
            return f"On the {name}, you see {self._named(self.contents[r])}."
        if not self.accessible(r):
            return f"The {name} is closed."
        return f"The {name} is open. In it, you see {self._named(self.contents[r])}."

    def _description(self, name: str) -> str:
        """What the object in hand is like."""
        able, o = self.game.able, self.held
        if o in able["isreceptacleobject"]:
            return f"This is a normal {name}. In it, you see {self._named(self.game.nested.get(o, ()))}."
        clean, hot, cool, sliced, on = (
            (condition, o) in self.facts for condition in ("isclean", "ishot", "iscool", "issliced", "istoggled")
        )
        adjectives = ["hot"] if hot else ["cool"] if cool else []
        if clean:
            adjectives.append("clean")
        if adjectives and sliced:
            return f"This is a {' and '.join(adjectives)} sliced {name}."
        if adjectives:
            return f"This is a {'cold' if adjectives == ['cool'] else ' and '.join(adjectives)} {name}."
        if on and o in able["toggleable"]:
            return f"This {name} is on."
        if sliced and o in able["sliceable"]:
            return f"This is a sliced {name}."
        return f"There's nothing special about {name}."

    def _named(self, objects: Iterable[int]) -> str:
        return listing([f"a {self.game.objects[o]}" for o in objects])


def listing(names: Sequence[str]) -> str:
    """Joins names as TextWorld's grammar does.

    >>> listing([]), listing(["a mug 1"]), listing(["a", "b"]), listing(["a", "b", "c"])
    ('nothing', 'a mug 1', 'a, and b', 'a, b, and c')
    """
    if len(names) < 2:
        return names[0] if names else "nothing"
    return f"{', '.join(names[:-1])}, and {names[-1]}"


TREATMENTS = {
    "clean": ("cleanable", "isclean", ""),
    "heat": ("heatable", "ishot", "iscool"),
    "cool": ("coolable", "iscool", "ishot"),
}
"""By verb: what the object must be able to, what it becomes, and what it no longer is."""
_ACTIONS: dict[str, Callable[[Simulator, str, str], str | None]] = {
    "go": Simulator._go,
    "open": Simulator._open,
    "close": Simulator._close,
    "take": Simulator._take,
    "move": Simulator._put,
    "put": Simulator._put,
    "clean": Simulator._treat,
    "heat": Simulator._treat,
    "cool": Simulator._treat,
    "slice": Simulator._slice,
    "use": Simulator._use,
    "examine": Simulator._examine,
    "look": Simulator._look,
    "inventory": Simulator._inventory,
    "help": Simulator._help,
}

__all__ = ["BANNER", "NOTHING", "TREATMENTS", "Simulator", "listing"]
