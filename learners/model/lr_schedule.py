"""The learning rate over a stage of training: a factor of its peak.

Two things decide it. Over the first updates it grows to its full height, so that the optimizer's averages are of
something before they move anything (``optim.warmup_steps``); over the whole stage it follows ``optim.schedule``. The
share of a stage that is done is the caller's to say: it may be counted in updates or iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
    # Full for the first half, then straight down to a tenth.
    "constant_then_linear": lambda share: max(0.1, min(1.0, 2.0 * (1.0 - share))),
}
"""From the share of a stage that is done, in [0, 1], to the factor of the peak rate, in [0, 1]."""


def rate(peak: float, schedule: str, share: float, steps: int, warmup: int) -> float:
    """The learning rate of one update.

    Args:
        peak: the highest.
        schedule: one of :data:`SCHEDULES`.
        share: how much of the stage is done; what is outside [0, 1] counts as its nearer end.
        steps: updates before this one.
        warmup: updates over which the rate grows in equal steps.

    >>> [rate(1.0, "constant_then_linear", share, steps=9, warmup=5) for share in (0.2, 0.75, 1.0)]
    [1.0, 0.5, 0.1]
    >>> [rate(1.0, "linear", 0.5, steps, warmup=4) for steps in (0, 1, 3, 4)]
    [0.125, 0.25, 0.5, 0.5]
    >>> round(rate(1.0, "cosine", 0.25, steps=9, warmup=5), 4)
    0.8536
    """
    grown = min(1.0, (steps + 1) / max(1, warmup))
    return peak * SCHEDULES[schedule](min(1.0, max(0.0, share))) * grown
