"""Agent-In-World's task sampler: tasks that failed are sampled more often (steps 3 to 5)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Generator as Steps
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from roleagent.curricula.candidates import Asked, from_library, unread
from roleagent.curricula.draws import mixture, one_of
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.metrics import compare, played, read_shares
from roleagent.curricula.samplers import UniformSampler
from roleagent.curricula.task_records import TaskRecords
from roleagent.failures.modes import is_known
from roleagent.tasks.split import TaskSplit
from roleagent.types import Analyst, Failure, Group, Reflection, Trajectory

Question = tuple[Literal["reflect", "select"], tuple[Any, ...]]
"""A method of an analyst, and its arguments."""
Learning = Steps[Question, Any, dict[tuple[int, int], Reflection]]
_FORGOTTEN = 1e-3  # a weight that has decayed below this is dropped, or no task would ever leave the books
_OVERLOOKED = "not played for long, and of the same type as a retrieved task"


class CurriculumSampler(UniformSampler):
    """Draws from p = (1 − ε)·uniform + ε·retrieved.

    After every iteration the failed trajectories are analyzed and recorded, and for each failure the analyst retrieves
    earlier ones like it. Every retrieval adds 1 to the weight of its task. Weights are multiplied by ``decay`` each
    iteration and, when the task was played, by ``success_factor`` to the power of the share of its group that
    succeeded. Without weights p is uniform. As ε < 1, every task keeps a probability of at least (1 − ε)/N.

    A batch names no task twice as long as there are others, so a single heavy task cannot fill it: of the retrieved
    part each task is drawn once, and what is left over is drawn uniformly. ``curriculum_share`` is the share
    of the groups whose task was really drawn from the retrieved part.

    What fails most is retrieved most, tasks that no rollout ever solves included, and a group without spread teaches
    a group-relative method nothing. So a retrieved task is drawn by its weight times p (1 − p), with p as
    :class:`~roleagent.curricula.task_records.TaskRecords` estimates it (learnability as Rutherford et al., 2024, have
    it, but with an estimate that shrinks towards the rate of the task type). ``learnability=False`` draws by the
    weight alone, as published.

    The share ``overlooked`` of the retrieved part goes to overlooked tasks: a retrieved task is drawn as above, and
    in its place a task of the same type, by the iterations since that was last played.

    Args:
        task_split: the tasks; no other task can have a weight.
        library: where failures are kept.
        analyst: explains why a trajectory failed and selects earlier failures like it; None if :meth:`learn` is used.
        rng: the generator that draws.
        epsilon: ε in [0, 1).
        decay: in [0, 1]; of weights, and of what is known of a task's success.
        success_factor: in [0, 1].
        candidates: most entries of the library that the analyst is shown per failure.
        learnability: whether retrieved tasks are drawn by p (1 − p), too.
        overlooked: share of the retrieved part in [0, 1].
        task_type: the type of a task id. Without it types become known as tasks are played or retrieved.
        search: whether the library's text search replaces a selection of nothing (step 6).
        control: what takes the place of the analyst's retrieval: ``"replay"``, tasks that failed, at random; or
            ``"text"``, those whose text is most like the failing task's. Everything else stays, so that the difference
            is what reading failures adds. The analyst is then :class:`~roleagent.curricula.rule_analyst.UnreadAnalyst`.
            ``"frozen"``: nothing is recorded, retrieved or forgotten, so tasks are drawn as they were.
    """

    COUNTED = (
        *("sampled", "from_curriculum", "failures", "reflections_repaired", "reflections_fallback", "new_modes"),
        *("selections", "selections_repaired", "selections_fallback", "indices_dropped", "retrieved"),
        *("self_retrievals_total", "same_iteration_total", "overlooked_total"),
        *("curriculum_groups", "curriculum_zero_variance_groups", "uniform_groups", "uniform_zero_variance_groups"),
    )

    def __init__(
        self,
        task_split: TaskSplit,
        library: FailureLibrary,
        analyst: Analyst | None,
        rng: Generator,
        epsilon: float = 0.5,
        decay: float = 0.9,
        success_factor: float = 0.5,
        candidates: int = 32,
        learnability: bool = True,
        overlooked: float = 0.25,
        task_type: Callable[[str], str] | None = None,
        search: bool = True,
        control: Literal["", "replay", "text", "frozen"] = "",
    ):
        super().__init__(task_split, rng)
        if not 0 <= epsilon < 1:
            raise ValueError(f"epsilon must be in [0, 1), or tasks would never be drawn again, not {epsilon}")
        if not (0 <= decay <= 1 and 0 <= success_factor <= 1):
            raise ValueError(f"decay and success_factor must be in [0, 1], not {decay} and {success_factor}")
        if not 0 <= overlooked <= 1:
            raise ValueError(f"overlooked must be in [0, 1], not {overlooked}")
        self.library, self.analyst, self.search = library, analyst, search
        self.epsilon, self.decay, self.success_factor = epsilon, decay, success_factor
        self.candidates, self.control = candidates, control
        self.learnability = learnability
        self.overlooked = overlooked
        self.records = TaskRecords(task_split, decay, task_type)
        self.weights: dict[str, float] = {}  # task id → weight; what is absent weighs nothing
        self.iteration = 0
        self.counters: dict[str, float] = dict.fromkeys(self.COUNTED, 0.0)  # and what the analyst's work cost
        self._unseen = dict.fromkeys(task_split.task_ids)  # never sampled yet; a set in the split's order
        self._sought: dict[str, str] = {}  # drawn since the last iteration ended → the retrieved task that led there
        self._newest: dict[str, float] = {}  # figures of the last iteration
        self._read: dict[str, float] = {}  # how well the last analyses could be read

    # --- drawing ---

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """``n`` task ids; with ``rng`` they are drawn from that generator instead."""
        self._retrieved, self._waiting = self._distributions()
        batch = super().sample(n, rng)
        self.counters["sampled"] += n
        for task_id in batch:
            self._unseen.pop(task_id, None)
        return batch

    def _draw(self, rng: Generator, taken: set[str]) -> str:
        if rng.random() < self.epsilon:
            free = np.ones(len(self.task_split), dtype=bool)
            free[[self.task_split.position(task_id) for task_id in taken]] = False
            led = place = None
            if self.overlooked and rng.random() < self.overlooked:
                if (led := one_of(self._retrieved, rng)) is not None:
                    same_type = self.records.type_of == self.records.type_of[led]
                    place = one_of(self._waiting * free * same_type, rng)
                self._count("overlooked_total", place is not None)
            if place is None:
                led = place = one_of(self._retrieved * free, rng)
            if led is not None and place is not None:
                self._count("from_curriculum", 1)
                self._sought[self.task_split.task_ids[place]] = self.task_split.task_ids[led]
                return self.task_split.task_ids[place]
        task_id = super()._draw(rng, taken)
        self._sought.pop(task_id, None)
        return task_id

    def probabilities(self) -> np.ndarray:
        """p over the split, shape ``(len(task_split),)``, sum 1."""
        uniform, (retrieved, waiting) = super().probabilities(), self._distributions()
        return mixture(uniform, retrieved, waiting, self.records.type_of, self.epsilon, self.overlooked)

    def _distributions(self) -> tuple[np.ndarray, np.ndarray]:
        """What retrieved tasks and overlooked tasks are drawn by, over the split."""
        retrieved = np.zeros(len(self.task_split))
        for task_id, weight in self.weights.items():
            retrieved[self.task_split.position(task_id)] = weight
        waiting = self.records.waited(self.iteration).astype(float)
        if not self.learnability:
            return retrieved, waiting
        p = self.records.chances(self.iteration)
        return retrieved * p * (1 - p), waiting * p * (1 - p)

    def choices(self) -> dict[str, tuple[str, str]]:
        """Of the tasks drawn from the retrieved part since the last :meth:`observe`, the mode of the failure that led
        to each and the analyst's reason. Where several did, the newest is named."""
        led = self.library.led_to(self.task_split.env_id, dict.fromkeys(self._sought.values()))
        return {
            task_id: (led[origin].mode, led[origin].reason if task_id == origin else _OVERLOOKED)
            for task_id, origin in self._sought.items()
            if origin in led
        }

    # --- learning ---

    def observe(
        self, groups: Sequence[Group], analyzed: Sequence[Reflection] | None = None
    ) -> dict[tuple[int, int], Reflection]:
        """Ends an iteration: decays weights, lowers those of solved tasks, records failures and retrieves similar ones.

        Args:
            groups: the episodes of the iteration.
            analyzed: the analyses of the failed episodes, in their order; None: the analyst is asked for them.

        Returns:
            the analysis of each failed trajectory, by the number of its group and its own within it.

        Raises:
            ValueError: a group's task is not in the split (evaluation must never write the curriculum).
        """
        steps = self.learn(groups)
        try:
            question, arguments = next(steps)
            while True:
                known = analyzed if question == "reflect" else None
                answer = getattr(self.analyst, question)(*arguments) if known is None else known
                question, arguments = steps.send(answer)
        except StopIteration as done:
            return done.value

    def learn(self, groups: Sequence[Group]) -> Learning:
        """The steps of :meth:`observe`, for an analyst that answers later.

        Yields the name and the arguments of a method of :class:`~roleagent.types.Analyst` and is sent its result:
        ``reflect``, then ``select``. Without failures it yields nothing.
        """
        for group in groups:
            if group.task.task_id not in self.task_split:
                raise ValueError(f"the curriculum learns from its own tasks only; {group.task.task_id!r} is not one")
        self.iteration += self.control != "frozen"  # what is known of tasks fades by it
        counted, shares = compare(groups, self._sought)
        for name, number in counted.items():
            self._count(name, number)
        self._newest = {"self_retrievals": 0.0, **shares}
        for group in groups:  # others may have been drawn since, for the next iteration
            self._sought.pop(group.task.task_id, None)
        if self.control == "frozen":
            return {}
        self.weights = {task_id: weight * self.decay for task_id, weight in self.weights.items()}
        failed: dict[tuple[int, int], Trajectory] = {}
        for number, group in enumerate(groups):
            episodes = played(group)
            for member, trajectory in enumerate(group.trajectories):
                if trajectory.stop_reason != "error" and not trajectory.success:
                    failed[number, member] = trajectory
            if episodes:
                task_id, won = group.task.task_id, sum(trajectory.success for trajectory in episodes)
                self.records.learn_type(task_id, group.task.task_type)
                self.records.add(task_id, won, len(episodes), self.iteration)
                if task_id in self.weights:
                    self.weights[task_id] *= self.success_factor ** (won / len(episodes))
        reflections = yield from self._learn_from([*failed.values()])
        self.weights = {task_id: weight for task_id, weight in self.weights.items() if weight >= _FORGOTTEN}
        return dict(zip(failed, reflections, strict=True))

    def _learn_from(self, failed: Sequence[Trajectory]) -> Steps[Question, Any, Sequence[Reflection]]:
        if not failed:
            return []
        before = dict(self.counters)
        reflections = yield "reflect", (failed,)
        known = set(self.library.modes(self.task_split.env_id))
        self.library.record(zip(failed, reflections, strict=True), self.iteration)
        self._count("failures", len(failed))
        self._count("reflections_repaired", sum(reflection.repaired for reflection in reflections))
        self._count("reflections_fallback", sum(reflection.source == "fallback" for reflection in reflections))
        fresh = {reflection.mode for reflection in reflections} - known
        self._count("new_modes", sum(not is_known(mode, self.task_split.env_id) for mode in fresh))
        # The same failure of the same task is one entry, and is followed up once.
        distinct = {(t.task.task_id, r.mode): r for t, r in zip(failed, reflections, strict=True)}
        asked = [(task_id, reflection) for (task_id, _), reflection in distinct.items()]
        retrieved = yield from self._retrieve(asked)
        rows = [
            (reflection.mode, task_id, failure, reason)
            for (task_id, reflection), chosen in zip(asked, retrieved, strict=True)
            for failure, reason in chosen
        ]
        self._count_replays(asked, [(task_id, failure) for _, task_id, failure, _ in rows])
        self.library.record_retrievals(
            self.iteration, [(mode, task_id, failure.task.task_id, reason) for mode, task_id, failure, reason in rows]
        )
        for _, _, failure, _ in rows:
            self.records.learn_type(failure.task.task_id, failure.task.task_type)
            self.weights[failure.task.task_id] = self.weights.get(failure.task.task_id, 0.0) + 1.0
        for name, cost in (self.analyst.costs() if self.analyst else {}).items():
            self._count(name, cost)
        self._read = read_shares({name: self.counters[name] - before[name] for name in self.COUNTED})
        return reflections

    def _retrieve(self, asked: Asked) -> Steps[Question, Any, list[list[tuple[Failure, str]]]]:
        """For each failure the earlier ones of the split's tasks that are like it, with the reason.

        Where the analyst chose nothing that exists, the library's own text search does (step 6).
        """
        type_of, found = self.records.name_of_type, []
        if self.control:
            offers = unread(self.library, self.task_split, asked, self.control == "text", self.rng)
        else:
            offers = from_library(self.library, self.task_split, asked, self.candidates, type_of, self.rng)
        selections = yield "select", ([reflection for _, reflection in asked], [offer.shown for offer in offers])
        for offer, selection in zip(offers, selections, strict=True):
            offered = offer.shown
            if not offered:
                found.append([])
                continue
            reasons = dict(zip(selection.indices, selection.reasons or ("",) * len(selection.indices), strict=True))
            chosen = [(offered[index], reason) for index, reason in reasons.items() if 0 <= index < len(offered)]
            self._count("selections", 1)
            self._count("selections_repaired", selection.repaired and bool(chosen))
            self._count("indices_dropped", selection.dropped + len(selection.indices) - len(chosen))
            if not chosen:
                self._count("selections_fallback", 1)
                chosen = [(failure, "found by its words") for failure in offer.search()] if self.search else []
            found.append(chosen)
        return found

    # --- counting ---

    def _count(self, name: str, number: float) -> None:
        self.counters[name] = self.counters.get(name, 0) + number

    def _count_replays(self, asked: Asked, retrieved: Sequence[tuple[str, Failure]]) -> None:
        """Retrievals of the failing task itself, and of failures that this iteration filed."""
        filed = {self.library.names(task_id, reflection.mode) for task_id, reflection in asked}
        itself = sum(task_id == failure.task.task_id for task_id, failure in retrieved)
        present = sum((failure.task.task_id, failure.reflection.mode) in filed for _, failure in retrieved)
        self._newest["self_retrievals"] = float(itself)
        if retrieved:
            self._newest["same_iteration_share"] = present / len(retrieved)
        for name, number in (("self_retrievals", itself), ("same_iteration", present)):
            self._count(f"{name}_total", number)
        self._count("retrieved", len(retrieved))

    # --- keeping ---

    def metrics(self) -> dict[str, float]:
        """``entropy`` (nats), ``weighted_tasks``, ``unseen_tasks`` (never sampled yet) and counts since the start
        (those of :attr:`COUNTED` and the analyst's costs).

        Of the last iteration: ``curriculum_share`` of its groups; ``self_retrievals``; ``same_iteration_share``, the
        share of retrievals that chose a failure which the iteration itself had filed; of the curriculum's tasks and of
        the uniformly drawn ones ``…_zero_variance_share`` (groups whose episodes all ended alike) and ``…_success``.
        What would be a share of nothing is left out. Of the last iteration with failures the shares of analyses by how
        they were read: ``reflections_valid_share``, ``…_repaired_share``, ``…_fallback_share``, and the same of
        selections.
        """
        now = {"weighted_tasks": float(len(self.weights)), "unseen_tasks": float(len(self._unseen))}
        counts = {name: float(count) for name, count in self.counters.items()}
        return {**super().metrics(), **now, **counts, **self._newest, **self._read}

    def state_dict(self) -> dict[str, Any]:
        """Weights, task records, counters, generator state and the library's cursor."""
        own = {"weights": dict(self.weights), "iteration": self.iteration, "counters": dict(self.counters)}
        seen = {"records": self.records.state_dict(), "unseen": list(self._unseen)}
        figures = {"newest": dict(self._newest), "read": dict(self._read), "sought": dict(self._sought)}
        return {**super().state_dict(), **own, **seen, **figures, "cursor": self.library.cursor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`; later entries of the library are removed.

        Raises:
            ValueError: the state belongs to another split.
        """
        super().load_state_dict(state)
        if "weights" not in state:
            return  # of a run that was sampled without failures, and forked
        self.weights = {task_id: float(w) for task_id, w in state["weights"].items() if task_id in self.task_split}
        self.iteration = int(state["iteration"])
        self.counters = {**dict.fromkeys(self.COUNTED, 0.0), **state["counters"]}
        self.records.load_state_dict(state["records"])
        self._unseen = dict.fromkeys(state["unseen"])
        self._read = dict(state["read"])
        self._newest, self._sought = dict(state["newest"]), dict(state["sought"])
        self.library.rollback(int(state["cursor"]))
        if self.library.cursor < int(state["cursor"]):
            warnings.warn(
                f"the failure library holds less than the checkpoint remembers ({self.library.cursor} of "
                f"{state['cursor']}): it was deleted or replaced, and retrieval starts over",
                stacklevel=2,
            )
