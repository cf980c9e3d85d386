"""Tasks of several environments in one run: each has a sampler of its own, and a share of every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.random import Generator

from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.tasks.grammar import REFUSALS
from roleagent.types import Group, Reflection, Sampler, Task

_COSTS = (
    "tokens",
    "prompt_tokens",
    "seconds",
    "requests",
    "retries",
    "failures",
    "cut",
    "shortened",
    "estimated",
    "cost",
)
_GENENV = (
    *("proposed", "accepted", "repaired", "variations", "wanted", "fallback", "fresh", "replayed", "records"),
    "records_in_band",
    *("pool", *(f"refused_{reason}" for reason in REFUSALS), *_COSTS),
)
_SUMMED = frozenset(
    {
        *(*CurriculumSampler.COUNTED, "weighted_tasks", "unseen_tasks", "self_retrievals"),
        *("analysis_tokens", "analysis_seconds", *(f"endpoint_{name}" for name in _COSTS)),
        *(f"genenv_{name}" for name in _GENENV),
    }
)


class MixedSampler:
    """Draws from several samplers by share; their task ids get the name of their environment, ``name/task``.

    The shares are exact: each task comes from the environment that is furthest behind its share of all tasks so far. A
    replaced group makes room for one of its own environment (:meth:`sample_from`). A sampler sees its own
    environment's tasks only, so a failure leads to tasks of the same environment, and the shares stay as they are.

    Args:
        samplers: of each environment, by name.
        shares: of each, sum 1.
    """

    def __init__(self, samplers: Mapping[str, Sampler], shares: Mapping[str, float]):
        self.samplers, self.shares = samplers, shares
        self.drawn = dict.fromkeys(samplers, 0)

    def sample(self, n: int, rng: Generator | None = None) -> list[str]:
        """``n`` task ids, the environments in turn."""
        turns = []
        for _ in range(n):
            total = sum(self.drawn.values()) + 1
            # Rounded, so that equal shares are equal on every machine.
            turns.append(max(self.shares, key=lambda name: round(self.shares[name] * total - self.drawn[name], 9)))
            self.drawn[turns[-1]] += 1
        return self.sample_from(turns, rng)

    def sample_from(self, turns: Sequence[str], rng: Generator | None = None) -> list[str]:
        """A task of each named environment; they do not count towards its share."""
        more = {} if rng is None else {"rng": rng}
        tasks = {name: iter(self.samplers[name].sample(turns.count(name), **more)) for name in dict.fromkeys(turns)}
        return [f"{name}/{next(tasks[name])}" for name in turns]

    def choices(self) -> Mapping[str, tuple[str, str]]:
        """Why tasks were chosen, by task id."""
        each = ((name, sampler.choices()) for name, sampler in self.samplers.items())
        return {f"{name}/{task_id}": reason for name, found in each for task_id, reason in found.items()}

    def observe(self, groups: Sequence[Group]) -> Mapping[tuple[int, int], Reflection]:
        """Gives each sampler the groups of its environment; returns the analysis of each failed trajectory."""
        found: dict[tuple[int, int], Reflection] = {}
        for sampler, places, own in self.split(groups):
            found |= {(places[number], member): one for (number, member), one in sampler.observe(own).items()}
        return found

    def split(self, groups: Sequence[Group]) -> Iterator[tuple[Sampler, list[int], list[Group]]]:
        """Each sampler with the numbers of its environment's groups, and these groups as it knows them."""
        for name, sampler in self.samplers.items():
            start = f"{name}/"
            places = [number for number, group in enumerate(groups) if group.task.task_id.startswith(start)]
            yield sampler, places, [_without(start, groups[number]) for number in places]

    def metrics(self) -> dict[str, float]:
        """The metrics of each sampler as ``metric/name``; of all of them the sum of counts, and of others the mean."""
        each = {name: sampler.metrics() for name, sampler in self.samplers.items()}
        found = {f"{metric}/{name}": value for name, own in each.items() for metric, value in own.items()}
        for metric in dict.fromkeys(metric for own in each.values() for metric in own):
            values = [own[metric] for own in each.values() if metric in own]
            found[metric] = sum(values) / (1 if metric in _SUMMED else len(values))
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state of every sampler, and how many tasks each environment had."""
        own = {name: sampler.state_dict() for name, sampler in self.samplers.items()}
        return {"samplers": own, "drawn": dict(self.drawn)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`.

        Raises:
            ValueError: the state belongs to another split.
        """
        self.drawn = {name: int(state["drawn"][name]) for name in self.samplers}
        for name, sampler in self.samplers.items():
            sampler.load_state_dict(state["samplers"][name])


def _without(start: str, group: Group) -> Group:
    """The group as its own environment knows it."""

    def own(task: Task) -> Task:
        return replace(task, task_id=task.task_id.removeprefix(start), task_type=task.task_type.removeprefix(start))

    trajectories = tuple(replace(one, task=own(one.task)) for one in group.trajectories)
    return Group(own(group.task), trajectories)


__all__ = ["MixedSampler"]
