"""Plans from the start of games without a walkthrough, and shortest plans from any state, with full knowledge.

It needs no search: a goal is a short list of facts, and every fact has one way to be made true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, permutations, product
from typing import Any

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.simulator import NOTHING, TREATMENTS, Simulator

_MOST_TRIES = 500  # combinations of alternatives
_VERBS = {gained: verb for verb, (_, gained, _) in TREATMENTS.items()}


def plan(game: Game) -> tuple[str, ...]:
    """Commands that win the game from its start, each of which has an effect; ``()`` where none are found."""
    choices = [sorted(choice, key=sorted) for choice in game.won.choices]  # in an order that no hash decides
    for alternatives in islice(product(*choices), _MOST_TRIES):
        if found := _carry_out(Simulator(game), sorted(frozenset().union(*alternatives), key=_turn)):
            return found
    return ()


def shortest_plan(simulator: Simulator) -> tuple[str, ...] | None:
    """A shortest sequence of commands that wins from the present state; None where none is found.

    It tries every alternative of the goal and every order of its objects, up to a limit.
    """
    if simulator.won:
        return ()
    best: tuple[str, ...] | None = None
    choices = [sorted(choice, key=sorted) for choice in simulator.game.won.choices]
    for alternatives in islice(product(*choices), _MOST_TRIES):
        facts = sorted(frozenset().union(*alternatives), key=_turn)
        objects = dict.fromkeys(fact[1] for fact in facts if _turn(fact)[0] == 0)
        for order in permutations(objects):
            ranks = [order.index(fact[1]) if _turn(fact)[0] == 0 else len(order) for fact in facts]
            ordered = [facts[place] for place in sorted(range(len(facts)), key=ranks.__getitem__)]
            found = _carry_out(simulator.copy(), ordered)
            if found and (best is None or len(found) < len(best)):
                best = found
    return best


def _carry_out(simulator: Simulator, facts: Sequence[tuple[Any, ...]]) -> tuple[str, ...]:
    """Commands that make the facts true one after the other; ``()`` where one of them has no effect."""
    commands = []
    for fact in facts:
        if fact not in simulator.facts:
            for command in _achieve(simulator, fact):
                if simulator.step(command) == NOTHING:
                    return ()
                commands.append(command)
                if simulator.won:
                    return tuple(commands)
    return ()


def _turn(fact: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sorts what is to be made true: one object after the other, each treated before it is put down; then the rest."""
    if fact[0] in _VERBS or fact[0] == "inreceptacle":
        return 0, fact[1], fact[0] == "inreceptacle", fact
    return 1, fact[0] == "atlocation", fact


def _achieve(simulator: Simulator, fact: tuple[Any, ...]) -> Iterator[str]:
    """Commands that make a fact true, if each is carried out before the next is asked for."""
    game = simulator.game
    match fact:
        case ("holds", o):
            yield from _fetch(simulator, o)
        case ("inreceptacle", o, r):
            yield from _fetch(simulator, o)
            yield from _reach(simulator, r, inside=True)
            yield _put(simulator, o, r)
        case ("istoggled", o):
            yield from _reach(simulator, _holder(simulator, o))
            yield f"use {game.objects[o]}"
        case ("atlocation", place):
            yield from _reach(simulator, next(iter(game.here.get(place, ())), None))
        case (condition, o) if condition in _VERBS:
            verb = _VERBS[condition]
            stations = game.stations[verb]
            station = min(stations, key=lambda r: (game.place[r] != simulator.place, r), default=None)
            yield from _fetch(simulator, o)
            yield from _reach(simulator, station)
            if station is not None:
                yield f"{verb} {game.objects[o]} with {game.receptacles[station]}"


def _holder(simulator: Simulator, o: int) -> int | None:
    """A receptacle that the object is in and that can be walked to."""
    holders = (r for r, objects in enumerate(simulator.contents) if o in objects)
    return next((r for r in holders if simulator.game.place[r] is not None), None)


def _reach(simulator: Simulator, r: int | None, inside: bool = False) -> Iterator[str]:
    game = simulator.game
    if r is not None:
        if game.place[r] != simulator.place:
            yield f"go to {game.receptacles[r]}"
        if inside and not simulator.accessible(r):
            yield f"open {game.receptacles[r]}"


def _put(simulator: Simulator, o: int, r: int) -> str:
    verb, preposition = simulator.game.version.put
    return f"{verb} {simulator.game.objects[o]} {preposition} {simulator.game.receptacles[r]}"


def _fetch(simulator: Simulator, o: int) -> Iterator[str]:
    holder = _holder(simulator, o)
    if simulator.held != o and holder is not None:
        if simulator.held is not None:
            yield from _free_hand(simulator, simulator.held, holder)
        yield from _reach(simulator, holder, inside=True)
        yield f"take {simulator.game.objects[o]} from {simulator.game.receptacles[holder]}"


def _free_hand(simulator: Simulator, held: int, next_stop: int) -> Iterator[str]:
    """Puts an object down: here, else at the next stop, else in the first open receptacle that takes it."""
    game = simulator.game
    here = [r for r in game.here.get(simulator.place, ()) if held in game.fits[r] and simulator.accessible(r)]
    if not here and held in game.fits[next_stop]:
        yield from _reach(simulator, next_stop, inside=True)
        here = [next_stop]
    places = (r for r, fitting in enumerate(game.fits) if held in fitting and game.place[r] is not None)
    place = here[0] if here else min(places, key=lambda r: (not simulator.accessible(r), r), default=None)
    if place is not None:
        yield from _reach(simulator, place, inside=True)
        yield _put(simulator, held, place)


__all__ = ["plan", "shortest_plan"]
