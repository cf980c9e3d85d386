"""Metrics of an iteration that show whether the curriculum works, and how well generated tasks fit the agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import TypeVar

import numpy as np

from roleagent.curricula.alignment import Alignment, effective_sample_size
from roleagent.tasks.simulator import SimulatorRecord
from roleagent.types import Group, Trajectory, is_flat

Key = TypeVar("Key")


def played(group: Group) -> list[Trajectory]:
    """The episodes of a group that the environment did not break."""
    return [trajectory for trajectory in group.trajectories if trajectory.stop_reason != "error"]


def outcomes(groups: Sequence[Group]) -> tuple[dict[str, int], dict[str, float]]:
    """The outcomes of groups.

    Returns:
        ``groups`` and ``zero_variance_groups`` (all episodes ended alike), and in [0, 1] ``zero_variance_share`` and
        ``success``, the mean over groups; without groups no shares.
    """
    own = [episodes for episodes in map(played, groups) if episodes]
    flat = sum(is_flat([episode.outcome for episode in episodes]) for episodes in own)
    counted = {"groups": len(own), "zero_variance_groups": flat}
    if not own:
        return counted, {}
    won = [float(np.mean([episode.success for episode in episodes])) for episodes in own]
    return counted, {"zero_variance_share": flat / len(own), "success": float(np.mean(won))}


def compare(groups: Sequence[Group], sought: Container[str]) -> tuple[dict[str, int], dict[str, float]]:
    """:func:`outcomes` of the groups whose tasks the curriculum chose and of the others, by name, and
    ``curriculum_share``, the share of the former.

    Args:
        sought: ids of the tasks that the curriculum chose.
    """
    counted: dict[str, int] = {}
    shares: dict[str, float] = {}
    for kind in ("curriculum", "uniform"):
        own = [group for group in groups if (group.task.task_id in sought) == (kind == "curriculum")]
        for found, kept in zip(outcomes(own), (counted, shares), strict=True):
            kept |= {f"{kind}_{name}": number for name, number in found.items()}
    if every := counted["curriculum_groups"] + counted["uniform_groups"]:
        shares["curriculum_share"] = counted["curriculum_groups"] / every
    return counted, shares


def read_shares(counted: Mapping[str, float]) -> dict[str, float]:
    """Of an iteration's analyses the shares that were read as they were, after a repair, and not at all; of none
    nothing."""
    shares = {}
    for kind, asked in (("reflections", counted["failures"]), ("selections", counted["selections"])):
        if not asked:
            continue
        repaired, fallback = (counted[f"{kind}_{fate}"] / asked for fate in ("repaired", "fallback"))
        fates = {"valid": 1 - repaired - fallback, "repaired": repaired, "fallback": fallback}
        shares |= {f"{kind}_{fate}_share": share for fate, share in fates.items()}
    return shares


def counts(group: Group) -> tuple[int, int]:
    """Successes and attempts of a group's own episodes."""
    episodes = played(group)
    return sum(episode.success for episode in episodes), len(episodes)


def sums(pairs: Sequence[tuple[Key, tuple[int, int]]]) -> dict[Key, tuple[int, int]]:
    """The sums of pairs by key.

    >>> sums([("heat", (1, 8)), ("heat", (2, 8))])
    {'heat': (3, 16)}
    """
    found: dict[Key, tuple[int, int]] = {}
    for key, (won, attempts) in pairs:
        before = found.get(key, (0, 0))
        found[key] = before[0] + won, before[1] + attempts
    return found


def alignment_metrics(groups: Sequence[Group], alignment: Alignment) -> dict[str, float]:
    """How well the difficulty of some tasks fits the agent; empty without groups.

    Returns:
        means over the groups: ``success`` (p̂), ``alignment_error`` (|p̂ − α|), ``in_band``, ``live`` (its episodes ended
        differently), ``reward`` (R_env) and ``brier`` (Brier score of the prediction α for every episode).
    """
    if not groups:
        return {}
    own = [counts(group) for group in groups]
    rates, alpha = np.array([won / tried for won, tried in own]), alignment.alpha
    return {
        "success": float(rates.mean()),
        "alignment_error": float(np.abs(rates - alpha).mean()),
        "in_band": float(np.mean([alignment.in_band(*one) for one in own])),
        "live": 1 - outcomes(groups)[1]["zero_variance_share"],
        "reward": float(np.mean([alignment.reward(*one) for one in own])),
        "brier": float((rates * (1 - alpha) ** 2 + (1 - rates) * alpha**2).mean()),
    }


def record_metrics(records: Sequence[SimulatorRecord]) -> dict[str, float]:
    """What the records teach a simulator.

    Returns:
        ``records`` and ``records_in_band``; of the latter's weights the ``effective_sample_size`` and, if there are
        any, ``weight_spread`` (largest divided by smallest).
    """
    weights = [record.weight for record in records if record.weight]
    return {
        "records": float(len(records)),
        "records_in_band": float(len(weights)),
        "effective_sample_size": effective_sample_size(weights),
        **({"weight_spread": max(weights) / min(weights)} if weights else {}),
    }


def diversity_metrics(fields: Sequence[str], tasks: Sequence[tuple[str, tuple[str, ...]]]) -> dict[str, float]:
    """How different tasks are; empty without tasks.

    Args:
        fields: names of the fields.
        tasks: the task type and the field values of each.

    Returns:
        ``distinct_share`` of the tasks; for each field ``entropy_<field>`` (nats); for each task type
        ``perplexity_<type>``, the perplexity of its field values together.

    >>> diversity_metrics(["item"], [("heat", ("egg",)), ("heat", ("egg",))])
    {'distinct_share': 0.5, 'entropy_item': 0.0, 'perplexity_heat': 1.0}
    """
    if not tasks:
        return {}
    by_type: dict[str, list[tuple[str, ...]]] = {}
    for name, values in tasks:
        by_type.setdefault(name, []).append(values)
    columns = zip(fields, zip(*(values for _, values in tasks), strict=True), strict=True)
    return {
        "distinct_share": len({values for _, values in tasks}) / len(tasks),
        **{f"entropy_{field}": _entropy(column) for field, column in columns},
        **{f"perplexity_{name}": float(np.exp(_entropy(own))) for name, own in sorted(by_type.items())},
    }


def _entropy(values: Sequence[object]) -> float:
    """The entropy of the values' frequencies, in nats."""
    shares = np.array([*Counter(values).values()]) / len(values)
    return float(-(shares * np.log(shares)).sum()) + 0.0
