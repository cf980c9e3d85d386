"""The figures of ``thoughts.py``: how prediction score and action quality go together among replies to one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from roleagent.agents.evaluation.statistics import rate

Row = Mapping[str, Any]
"""A reply, as ``thoughts.py`` keeps it."""


def within(states: Sequence[Sequence[Row]], rng: np.random.Generator) -> dict[str, Any]:
    """The correlation of score and quality within states, with its interval.

    Args:
        states: the replies that are compared with each other.
        rng: of the bootstrap.

    Returns:
        ``r``, ``interval`` and the number of ``states`` in which both vary; r is None where there is none.
    """
    sums = []
    for rows in states:
        score = np.array([row["score"] for row in rows])
        quality = np.array([row["steps_before"] - row["steps_after"] for row in rows], float)
        score, quality = score - score.mean(), quality - quality.mean()
        sums.append((score @ quality, score @ score, quality @ quality))
    table = np.array(sums).reshape(-1, 3)
    varied = int(((table[:, 1] > 1e-12) & (table[:, 2] > 1e-12)).sum())
    if not varied:
        return {"r": None, "interval": None, "states": 0}
    draws = table[rng.integers(len(table), size=(2000, len(table)))].sum(1)
    draws = draws[(draws[:, 1:] > 1e-12).all(1)]
    low, high = np.quantile(draws[:, 0] / np.sqrt(draws[:, 1] * draws[:, 2]), [0.025, 0.975])
    product, score, quality = table.sum(0)
    r = product / np.sqrt(score * quality)
    return {"r": round(float(r), 3), "interval": [round(float(low), 3), round(float(high), 3)], "states": varied}


def summarize(states: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """The figures of a model in a world."""
    rows = [row for replies in states for row in replies]
    rng = np.random.default_rng(0)
    read = [row for row in rows if row["error"] is None]
    valid = [[row for row in replies if row["error"] is None and row["valid"]] for replies in states]
    alike: list[list[Row]] = []
    for replies in states:
        commands = dict.fromkeys(row["command"] for row in replies)
        alike += [[row for row in replies if row["command"] == command] for command in commands]

    def mean(name: str, chosen: Sequence[Row] = rows) -> float | None:
        return round(float(np.mean([row[name] for row in chosen])), 3) if chosen else None

    quality = [row["steps_before"] - row["steps_after"] for row in rows]
    state = [number for number, replies in enumerate(states) for _ in replies]
    well_formed = rate([row["error"] is None for row in rows], state)
    return {
        "states": len(states),
        "replies": len(rows),
        "all": within(states, rng),
        "valid_commands": within([replies for replies in valid if replies], rng),
        "score_given_command": round(
            float(np.sqrt(np.mean([np.var([row["score"] for row in group]) for group in alike for _ in group]))), 3
        ),
        "well_formed": well_formed.value,
        "well_formed_interval": [round(bound, 3) for bound in well_formed[1:]],
        "valid": sum(map(len, valid)) / len(rows),
        "cut": mean("cut"),
        "score": mean("score"),
        "quality": round(float(np.mean(quality)), 3),
        "thought_tokens": mean("thought_tokens", read),
        "reply_tokens": mean("tokens"),
        "prediction_tokens": mean("prediction_tokens"),
        "prompt_tokens": mean("prompt_tokens"),
        "seconds_per_reply": mean("seconds"),
    }


def report(console: Console, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints a row per model and world."""
    table = Table(title="prediction score and action quality within states")
    for column in (
        "model",
        "world",
        "r, all",
        "r, valid commands",
        "states",
        "well-formed",
        "valid",
        "thought",
        "s/reply",
    ):
        table.add_column(column, justify="left" if column in ("model", "world") else "right")

    def shown(found: Mapping[str, Any]) -> str:
        return (
            "–" if found["r"] is None else f"{found['r']:.2f} [{found['interval'][0]:.2f}, {found['interval'][1]:.2f}]"
        )

    for name, of_worlds in results.items():
        for world, found in of_worlds.items():
            both = (shown(found["all"]), shown(found["valid_commands"]))
            counts = f"{found['all']['states']} of {found['states']}"
            shares = (f"{found['well_formed']:.0%}", f"{found['valid']:.0%}")
            thought = "–" if found["thought_tokens"] is None else f"{found['thought_tokens']:.0f} tokens"
            table.add_row(name, world, *both, counts, *shares, thought, f"{found['seconds_per_reply']:.1f}")
    console.print(table)
