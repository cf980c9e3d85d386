"""Which tasks the next batch plays: all alike, or more of what has been failing (Agent-In-World, step 5)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from roleagent.curricula.library import FailureLibrary
from roleagent.modes import is_known
from roleagent.panel import Panel
from roleagent.types import Analyst, Failure, Group, Reflection, Trajectory

_FORGOTTEN = 1e-3  # a weight that has decayed below this is dropped, or no task would ever leave the books


class UniformSampler:
    """Every task alike.

    A batch names no task twice as long as the panel has others: playing one task in two groups of the same batch
    teaches less than playing two.

    Args:
        panel: the tasks.
        rng: the generator that draws.
    """

    def __init__(self, panel: Panel, rng: Generator):
        self.panel = panel
        self.rng = rng

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """``n`` task ids; with ``rng`` they are drawn from that generator instead."""
        batch: list[str] = []
        taken: set[str] = set()
        for _ in range(n):
            if len(taken) == len(self.panel):
                taken = set()
            task_id = self._draw(self.rng if rng is None else rng, taken)
            batch.append(task_id)
            taken.add(task_id)
        return batch

    def _draw(self, rng: Generator, taken: set[str]) -> str:
        """One task that is not taken, every one alike."""
        if 2 * len(taken) < len(self.panel):  # try until one is free: two throws on average at the worst
            while (task_id := self.panel.task_ids[int(rng.integers(len(self.panel)))]) in taken:
                pass
            return task_id
        free = [task_id for task_id in self.panel.task_ids if task_id not in taken]
        return free[int(rng.integers(len(free)))]

    def probabilities(self) -> np.ndarray:
        """The probability of each task of the panel to be drawn first, shape ``(len(panel),)``, sum 1."""
        return np.full(len(self.panel), 1 / len(self.panel))

    def observe(self, groups: Sequence[Group]) -> None:
        """Learns nothing."""

    def metrics(self) -> dict[str, float]:
        """``entropy``: of :meth:`probabilities`, in nats."""
        p = self.probabilities()
        return {"entropy": float(-(p[p > 0] * np.log(p[p > 0])).sum())}

    def state_dict(self) -> dict[str, Any]:
        """The panel's digest and the generator's state."""
        return {"panel": self.panel.digest, "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where :meth:`state_dict` was taken.

        Raises:
            ValueError: the state belongs to another panel.
        """
        if state["panel"] != self.panel.digest:
            raise ValueError(
                f"the sampler's state was saved for the panel {state['panel']}, but {self.panel.env_id}:"
                f"{self.panel.split} is {self.panel.digest}: resume with the tasks that the run began with"
            )
        self.rng.bit_generator.state = state["rng"]


class CurriculumSampler(UniformSampler):
    """Draws from p = (1 − ε)·uniform + ε·retrieved.

    After every iteration the failed trajectories are analysed and recorded, and for each failure the analyst retrieves
    earlier ones like it. Every retrieval adds 1 to the weight of its task. Weights are multiplied by ``decay`` each
    iteration and, when the task was played, by ``success_factor`` to the power of the share of its group that
    succeeded. Without weights p is uniform. As ε < 1, every task keeps a probability of at least (1 − ε)/N.

    A batch names no task twice as long as there are others, so a single heavy task cannot fill it: of the retrieved
    part each task is drawn once, and what is left over is drawn uniformly. ``curriculum_share`` says how much was
    really drawn from the retrieved part.

    Args:
        panel: the tasks; no other task can have a weight.
        library: where failures are kept.
        analyst: says why a trajectory failed and which earlier failures are like it.
        rng: the generator that draws.
        epsilon: ε in [0, 1).
        decay: in [0, 1].
        success_factor: in [0, 1].
        candidates: most entries of the library that the analyst is shown per failure.
    """

    COUNTED = (
        *("sampled", "from_curriculum", "failures", "reflections_repaired", "reflections_fallback", "new_modes"),
        *("selections", "selections_repaired", "selections_fallback", "indices_dropped", "retrieved"),
    )

    def __init__(
        self,
        panel: Panel,
        library: FailureLibrary,
        analyst: Analyst,
        rng: Generator,
        epsilon: float = 0.5,
        decay: float = 0.9,
        success_factor: float = 0.5,
        candidates: int = 32,
    ):
        super().__init__(panel, rng)
        if not 0 <= epsilon < 1:
            raise ValueError(f"epsilon must be in [0, 1), or tasks would never be drawn again, not {epsilon}")
        if not (0 <= decay <= 1 and 0 <= success_factor <= 1):
            raise ValueError(f"decay and success_factor must be in [0, 1], not {decay} and {success_factor}")
        self.library = library
        self.analyst = analyst
        self.epsilon = epsilon
        self.decay = decay
        self.success_factor = success_factor
        self.candidates = candidates
        self.weights: dict[str, float] = {}  # task id → weight; what is absent weighs nothing
        self.iteration = 0
        self.counters: dict[str, float] = dict.fromkeys(self.COUNTED, 0)  # and what the analyst's work has cost
        self._unseen = dict.fromkeys(panel.task_ids)  # never sampled yet; a set in the panel's order
        self._share = 0.0  # of the last batch

    # --- drawing ---

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """``n`` task ids; with ``rng`` they are drawn from that generator instead."""
        before = self.counters["from_curriculum"]
        batch = super().sample(n, rng)
        self.counters["sampled"] += n
        for task_id in batch:
            self._unseen.pop(task_id, None)
        self._share = (self.counters["from_curriculum"] - before) / max(n, 1)
        return batch

    def _draw(self, rng: Generator, taken: set[str]) -> str:
        if rng.random() < self.epsilon:
            free = [task_id for task_id in self.weights if task_id not in taken]
            if free:
                weights = np.array([self.weights[task_id] for task_id in free])
                self.counters["from_curriculum"] += 1
                return free[int(rng.choice(len(free), p=weights / weights.sum()))]
        return super()._draw(rng, taken)

    def probabilities(self) -> np.ndarray:
        """p over the panel, shape ``(len(panel),)``, sum 1."""
        uniform = super().probabilities()
        if not self.weights:
            return uniform
        weights = np.array([self.weights.get(task_id, 0.0) for task_id in self.panel.task_ids])
        return (1 - self.epsilon) * uniform + self.epsilon * weights / weights.sum()

    # --- learning ---

    def observe(self, groups: Sequence[Group]) -> None:
        """Ends an iteration: forgets a little, shrinks what was solved, records and retrieves what failed.

        Raises:
            ValueError: a group's task is not in the panel (evaluation must never write the curriculum).
        """
        for group in groups:
            if group.task.task_id not in self.panel:
                raise ValueError(f"the curriculum learns from its own tasks only; {group.task.task_id!r} is not one")
        self.iteration += 1
        self.weights = {task_id: weight * self.decay for task_id, weight in self.weights.items()}
        failed: list[Trajectory] = []
        for group in groups:
            played = [trajectory for trajectory in group.trajectories if trajectory.stop_reason != "error"]
            failed += [trajectory for trajectory in played if not trajectory.success]
            if group.task.task_id in self.weights and played:
                solved = sum(trajectory.success for trajectory in played) / len(played)
                self.weights[group.task.task_id] *= self.success_factor**solved
        self._learn_from(failed)
        self.weights = {task_id: weight for task_id, weight in self.weights.items() if weight >= _FORGOTTEN}

    def _learn_from(self, failed: Sequence[Trajectory]) -> None:
        if not failed:
            return
        reflections = self.analyst.reflect(failed)
        known = set(self.library.modes(self.panel.env_id))
        self.library.record(zip(failed, reflections, strict=True), self.iteration)
        self._count("failures", len(failed))
        self._count("reflections_repaired", sum(reflection.repaired for reflection in reflections))
        self._count("reflections_fallback", sum(reflection.source == "fallback" for reflection in reflections))
        fresh = {reflection.mode for reflection in reflections} - known
        self._count("new_modes", sum(not is_known(mode, self.panel.env_id) for mode in fresh))
        # The same failure of the same task is one entry, and is followed up once.
        distinct = {(t.task.task_id, r.mode): r for t, r in zip(failed, reflections, strict=True)}
        for task_id, weight in self._retrieve(distinct).items():
            self.weights[task_id] = self.weights.get(task_id, 0.0) + weight
        for name, cost in self.analyst.costs().items():
            self._count(name, cost)

    def _retrieve(self, distinct: Mapping[tuple[str, str], Reflection]) -> dict[str, float]:
        """How often each task of the panel was retrieved, for failures named by task and mode.

        Where the analyst chose nothing that exists, the library's own text search does (step 6).
        """
        shown = {mode: self._candidates(mode) for _, mode in distinct}
        candidates = [shown[mode] for _, mode in distinct]
        selections = self.analyst.select(list(distinct.values()), candidates)
        retrieved: dict[str, float] = {}
        for reflection, offered, selection in zip(distinct.values(), candidates, selections, strict=True):
            sound = [index for index in dict.fromkeys(selection.indices) if 0 <= index < len(offered)]
            chosen = [offered[index] for index in sound]
            self._count("selections", 1)
            self._count("selections_repaired", selection.repaired)
            self._count("indices_dropped", selection.dropped + len(selection.indices) - len(sound))
            if not chosen:
                self._count("selections_fallback", 1)
                chosen = self._search(reflection)
            self._count("retrieved", len(chosen))
            for failure in chosen:
                retrieved[failure.task.task_id] = retrieved.get(failure.task.task_id, 0.0) + 1.0
        return retrieved

    def _candidates(self, mode: str) -> list[Failure]:
        found = self.library.candidates(self.panel.env_id, self.candidates, mode)
        return [failure for failure in found if failure.task.task_id in self.panel]

    def _search(self, reflection: Reflection) -> list[Failure]:
        pattern = f"{reflection.mode} {reflection.lesson} {reflection.query}"
        found = self.library.search(pattern, env_id=self.panel.env_id)
        return [failure for failure in found if failure.task.task_id in self.panel]

    def _count(self, name: str, number: float) -> None:
        self.counters[name] = self.counters.get(name, 0) + number

    # --- keeping ---

    def metrics(self) -> dict[str, float]:
        """``entropy`` (nats), ``curriculum_share`` of the last batch, ``weighted_tasks``, ``unseen_tasks`` (never
        sampled yet), and counts since the start: those of :attr:`COUNTED` and the analyst's costs."""
        now = {
            "curriculum_share": self._share,
            "weighted_tasks": float(len(self.weights)),
            "unseen_tasks": float(len(self._unseen)),
        }
        return {**super().metrics(), **now, **{name: float(count) for name, count in self.counters.items()}}

    def state_dict(self) -> dict[str, Any]:
        """Weights, counters, generator and the library's cursor."""
        own = {"weights": dict(self.weights), "iteration": self.iteration, "counters": dict(self.counters)}
        seen = {"unseen": list(self._unseen), "share": self._share}
        return {**super().state_dict(), **own, **seen, "cursor": self.library.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where :meth:`state_dict` was taken: what the library was told since then is forgotten.

        Raises:
            ValueError: the state belongs to another panel.
        """
        super().load_state_dict(state)
        self.weights = {task_id: float(w) for task_id, w in state["weights"].items() if task_id in self.panel}
        self.iteration = int(state["iteration"])
        self.counters = dict.fromkeys(self.COUNTED, 0) | dict(state["counters"])
        self._unseen = dict.fromkeys(state["unseen"])
        self._share = float(state["share"])
        self.library.rollback(int(state["cursor"]))
        if self.library.cursor < int(state["cursor"]):
            warnings.warn(
                f"the failure library holds less than the checkpoint remembers ({self.library.cursor} of "
                f"{state['cursor']}): it was deleted or replaced, and retrieval starts over",
                stacklevel=2,
            )
