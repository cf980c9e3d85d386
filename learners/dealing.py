"""Deals the work of an iteration to the ranks, whatever their number: episodes to play, and segments to learn from.

The task sampler is on the first rank (:class:`RankSampler`), and what its analyst asks is dealt, too.

Episodes are dealt one by one, so that no rank waits while another plays whole groups. A group comes together again on
its home: group n on rank n modulo their number. Advantages are estimated there. For the update segments move once
more, so that in every optimizer step each rank has nearly the same number of tokens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout
from roleagent.config.settings import EnvConfig
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.mixed_sampler import MixedSampler
from roleagent.learners.batch import Batch, Column
from roleagent.learners.engine.prefix_sharing import distinct_tokens
from roleagent.learners.run.ranks import Ranks, dealt_back, portable
from roleagent.learners.run.run import Run
from roleagent.learners.run.trajectory_log import Analysis, ScoredGroup
from roleagent.types import Completion, Group, Reflection, Request, Sampler, Segment


def play_groups(
    ranks: Ranks,
    rollout: Rollout,
    task_ids: Sequence[str],
    copies: int,
    temperature: float,
    progress: Callable[[float, int], None] | None = None,
    homes: Sequence[int] | None = None,
) -> list[Group]:
    """Plays each task ``copies`` times; every rank must call it, and plays an equal share of the episodes.

    Args:
        ranks: the processes of the run.
        rollout: of this rank.
        task_ids: one group each; the same on every rank.
        copies: episodes per group (G).
        temperature: of sampling.
        progress: see :meth:`~roleagent.agents.rollout.Rollout.play`; of this rank's own episodes.
        homes: the rank that receives each group; None: they are dealt in turn.

    Returns:
        this rank's groups, whole and in order.
    """
    played = play_own(ranks, rollout, task_ids, copies, temperature, progress)
    return bring_home(ranks, len(task_ids), copies, played, homes)


def play_own(
    ranks: Ranks,
    rollout: Rollout,
    task_ids: Sequence[str],
    copies: int,
    temperature: float,
    progress: Callable[[float, int], None] | None = None,
) -> list[Group]:
    """This rank's share of the episodes, each in a group of its own; it waits for no other rank."""
    own = ranks.share([task_id for task_id in task_ids for _ in range(copies)])
    return rollout.play(own, 1, temperature, progress)


def bring_home(
    ranks: Ranks, groups: int, copies: int, played: Sequence[Group], homes: Sequence[int] | None = None
) -> list[Group]:
    """Exchanges what :func:`play_own` played; every rank must call it, and receives its groups, whole and in order."""
    homes = [number % ranks.size for number in range(groups)] if homes is None else homes
    own = ranks.share([group for group in range(groups) for _ in range(copies)])
    parcels: list[list[tuple[int, Group]]] = [[] for _ in range(ranks.size)]
    for group, part in zip(own, played, strict=True):
        parcels[homes[group]].append((group, part))
    received: dict[int, list[list[Group]]] = {
        group: [[] for _ in range(ranks.size)] for group, home in enumerate(homes) if home == ranks.rank
    }
    for sender, parcel in enumerate(ranks.exchange(parcels)):
        for group, part in parcel:
            received[group][sender].append(part)
    # A group's episodes were dealt in turn, from the rank on that has its first one.
    return [
        join_groups(dealt_back([*parts[(first := group * copies % ranks.size) :], *parts[:first]]))
        for group, parts in received.items()
    ]


def deal_again(ranks: Ranks, own: Sequence[Group], numbers: Sequence[int]) -> list[Group]:
    """Some groups of all ranks, dealt in turn; every rank must call it, and receives its groups in order.

    Args:
        ranks: the processes of the run.
        own: this rank's groups, which were dealt in turn.
        numbers: of the chosen groups, in the order in which one rank would have them; the same on every rank.
    """
    positions = {number: position for position, number in enumerate(numbers)}
    parcels: list[list[tuple[int, Group]]] = [[] for _ in range(ranks.size)]
    for number, group in enumerate(own):
        if (position := positions.get(ranks.rank + number * ranks.size)) is not None:
            parcels[position % ranks.size].append((position, group))
    came = sorted((one for parcel in ranks.exchange(parcels) for one in parcel), key=lambda one: one[0])
    return [group for _, group in came]


def join_groups(parts: Sequence[Group]) -> Group:
    """One group of the trajectories of several of the same task."""
    task = next((part.task for part in parts if part.trajectories), parts[0].task)
    return Group(task, tuple(trajectory for part in parts for trajectory in part.trajectories))


class SharedPolicy:
    """The policy for questions that the first rank alone knows, such as its analyst's: all ranks answer them.

    On the first rank it stands in for the policy until :meth:`close`. Meanwhile the others :meth:`serve`.

    Args:
        policy: of this rank; all have the same weights.
        ranks: the processes of the run.
    """

    def __init__(self, policy: Policy, ranks: Ranks):
        self._policy, self._ranks = policy, ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        """As :meth:`Policy.generate`; each rank samples an equal share."""
        return self._answer(*self._ranks.once(lambda: (requests, temperature)))

    def serve(self) -> None:
        """Answers the first rank's questions until it closes."""
        while (asked := self._ranks.once(lambda: None)) is not None:
            self._answer(*asked)
            self._policy.clear_cache()

    def close(self) -> None:
        """Nothing more is asked."""
        self._ranks.once(lambda: None)

    def _answer(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        own: list[Completion] = []
        failure: Exception | None = None
        try:
            own = self._policy.generate(self._ranks.share(requests), temperature)
        except Exception as error:  # raised behind the exchange: the other ranks wait there
            failure = error
        answers = self._ranks.gather((own, failure and portable(failure)))
        if error := failure or next((error for _, error in answers if error), None):
            raise error
        return dealt_back([part for part, _ in answers])


_DRAWS = 3  # of a replacement that is a task of the iteration


class RankSampler:
    """A task sampler for all ranks: the sampler itself is on the first one.

    Args:
        run: the run.
        sampler: on the first rank; None elsewhere.
        policy: the sampler's analyst asks it; every rank has it.

    Attributes:
        sampler: on the first rank; None elsewhere.
        ahead: the tasks that are played already, for the next iteration. A resumed run plays them again.
    """

    def __init__(self, run: Run, sampler: Sampler | None, policy: SharedPolicy):
        self._run, self.sampler, self._policy = run, sampler, policy
        self.ahead: list[str] = []
        self._given: set[str] = set()  # tasks of the iteration
        self._again = list((run.progress.sampler or {}).get("ahead", ()))

    def sample(self, count: int) -> list[str]:
        """``count`` task ids, the same on every rank."""
        tasks = self._run.ranks.once(lambda: self._sample(count))
        self._given = {*tasks}
        return tasks

    def replace(self, environments: Sequence[str]) -> list[str]:
        """A task id for each of these environments of a run, the same on every rank; see :func:`environment_of`.

        Tasks that the iteration has had are drawn again, a few times at most.
        """
        tasks = self._run.ranks.once(lambda: self._others(environments))
        self._given.update(tasks)
        return tasks

    def observe(self, scored: Sequence[ScoredGroup]) -> Analysis:
        """Analyzes the failures and updates the curriculum, on the first rank; the others answer what it asks."""
        if self.sampler is None:
            with self._run.timer("analysis"):
                self._policy.serve()
            return Analysis()
        with self._run.timer("analysis"), closing(self._policy):
            choices, reflections = self.sampler.choices(), self.sampler.observe([one.group for one in scored])
        ahead = {"ahead": self.ahead} if self.ahead else {}
        self._run.progress.sampler = {**self.sampler.state_dict(), **ahead}
        return Analysis(choices, reflections, self.sampler.metrics())

    def observe_analyzed(self, groups: Sequence[Group], reflections: Sequence[Reflection]) -> None:
        """As :meth:`observe`, with the analyses of the failed episodes, in their order."""
        if self.sampler is None:
            with self._run.timer("analysis"):
                self._policy.serve()
            return
        with self._run.timer("analysis"), closing(self._policy):
            failed = [number for number, group in enumerate(groups) for one in group.trajectories if not one.success]
            several = isinstance(self.sampler, MixedSampler)
            each = self.sampler.split(groups) if several else [(self.sampler, [*range(len(groups))], groups)]
            for sampler, places, own in each:
                if isinstance(sampler, CurriculumSampler):
                    known = [one for number, one in zip(failed, reflections, strict=True) if number in places]
                    sampler.observe(own, known)
        self._run.progress.sampler = self.sampler.state_dict()

    def _others(self, environments: Sequence[str]) -> list[str]:
        found = self._sample(len(environments), environments)
        for _ in range(_DRAWS):
            places = [place for place, task in enumerate(found) if task in self._given or task in found[:place]]
            if not places:
                break
            drawn = self._sample(len(places), [environments[place] for place in places])
            for place, task in zip(places, drawn, strict=True):
                found[place] = task
        return found

    def _sample(self, count: int, environments: Sequence[str] = ()) -> list[str]:
        assert self.sampler is not None  # on the first rank
        if again := self._again:
            self._again = []
            return again
        with self._run.timer("simulator") if self._run.config.genenv else nullcontext():
            if environments and isinstance(self.sampler, MixedSampler):
                return self.sampler.sample_from(environments)
            return self.sampler.sample(count)


def environment_of(run: Run, group: Group) -> str:
    """The name of a group's environment in a run with several; empty in a run with one."""
    return "" if isinstance(run.config.env, EnvConfig) else group.task.task_id.partition("/")[0]


class Minibatch(NamedTuple):
    """The segments of one optimizer step.

    Attributes:
        segments: their numbers.
        trajectories: of all ranks; None: the minibatch is a share of the turns.
    """

    segments: list[int]
    trajectories: int | None


@dataclass(frozen=True)
class Outline:
    """What every rank knows of the batches of all ranks. Groups, trajectories and segments are numbered as one rank
    would.

    Attributes:
        lengths: per group and trajectory the number of turns.
        tasks: the task id of each trajectory.
        homes: per segment the rank that has it.
        groups: per segment its group.
        trajectories: per segment its trajectory.
        tokens: per segment what it costs to train it.
        own: the numbers of this rank's segments, in the order of its batch.
    """

    lengths: list[list[int]]
    tasks: list[str]
    homes: list[int]
    groups: list[int]
    trajectories: list[int]
    tokens: list[int]
    own: list[int]

    @classmethod
    def of(cls, ranks: Ranks, batch: Batch, trained: Sequence[bool]) -> Outline:
        """Every rank must call it.

        Args:
            ranks: the processes of the run.
            batch: of this rank, whose groups were dealt in turn.
            trained: whether a segment has a gradient; one that has none costs nothing.
        """
        members = [len(group) for group in batch.lengths]
        starts = [sum(members[:number]) for number in range(len(members) + 1)]
        tasks = [batch.tasks[start:end] for start, end in pairwise(starts)]
        rows: list[list[tuple[int, int]]] = [[] for _ in members]  # per group, of each segment
        for group, segment, tokens in zip(batch.groups, batch.segments, costs(batch.segments, trained), strict=True):
            rows[group].append((segment.trajectory - starts[group], tokens))
        known = ranks.everywhere(list(zip(batch.lengths, tasks, rows, strict=True)))
        outline = cls([], [], [], [], [], [], [])
        for group, (lengths, names, segments) in enumerate(dealt_back(known)):
            home = group % ranks.size
            if home == ranks.rank:
                outline.own.extend(range(len(outline.groups), len(outline.groups) + len(segments)))
            for member, tokens in segments:
                outline.homes.append(home)
                outline.groups.append(group)
                outline.trajectories.append(len(outline.tasks) + member)
                outline.tokens.append(tokens)
            outline.lengths.append(lengths)
            outline.tasks.extend(names)
        return outline


def costs(segments: Sequence[Segment], trained: Sequence[bool]) -> list[int]:
    """The tokens that each segment adds to those before it of the same trajectory; 0 for one that is not trained."""
    tokens_of = [0] * len(segments)
    members: dict[int, list[int]] = {}
    for number, segment in enumerate(segments):
        if trained[number]:
            members.setdefault(segment.trajectory, []).append(number)
    for numbers in members.values():
        added = distinct_tokens([segments[number].token_ids for number in numbers])
        for number, tokens in zip(numbers, added, strict=True):
            tokens_of[number] = tokens
    return tokens_of


def partition(sizes: Sequence[int], parts: int) -> list[int]:
    """The part of each item, so that the sums of the parts are nearly equal (largest differencing, Karmarkar and Karp).

    Every item begins as a partition of its own. The two most uneven ones are joined, the largest parts of the one with
    the smallest of the other, until one is left.

    >>> partition([5, 9, 4], parts=2)
    [0, 1, 0]
    """
    Part = tuple[int, list[int]]  # its sum and its items
    waiting: list[tuple[int, int, list[Part]]] = []  # the smallest part's sum minus the largest one's, parts ascending
    for item, size in enumerate(sizes):
        waiting.append((-size if parts > 1 else 0, item, [*[(0, [])] * (parts - 1), (size, [item])]))
    heapq.heapify(waiting)
    while len(waiting) > 1:
        (_, number, one), (_, _, other) = heapq.heappop(waiting), heapq.heappop(waiting)
        joined = sorted((a + b, [*these, *those]) for (a, these), (b, those) in zip(one, reversed(other), strict=True))
        heapq.heappush(waiting, (joined[0][0] - joined[-1][0], number, joined))
    owners = [0] * len(sizes)
    for _, _, filled in waiting:
        for part, (_, items) in enumerate(filled):
            for item in items:
                owners[item] = part
    return owners


def owners_of(outline: Outline, minibatches: Iterable[Minibatch], ranks: int) -> list[int]:
    """The rank that trains each segment: minibatch by minibatch the ranks have nearly equal numbers of tokens.

    The segments of a trajectory stay together where a minibatch has whole groups: they share prefixes and weights.
    """
    owners = list(outline.homes)
    for part in minibatches:
        units: dict[int, list[int]] = {}
        for number in part.segments:
            unit = number if part.trajectories is None else outline.trajectories[number]
            units.setdefault(unit, []).append(number)
        sizes = [sum(outline.tokens[number] for number in numbers) for numbers in units.values()]
        for owner, numbers in zip(partition(sizes, ranks), units.values(), strict=True):
            for number in numbers:
                owners[number] = owner
    return owners


def deal_segments(
    ranks: Ranks, batch: Batch, outline: Outline, passes: Sequence[Sequence[Minibatch]]
) -> tuple[Batch, list[list[Minibatch]]]:
    """Exchanges segments, so that the ranks have nearly equal numbers of tokens in each minibatch of the first pass.

    Args:
        ranks: the processes of the run; every rank must call it.
        batch: of this rank.
        outline: of the batches of all ranks.
        passes: the minibatches of all ranks, by the segments' numbers in ``outline``.

    Returns:
        the batch that this rank trains, and its part of the minibatches. Groups and trajectories of the batch are
        numbered as in ``outline``.
    """
    if ranks.size == 1:
        return batch, [list(parts) for parts in passes]
    owners = owners_of(outline, passes[0] if passes else [], ranks.size)
    parcels: list[list[tuple[int, Segment, Column]]] = [[] for _ in range(ranks.size)]
    for number, segment, turns, *values in zip(
        outline.own, batch.segments, batch.turns, *batch.columns.values(), strict=True
    ):
        moved = replace(segment, trajectory=outline.trajectories[number])
        parcels[owners[number]].append((number, moved, [turns, *values]))
    came = sorted((one for parcel in ranks.exchange(parcels) for one in parcel), key=lambda one: one[0])
    positions = {number: position for position, (number, _, _) in enumerate(came)}
    dealt = replace(
        batch,
        segments=[segment for _, segment, _ in came],
        groups=[outline.groups[number] for number in positions],
        turns=[values[0] for _, _, values in came],
        lengths=outline.lengths,
        tasks=outline.tasks,
        columns={name: [values[i] for _, _, values in came] for i, name in enumerate(batch.columns, start=1)},
    )
    own = [
        [
            part._replace(segments=[positions[number] for number in part.segments if number in positions])
            for part in parts
        ]
        for parts in passes
    ]
    return dealt, own
