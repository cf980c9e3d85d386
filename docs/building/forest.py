"""Draws docs/pictures/forest.svg from the table of docs/results.md, so that both have the same numbers.

python docs/building/forest.py
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from roleagent.agents.evaluation.statistics import Estimate
from roleagent.experiments.pictures import ForestRow, forest

DOCS = Path(__file__).resolve().parents[1]


def effect(cell: str) -> Estimate | None:
    """The difference of a cell with its interval, which is NaN where the cell has none; None without a number.

    >>> effect("+9.0 (+5.8 to +12.2)")
    Estimate(value=9.0, low=5.8, high=12.2)
    >>> effect("−1.5 (p = 0.002)"), effect("–")
    (Estimate(value=-1.5, low=nan, high=nan), None)
    """
    numbers = [float(number.replace("−", "-")) for number in re.findall(r"[+−]\d+\.\d", cell)]
    return Estimate(*numbers, *[math.nan] * (3 - len(numbers))) if numbers else None


def published(cell: str) -> float | None:
    """The published difference, of one number or two; None without one, or with one on another scale (``*``).

    >>> round(published("90.9, 86.7"), 1), published("5.8"), published("78, 26 *"), published("–")
    (4.2, 5.8, None, None)
    """
    numbers = [float(number) for number in re.findall(r"\d+\.?\d*", cell)]
    if not numbers or "*" in cell:
        return None
    return numbers[0] - sum(numbers[1:])


def rows() -> list[ForestRow]:
    """The rows of the table."""
    text = (DOCS / "results.md").read_text("utf-8").partition("| claim |")[2].partition("\n\n")[0]
    found = []
    for line in text.splitlines()[2:]:
        claim, world, _, paper, sampled, _, greedy, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        effects = {"temperature 1": effect(sampled), "greedy": effect(greedy)}
        known = {name: one for name, one in effects.items() if one is not None}
        found.append(ForestRow(claim, world, known, published(paper)))
    return found


if __name__ == "__main__":
    forest(rows(), DOCS / "pictures" / "forest.svg")
