"""Worlds of ScienceWorld in few Java machines.

The package starts one Java machine per environment and lists thousands of valid actions after every step. Here
:data:`WORLDS` worlds share a machine with a heap limit, and actions are listed on demand. A machine starts with its
first world and ends with this process. Its random generator and object numbers are global, so a lock admits one caller
at a time.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from pathlib import Path
from typing import Any

from roleagent.envs.java import JavaMachine, require_package
from roleagent.spaces import whole

WORLDS = 16
"""Worlds that a heap of 512 MB holds (11 to 22 MB each)."""


def require_scienceworld() -> Path:
    """The folder of the package ``scienceworld``.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package, py4j or Java is missing.
    """
    return require_package("scienceworld", "ScienceWorld", "scienceworld")


class Machine(JavaMachine):
    """A Java machine with worlds in it.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package, py4j or Java is missing.
    """

    def __init__(self) -> None:
        super().__init__(require_scienceworld())
        self.worlds: weakref.WeakSet[World] = weakref.WeakSet()

    def interface(self) -> Any:
        """A new world's Java object."""
        return self.jvm.scienceworld.runtime.pythonapi.PythonInterface()


class World:
    """One independent world; any number of tasks, one after the other."""

    def __init__(self, machine: Machine):
        self.machine = machine
        with machine.lock:
            self._java = machine.interface()
        machine.worlds.add(self)

    def load(self, task: str, variation: int, simplifications: str) -> str:
        """Begins a task; returns its description and the first look around."""
        with self.machine.lock:
            self._java.load(task, variation, simplifications, False)
            return f"{self._java.getTaskDescription()}\n{self._java.step('look around')}"

    def step(self, command: str) -> tuple[str, int, bool, int]:
        """Carries out a command: the observation, the score in [-100, 100], whether all is done, the moves so far.

        Raises:
            RuntimeError: the simulator has failed; only another load helps.
        """
        with self.machine.lock:
            text = self._java.step(command)
            if error := self._java.errorStr():
                raise RuntimeError(f"the simulator has failed at {command!r}: {' '.join(str(error).split())}")
            score = round(100 * self._java.getScore())
            return whole(str(text)), score, bool(self._java.getCompleted()), int(self._java.getNumMoves())

    def valid_actions(self) -> list[str]:
        """Every action that is valid now, thousands; takes longer than a step."""
        with self.machine.lock:
            return sorted(map(str, self._java.getValidActionObjectCombinations()))

    def gold_path(self, task: str, variation: int, simplifications: str) -> list[str]:
        """A way to solve a task. From then on every load of this world is slower: keep it for gold paths."""
        with self.machine.lock:
            self._java.load(task, variation, simplifications, True)
            return list(map(str, self._java.getGoldActionSequence()))


_machines: list[Machine] = []
_gold: list[World] = []  # with a machine of its own
_started_in = 0  # the process that runs the machines
_starting = threading.Lock()


def open_world() -> World:
    """A world in a machine that has a place for it; the first one starts the machine.

    Raises:
        gymnasium.error.DependencyNotInstalled: the package or Java is missing.
        RuntimeError: this process was forked from one that runs Java machines.
    """
    with _starting:
        _check_process()
        taken = {world.machine for world in _gold}
        free = [machine for machine in _machines if len(machine.worlds) < WORLDS and machine not in taken]
        return World(free[0] if free else _start())


def gold_world() -> World:
    """The world for gold paths."""
    with _starting:
        _check_process()
        if not _gold:
            _gold.append(World(_start()))
        return _gold[0]


def close_machines() -> None:
    """Ends all Java machines of this process; worlds that are open can do nothing any more."""
    while _machines:
        _machines.pop().close()
    _gold.clear()


def machines() -> tuple[Machine, ...]:
    """The Java machines of this process."""
    return tuple(_machines)


def _start() -> Machine:
    global _started_in
    _machines.append(Machine())
    if not _started_in:
        atexit.register(close_machines)
    _started_in = os.getpid()
    return _machines[-1]


def _check_process() -> None:
    if _started_in not in (0, os.getpid()):
        raise RuntimeError(
            f"the Java machine runs in process {_started_in} and does not survive a fork into this one: start worker "
            "processes with multiprocessing's 'spawn'"
        )


__all__ = ["WORLDS", "Machine", "World", "close_machines", "gold_world", "machines", "open_world"]
