"""Runs of a report: their names, and which of them differ in nothing but their seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roleagent.reports.data.run_schema import RunData, RunGroup

_OWN = ("seed", "run_dir")
"""Options that runs of one group may differ in."""


def name_apart(runs: Sequence[RunData]) -> None:
    """Gives every run a name of its own: the end of its path, as long as it must be, or a number where paths are equal.

    >>> runs = [{"path": path} for path in ("/a/x/run", "/a/y/run", "/a/z", "/a/z")]
    >>> name_apart(runs)
    >>> [run["name"] for run in runs]
    ['x/run', 'y/run', 'z', 'z (2)']
    """
    parts = [Path(run["path"]).parts for run in runs]
    for number, run in enumerate(runs):
        others = [other for other in parts if other != parts[number]]
        length = 1
        while any(other[-length:] == parts[number][-length:] for other in others):
            length += 1
        earlier = parts[:number].count(parts[number])
        run["name"] = "/".join(parts[number][-length:]) + (f" ({earlier + 1})" if earlier else "")


def group_runs(runs: Sequence[RunData]) -> list[RunGroup]:
    """The runs in groups of equal options, without seed and folder, in the order of their first runs.

    A group is named by as few options as tell all groups apart; without a group of several runs, by its run. Options
    that another version of the package does not have count as equal.
    """
    shared = set.intersection(*(set(run["config"]) for run in runs)) - {*_OWN} if runs else set()
    differing = sorted(name for name in shared if len({run["config"][name] for run in runs}) > 1)
    members: dict[tuple[str, ...], list[int]] = {}
    for number, run in enumerate(runs):
        members.setdefault(tuple(run["config"][name] for name in differing), []).append(number)
    named = _telling(list(members), differing) if len(members) < len(runs) else None
    return [
        {"name": _name(runs[numbers[0]], named), "runs": numbers, "seeds": [runs[number]["seed"] for number in numbers]}
        for numbers in members.values()
    ]


def _telling(values: Sequence[tuple[str, ...]], names: Sequence[str]) -> list[str]:
    """As few options as tell all groups apart, the method first."""
    chosen: list[int] = []
    classes = 1
    for place in sorted(range(len(names)), key=lambda place: names[place] != "method"):
        apart = len({tuple(value[one] for one in [*chosen, place]) for value in values})
        if apart > classes:
            chosen.append(place)
            classes = apart
    return [names[place] for place in chosen]


def _name(run: RunData, options: Sequence[str] | None) -> str:
    if options is None:
        return run["name"]
    return ", ".join(f"{name}={run['config'][name]}" for name in options) or f"{run['method']} on {run['env_id']}"


__all__ = ["group_runs", "name_apart"]
