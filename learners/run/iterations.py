"""The iterations of the RL stage: their log, checkpoints and watchdog."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import RolloutStats
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.flops import peak as peak_speed
from roleagent.learners.run.metrics import (
    add_counters,
    headlines,
    held_out_metrics,
    idle_mechanisms,
    iteration_metrics,
    time_metrics,
    turn_limit_metrics,
)
from roleagent.learners.run.run import Run
from roleagent.learners.run.trajectory_log import Analysis, ScoredGroup, records
from roleagent.learners.run.watchdog import logged_iterations, open_watchdog
from roleagent.timer import Timer, shares


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
            metrics |= turn_limit_metrics(config.turn_limit(run.progress.step), scored)
            add_counters(run.progress.counters, metrics)
            run.method.add_counters(run.progress.counters, metrics)
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
        for warning in idle_mechanisms(run.method, run.progress.counters):
            run.display.warn(warning)


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
