"""Games of TextWorldExpress in one Java machine per process.

The package starts a machine for each environment, and must: two games of a machine disturb each other, for the
simulator keeps part of their state in its classes. Here a game has classes of its own, by a class loader, in one
machine, which starts with the first game and ends with the process.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from roleagent.envs.java import JavaMachine, require_package
from roleagent.envs.textworldexpress.tasks import FOLDS, GAMES

_machines: dict[int, Simulators] = {}  # by process: one that was forked has a machine of its own


class Scene(NamedTuple):
    """What the simulator reports after a command.

    Attributes:
        text: the observation.
        situation: the room and what is carried.
        commands: that are possible now.
        score: in [0, 1]; the simulator's -1 of some lost games is 0.
    """

    text: str
    situation: str
    commands: tuple[str, ...]
    score: float
    won: bool
    lost: bool

    @classmethod
    def of(cls, report: str) -> Scene:
        """That of the simulator's JSON."""
        found = json.loads(report)
        situation = f"{found['look'].strip()}\n{found['inventory'].strip()}"
        commands = tuple(sorted(found["validActions"]))
        ends = bool(found["tasksuccess"]), bool(found["taskfailure"])
        return cls(found["observation"].strip(), situation, commands, max(0.0, float(found["score"])), *ends)


class PlayedGame:
    """A game that has begun.

    Args:
        task_id: of the game and its number.
        split: a key of ``FOLDS``.
        gold: whether to find a way to win it, which may take seconds.

    Raises:
        RuntimeError: the simulator refuses it.
    """

    def __init__(self, task_id: str, split: str, gold: bool = False):
        name, _, number = task_id.partition("/")
        self._machine = machine()
        self._java = self._machine.take()
        weakref.finalize(self, self._machine.free.append, self._java)
        with self._machine.lock:
            if error := self._java("load", *GAMES[name]):
                raise RuntimeError(f"TextWorldExpress cannot play {task_id}: {' '.join(str(error).split())}")
            self.first = Scene.of(self._java("generateNewGameJSON", int(number), FOLDS[split][0], gold))
            self.goal = " ".join(str(self._java("getTaskDescription")).split())
            found = self._machine.jvm.java.util.ArrayList(self._java("getGoldActionSequence")) if gold else ()
            self.walkthrough = tuple(map(str, found))

    def step(self, command: str) -> Scene:
        """Carries out a command."""
        with self._machine.lock:
            return Scene.of(self._java("stepJSON", command))


class Simulators(JavaMachine):
    """A Java machine with any number of simulators that do not know of each other.

    Attributes:
        free: simulators whose games are over; the next ones take them.
    """

    def __init__(self) -> None:
        folder = require_textworldexpress()
        super().__init__(folder)
        self.free: list[Callable[..., Any]] = []
        self._archive = next(folder.glob("*.jar")).as_uri()

    def take(self) -> Callable[..., Any]:
        """A simulator that no game uses, as a function of the name of a method and its arguments."""
        with self.lock:
            if self.free:
                return self.free.pop()
            places = self._gateway.new_array(self.jvm.java.net.URL, 1)
            places[0] = self.jvm.java.net.URL(self._archive)
            loader = self.jvm.java.net.URLClassLoader(places, None)
            of_class = loader.loadClass("textworldexpress.runtime.PythonInterface")
            java, methods = of_class.newInstance(), {one.getName(): one for one in of_class.getMethods()}

        def call(name: str, *arguments: Any) -> Any:
            # By reflection: py4j remembers the methods of a class by its name, and there are several of this one.
            given = self._gateway.new_array(self.jvm.java.lang.Object, len(arguments))
            for place, argument in enumerate(arguments):
                given[place] = argument
            return methods[name].invoke(java, given)

        return call


def require_textworldexpress() -> Path:
    """The folder of the package ``textworld_express``.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package, py4j or Java is missing.
    """
    return require_package("textworld_express", "TextWorldExpress", "textworldexpress")


def machine() -> Simulators:
    """The machine of this process.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package, py4j or Java is missing.
    """
    if os.getpid() not in _machines:
        _machines[os.getpid()] = Simulators()
    return _machines[os.getpid()]


__all__ = ["PlayedGame", "Scene", "machine", "require_textworldexpress"]
