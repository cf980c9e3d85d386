"""The scripted expert of the toy kitchen."""

from __future__ import annotations

import re

import gymnasium
from numpy.random import Generator

from roleagent.envs.toy.env import TOOLS


class ToyExpert:
    """Solves the kitchen from the agent's observations: searches one container after the other, then acts.

    It keeps its bearings when another player chooses a command in between, as noisy demonstrations do.
    """

    def reset(self, goal: str, observation: str) -> None:
        """Begins an episode with the goal and the first observation."""
        found = re.fullmatch(r"put (?:the|a (\w+)) (\w+) on the (\w+)\.?", goal)
        places = re.search(r"There are: (.*?)\.", observation)
        if not found or not places:
            raise ValueError(f"not a task of the toy kitchen: {goal!r}")
        self._wanted, self._item, self._target = found[1] or "", found[2], found[3]
        self._seen: dict[str, list[str] | None] = dict.fromkeys(places[1].split(", "))  # place: things, if known
        self._shut: set[str] = set()
        self._here = self._carried = ""

    def act(self) -> str:
        """The next command."""
        if self._carried and not self._carried.endswith(self._item):
            thing = self._carried.split()[-1]
            return f"open {self._here}" if self._here in self._shut else self._at(self._here or self._target, thing)
        if self._carried and self._wanted and not self._carried.startswith(self._wanted):
            verb, tool = next((v, t) for v, (t, condition) in TOOLS.items() if condition == self._wanted)
            return f"{verb} {self._item} with {tool}" if self._here == tool else f"go to {tool}"
        if self._carried:
            return self._at(self._target, self._item)
        for place, things in self._seen.items():
            if things and any(thing.endswith(self._item) for thing in things):
                return f"take {self._item} from {place}" if self._here == place else f"go to {place}"
        unknown = [place for place, things in self._seen.items() if things is None]
        if self._here in unknown and self._here in self._shut:
            return f"open {self._here}"
        return f"go to {unknown[0]}" if unknown else "look"

    def observe(self, command: str, observation: str) -> None:
        """Observes the result of any command."""
        carried = re.search(r"You carry (.*?)\.", observation)
        if not carried:
            return
        if command.strip().startswith("go to "):
            self._here = command.strip()[len("go to ") :]
        self._carried = "" if carried[1] == "nothing" else carried[1]
        self._shut.discard(self._here)
        if "It is closed." in observation:
            self._shut.add(self._here)
        things = re.search(r"You see (.*?)\.", observation)
        if things and self._here:
            self._seen[self._here] = [] if things[1] == "nothing" else things[1].split(", ")

    def _at(self, place: str, thing: str) -> str:
        return f"move {thing} to {place}" if self._here == place else f"go to {place}"


def make_expert(env: gymnasium.Env, rng: Generator) -> ToyExpert:
    """The expert for an environment; it needs no randomness."""
    return ToyExpert()


__all__ = ["ToyExpert", "make_expert"]
