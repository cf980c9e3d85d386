"""Which numbers an option may be: what cannot mean anything is refused before a run begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from roleagent.options import ConfigError, shown

_FROM_ONE = frozenset(
    (
        *("policy.hidden_size", "policy.layers", "policy.heads", "policy.kv_heads", "policy.mlp_size"),
        *("policy.vocabulary", "policy.context"),
        *("rollout.tasks", "rollout.group_size", "rollout.eval_batch", "rollout.action_tokens"),
        *("rollout.prediction_tokens", "warmstart.batch_tokens"),
        *("optim.updates", "optim.epochs", "optim.micro_batch_tokens"),
        *("curriculum.candidates", "curriculum.reflection_tokens", "curriculum.selection_tokens"),
        *("curriculum.endpoint.concurrency", "curriculum.endpoint.context", "curriculum.endpoint.answer_tokens"),
        *("train.checkpoint_every", "train.keep_checkpoints", "watchdog.window", "watchdog.patience"),
    )
)
"""Options of which there is at least one; of all others nothing is less than 0."""


def check(config: Any) -> None:
    """Refuses numbers that no option can have.

    Args:
        config: a dataclass of dataclasses.

    Raises:
        ConfigError: one line that names the option.
    """
    for option, value in _numbers(config, ""):
        least = int(option in _FROM_ONE)
        if value < least:
            raise ConfigError(f"{option} must be at least {least}, not {shown(value)}")


def _numbers(options: Any, prefix: str) -> Iterator[tuple[str, float]]:
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        elif isinstance(value, (int, float)):
            yield name, value
