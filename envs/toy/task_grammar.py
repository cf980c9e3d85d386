"""The task grammar of the toy kitchen: what is wanted, where, and how long the search for it takes."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.random import Generator

from roleagent.envs.toy.env import CLOSED, CONTAINERS, GENERATED, ITEMS, PLACES, TASK_TYPES, arrange, task_split
from roleagent.tasks.grammar import TaskGrammar, TaskSpec


class ToyGrammar(TaskGrammar):
    """Tasks such as ``kind=heat item=egg place=counter containers=5 closed=2``; the seed decides the layout.

    >>> import gymnasium, numpy as np
    >>> grammar = ToyGrammar(gymnasium.make("RoleAgent/Toy-v0", generated_tasks=True))
    >>> task = grammar.complete(("heat", "egg", "counter", "5", "2"), np.random.default_rng(0))
    >>> grammar.check(task).plan[:2]
    ('go to drawer 1', 'open drawer 1')
    """

    fields = {  # noqa: RUF012
        "kind": TASK_TYPES,
        "item": ITEMS,
        "place": PLACES,
        "containers": ("4", "5", "6"),
        "closed": ("0", "1", "2", "3", "4"),
    }

    def task_id(self, spec: TaskSpec) -> str:
        kind, item, place, containers, closed = spec.values
        return f"{kind}-{item}-{place}-{containers}x{closed}-{spec.seed}"

    def spec(self, task_id: str) -> TaskSpec:
        found = GENERATED.fullmatch(task_id) if isinstance(task_id, str) else None
        if not found:
            raise ValueError(f"{str(task_id)[:200]!r} is no generated task of the toy kitchen")
        *values, seed = found.groups()
        return TaskSpec(tuple(values), int(seed))

    def base(self, rng: Generator) -> TaskSpec:
        listed = self.env.task_split.task_ids
        kind, item, place, _ = listed[int(rng.integers(len(listed)))].split("-")
        containers = rng.choice(CONTAINERS, 4, replace=False)
        closed = sum(name.startswith(CLOSED) for name in containers)
        return self.complete((kind, item, place, "4", str(closed)), rng)

    def complete(self, values: Sequence[str], rng: Generator) -> TaskSpec:
        return TaskSpec(tuple(values), int(rng.integers(100, 10**9)))

    def content(self, spec: TaskSpec) -> str:
        return _kitchen(self.task_id(spec))

    def held_out_contents(self) -> frozenset[str]:
        return frozenset(map(_kitchen, task_split("valid").task_ids))


def _kitchen(task_id: str) -> str:
    contents, shut = arrange(task_id)
    return repr((task_id.split("-")[:3], contents, sorted(shut)))


__all__ = ["ToyGrammar"]
