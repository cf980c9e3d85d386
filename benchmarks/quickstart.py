"""Repeats the default training over seeds, optionally with two controls.

    python benchmarks/quickstart.py --seeds 3
    python benchmarks/quickstart.py --seeds 3 --controls
    python benchmarks/quickstart.py --config configs/toy.yaml wia=off

Every seed is a run of ``train.py`` in its own folder under ``--out``. The same command skips finished runs and resumes
others. ``--controls`` adds two runs from the same warm start: one with advantages shuffled over the batch's turns, and
one that continues the imitation for as many trained tokens. Neither should gain as much as the real run.

``before``, ``after`` and the gains are success rates on the held-out split and their differences, as fractions (a gain
of 0.05 is 5 points), at the training temperature, and also greedy if the run measures both. ``invalid_share`` is the
share of failed commands in the last evaluation, ``worst_seed`` the lowest success of a seed, greedy if measured.
``minutes`` is wall-clock time of the whole run with evaluations, ``peak_mb`` the peak memory of one of its processes in
MiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from roleagent.config import ConfigError
from roleagent.experiments.runs import Run, iterations_of
from roleagent.options import user_path


def success_of(result: Mapping[str, float]) -> dict[str, float]:
    """``before``, ``after`` and ``gain`` at the training temperature, and with ``_greedy`` if the run measures both."""
    if "after_sampled" not in result:
        return {key: result[key] for key in ("before", "after", "gain")}
    before, after = result["before_sampled"], result["after_sampled"]
    greedy = {f"{key}_greedy": result[key] for key in ("before", "after", "gain")}
    return {"before": before, "after": after, "gain": after - before, **greedy}


def measure(file: Path, overrides: Sequence[str], out: Path, seed: int, controls: bool) -> dict[str, float]:
    """One seed's figures."""
    run = Run(out / f"seed{seed}", file, [*overrides, f"seed={seed}"])
    result = run.finish()
    figures = success_of(result) | {"invalid_share": result["invalid"]}
    figures |= {key: result[key] for key in ("minutes", "peak_mb")}
    if controls:
        rows = iterations_of(run.folder)
        tokens = round(sum(row.get("tokens", 0.0) * row["optimizer_steps"] for row in rows))  # in every pass
        figures["shuffled_gain"] = run.control("shuffled", "train.shuffle=advantages").finish()["gain"]
        figures["sft_gain"] = run.control("sft", "method=sft", f"train.tokens={tokens}").finish()["gain"]
    return figures


def show(seeds: Sequence[int], figures: Sequence[dict[str, float]]) -> None:
    """Prints a table with rates in percent and gains in points."""
    table = Table("seed", *(name.replace("_", " ") for name in figures[0]), title="success in %, gains in points")
    rows = list(zip(map(str, seeds), figures, strict=True))
    if len(rows) > 1:
        rows.append(("mean", {name: statistics.mean(row[name] for row in figures) for name in figures[0]}))
    for label, row in rows:
        cells = [
            f"{100 * value:+.1f}"
            if "gain" in name
            else f"{value:.1f}"
            if name == "minutes"
            else f"{value:.0f}"
            if name == "peak_mb"
            else f"{100 * value:.1f}"
            for name, value in row.items()
        ]
        table.add_row(label, *cells)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 … N-1 (default: %(default)s)")
    parser.add_argument("--config", type=user_path, default=Path("configs/default.yaml"), help="default: %(default)s")
    parser.add_argument("--out", type=user_path, default=Path("runs/quickstart"), help="folder (default: %(default)s)")
    parser.add_argument("--controls", action="store_true", help="also shuffled advantages, and imitation instead")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of train.py")
    options = parser.parse_intermixed_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds must be at least 1, not {options.seeds}")
    seeds, figures = range(options.seeds), []
    try:
        for seed in seeds:
            figures.append(measure(options.config, options.overrides, options.out, seed, options.controls))
    except ConfigError as error:
        print(f"quickstart.py: {error}", file=sys.stderr)
        return 2
    show(seeds, figures)
    result: dict[str, Any] = {name: [round(row[name], 4) for row in figures] for name in figures[0]}
    result["worst_seed"] = min(result.get("after_greedy", result["after"]))
    print("RESULT", json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
