"""Detects a collapse of training, or of held-out tasks, from the metrics.

All watched metrics are in the log, so a watchdog is a function of ``metrics.jsonl``: a resumed run replays the logged
iterations, ``roleagent doctor RUN`` the whole run, and recorded runs test it. A sign raises an alarm after ``PATIENCE``
iterations, once, and the alarm ends when the sign has been absent for as long. Nothing here imports torch.
:func:`roleagent.learners.run.metrics.not_learning` judges at the end of a run whether it learned at all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roleagent.config import Config
from roleagent.learners.method import Method, known_class
from roleagent.learners.run.metrics import HELD_OUT, INVALID_ACTIONS, WINDOW

if TYPE_CHECKING:
    from roleagent.learners.run.display import Display
    from roleagent.learners.run.run import Run

Row = Mapping[str, Any]
"""One iteration's metrics."""

Sign = Callable[[Sequence[Row]], "str | None"]
"""From the iterations so far to what is wrong with the newest one, with the number; None if nothing is."""


PATIENCE = 3
"""Iterations that a sign must last to raise an alarm, and be absent to end it."""

_ENTROPY_FLOOR = 0.005  # nats
_ENTROPY_SHARE, _ENTROPY_RISE = 0.1, 5.0  # of the entropy's mean in the first iterations
SUCCESS_SHARE, SUCCESS_LEAST = 0.33, 0.1  # of the best moving average, which must be at least so high to fall
_HOPELESS = 0.05  # success below which other episodes of the same task do not differ either
SOLVED = 0.95  # success from which low entropy and zero-variance groups are no collapse
_ZERO_VARIANCE_GROUPS = 0.95  # share of the groups
_OTHER_WEIGHTS = 0.1  # nats between learner and sampler
_GROWTH = 10  # the same, relative to what the first iteration had
_ROUNDING = 3e-5  # nats; the least that counts for it: float32 has less
_PENALTIES = 0.5  # of an episode, from which they may outweigh its task


def entropy_fell(history: Sequence[Row]) -> str | None:
    """The policy is nearly deterministic without being successful."""
    early, late = _early_and_late(history, "entropy", WINDOW)
    if late is None or _solved(history):
        return None
    if late < _ENTROPY_FLOOR:
        return f"entropy is {late:.2g} nats, below {_ENTROPY_FLOOR:g}: the policy is nearly deterministic"
    if early is not None and late < _ENTROPY_SHARE * early:
        return f"entropy fell to {late:.2g} nats, from {early:.2g} in the first {WINDOW} iterations"
    return None


def entropy_rose(history: Sequence[Row]) -> str | None:
    """The policy becomes random."""
    early, late = _early_and_late(history, "entropy", WINDOW)
    if early is None or late is None or late <= _ENTROPY_RISE * max(early, _ENTROPY_FLOOR):
        return None
    return f"entropy rose to {late:.2g} nats, from {early:.2g} in the first {WINDOW} iterations"


def success_fell(history: Sequence[Row]) -> str | None:
    """Success was higher before."""
    means = _means([row["success"] for row in history if "success" in row], WINDOW)
    if not means or max(means) < SUCCESS_LEAST or means[-1] >= SUCCESS_SHARE * max(means):
        return None
    return f"success fell to {means[-1]:.2f}, from {max(means):.2f} at its best (means of {WINDOW} iterations)"


def zero_variance(history: Sequence[Row]) -> str | None:
    """Nearly all groups have zero variance, so there is no gradient."""
    row = history[-1]
    replaced = row.get("replaced_groups", 0.0)  # all of zero variance, and not trained on
    count, groups = row.get("zero_variance_groups", 0.0) - replaced, row.get("groups", 0.0) - replaced
    if groups <= 0 or count < _ZERO_VARIANCE_GROUPS * groups or _solved(history):
        return None
    found = f"{count:.0f} of {groups:.0f} groups have zero variance, at success {row['success']:.2f}: no gradient"
    if row["success"] < _HOPELESS:
        return f"{found}. Start from a policy that solves some tasks (warmstart.episodes), or train on easier ones"
    return f"{found}. Raise rollout.group_size or rollout.temperature, or set rollout.dynamic_sampling_rounds=4"


def failed_calls(history: Sequence[Row]) -> str | None:
    """Tools are called, and every call fails."""
    row, calls = history[-1], history[-1].get("calls", 0.0)
    if not calls or any(value for name, value in row.items() if name.startswith("tool_success/")):
        return None
    return f"all {calls:.0f} calls of tools failed"


def teacher_silent(history: Sequence[Row]) -> str | None:
    """The teacher scores nothing: none of the episodes has a hint, or none fits into the context with it."""
    if history[-1].get("teacher_share", 1.0) or _solved(history):
        return None
    return "distill.teacher scored 0 of the action tokens: no episode has a hint that fits into the context"


def penalties(weights: Mapping[str, float]) -> Sign:
    """The sign that penalties cost an episode more than its task gives: a policy that avoids them may stop to win."""
    below = {f"reward_{name}": weight for name, weight in weights.items() if weight < 0}

    def sign(history: Sequence[Row]) -> str | None:
        row = history[-1]
        lost = -math.fsum(weight * row.get(name, 0.0) for name, weight in below.items())
        if lost < _PENALTIES or lost <= row["reward"]:
            return None
        return f"penalties cost an episode {lost:.2f}, and its task gives {row['reward']:.2f}: lower estimator.rewards"

    return sign


def above(name: str, limit: float, text: str) -> Sign:
    """The sign that a metric is at or above a limit."""

    def sign(history: Sequence[Row]) -> str | None:
        value = history[-1].get(name, 0.0)
        return f"{text.format(value)}, at or above {limit:g}" if value >= limit else None

    return sign


def mismatch(history: Sequence[Row]) -> str | None:
    """Learner and sampler should have the same weights, and do not.

    A low learning rate takes long to 0.1 nats, so a multiple of the first iteration's rounding counts, too. Episodes of
    ``rollout.async_level=1`` are of other weights; ``sync_mismatch`` stands for them.
    """
    row = history[-1]
    gap = row.get("sync_mismatch", 0.0 if row.get("staleness") else row.get("mismatch", 0.0))
    rounding = next((one["mismatch"] for one in history if one.get("mismatch") and not one.get("staleness")), math.inf)
    if gap < min(_OTHER_WEIGHTS, _GROWTH * max(rounding, _ROUNDING)):
        return None
    return (
        f"learner and sampler differ by {gap:.2g} nats per token: the sampler does not have the learner's weights, or "
        "computes otherwise"
    )


SIGNS: dict[str, Sign] = {
    "entropy_fell": entropy_fell,
    "entropy_rose": entropy_rose,
    "success_fell": success_fell,
    "zero_variance": zero_variance,
    "kl": above("kl", 2.0, "the policy is {:.2g} nats per token away from its reference"),
    "mismatch": mismatch,
    "clip_fraction": above("clip_fraction", 0.5, "the share of clipped tokens is {:.2f}"),
    "invalid_actions": above("invalid_action_share", INVALID_ACTIONS, "the share of invalid actions is {:.2f}"),
    "failed_calls": failed_calls,
    "teacher_silent": teacher_silent,
    "repeated_ngrams": above("repeated_ngrams", 0.8, "the share of repetitive replies is {:.2f}"),
    "repeated_actions": above("repeated_actions", 0.8, "the share of repetitive episodes is {:.2f}"),
    "cut_replies": above("cut_replies", 0.9, "the share of replies cut at the token limit is {:.2f}"),
    **HELD_OUT,
}
"""The signs of a collapse and of failure on held-out tasks, by their names in the log."""


class Watchdog:
    """Checks every iteration of a run for signs of collapse.

    Args:
        before: the iterations so far, of a resumed run.
        signs: by name.

    Attributes:
        alarms: the messages of the present signs, by name.
    """

    def __init__(self, before: Sequence[Row] = (), signs: Mapping[str, Sign] = SIGNS):
        self._signs = signs
        self.alarms: dict[str, str] = {}
        self._history: list[Row] = []
        self._streaks = dict.fromkeys(signs, 0)  # iterations in a row that contradict the state of a sign
        for row in before:
            self.observe(row)

    @property
    def collapsed(self) -> bool:
        """Whether training has collapsed, whatever held-out tasks show."""
        return any(name not in HELD_OUT for name in self.alarms)

    def observe(self, row: Row) -> tuple[list[str], list[str]]:
        """Adds an iteration; returns the messages of new alarms, and the names of the alarms that ended."""
        self._history.append(row)
        raised, over = [], []
        for name, sign in self._signs.items():
            message = sign(self._history)
            self._streaks[name] = 0 if (message is not None) == (name in self.alarms) else self._streaks[name] + 1
            if self._streaks[name] < PATIENCE:
                continue
            self._streaks[name] = 0
            if message is not None:
                self.alarms[name] = message
                raised.append(message)
            else:
                del self.alarms[name]
                over.append(name)
        return raised, over

    def look(self, row: Row, display: Display) -> list[str]:
        """As :meth:`observe`, shown on the display; returns the names of the present signs."""
        raised, over = self.observe(row)
        for name, message in self.alarms.items():
            if message in raised:
                display.warn(f"{'held-out tasks' if name in HELD_OUT else 'collapse'}: {message}")
        for name in over:
            display.say(f"over: {name}")
        return list(self.alarms)


def open_watchdog(run: Run) -> Watchdog:
    """The watchdog of a run, with the logged iterations."""
    return Watchdog(logged_iterations(run), signs_of(run.config, run.method))


def signs_of(config: Config, method: Method | None = None) -> dict[str, Sign]:
    """The signs of a collapse under a method and its rewards.

    Zero-variance groups are a sign only if the method compares the episodes of a group.
    """
    known = method or known_class(config)
    comparing = known.compares_outcomes or known.compares_states
    signs = {name: sign for name, sign in SIGNS.items() if comparing or sign is not zero_variance}
    return signs | {"penalties": penalties(config.estimator.rewards)}


def logged_iterations(run: Run) -> list[dict[str, Any]]:
    """The metrics of all logged iterations."""
    path = run.folder.path / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(json.loads, lines) if row["stage"] == "train"]


def _trained(history: Sequence[Row]) -> list[Row]:
    """Iterations with an update: the others have no entropy or ratio."""
    return [row for row in history if row.get("tokens", 0.0) > 0]


def _early_and_late(history: Sequence[Row], name: str, window: int) -> tuple[float | None, float | None]:
    """Means over the first iterations and over the newest; None if there are not enough."""
    values = [row[name] for row in _trained(history)]
    early = sum(values[:window]) / window if len(values) > window else None
    return early, sum(values[-window:]) / len(values[-window:]) if values else None


def _means(values: Sequence[float], window: int) -> list[float]:
    """Moving averages over ``window`` values.

    >>> _means([1, 2, 3, 6], 2)
    [1.5, 2.5, 4.5]
    """
    return [sum(values[end - window : end]) / window for end in range(window, len(values) + 1)]


def _solved(history: Sequence[Row]) -> bool:
    """Whether success is so high that low entropy and zero variance are no problem."""
    return history[-1].get("success", 0.0) >= SOLVED
