"""An episode of a household task, read as a story: where the agent was, what it held, what it had done to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from roleagent.curricula.rules.rulebook import is_malformed
from roleagent.types import Trajectory

TREATMENTS = ("clean", "cool", "heat")
_ADJECTIVES = {"clean": "clean", "cool": "cool", "hot": "heat"}
_UNDOES = {"heat": "cool", "cool": "heat"}
_COMMANDS = (
    (r"go to (?P<place>.+)", "go"),
    (r"take (?P<thing>.+) from (?P<place>.+)", "take"),
    (r"(?:move|put) (?P<thing>.+?) (?:to|in/on|in|on) (?P<place>.+)", "move"),
    (r"(?P<verb>heat|cool|clean|slice) (?P<thing>.+) with (?P<place>.+)", ""),
    (r"(?P<verb>open|close) (?P<place>.+)", ""),
    (r"(?P<verb>use|examine) (?P<thing>.+)", ""),
    (r"(?P<verb>look|inventory|help)", ""),
)
_SOME = r"(?:(?P<two>two)|a|an|some|the)"
_THERE = r"(?:in/on|in|on) (?:the )?(?P<target>\w+)"
_GOALS = (
    rf"put {_SOME} (?:(?P<adjective>clean|cool|hot) )?(?P<item>\w+) {_THERE}",
    rf"(?P<verb>find|clean|cool|heat) {_SOME} (?P<item>\w+) and put (?:it|them) {_THERE}",
    r"(?:look at|examine) (?:(?:a|an|some|the) )?(?P<item>\w+) (?:under|with) (?:the )?\w+",
)


class Goal(NamedTuple):
    """What a task asks for, in kinds (names without their numbers); ``""`` where there is none."""

    item: str = ""
    target: str = ""
    treatment: str = ""
    count: int = 1


def read_goal(text: str) -> Goal:
    """Reads the sentence of a household task; an empty goal if it is no such sentence.

    >>> read_goal("put two cellphone in drawer.")
    Goal(item='cellphone', target='drawer', treatment='', count=2)
    >>> read_goal("heat some egg and put it in garbagecan.")
    Goal(item='egg', target='garbagecan', treatment='heat', count=1)
    >>> read_goal("look at bowl under the desklamp.")
    Goal(item='bowl', target='', treatment='', count=1)
    """
    for pattern in _GOALS:
        found = re.search(pattern, text.lower())
        if found:
            part = found.groupdict()
            verb = _ADJECTIVES.get(part.get("adjective") or "") or part.get("verb")
            treatment = verb if verb in TREATMENTS else ""
            return Goal(part["item"], part.get("target") or "", treatment, 2 if part.get("two") else 1)
    return Goal()


def read_command(command: str) -> tuple[str, str, str]:
    """Verb, thing and place of a command; ``""`` for what it does not have.

    >>> read_command("put egg 1 in/on fridge 1")
    ('move', 'egg 1', 'fridge 1')
    """
    for pattern, verb in _COMMANDS:
        found = re.fullmatch(pattern, command)
        if found:
            part = found.groupdict()
            return verb or part["verb"], part.get("thing") or "", part.get("place") or ""
    return "", "", ""


def kind(name: str) -> str:
    """A thing's name without its number.

    >>> kind("cabinet 12")
    'cabinet'
    """
    return re.sub(r"\s+\d+$", "", name)


@dataclass(frozen=True, slots=True)
class Step:
    """One command. What is said of the agent holds *before* the command.

    Attributes:
        number: the turn, 0-based.
        verb, thing, place: the parts of the command, ``""`` where it has none.
        worked: whether it had an effect.
        malformed: whether the reply could not be read as a command.
        unseen: whether it failed and names something that no text had mentioned.
        here, held: where the agent is and what it carries.
        near: other places that a look around has shown within reach.
        ready: treatments that the carried thing has been given.
        shut: whether ``here`` was last seen closed.
    """

    number: int
    command: str
    verb: str
    thing: str
    place: str
    worked: bool
    malformed: bool
    unseen: bool
    here: str
    near: frozenset[str]
    held: str
    ready: frozenset[str]
    shut: bool


@dataclass(frozen=True)
class Story:
    """A whole episode."""

    goal: Goal
    steps: tuple[Step, ...]
    ended_early: bool

    @cached_property
    def walks(self) -> tuple[Step, ...]:
        """The steps that led somewhere else."""
        return tuple(step for step in self.steps if step.verb == "go" and step.worked)

    def wanted(self, thing: str) -> bool:
        """Whether this is the kind of thing that the task is about."""
        return bool(thing) and kind(thing) == self.goal.item

    def at_target(self, step: Step) -> bool:
        """Whether the command speaks of the kind of place that the item is to be brought to."""
        return bool(step.place) and kind(step.place) == self.goal.target

    def is_ready(self, step: Step) -> bool:
        """Whether what is carried is in the condition that the task asks for."""
        return not self.goal.treatment or self.goal.treatment in step.ready


def read(trajectory: Trajectory) -> Story:
    """Follows the agent through its episode."""
    here = held = ""
    near: frozenset[str] = frozenset()
    treated: dict[str, frozenset[str]] = {}
    shut: set[str] = set()
    known = trajectory.initial_observation.lower()
    steps = []
    for number, turn in enumerate(trajectory.turns):
        command, text = " ".join(turn.action.lower().split()), turn.observation.lower()
        verb, thing, place = read_command(command)
        worked = bool(turn.info.get("valid_action", not text.startswith("nothing happens")))
        step = Step(
            number,
            *(command, verb, thing, place),
            worked=worked,
            malformed=is_malformed(turn),
            unseen=not worked and not all(_mentioned(name, known) for name in (thing, place) if name),
            here=here,
            near=near,
            held=held,
            ready=treated.get(held, frozenset()),
            shut=here in shut,
        )
        steps.append(step)
        if worked:
            here, near = (place, frozenset()) if verb == "go" else (here, near)
            if facing := re.search(r"you are facing the ([^.]*)", text):
                near = frozenset(re.findall(r"[a-z]+ \d+", facing[1]))
            held = thing if verb == "take" else "" if verb == "move" else held
            if verb in TREATMENTS:
                treated[thing] = step.ready - {_UNDOES.get(verb)} | {verb}
            if verb == "close" or re.search(r"\bis closed\b", text):
                shut.add(here)
            elif verb == "open":
                shut.discard(place)
        known += "\n" + text
    goal = read_goal(trajectory.task.goal or trajectory.initial_observation)
    return Story(goal, tuple(steps), trajectory.terminated or trajectory.stop_reason == "lost")


def _mentioned(name: str, text: str) -> bool:
    """As whole words: that "egg 12" has been seen does not say so of "egg 1"."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None
