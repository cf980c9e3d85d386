"""An episode of a household task, read from its text: locations, the object in the hand, and its treatment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from roleagent.envs.alfworld.text import TREATMENTS, Goal, kind_of, read_command, read_goal
from roleagent.envs.failures.detectors import is_malformed
from roleagent.types import Trajectory

_UNDOES = {"heat": "cool", "cool": "heat"}


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and the agent's state *before* it.

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
class Trace:
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
        return bool(thing) and kind_of(thing) == self.goal.item

    def at_target(self, step: Step) -> bool:
        """Whether the command speaks of the kind of place that the item is to be brought to."""
        return bool(step.place) and kind_of(step.place) == self.goal.target

    def is_ready(self, step: Step) -> bool:
        """Whether what is carried is in the condition that the task asks for."""
        return not self.goal.treatment or self.goal.treatment in step.ready


def read_trace(trajectory: Trajectory) -> Trace:
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
    return Trace(goal, tuple(steps), trajectory.terminated or trajectory.stop_reason == "lost")


def _mentioned(name: str, text: str) -> bool:
    """As whole words: that "egg 12" has been seen does not say so of "egg 1"."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None
