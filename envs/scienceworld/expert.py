"""The scripted expert: it follows the simulator's gold path, and returns to it when another player chose a command.

It knows the whole path, which no agent does. It reads from the text what other commands did: it walks back to the room
in which the path goes on, switches back what was switched, takes up again what was put down, and waits for what has not
grown yet. When the path can no longer be followed, it gives up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import gymnasium
from numpy.random import Generator

from roleagent.env_card import step_limit
from roleagent.envs.scienceworld.text import LOST, read_choices, read_place, read_room, understood, way

IDLE = "wait1"
"""What it plays when the path is over: what was heated or planted may need more time."""
_PATIENCE = 12  # times that it waits for a thing to appear
_MISSED = 3  # commands of the path that it leaves out before it gives up
_OPEN = "open door to "
_GO = re.compile(r"(?:go|teleport) to (.*)")
_MOVED = re.compile(r"You move the (.*?) to the (.*)\.")
_REVERSED = {"close": "open", "activate": "deactivate", "deactivate": "activate"}


class ScienceExpert:
    """Follows a gold path.

    Args:
        plan: returns the path of the current task; called with the first command, since it takes up to a minute.
        max_steps: of an episode. Where the path is longer than what is left, looks around and open doors are left out.
    """

    privileged = True
    """It knows more than an agent sees."""

    def __init__(self, plan: Callable[[], Sequence[str]], max_steps: int = 100):
        self._find, self._max_steps = plan, max_steps

    def reset(self, goal: str, observation: str) -> None:
        """Begins an episode with the goal and the first observation."""
        room = read_room(observation)
        if room is None:
            raise ValueError(f"not a task of ScienceWorld: {goal!r}")
        self.room, self._open = room.name, {(room.name, door) for door, is_open in room.doors.items() if is_open}
        self._start = room.name
        self._path: list[tuple[str, str]] | None = None  # room and command
        self._at = self._waited = self._missed = 0
        self._undo: list[tuple[str, str]] = []  # room and command
        self._carried: set[str] = set()
        self._choices: tuple[str, ...] = ()
        self._answer = self._last = ""
        self._left = self._max_steps

    @property
    def given_up(self) -> bool:
        """Whether the path cannot be followed any more."""
        return self._missed >= _MISSED

    def plan(self) -> list[str]:
        """The commands of the path that are left, without those that lead back to it."""
        return [command for _, command in self._gold()[self._at :]]

    def act(self) -> str:
        """The next command."""
        self._last = self._next()
        return self._last

    def observe(self, command: str, observation: str) -> None:
        """Takes in the command that was played, its own or not, and the answer."""
        self._left -= 1
        command = command.strip()
        own = command == self._last
        self._choices = read_choices(observation)
        if self._choices:
            self._answer = ""
            if command == self._planned():
                self._at += 1
                self._answer = self._planned() if self._planned().isdecimal() else "0"
            return
        if self._answer and observation.startswith(LOST):  # another's text came instead of the number
            self._at -= 1
        self._answer = ""
        self._follow(observation)
        if self._undo and own and command == self._undo[-1][1]:
            self._undo.pop()
        elif command == self._planned():
            self._advance(observation)
        elif not own and understood(observation):
            self._remember(command, observation)

    def _next(self) -> str:
        if self._choices:
            # After another's command the text that comes next is taken for a wrong number, and does nothing.
            return self._answer or "look around"
        self._skip()
        if self.given_up or (not self._undo and not self._planned()):
            return IDLE
        room, command = self._undo[-1] if self._undo else self._gold()[self._at]
        path = way(self.room, room) if room else []
        if not path:
            return command
        return f"go to {path[0]}" if (self.room, path[0]) in self._open else f"{_OPEN}{path[0]}"

    def _skip(self) -> None:
        """Leaves out numbers without a question and, where steps are few, commands that change nothing."""
        path = self._gold()
        while self._planned().isdecimal():
            self._at += 1
        while self._at < len(path) - 1 and len(path) - self._at > self._left:
            room, command = path[self._at]
            if command != "look around" and not (
                command.startswith(_OPEN) and (room, command.removeprefix(_OPEN)) in self._open
            ):
                break
            self._at += 1

    def _gold(self) -> list[tuple[str, str]]:
        if self._path is None:
            room, self._path = self._start, []
            for command in self._find():
                self._path.append((room, command))
                if found := _GO.fullmatch(command):
                    room = found[1]
        return self._path

    def _planned(self) -> str:
        """The command of the path that comes next."""
        return self._gold()[self._at][1] if self._at < len(self._gold()) else ""

    def _follow(self, observation: str) -> None:
        """Keeps its bearings: the room, open doors, and what is carried."""
        if room := read_room(observation):
            self._open |= {(room.name, door) for door, is_open in room.doors.items() if is_open}
            self._open -= {(room.name, door) for door, is_open in room.doors.items() if not is_open}
        if place := read_place(observation):
            self._open |= {(self.room, place), (place, self.room)}
            self.room = place
        if self._last.startswith("open door to ") and observation.startswith(
            ("The door is now open", "The door is al")
        ):
            self._open.add((self.room, self._last.removeprefix("open door to ")))

    def _advance(self, observation: str) -> None:
        """After a command of the path."""
        if observation.startswith(LOST):  # a question was still open
            return
        if understood(observation):
            self._at, self._waited = self._at + 1, 0
        elif self._waited < _PATIENCE and any(command.startswith("wait") for _, command in self._gold()):
            self._waited += 1
            self._undo.append((self.room, IDLE))
        else:
            self._at, self._waited, self._missed = self._at + 1, 0, self._missed + 1
        if found := _MOVED.fullmatch(observation):
            (self._carried.add if found[2] == "inventory" else self._carried.discard)(found[1])

    def _remember(self, command: str, observation: str) -> None:
        """After another's command: what takes it back."""
        verb, _, thing = command.partition(" ")
        if verb == "close" and thing.startswith("door"):
            self._open = {(room, door) for room, door in self._open if room != self.room}
        elif verb in _REVERSED and " is now " in observation:
            self._undo.append((self.room, f"{_REVERSED[verb]} {thing}"))
        elif (found := _MOVED.fullmatch(observation)) and found[1] in self._carried and found[2] != "inventory":
            self._undo.append((self.room, f"pick up {found[1]}"))


def make_expert(env: gymnasium.Env, rng: Generator) -> ScienceExpert:
    """An expert for an environment; it draws nothing."""
    return ScienceExpert(env.unwrapped.walkthrough, step_limit(env))  # type: ignore[attr-defined, arg-type]


__all__ = ["IDLE", "ScienceExpert", "make_expert"]
