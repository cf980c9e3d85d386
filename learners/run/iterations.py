"""The iterations of the RL stage: log, checkpoints and watchdog."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import RolloutStats
from roleagent.learners.credit import estimator_config
from roleagent.learners.model.learner import Learner
from roleagent.learners.run.counters import add_counters, held_out_metrics, idle_mechanisms, not_learning
from roleagent.learners.run.metrics import headlines, iteration_metrics, time_metrics
from roleagent.learners.run.run import Run
from roleagent.learners.run.trajectory_log import Analysis, ScoredGroup, records
from roleagent.learners.watchdog import logged_iterations, open_watchdog
from roleagent.timer import Timer, shares


class Iterations:
    """An iterable over the remaining iterations; :meth:`finish` ends each of them.

    Args:
        run: in the stage ``train``.
        learner: is checkpointed every ``train.checkpoint_every`` iterations and at the end.
        actor: decodes the tokens of the log.
    """

    def __init__(self, run: Run, learner: Learner, actor: Policy):
        self._run, self._learner, self._actor = run, learner, actor
        self._watchdog = open_watchdog(run)
        self._begun = 0.0
        run.begin(run.config.train.iterations)

    def __iter__(self) -> Iterator[int]:
        """The numbers of the iterations, until ``train.iterations`` or a collapse ends them."""
        run, options = self._run, self._run.config.train
        while run.progress.step < options.iterations:
            self._begun, run.timer = time.monotonic(), Timer()
            yield run.iteration
            if run.ranks.once(lambda: run.config.watchdog.stop and self._watchdog.collapsed):
                run.display.say("watchdog.stop=on ends the run here")
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
            episodes = records(scored, analysis, self._actor, config, estimator_config(config))
            run.folder.trajectories(run.progress.step, episodes)
            metrics |= iteration_metrics(config, scored, stats, analysis.metrics)
            add_counters(run.progress.counters, metrics)
        timers = run.ranks.gather(run.timer)
        if run.ranks.first:
            metrics |= held_out_metrics(run.held_out)
            metrics |= time_metrics(timers, stats, time.monotonic() - self._begun)
            metrics["alarms"] = self._watchdog.look(metrics, run.display)
            run.log(metrics, **headlines(config, metrics))
        run.held_out = None
        if run.progress.step % config.train.checkpoint_every == 0:
            run.save(self._learner)

    def _conclude(self) -> None:
        run = self._run
        run.save(self._learner)
        if run.ranks.first:
            history = logged_iterations(run)
            run.display.say(f"time: {shares(history)}")
            if warning := not_learning(history, run.config):
                run.display.warn(warning)
        for warning in idle_mechanisms(run.config, run.progress.counters):
            run.display.warn(warning)


__all__ = ["Iterations"]
