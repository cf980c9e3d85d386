"""The iterations of the RL stage: their log, checkpoints and watchdog; and their task sampler, which with several
ranks is on the first one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from typing import Any

from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import RolloutStats
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.generated_sampler import GeneratedSampler
from roleagent.curricula.mixed_sampler import MixedSampler
from roleagent.learners.dealing import SharedPolicy
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.flops import peak as peak_speed
from roleagent.learners.run.metrics import (
    add_counters,
    headlines,
    held_out_metrics,
    idle_mechanisms,
    iteration_metrics,
    time_metrics,
)
from roleagent.learners.run.run import Run
from roleagent.learners.run.trajectory_log import Analysis, ScoredGroup, records
from roleagent.learners.run.watchdog import logged_iterations, open_watchdog
from roleagent.timer import Timer, shares
from roleagent.types import Group, Reflection, Sampler


class Iterations:
    """An iterable over the remaining iterations; :meth:`finish` ends each of them.

    Args:
        run: in the stage ``train``.
        learner: is checkpointed as ``train.checkpoint_every`` says, and at the end.
        actor: decodes the tokens of the log.
    """

    def __init__(self, run: Run, learner: Learner, actor: Policy):
        self._run, self._learner, self._actor = run, learner, actor
        self._watchdog = open_watchdog(run)
        self._begun = 0.0
        self._saved = time.monotonic()  # the warm start ends with a checkpoint, and a resumed run begins at one
        run.begin(run.config.train.last)

    def __iter__(self) -> Iterator[int]:
        """The numbers of the iterations, until the last one, ``train.stop_after`` or a collapse ends them."""
        run, options = self._run, self._run.config.train
        while run.progress.step < options.last and not run.stops(run.progress.step, options.last):
            self._begun, run.timer = time.monotonic(), Timer()
            yield run.iteration
            if run.ranks.once(lambda: run.config.train.stop_on_alarm and self._watchdog.collapsed):
                run.display.say("train.stop_on_alarm=on ends the run here")
                break
        if run.progress.step:
            self._conclude()

    def finish(
        self,
        scored: Sequence[ScoredGroup],
        analysis: Analysis,
        metrics: Mapping[str, Any],
        stats: RolloutStats,
    ) -> None:
        """Logs the iteration and saves a checkpoint when it is due; every rank must call it.

        Args:
            scored: the groups of all ranks, on the first rank.
            analysis: of the failed episodes.
            metrics: of the update.
            stats: of the rollout.
        """
        run, config = self._run, self._run.config
        run.progress.step += 1
        metrics = dict(metrics)
        if run.ranks.first:
            episodes = records(scored, analysis, self._actor, config, run.method)
            run.folder.trajectories(run.progress.step, episodes)
            metrics |= iteration_metrics(config, scored, stats, analysis.metrics)
            add_counters(run.progress.counters, metrics)
        timers, flop = run.ranks.gather(run.timer), run.ranks.sum(metrics.pop("update_flop", 0.0))
        if run.ranks.first:
            metrics |= held_out_metrics(run.held_out)
            peak = peak_speed(self._learner.policy.model.dtype)
            metrics |= time_metrics(timers, stats, time.monotonic() - self._begun, flop, peak)
            metrics["alarms"] = self._watchdog.look(metrics, run.display)
            run.log(metrics, **headlines(config, metrics))
        run.held_out = None
        if run.ranks.once(self._checkpoint_is_due):
            run.save(self._learner)
            self._saved = time.monotonic()

    def _checkpoint_is_due(self) -> bool:
        """By the clock of the rank that asks."""
        run, now = self._run, time.monotonic()
        return is_due(run.config.train.checkpoint_every, run.progress.step, now - self._saved, now - self._begun)

    def _conclude(self) -> None:
        run = self._run
        run.save(self._learner)
        if run.ranks.first:
            run.display.say(f"time: {shares(logged_iterations(run))}")
        for warning in idle_mechanisms(run.config, run.progress.counters):
            run.display.warn(warning)


def _learn_analyzed(sampler: CurriculumSampler, groups: Sequence[Group], reflections: Sequence[Reflection]) -> None:
    """The sampler learns from groups whose failed episodes are analyzed already, in their order."""
    steps, answer = sampler.learn(groups), None
    with contextlib.suppress(StopIteration):
        while True:
            question, arguments = steps.send(answer)
            answer = reflections if question == "reflect" else getattr(sampler.analyst, question)(*arguments)


def is_due(every: str, step: int, since: float, iteration: float) -> bool:
    """Whether an iteration ends with a checkpoint.

    Args:
        every: ``train.checkpoint_every``: iterations, or the minutes that may pass between two checkpoints.
        step: iterations so far.
        since: seconds since the last checkpoint.
        iteration: seconds that the iteration took; the next one is taken to be as long.

    >>> is_due("2", 3, 900.0, 300.0), is_due("2", 4, 0.0, 300.0)
    (False, True)
    >>> is_due("15m", 1, 500.0, 300.0), is_due("15m", 2, 800.0, 300.0), is_due("15m", 3, 1200.0, 1200.0)
    (False, True, True)
    """
    if every.endswith("m"):
        return since + iteration > 60 * int(every.removesuffix("m"))
    return step % int(every) == 0


class RankSampler:
    """A task sampler for all ranks: the sampler itself is on the first one.

    Args:
        run: the run.
        sampler: on the first rank; None elsewhere.
        policy: the sampler's analyst asks it; every rank has it.

    Attributes:
        ahead: the tasks that are played already, for the next iteration. A resumed run plays them again.
    """

    def __init__(self, run: Run, sampler: Sampler | None, policy: SharedPolicy):
        self._run, self._sampler, self._policy = run, sampler, policy
        self.ahead: list[str] = []
        self._again = list((run.progress.sampler or {}).get("ahead", ()))

    def sample(self, count: int) -> list[str]:
        """``count`` task ids, the same on every rank."""
        return self._run.ranks.once(lambda: self._sample(count))

    def observe(self, scored: Sequence[ScoredGroup]) -> Analysis:
        """Analyzes the failures and updates the curriculum, on the first rank; the others answer what it asks."""
        if self._sampler is None:
            with self._run.timer("analysis"):
                self._policy.serve()
            return Analysis()
        with self._run.timer("analysis"), closing(self._policy):
            choices, reflections = self._sampler.choices(), self._sampler.observe([one.group for one in scored])
        ahead = {"ahead": self.ahead} if self.ahead else {}
        self._run.progress.sampler = {**self._sampler.state_dict(), **ahead}
        if self._run.config.genenv and isinstance(self._sampler, GeneratedSampler | MixedSampler):
            self._run.folder.tasks(self._run.iteration, self._sampler.take_events())
        return Analysis(choices, reflections, self._sampler.metrics())

    def observe_analyzed(self, groups: Sequence[Group], reflections: Sequence[Reflection]) -> None:
        """As :meth:`observe`, with the analyses of the failed episodes, in their order."""
        if self._sampler is None:
            with self._run.timer("analysis"):
                self._policy.serve()
            return
        with self._run.timer("analysis"), closing(self._policy):
            failed = [number for number, group in enumerate(groups) for one in group.trajectories if not one.success]
            several = isinstance(self._sampler, MixedSampler)
            each = self._sampler.split(groups) if several else [(self._sampler, [*range(len(groups))], groups)]
            for sampler, places, own in each:
                if isinstance(sampler, CurriculumSampler):
                    known = [one for number, one in zip(failed, reflections, strict=True) if number in places]
                    _learn_analyzed(sampler, own, known)
        self._run.progress.sampler = self._sampler.state_dict()

    def probe(self, count: int) -> tuple[dict[str, list[str]], dict[str, float]]:
        """``count`` tasks of the initial and of the present simulator, by name, and what the latter cost.

        Both are known on every rank.
        """

        def write() -> tuple[dict[str, list[str]], dict[str, float]]:
            assert isinstance(self._sampler, GeneratedSampler | MixedSampler)
            tasks = self._sampler.probe(count, self._run.stream("probe tasks", self._run.iteration))
            return tasks, self._sampler.costs()  # which are not the next iteration's

        return self._run.ranks.once(write)

    def _sample(self, count: int) -> list[str]:
        assert self._sampler is not None  # on the first rank
        if again := self._again:
            self._again = []
            return again
        with self._run.timer("simulator") if self._run.config.genenv else nullcontext():
            return self._sampler.sample(count)
