"""The task sampler of a run with several ranks: it is on the first one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import accumulate
from typing import Any

from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.generated_sampler import GeneratedSampler
from roleagent.learners.run.run import Run
from roleagent.learners.run.trajectory_log import Analysis, ScoredGroup
from roleagent.types import Group, Reflection, Sampler


class RankSampler:
    """A task sampler for all ranks: the sampler itself is on the first one.

    Args:
        run: the run.
        sampler: on the first rank; None elsewhere.
    """

    def __init__(self, run: Run, sampler: Sampler | None):
        self._run, self._sampler = run, sampler

    def sample(self, count: int) -> list[str]:
        """This rank's share of ``count`` task ids."""
        return self._run.ranks.share(self.sample_all(count))

    def sample_all(self, count: int) -> list[str]:
        """``count`` task ids, the same on every rank."""
        return self._run.ranks.once(lambda: self._sample(count))

    def sample_own(self, count: int) -> list[str] | None:
        """``count`` task ids for this rank; None if no rank wants any."""
        ranks = self._run.ranks
        counts = ranks.gather(count)  # known on the first rank
        dealt = ranks.once(lambda: split_list(self._sample(sum(counts)), counts) if any(counts) else None)
        return dealt[ranks.rank] if dealt is not None else None

    def observe(self, scored: Sequence[ScoredGroup]) -> Analysis:
        """Analyzes the failures and updates the curriculum, on the first rank; elsewhere nothing."""
        if self._sampler is None:
            return Analysis()
        with self._run.timer("analysis"):
            choices, reflections = self._sampler.choices(), self._sampler.observe([one.group for one in scored])
        self._run.progress.sampler = self._sampler.state_dict()
        if isinstance(self._sampler, GeneratedSampler):
            self._run.folder.tasks(self._run.iteration, self._sampler.take_events())
        return Analysis(choices, reflections, self._sampler.metrics())

    def observe_analyzed(self, groups: Sequence[Group], reflections: Sequence[Reflection]) -> None:
        """As :meth:`observe`, with the analyses of the failed episodes, in their order."""
        if self._sampler is None:
            return
        if isinstance(self._sampler, CurriculumSampler):
            with self._run.timer("analysis"):
                steps = self._sampler.learn(groups)
                answer: Any = None
                with contextlib.suppress(StopIteration):
                    while True:
                        question, arguments = steps.send(answer)
                        asked = question == "reflect"
                        answer = reflections if asked else getattr(self._sampler.analyst, question)(*arguments)
        self._run.progress.sampler = self._sampler.state_dict()

    def probe(self, count: int) -> tuple[dict[str, list[str]], dict[str, float]]:
        """``count`` tasks of the initial and of the present simulator, by name, and what the latter cost.

        Both are known on every rank.
        """

        def write() -> tuple[dict[str, list[str]], dict[str, float]]:
            assert isinstance(self._sampler, GeneratedSampler)
            tasks = self._sampler.probe(count, self._run.stream("probe tasks", self._run.iteration))
            return tasks, self._sampler.simulator.costs()  # which are not the next iteration's

        return self._run.ranks.once(write)

    def _sample(self, count: int) -> list[str]:
        assert self._sampler is not None  # on the first rank
        with self._run.timer("simulator") if self._run.config.genenv else nullcontext():
            return self._sampler.sample(count)


def split_list(items: Sequence[str], sizes: Sequence[int]) -> list[list[str]]:
    """Consecutive parts of given sizes.

    >>> split_list("abc", [2, 0, 1])
    [['a', 'b'], [], ['c']]
    """
    return [list(items[end - size : end]) for end, size in zip(accumulate(sizes), sizes, strict=True)]
