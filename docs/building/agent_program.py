"""Draws docs/pictures/agent_program.svg: training success of two runs, of the built-in loop and of an agent program.

python docs/building/agent_program.py RUN RUN
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from roleagent.experiments.pictures import COLORS, save

NAMES = ("built-in loop", "examples/kitchen_agent.py")


def success(run: Path) -> list[float]:
    """Success of the episodes of each iteration, in percent."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [100 * row["success"] for row in rows if "success" in row]


def main(runs: list[str]) -> None:
    figure = Figure(figsize=(6.5, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, run, color in zip(NAMES, runs, COLORS, strict=False):
        curve = success(Path(run))
        axes.plot(range(1, len(curve) + 1), curve, color=color, label=name, linewidth=1.6)
    axes.set(xlabel="iteration", ylabel="training success, %", ylim=(0, None))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    save(figure, Path(__file__).resolve().parents[1] / "pictures" / "agent_program.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
