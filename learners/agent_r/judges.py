"""Judges of search trees: at which step a bad path went wrong (Agent-R, arXiv 2501.11425, phase I).

=============  ===================================================  ================================
judge          the transition point                                 cost
=============  ===================================================  ================================
``step``       the first action that the policy calls bad           one question per edge
``reflection`` the critical step of an analyst's reflection         one question per bad path
``rule``       that of the rule analyst                             none
``value``      the first edge at which Q falls by β                 none
``last``       the last step (direct revision, a baseline)          none
``random``     a step behind the shared ones, drawn (an ablation)   none
=============  ===================================================  ================================
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

import numpy as np

from roleagent.agents.analysts.models import LanguageAnalyst, ModelAnalyst
from roleagent.agents.builders import open_analyst
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.prompt_templates import read_templates
from roleagent.config import Config, ConfigError
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.failures.analyst_format import read_verdict
from roleagent.failures.modes import failure_modes_of
from roleagent.failures.verdicts import Judge, JudgedPath, Verdict, transition_point
from roleagent.imports import load_class
from roleagent.types import Analyst, Trajectory

_UNDECIDED = "uncertain"
NO_INSTRUCTIONS = "options.revision.judge=step needs a model that follows instructions: set policy.path, or rule"


class StepJudge:
    """A language model that judges one action at a time, as published.

    Args:
        analyst: asks the model; it must know the prompt kind ``verdict``.
    """

    def __init__(self, analyst: LanguageAnalyst):
        self.analyst = analyst

    def judge(self, paths: Sequence[JudgedPath]) -> list[list[Verdict]]:
        """All questions are one batch; an edge that several paths share is asked about once."""
        asked: dict[int, str] = {}
        for path in paths:
            for step in range(path.shared, len(path.edges)):
                if path.edges[step] not in asked:
                    asked[path.edges[step]] = self.analyst.prompts.verdict(path.trajectory, step)
        replies = self.analyst.answer(list(asked.values()), "verdict")
        known = {edge: read_verdict(reply, self.analyst.source) for edge, reply in zip(asked, replies, strict=True)}
        return [[known[edge] for edge in path.edges[path.shared :]] for path in paths]


class ReflectionJudge:
    """An analyst's critical step of the whole path; the other steps are undecided, and so are shared ones.

    Args:
        analyst: reflects on failed trajectories.
    """

    def __init__(self, analyst: Analyst):
        self.analyst = analyst

    def judge(self, paths: Sequence[JudgedPath]) -> list[list[Verdict]]:
        bad = {path.edges: path.trajectory for path in paths}  # a bad path may be in several pairs
        known = dict(zip(bad, self.analyst.reflect([*bad.values()]), strict=True))
        found = []
        for path in paths:
            reflection = known[path.edges]
            undecided = Verdict(_UNDECIDED, "", reflection.source, reflection.repaired)
            verdicts = [undecided] * (len(path.edges) - path.shared)
            place = -1 if reflection.critical_step is None else reflection.critical_step - path.shared
            if 0 <= place < len(verdicts):
                verdicts[place] = Verdict("bad", reflection.detail, reflection.source, reflection.repaired)
            found.append(verdicts)
        return found


class ValueJudge:
    """The tree's own opinion: an edge is bad where Q falls by at least β. Both of its nodes need a visit.

    Args:
        beta: in (0, 1].
    """

    def __init__(self, beta: float):
        self.beta = beta

    def judge(self, paths: Sequence[JudgedPath]) -> list[list[Verdict]]:
        return [
            [self._verdict(path.values[step : step + 2]) for step in range(path.shared, len(path.edges))]
            for path in paths
        ]

    def _verdict(self, values: Sequence[float | None]) -> Verdict:
        before, after = values or (None, None)
        falls = before is not None and after is not None and before - after >= self.beta - 1e-9
        return Verdict("bad", f"Q falls from {before:.2f} to {after:.2f}", "value") if falls else _undecided("value")


class PlaceJudge:
    """Calls one step bad, whatever happened there: the last one, or one that is drawn.

    Args:
        rng: draws; None: the last step.
    """

    def __init__(self, rng: np.random.Generator | None = None):
        self.rng = rng

    def judge(self, paths: Sequence[JudgedPath]) -> list[list[Verdict]]:
        source, found = "last" if self.rng is None else "random", []
        for path in paths:
            verdicts = [_undecided(source)] * (len(path.edges) - path.shared)
            if verdicts:
                place = len(verdicts) - 1 if self.rng is None else int(self.rng.integers(len(verdicts)))
                verdicts[place] = Verdict("bad", "", source)
            found.append(verdicts)
        return found


def _undecided(source: str) -> Verdict:
    return Verdict(_UNDECIDED, "", source)


VERDICT_TOKENS = 160
"""Most tokens of a verdict by the policy."""


def judge_name(config: Config, explains: bool) -> str:
    """The configured judge; in place of ``auto`` the one that fits the policy and the environment.

    Args:
        explains: whether the policy can be prompted.
    """
    name = config.options.revision.judge
    if name != "auto":
        return name
    if explains:
        return "step"
    ids = (one.env.id.rpartition(":")[2] for one in config.environments.values())
    return "rule" if all(failure_modes_of(env_id).detectors for env_id in ids) else "value"


def open_judge(config: Config, policy: Policy, rng: np.random.Generator) -> Judge:
    """The configured judge.

    Args:
        policy: of ``step``, and of the analyst of ``reflection``.
        rng: of ``random``.

    Raises:
        ConfigError: it cannot be opened; one line.
    """
    explains = bool(getattr(policy.tokenizer, "chat_template", None))
    name, options = judge_name(config, explains), config.options.revision
    if name == "step":
        if not explains:
            raise ConfigError(NO_INSTRUCTIONS)
        temperature, templates = config.curriculum.temperature, read_templates(config.prompt.templates)
        limits = (VERDICT_TOKENS, VERDICT_TOKENS)
        return StepJudge(ModelAnalyst(policy, temperature, *limits, templates=templates, thinks=config.prompt.thinks))
    if name == "reflection":
        return ReflectionJudge(open_analyst(config, policy))
    if name == "rule":
        return ReflectionJudge(RuleAnalyst())
    if name == "value":
        return ValueJudge(options.beta)
    if name in ("last", "random"):
        return PlaceJudge(rng if name == "random" else None)
    return load_class(name, "judge")()


def revision_lengths(judge: Judge, trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """The revision length of a judge on a frozen set of bad paths; with other paths it would measure the paths, too.

    Returns:
        ``found``: the share of the paths with a transition point; of these ``length``, the mean t′, and
        ``length_share``, the mean t′/T.
    """
    edges = count()
    paths = [JudgedPath(one, 0, tuple(islice(edges, len(one.turns)))) for one in trajectories]
    points = [transition_point(0, verdicts) for verdicts in judge.judge(paths)]
    found = [(point, len(one.turns)) for point, one in zip(points, trajectories, strict=True) if point is not None]
    n = max(1, len(found))
    return {
        "found": len(found) / max(1, len(trajectories)),
        "length": sum(point for point, _ in found) / n,
        "length_share": sum(point / steps for point, steps in found) / n,
    }


__all__ = [
    "NO_INSTRUCTIONS",
    *("PlaceJudge", "ReflectionJudge", "StepJudge", "ValueJudge", "judge_name", "open_judge"),
    "revision_lengths",
]
