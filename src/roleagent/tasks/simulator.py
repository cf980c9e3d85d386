"""The protocol of task simulators: models that write training tasks (GenEnv)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.random import Generator

from roleagent.tasks.grammar import TaskSpec


@dataclass(frozen=True, slots=True)
class Situation:
    """What a simulator reads before it writes tasks.

    Attributes:
        success: by task type, the successes and attempts of the last two iterations.
        seed_task: a recent task to start from; None: there is none yet.
        seed_success: the successes and attempts of that task.
        target: the success rate to aim at, α in [0, 1].
    """

    success: Mapping[str, tuple[int, int]]
    seed_task: TaskSpec | None = None
    seed_success: tuple[int, int] = (0, 0)
    target: float = 0.5


@dataclass(frozen=True, slots=True)
class SimulatorRecord:
    """A generated task that was played: what a simulator learns from.

    Attributes:
        situation: what the simulator had read.
        values: the field values that it wrote.
        task_id: the task.
        successes: k of the task, or of its situation's tasks together.
        attempts: n of the same, ≥ 1.
        iteration: when it was played.
        reward: R_env (Eq. 3, :class:`roleagent.curricula.alignment.Alignment`).
        weight: of the record in the regression; 0 outside the band.
        proposals: how many proposals of this task type were made lately for each that passed the checks, ≥ 1. What is
            refused never becomes a record, so a simulator that ignores this number also learns what is easily accepted.
        own: k and n of the task alone, which later situations report of it.
    """

    situation: Situation
    values: tuple[str, ...]
    task_id: str
    successes: int
    attempts: int
    iteration: int
    reward: float
    weight: float
    proposals: float = 1.0
    own: tuple[int, int] = (0, 1)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SimulatorRecord:
        """The inverse of ``dataclasses.asdict``."""
        read = dict(state["situation"])
        seed = read["seed_task"]
        situation = Situation(
            {name: (pair[0], pair[1]) for name, pair in read["success"].items()},
            TaskSpec(tuple(seed["values"]), seed["seed"]) if seed else None,
            (read["seed_success"][0], read["seed_success"][1]),
            read["target"],
        )
        own = (state["own"][0], state["own"][1])
        return cls(**{**state, "situation": situation, "values": tuple(state["values"]), "own": own})


@runtime_checkable
class Simulator(Protocol):
    """Writes tasks, and learns from how they were played."""

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        """Returns for each situation ``n`` lines, unchecked (:meth:`roleagent.tasks.grammar.TaskGrammar.read`)."""
        ...

    def update(self, records: Sequence[SimulatorRecord], rng: Generator) -> dict[str, float]:
        """Learns from the records of the window, which have a weight above 0; returns metrics. May do nothing.

        A simulator whose update needs every rank keeps the records here, and learns in a step of its own.
        """
        ...

    def initial(self) -> Simulator:
        """The simulator as it was before its first update; ``self`` if it never learns."""
        ...

    def costs(self) -> dict[str, float]:
        """Returns the costs since the last call, by name (tokens, seconds, requests); the names do not change."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-serializable state for a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        ...


__all__ = ["Simulator", "SimulatorRecord", "Situation"]
