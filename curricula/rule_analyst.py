"""A deterministic analyst: it asks the detectors of the environment which failure mode is the dominant one.

It teaches policies that are trained from scratch, and other analysts are compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from roleagent.failures.modes import diagnose
from roleagent.similarity import lms_tokens
from roleagent.types import Failure, Reflection, Selection, Trajectory


class RuleAnalyst:
    """Reflects by detectors and retrieves by comparison (the :class:`~roleagent.types.Analyst` protocol).

    Args:
        k: most failures selected.
    """

    def __init__(self, k: int = 4):
        self.k = k

    def reflect(self, trajectories: Sequence[Trajectory]) -> list[Reflection]:
        """One reflection per failed trajectory, in order."""
        reflections = []
        for trajectory in trajectories:
            mode, (step, detail, lesson) = diagnose(trajectory)
            query = f"{trajectory.task.task_type}: {mode.replace('_', ' ')}; {trajectory.task.goal}"
            reflections.append(Reflection(mode, detail, step, lesson, query, source="rule"))
        return reflections

    def select(self, reflections: Sequence[Reflection], candidates: Sequence[Sequence[Failure]]) -> list[Selection]:
        """The same mode first, then the same task type (as the query names it), then the most similar query.

        A candidate that shares neither mode nor task type is not like the present failure and is left out.
        """
        return [self._select(*pair) for pair in zip(reflections, candidates, strict=True)]

    def costs(self) -> dict[str, float]:
        """Nothing worth counting."""
        return {}

    def _select(self, reflection: Reflection, candidates: Sequence[Failure]) -> Selection:
        ranked, kind = [], reflection.query.partition(":")[0]
        for index, candidate in enumerate(candidates):
            same_mode = candidate.reflection.mode == reflection.mode
            same_type = bool(candidate.task.task_type) and candidate.task.task_type == kind
            if same_mode or same_type:
                likeness = lms_tokens(candidate.reflection.query, reflection.query)
                ranked.append((not same_mode, not same_type, -likeness, index))
        chosen = sorted(ranked)[: self.k]
        return Selection(tuple(index for *_, index in chosen), tuple(_REASONS[a, b] for a, b, *_ in chosen))


class UnreadAnalyst:
    """Follows up as many failures as :class:`RuleAnalyst`, but nothing of them decides what is retrieved.

    It is the analyst of the controls that retrieve without reading (``curriculum.analyst=replay`` and ``text``): a task
    that failed in two modes is two failures here, too.
    """

    def reflect(self, trajectories: Sequence[Trajectory]) -> list[Reflection]:
        """The mode and the task's text as the query; no lesson."""
        return [Reflection(diagnose(one)[0], "", None, "", one.task.goal, source="rule") for one in trajectories]

    def select(self, reflections: Sequence[Reflection], candidates: Sequence[Sequence[Failure]]) -> list[Selection]:
        """All candidates."""
        return [Selection(tuple(range(len(offered))), ("not read",) * len(offered)) for offered in candidates]

    def costs(self) -> dict[str, float]:
        """Nothing worth counting."""
        return {}


_REASONS = {  # by whether mode and task type differ
    (False, False): "the same failure in the same kind of task",
    (False, True): "the same failure in another kind of task",
    (True, False): "another failure in the same kind of task",
}


__all__ = ["RuleAnalyst", "UnreadAnalyst"]
