"""What the files of a training run say, as figures of the whole run."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

from roleagent.learners.run.folder import read_config
from roleagent.learners.run.metrics import FEWEST, WINDOW, rise_of
from roleagent.learners.run.watchdog import SUCCESS_LEAST, SUCCESS_SHARE
from roleagent.reports.data.curves import load_metrics, number
from roleagent.reports.data.eval_results import json_file, load_evaluations, measure_gain
from roleagent.reports.data.load_run import is_outdated, newest_checkpoint

EXACT = 1e-4
"""Mismatch in nats below which so small a movement is more than rounding."""


class Log:
    """What a run folder says.

    Args:
        run: the folder.

    Attributes:
        rows: the iterations; values that are not finite are left out.

    Raises:
        ConfigError: it is no run, or its configuration is damaged or of another version.
        RunDataError: its log is damaged.
    """

    def __init__(self, run: Path):
        self.path, self.config = run, read_config(run)
        self.rows = [
            {name: value for name, value in row.items() if number(value) is not None}
            for row in load_metrics(run)
            if row["stage"] == "train"
        ]
        self.result = json_file(run / "result.json", [])
        self.evaluations, sampled = load_evaluations(run, []), load_evaluations(run, [], "-sampled")
        after = self.evaluations.get("after")
        if after and is_outdated(run, after, self.rows, newest_checkpoint(run)):
            self.result, sampled = None, {}
            del self.evaluations["after"]
        self.gain, self.gain_sampled = measure_gain(self.evaluations), measure_gain(sampled)

    def values(self, name: str) -> list[float]:
        return [row[name] for row in self.rows if name in row]

    def mean(self, name: str) -> float:
        """Over the run; 0 if it was not logged."""
        values = self.values(name)
        return math.fsum(values) / len(values) if values else 0.0

    def total(self, name: str) -> float:
        return math.fsum(self.values(name))

    @cached_property
    def start(self) -> float:
        """Success of the policy that reinforcement began with, as it is sampled: in the first iteration."""
        return (self.values("success") or [0.0])[0]

    @cached_property
    def end(self) -> float:
        """Success in the last iterations."""
        last = self.values("success")[-WINDOW:]
        return math.fsum(last) / len(last) if last else 0.0

    @cached_property
    def alike(self) -> float:
        """Share of zero-variance groups among all that were played."""
        return self.total("zero_variance_groups") / max(1.0, self.total("groups"))

    @cached_property
    def idle(self) -> float:
        """Share of zero-variance groups among those that were trained on: the others were not replaced."""
        replaced = self.total("replaced_groups")
        return (self.total("zero_variance_groups") - replaced) / max(1.0, self.total("groups") - replaced)

    @cached_property
    def learned(self) -> bool:
        """Whether success rose beyond chance on held-out tasks, or in training without a loss on held-out tasks."""
        intervals = [one["all"]["interval"] for one in (self.gain, self.gain_sampled) if one] or [(0.0, 1.0)]
        success = self.values("success")
        rise, error = rise_of(success) if len(success) >= FEWEST else (0.0, 0.0)
        gained = any(low > 0 for low, _ in intervals)
        return gained or (any(high > 0 for _, high in intervals) and rise > 2 * error)

    @cached_property
    def collapsed(self) -> bool:
        """Whether success at the end is a fraction of that of the start."""
        return len(self.rows) > 1 and self.start >= SUCCESS_LEAST and self.end < SUCCESS_SHARE * self.start

    @cached_property
    def moved(self) -> float | None:
        """Nats per token that the updates of an iteration moved the policy; None if single updates hide it."""
        optim = self.config.optim
        most = math.inf if optim.minibatch_turns else optim.minibatches * optim.epochs
        rows = [row for row in self.rows if row.get("tokens") and row.get("optimizer_steps", most) > 1]
        measured = [row["logprob_gap"] for row in rows if "logprob_gap" in row]
        if not measured or self.mean("mismatch") > EXACT or self.mean("staleness"):
            return None
        return math.fsum(measured) / len(measured)
