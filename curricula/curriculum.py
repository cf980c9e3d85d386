"""Agent-In-World's choice of tasks: more of what has been failing (steps 3 to 5)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.samplers import UniformSampler
from roleagent.modes import is_known
from roleagent.panel import Panel
from roleagent.types import Analyst, Failure, Group, Reflection, Trajectory

_FORGOTTEN = 1e-3  # a weight that has decayed below this is dropped, or no task would ever leave the books


class CurriculumSampler(UniformSampler):
    """Draws from p = (1 − ε)·uniform + ε·retrieved.

    After every iteration the failed trajectories are analysed and recorded, and for each failure the analyst retrieves
    earlier ones like it. Every retrieval adds 1 to the weight of its task. Weights are multiplied by ``decay`` each
    iteration and, when the task was played, by ``success_factor`` to the power of the share of its group that
    succeeded. Without weights p is uniform. As ε < 1, every task keeps a probability of at least (1 − ε)/N.

    A batch names no task twice as long as there are others, so a single heavy task cannot fill it: of the retrieved
    part each task is drawn once, and what is left over is drawn uniformly. ``curriculum_share`` says how much was
    really drawn from the retrieved part.

    What fails most is retrieved most, tasks among it that no rollout of a group ever solves, which teach a
    group-relative method nothing. With ``learnability`` (not the paper's) a retrieved task is drawn with its weight
    times 4 p (1 − p), where p is the share of its last group that succeeded (learnability as Rutherford et al., 2024,
    have it), so that only chance brings back what is hopeless or solved.

    Args:
        panel: the tasks; no other task can have a weight.
        library: where failures are kept.
        analyst: says why a trajectory failed and which earlier failures are like it.
        rng: the generator that draws.
        epsilon: ε in [0, 1).
        decay: in [0, 1].
        success_factor: in [0, 1].
        candidates: most entries of the library that the analyst is shown per failure.
        learnability: whether retrieved tasks are drawn by what there is to learn from them, too.
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
        learnability: bool = False,
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
        self.learnability = learnability
        self.weights: dict[str, float] = {}  # task id → weight; what is absent weighs nothing
        self.solved: dict[str, float] = {}  # task id → share of its last group that succeeded
        self.iteration = 0
        self.counters: dict[str, float] = dict.fromkeys(self.COUNTED, 0.0)  # and what the analyst's work cost
        self._unseen = dict.fromkeys(panel.task_ids)  # never sampled yet; a set in the panel's order
        self._share = 0.0  # of the last batch
        self._sought: dict[str, None] = {}  # drawn because of a failure since the last iteration ended
        self._read: dict[str, float] = {}  # how well the last analyses could be read

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
            chances = self._chances()
            free = [task_id for task_id in chances if task_id not in taken]
            if free:
                weights = np.array([chances[task_id] for task_id in free])
                self.counters["from_curriculum"] += 1
                task_id = free[int(rng.choice(len(free), p=weights / weights.sum()))]
                self._sought[task_id] = None
                return task_id
        return super()._draw(rng, taken)

    def probabilities(self) -> np.ndarray:
        """p over the panel, shape ``(len(panel),)``, sum 1."""
        uniform, chances = super().probabilities(), self._chances()
        if not chances:
            return uniform
        weights = np.array([chances.get(task_id, 0.0) for task_id in self.panel.task_ids])
        return (1 - self.epsilon) * uniform + self.epsilon * weights / weights.sum()

    def _chances(self) -> dict[str, float]:
        """What the retrieved tasks are drawn by, > 0 each."""
        if not self.learnability:
            return self.weights
        p = {task_id: self.solved.get(task_id, 0.5) for task_id in self.weights}
        return {
            task_id: 4 * p[task_id] * (1 - p[task_id]) * w for task_id, w in self.weights.items() if 0 < p[task_id] < 1
        }

    def choices(self) -> dict[str, tuple[str, str]]:
        """Of the tasks drawn from the retrieved part since the last :meth:`observe`, the mode of the failure that led
        to each and the analyst's reason. Where several did, the newest is told."""
        return {task_id: (r.mode, r.reason) for task_id, r in self.library.led_to(self._sought).items()}

    # --- learning ---

    def observe(self, groups: Sequence[Group]) -> dict[tuple[int, int], Reflection]:
        """Ends an iteration: forgets a little, shrinks what was solved, records and retrieves what failed.

        Returns:
            the analysis of each failed trajectory, by the number of its group and its own within it.

        Raises:
            ValueError: a group's task is not in the panel (evaluation must never write the curriculum).
        """
        for group in groups:
            if group.task.task_id not in self.panel:
                raise ValueError(f"the curriculum learns from its own tasks only; {group.task.task_id!r} is not one")
        self.iteration += 1
        self._sought = {}
        self.weights = {task_id: weight * self.decay for task_id, weight in self.weights.items()}
        failed: dict[tuple[int, int], Trajectory] = {}
        for number, group in enumerate(groups):
            played = [trajectory for trajectory in group.trajectories if trajectory.stop_reason != "error"]
            for member, trajectory in enumerate(group.trajectories):
                if trajectory.stop_reason != "error" and not trajectory.success:
                    failed[number, member] = trajectory
            if played:
                solved = sum(trajectory.success for trajectory in played) / len(played)
                self.solved[group.task.task_id] = solved
                if group.task.task_id in self.weights:
                    self.weights[group.task.task_id] *= self.success_factor**solved
        reflections = self._learn_from([*failed.values()])
        self.weights = {task_id: weight for task_id, weight in self.weights.items() if weight >= _FORGOTTEN}
        return dict(zip(failed, reflections, strict=True))

    def _learn_from(self, failed: Sequence[Trajectory]) -> Sequence[Reflection]:
        if not failed:
            return []
        before = dict(self.counters)
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
        rows = [
            (mode, task_id, failure.task.task_id, reason)
            for (task_id, mode), chosen in zip(distinct, self._retrieve([*distinct.values()]), strict=True)
            for failure, reason in chosen
        ]
        self._count("retrieved", len(rows))
        self.library.record_retrievals(self.iteration, rows)
        for _, _, task_id, _ in rows:
            self.weights[task_id] = self.weights.get(task_id, 0.0) + 1.0
        for name, cost in self.analyst.costs().items():
            self._count(name, cost)
        self._read = self._shares({name: self.counters[name] - before[name] for name in self.COUNTED})
        return reflections

    @staticmethod
    def _shares(counted: Mapping[str, float]) -> dict[str, float]:
        """Of an iteration's analyses: how many were read as they were, after mending, and not at all."""
        shares = {}
        for kind, asked in (("reflections", counted["failures"]), ("selections", counted["selections"])):
            repaired, fallback = (counted[f"{kind}_{fate}"] / max(asked, 1) for fate in ("repaired", "fallback"))
            fates = {"valid": 1 - repaired - fallback, "repaired": repaired, "fallback": fallback}
            shares |= {f"{kind}_{fate}_share": share for fate, share in fates.items()}
        return shares

    def _retrieve(self, reflections: Sequence[Reflection]) -> list[list[tuple[Failure, str]]]:
        """For each failure the earlier ones of the panel's tasks that are like it, with the reason.

        Where the analyst chose nothing that exists, the library's own text search does (step 6).
        """
        shown = {reflection.mode: self._candidates(reflection.mode) for reflection in reflections}
        candidates = [shown[reflection.mode] for reflection in reflections]
        found = []
        for reflection, offered, selection in zip(
            reflections, candidates, self.analyst.select(reflections, candidates), strict=True
        ):
            reasons = dict(zip(selection.indices, selection.reasons or ("",) * len(selection.indices), strict=True))
            chosen = [(offered[index], reason) for index, reason in reasons.items() if 0 <= index < len(offered)]
            self._count("selections", 1)
            self._count("selections_repaired", selection.repaired and bool(chosen))
            self._count("indices_dropped", selection.dropped + len(selection.indices) - len(chosen))
            if not chosen:
                self._count("selections_fallback", 1)
                chosen = [(failure, "found by its words") for failure in self._search(reflection)]
            found.append(chosen)
        return found

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
        sampled yet), counts since the start (those of :attr:`COUNTED` and the analyst's costs), and of the last
        iteration's analyses the shares ``reflections_valid_share``, ``…_repaired_share``, ``…_fallback_share``, and
        the same of selections."""
        now = {
            "curriculum_share": self._share,
            "weighted_tasks": float(len(self.weights)),
            "unseen_tasks": float(len(self._unseen)),
        }
        counts = {name: float(count) for name, count in self.counters.items()}
        return {**super().metrics(), **now, **counts, **self._read}

    def state_dict(self) -> dict[str, Any]:
        """Weights, counters, generator and the library's cursor."""
        own = {"weights": dict(self.weights), "iteration": self.iteration, "counters": dict(self.counters)}
        seen = {"solved": dict(self.solved), "unseen": list(self._unseen), "share": self._share, "read": self._read}
        return {**super().state_dict(), **own, **seen, "cursor": self.library.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where :meth:`state_dict` was taken: what the library was told since then is forgotten.

        Raises:
            ValueError: the state belongs to another panel.
        """
        super().load_state_dict(state)
        self.weights = {task_id: float(w) for task_id, w in state["weights"].items() if task_id in self.panel}
        self.iteration = int(state["iteration"])
        self.counters = {**dict.fromkeys(self.COUNTED, 0.0), **state["counters"]}
        self.solved = dict(state.get("solved", {}))  # older checkpoints have none
        self._unseen = dict.fromkeys(state["unseen"])
        self._share, self._read = float(state["share"]), dict(state["read"])
        self.library.rollback(int(state["cursor"]))
        if self.library.cursor < int(state["cursor"]):
            warnings.warn(
                f"the failure library holds less than the checkpoint remembers ({self.library.cursor} of "
                f"{state['cursor']}): it was deleted or replaced, and retrieval starts over",
                stacklevel=2,
            )
