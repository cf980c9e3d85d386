"""GenEnv's choice of tasks: new tasks that a simulator writes, earlier ones again, and tasks of the split."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from numpy.random import Generator

from roleagent.curricula.alignment import Alignment, success_rate
from roleagent.curricula.metrics import alignment_metrics, counts, diversity_metrics, played, record_metrics, sums
from roleagent.curricula.task_pool import PooledTask, TaskPool, replay_metrics
from roleagent.curricula.task_writer import VARIATION_SHARE, TaskWriter, Written
from roleagent.tasks.grammar import REFUSALS, TaskGrammar
from roleagent.tasks.simulator import Simulator, SimulatorRecord, Situation
from roleagent.types import Group, Reflection, Sampler

RECENT = 2  # iterations whose success a situation reports
SEEDS = 4  # iterations whose records a situation starts from, if the window has no end
KINDS = ("fresh", "replayed", "base")


class GeneratedSampler:
    """Mixes *fresh* tasks from a simulator, *replayed* ones and *base* tasks of the split.

    Base tasks come from the sampler inside, and their groups go back to it: a failure curriculum works on. A fresh
    task's record is its success rate in this iteration, computed from its own group. Records of the last iterations
    train the simulator, weighted by :class:`~roleagent.curricula.alignment.Alignment`. A replayed task was accepted
    before and not solved in all attempts when it was last played.

    Args:
        inner: chooses the base tasks.
        grammar: of the environment's tasks.
        simulator: writes new tasks.
        rng: the generator that draws.
        alignment: the reward of the simulator, the band and the weights.
        fresh, replay: shares of a batch; the rest is base tasks.
        variations: tasks that are written for one situation.
        variation_share: of the fresh tasks, those that change one field of a recent task: of one in the band, or else
            of one of the nearest.
        attempts: proposals per wanted task. A task that is still missing comes from ``inner``, as a fallback.
        novelty: iterations in which the same field values are not accepted twice.
        window: iterations whose records train the simulator; 0: all.
        credit: ``"task"``, or ``"batch"``: the success rate of all tasks of a situation together, as published.
        shuffle_rewards: a control: success rates go to the records of other tasks.
    """

    def __init__(
        self,
        inner: Sampler,
        grammar: TaskGrammar,
        simulator: Simulator,
        rng: Generator,
        alignment: Alignment | None = None,
        *,
        fresh: float = 0.5,
        replay: float = 0.25,
        variations: int = 4,
        variation_share: float = VARIATION_SHARE,
        attempts: int = 4,
        novelty: int = 8,
        window: int = 4,
        credit: Literal["task", "batch"] = "task",
        shuffle_rewards: bool = False,
    ):
        if not (fresh >= 0 and replay >= 0 and fresh + replay <= 1):
            raise ValueError(f"fresh and replay must be shares of one batch, not {fresh} and {replay}")
        self.inner, self.grammar, self.simulator, self.rng = inner, grammar, simulator, rng
        self.alignment = alignment or Alignment()
        self.fresh, self.replay, self.variations = fresh, replay, variations
        self.window, self.credit, self.shuffle_rewards = window, credit, shuffle_rewards
        self.writer = TaskWriter(grammar, simulator, attempts, novelty, variation_share)
        self.pool = TaskPool()
        self.records: list[SimulatorRecord] = []
        self.iteration = 0
        self._listed = frozenset(grammar.env.task_split.task_ids)
        self._written: dict[str, Written] = {}  # fresh tasks since the last iteration ended
        self._replayed: set[str] = set()
        self._contexts = self._fallback = 0
        self._success: list[dict[str, tuple[int, int]]] = []  # of the last iterations, by task type
        self._passed: list[dict[str, tuple[int, int]]] = []  # of the window's, proposals by task type
        self._newest: dict[str, float] = {}
        self._warned = False

    # --- drawing ---

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """``n`` task ids: fresh, replayed, then base; drawn with ``rng`` or the sampler's own generator."""
        own, offset = (self.rng, self.rng.random()) if rng is None else (rng, rng.random())
        fresh = math.floor(n * self.fresh + offset)
        replay = math.floor(n * (self.fresh + self.replay) + offset) - fresh
        written = self._write(fresh, own)
        again = self.pool.oldest(replay, {*self._replayed, *self._written})
        self._replayed.update(again)
        self._fallback += fresh - len(written)
        return [*(task.task_id for task in written), *again, *self.inner.sample(n - len(written) - len(again), rng)]

    def _write(self, count: int, rng: Generator) -> list[Written]:
        if not count:
            return []
        situations, wanted = self._situations(count, rng)
        variable = [self.grammar.varies and one.seed_task is not None for one in situations]
        taken = {*self._replayed, *self._written}
        written = self.writer.write(situations, wanted, variable, self.iteration + 1, rng, taken)
        reason = "" if self._warned or self.pool or self._written else self.writer.unusable()
        if reason:
            self._warned = True
            name = type(self.simulator).__name__
            warnings.warn(f"{name}: {reason}; tasks of the split take their place", stacklevel=3)
        written = [replace(task, context=task.context + self._contexts) for task in written]
        self._contexts += len(situations)
        self._written |= {task.task_id: task for task in written}
        return written

    def _situations(self, count: int, rng: Generator) -> tuple[list[Situation], list[int]]:
        """Situations for ``count`` tasks, ``variations`` for each at most, and the number of tasks for each.

        Each starts from another recent task: one in the band, or else one of the :func:`nearest`.
        """
        number = math.ceil(count / self.variations)
        recent = [record for record in self.records if record.iteration > self.iteration - (self.window or SEEDS)]
        recent = [record for record in recent if record.weight] or nearest(recent, self.alignment.alpha)
        plain = Situation(self._recent_success(), target=self.alignment.alpha)
        situations = [plain] * number
        if recent:
            places = rng.choice(len(recent), number, replace=number > len(recent))
            seeds = [recent[int(place)] for place in places]
            situations = [
                replace(plain, seed_task=self.grammar.spec(one.task_id), seed_success=one.own) for one in seeds
            ]
        return situations, [(count + place) // number for place in range(number)]

    def _recent_success(self) -> dict[str, tuple[int, int]]:
        pairs = [pair for counted in self._success for pair in counted.items()]
        return dict(sorted(sums(pairs).items()))

    def probe(self, count: int, rng: Generator) -> dict[str, list[str]]:
        """Accepted tasks of the simulator as it was at first, ``initial``, and as it is, ``present``.

        They are not trained on, and leave no trace in the sampler.
        """
        found, before = {}, self.simulator.state_dict()
        for name, simulator in (("initial", self.simulator.initial()), ("present", self.simulator)):
            writer = TaskWriter(self.grammar, simulator, self.writer.attempts, 0, 0.0)
            situations, wanted = self._situations(count, rng)
            written = writer.write(situations, wanted, [False] * len(wanted), 0, rng)
            found[name] = [task.task_id for task in written]
        self.simulator.load_state_dict(before)  # a list has moved on
        return found

    def costs(self) -> Mapping[str, float]:
        """What the simulator has cost since it was last asked."""
        return self.simulator.costs()

    def choices(self) -> Mapping[str, tuple[str, str]]:
        """Why tasks were chosen, by task id: those of the sampler inside, and ``fresh`` or ``replayed``."""
        fresh = {
            task_id: ("fresh", "a recent task with one field changed" if task.varied else "written by the simulator")
            for task_id, task in self._written.items()
        }
        again = dict.fromkeys(self._replayed, ("replayed", "accepted before, and not always solved"))
        return {**self.inner.choices(), **fresh, **again}

    # --- learning ---

    def observe(self, groups: Sequence[Group]) -> Mapping[tuple[int, int], Reflection]:
        """Ends an iteration: records the fresh tasks, fills the pool and updates the simulator.

        Returns:
            the reflections of the sampler inside, on the base tasks.

        Raises:
            ValueError: a group's task is neither in the split nor was handed out.
        """
        kinds = [self._kind(group.task.task_id) for group in groups]
        self.iteration += 1
        base = [number for number, kind in enumerate(kinds) if kind == "base"]
        reflections = self.inner.observe([groups[number] for number in base])
        sound = [(kind, group) for kind, group in zip(kinds, groups, strict=True) if played(group)]
        tried = {name: [group for kind, group in sound if kind == name] for name in KINDS}
        self._success.append(sums([(group.task.task_type, counts(group)) for _, group in sound]))
        self._success = self._success[-RECENT:]
        self._passed = [*self._passed, self.writer.passed][-(self.window or SEEDS) :]
        records = self._record(tried["fresh"])
        self.records += records
        if self.window:
            self.records = [one for one in self.records if one.iteration > self.iteration - self.window]
        for group, record in zip(tried["fresh"], records, strict=True):
            self._play("fresh", group, reward=record.reward, weight=record.weight)
        replayed = [(self._play("replayed", group), success_rate(*counts(group))) for group in tried["replayed"]]
        own = {
            **self._counts(),
            **diversity_metrics([*self.grammar.fields], self.writer.readable),
            **self._alignments(tried),
            **replay_metrics(replayed, self.iteration),
            **record_metrics(self.records),
            "pool": float(len(self.pool)),
            **self._update(),
            **self.simulator.costs(),
        }
        self._newest = {f"genenv_{name}": float(value) for name, value in own.items()}
        self.writer.counters.clear()
        self.writer.readable.clear()
        self.writer.passed = {}
        self._written, self._replayed, self._contexts, self._fallback = {}, set(), 0, 0
        return {(base[number], member): found for (number, member), found in reflections.items()}

    def _kind(self, task_id: str) -> str:
        if task_id in self._written:
            return "fresh"
        if task_id in self._replayed:
            return "replayed"
        if task_id not in self._listed:
            raise ValueError(f"{task_id!r} is neither a task of the split nor one that the sampler handed out")
        return "base"

    def _alignments(self, tried: Mapping[str, Sequence[Group]]) -> dict[str, float]:
        found = {kind: alignment_metrics(groups, self.alignment) for kind, groups in tried.items()}
        return {f"{kind}_{name}": value for kind, numbers in found.items() for name, value in numbers.items()}

    def _play(self, kind: str, group: Group, **numbers: float) -> PooledTask:
        """Notes in the pool and in the log that a task was played; returns what was known of it before."""
        won, attempts = counts(group)
        line = {"iteration": self.iteration, "event": kind, "task_id": group.task.task_id}
        self.writer.events.append({**line, "successes": won, "attempts": attempts, **numbers})
        return self.pool.add(group.task.task_id, won / attempts, self.iteration)

    def _record(self, groups: Sequence[Group]) -> list[SimulatorRecord]:
        """The records of the fresh tasks."""
        own = [counts(group) for group in groups]
        credited = list(own)
        if self.shuffle_rewards:
            credited = [own[int(place)] for place in self.rng.permutation(len(own))]
        written = [self._written[group.task.task_id] for group in groups]
        if self.credit == "batch":
            shared = sums([(task.context, pair) for task, pair in zip(written, credited, strict=True)])
            credited = [shared[task.context] for task in written]
        return [
            SimulatorRecord(
                *(task.situation, task.spec.values, task.task_id, won, attempts, self.iteration),
                self.alignment.reward(won, attempts),
                self.alignment.weight(won, attempts),
                own=played_alone,
            )
            for task, (won, attempts), played_alone in zip(written, credited, own, strict=True)
        ]

    def _update(self) -> dict[str, float]:
        """Updates the simulator if there is something to learn from."""
        training = [record for record in self.records if record.weight]
        if not training:
            return {}
        passed = sums([pair for counted in self._passed for pair in counted.items()])
        needed = {name: (tried + 1) / (accepted + 1) for name, (accepted, tried) in passed.items()}
        types = [self.grammar.task_type(self.grammar.spec(one.task_id)) for one in training]
        training = [replace(one, proposals=needed.get(name, 1.0)) for one, name in zip(training, types, strict=True)]
        return self.simulator.update(training, self.rng)

    def _counts(self) -> dict[str, float]:
        counted = self.writer.counters
        names = ("proposed", "accepted", "repaired", "variations", *(f"refused_{reason}" for reason in REFUSALS))
        plans = [task.plan_length for task in self._written.values()]
        return {
            **{name: float(counted[name]) for name in names},
            **({"plan_length": sum(plans) / len(plans)} if plans else {}),
            "wanted": float(len(self._written) + self._fallback),
            "fallback": float(self._fallback),
            "fresh": float(len(self._written)),
            "replayed": float(len(self._replayed)),
        }

    # --- keeping ---

    def metrics(self) -> dict[str, float]:
        """The metrics of the sampler inside, and of the last iteration those of docs/genenv.md, ``genenv_…``."""
        return {**self.inner.metrics(), **self._newest}

    def take_events(self) -> list[dict[str, Any]]:
        """What happened to each task since the last call, for ``tasks/`` of a run folder."""
        events, self.writer.events = self.writer.events, []
        return events

    def state_dict(self) -> dict[str, Any]:
        """The state of the samplers, the simulator, the pool and the records."""
        return {
            "inner": self.inner.state_dict(),
            "simulator": self.simulator.state_dict(),
            "rng": self.rng.bit_generator.state,
            "iteration": self.iteration,
            "pool": self.pool.state_dict(),
            "records": [asdict(record) for record in self.records],
            "accepted": [[list(values), last] for values, last in self.writer.accepted.items()],
            "success": [{name: list(pair) for name, pair in counted.items()} for counted in self._success],
            "passed": [{name: list(pair) for name, pair in counted.items()} for counted in self._passed],
            "newest": dict(self._newest),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues where :meth:`state_dict` was taken.

        Raises:
            ValueError: the state belongs to another split.
        """
        self.inner.load_state_dict(state["inner"])
        self.simulator.load_state_dict(state["simulator"])
        self.rng.bit_generator.state = state["rng"]
        self.iteration = int(state["iteration"])
        self.pool.load_state_dict(state["pool"])
        self.records = [SimulatorRecord.of(one) for one in state["records"]]
        self.writer.accepted = {tuple(values): int(last) for values, last in state["accepted"]}
        self._success, self._passed = (
            [{name: (pair[0], pair[1]) for name, pair in counted.items()} for counted in state[key]]
            for key in ("success", "passed")
        )
        self._newest = dict(state["newest"])


def nearest(records: Sequence[SimulatorRecord], alpha: float) -> list[SimulatorRecord]:
    """The records whose success rates are closest to ``alpha``, from below and from above.

    Tasks between those that are too hard and those that are too easy are found from either side.
    """
    rates = [success_rate(record.successes, record.attempts) for record in records]
    sides = [max((rate for rate in rates if rate <= alpha), default=None)]
    sides.append(min((rate for rate in rates if rate > alpha), default=None))
    return [record for record, rate in zip(records, rates, strict=True) if rate in sides]


__all__ = ["GeneratedSampler"]
