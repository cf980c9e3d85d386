"""Records the events of a training process, and kills it at a given one.

An event is the start of a call of one of :data:`PLACES`. It has the run's stage and step, the place, and the number of
the call within the step. Runs with the same configuration have the same events in the same order, so an event of one
run identifies a moment of another.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = {
    "demonstration": "roleagent.learners.sft.demonstrations:demonstrate",
    "evaluation": "roleagent.agents.evaluation.play:Record.of",
    "rollout": "roleagent.envs.pool:EnvPool.step",
    "sampling": "roleagent.agents.policies.hf:HFPolicy.generate",
    "analysis": "roleagent.agents.analysts.models:ModelAnalyst.answer",
    "update": "deepspeed.runtime.engine:DeepSpeedEngine.forward",
    "backward": "deepspeed.runtime.engine:DeepSpeedEngine.backward",
    "optimizer": "deepspeed.runtime.engine:DeepSpeedEngine.step",
    "log": "roleagent.learners.run.folder:RunFolder.log",
    "file": "roleagent.files:write_whole",
    "trajectories": "roleagent.learners.run.folder:RunFolder.trajectories",
    "checkpoint": "roleagent.learners.run.checkpoints:Checkpoints.save",
    "checkpoint: weights": "roleagent.learners.run.checkpoints:save_policy",
    "checkpoint: learner": "roleagent.learners.engine.engine:Engine.save",
    "checkpoint: flush": "roleagent.learners.run.checkpoints:settle_tree",
    "checkpoint: clear away": "roleagent.learners.run.checkpoints:Checkpoints.tidy",
    "checkpoint: read": "roleagent.learners.run.checkpoints:Checkpoints.restore",
    "library": "roleagent.curricula.library:FailureLibrary.record",
    "library: retrievals": "roleagent.curricula.library:FailureLibrary.record_retrievals",
    "library: roll back": "roleagent.curricula.library:FailureLibrary.rollback",
    "library: statement": "",  # an SQL statement that writes
    "library: commit": "",
}
"""The watched functions as ``module:function``, by place."""

KINDS = {"rollout": "rollout", "sampling": "rollout", "update": "update", "backward": "update", "optimizer": "update"}
"""The kind of work of places whose name does not contain it."""

STAGES = {"": 0, "warmstart": 1, "train": 2, "sft": 2}


def kind_of(place: str) -> str:
    """The kind of work of a place.

    >>> kind_of("backward"), kind_of("checkpoint: flush")
    ('update', 'checkpoint')
    """
    return KINDS.get(place, place.partition(":")[0])


@dataclass(frozen=True)
class Event:
    """The start of a call.

    Attributes:
        number: index of the call among the place's calls of the step, from 0.
    """

    stage: str
    step: int
    place: str
    number: int

    @property
    def time(self) -> tuple[int, int]:
        """Stage and step as a sortable key."""
        return STAGES[self.stage], self.step

    def reached(self, target: Event) -> bool:
        """Whether this is the event ``target`` or a later one of its place."""
        if self.place != target.place:
            return False
        return self.time > target.time or (self.time == target.time and self.number >= target.number)

    def __str__(self) -> str:
        return f"{self.stage}/{self.step}/{self.place}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> Event:
        """The inverse of ``str``.

        >>> str(Event.parse("train/3/checkpoint: flush/0"))
        'train/3/checkpoint: flush/0'
        """
        stage, step, place, number = text.split("/")
        return cls(stage, int(step), place, int(number))


class Diary:
    """Writes every event of this process to a file, and kills the process after a given one.

    Args:
        path: the file, with one line per event: time in seconds, a tab, the event.
        fatal: the event to kill at; None for none.
        delay: seconds between the event and the kill.
    """

    def __init__(self, path: Path, fatal: Event | None = None, delay: float = 0.0):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._fatal, self._delay = fatal, delay
        self._counts: Counter[str] = Counter()
        self._run: Any = None
        self._time = ("", 0)

    def watch(self) -> None:
        """Wraps every place."""
        for place, target in PLACES.items():
            if target:
                _before(target, functools.partial(self.enter, place))
        _before("roleagent.learners.run.run:Run.enter", lambda run, *_: self._belongs_to(run))
        _before("roleagent.learners.run.run:Run.open_policy", lambda run, *_: self._belongs_to(run))
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        @event.listens_for(Engine, "before_cursor_execute")
        def statement(connection: Any, cursor: Any, sql: str, *_: Any) -> None:
            if sql.split()[0] in ("INSERT", "DELETE", "UPDATE", "CREATE"):
                self.enter("library: statement")

        event.listen(Engine, "commit", lambda *_: self.enter("library: commit"))

    def _belongs_to(self, run: Any) -> None:
        self._run = run

    def enter(self, place: str, *_: Any, **__: Any) -> None:
        """Writes the event of a place."""
        progress = self._run.progress if self._run else None
        now = (progress.stage, progress.step) if progress else ("", 0)
        if now != self._time:
            self._time = now
            self._counts.clear()
        event = Event(*now, place, self._counts[place])
        self._counts[place] += 1
        os.write(self._file, f"{time.monotonic():.6f}\t{event}\n".encode())
        if self._fatal is not None and event.reached(self._fatal):
            self._fatal = None
            if self._delay < 1e-3:  # shorter than the resolution of a timer thread
                _die()
            threading.Timer(self._delay, _die).start()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(target: str, act: Callable[..., None]) -> None:
    """Calls ``act`` with a function's arguments before every call, in all modules that imported it."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    kept = vars(owner)[name]
    inner = kept.__func__ if isinstance(kept, (staticmethod, classmethod)) else kept

    @functools.wraps(inner)
    def watched(*arguments: Any, **named: Any) -> Any:
        act(*arguments, **named)
        return inner(*arguments, **named)

    new = type(kept)(watched) if isinstance(kept, (staticmethod, classmethod)) else watched
    setattr(owner, name, new)
    if not parents:  # a function: replace it in other modules, too
        import sys

        for other in list(sys.modules.values()):
            if getattr(other, "__name__", "").startswith(("roleagent", "train")) and vars(other).get(name) is kept:
                setattr(other, name, new)


def read(path: Path) -> list[tuple[float, Event]]:
    """Reads a diary: seconds since its first event, and events."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines(keepends=True)]
    rows = [row for row in rows if len(row) == 2 and row[1].endswith("\n")]
    return [(float(at) - float(rows[0][0]), Event.parse(event.rstrip("\n"))) for at, event in rows]
