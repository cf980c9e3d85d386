"""Which numbers an option may be: what cannot mean anything is refused before a run begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from roleagent.options import ConfigError, shown


class _Range(NamedTuple):
    """From ``least`` to ``most``; ``above`` and ``below`` leave out the end itself."""

    least: float = 0
    most: float = 10**9
    above: bool = False
    below: bool = False

    def check(self, option: str, value: float) -> None:
        """Refuses a value outside, in a line that names the option and the end that it is beyond."""
        if value < self.least or (self.above and value == self.least):
            raise ConfigError(
                f"{option} must be {'above' if self.above else 'at least'} {self.least}, not {shown(value)}"
            )
        if value > self.most or (self.below and value == self.most):
            raise ConfigError(
                f"{option} must be {'below' if self.below else 'at most'} {self.most}, not {shown(value)}"
            )


_SHARE, _RATE = _Range(0, 1), _Range(0, 10)
_RANGES = {
    **dict.fromkeys(
        (
            *("warmstart.corrupted_predictions", "warmstart.predictions"),
            *("estimator.gamma", "estimator.gae_lambda", "loss.clip_low"),
            *("estimator.similarity_threshold", "curriculum.decay", "curriculum.success_factor"),
        ),
        _SHARE,
    ),
    **dict.fromkeys(("warmstart.noise", "lora.dropout", "curriculum.epsilon"), _Range(0, 1, below=True)),
    **dict.fromkeys(("vllm.memory", "estimator.overlong_buffer"), _Range(0, 1, above=True)),
    **dict.fromkeys(("warmstart.lr", "optim.lr", "critic.lr"), _RATE),
    **dict.fromkeys(("rollout.eval_temperature", "curriculum.temperature"), _Range(0, 100)),
    **dict.fromkeys(("lora.alpha", "curriculum.endpoint.timeout"), _Range(above=True)),
    **dict.fromkeys(("policy.layers", "policy.heads", "policy.kv_heads", "vllm.tensor_parallel"), _Range(1, 1024)),
    **dict.fromkeys(("policy.mlp_size", "policy.hidden_size"), _Range(1, 2**20)),
    **dict.fromkeys(("rollout.action_tokens", "rollout.prediction_tokens"), _Range(1, 2**20)),
    **dict.fromkeys(("rollout.num_groups", "rollout.group_size", "rollout.eval_batch"), _Range(1, 100_000)),
    **dict.fromkeys(("optim.minibatches", "optim.epochs"), _Range(1, 10_000)),
    **dict.fromkeys(("curriculum.candidates", "curriculum.endpoint.concurrency"), _Range(1, 10_000)),
    **dict.fromkeys(
        (
            *("warmstart.batch_tokens", "optim.micro_batch_tokens", "loss.divisor", "vllm.max_sequences"),
            *("curriculum.reflection_tokens", "curriculum.selection_tokens"),
            *("curriculum.endpoint.context", "curriculum.endpoint.answer_tokens"),
            *("train.checkpoint_every", "train.keep_checkpoints", "watchdog.window", "watchdog.patience"),
        ),
        _Range(1),
    ),
    "seed": _Range(0, 2**32 - 1),
    "policy.vocabulary": _Range(300, 2**20),  # 256 bytes, the marks and the tags
    "policy.context": _Range(1, 2**24),
    "lora.rank": _Range(0, 4096),
    "prompt.history": _Range(0, 10_000),
    "prompt.horizon": _Range(0, 1000),
    "warmstart.episodes": _Range(0, 10**6),
    "warmstart.epochs": _Range(0, 10_000),
    "warmstart.rounds": _Range(0, 100),
    "warmstart.round_episodes": _Range(1, 10**6),
    "warmstart.failures": _Range(0, 100),
    "rollout.temperature": _Range(0, 100, above=True),  # log-probabilities are divided by it
    "rollout.dynamic_sampling_rounds": _Range(0, 1000),
}
"""All other numbers are from 0 to 10⁹. A share of ``watchdog`` may be above 1, which switches its sign off."""
_WEIGHTS = {"warmstart.shares": _SHARE, "estimator.rewards": _Range(-1e6, 1e6)}
"""The same of each value in a mapping from names to numbers."""
_EPISODES = 1_000_000  # of an iteration


def check(config: Any) -> None:
    """Refuses numbers that an option cannot have, and sizes that do not fit each other.

    Args:
        config: a :class:`~roleagent.config.Config`.

    Raises:
        ConfigError: one line that names the option.
    """
    for option, value in _numbers(config, ""):
        _RANGES.get(option, _Range()).check(option, value)
    if config.rollout.num_groups * config.rollout.group_size > _EPISODES:
        raise ConfigError(
            f"rollout.num_groups={config.rollout.num_groups} and rollout.group_size={config.rollout.group_size} make "
            f"more than {_EPISODES} episodes in an iteration: choose less"
        )
    if not config.policy.path:
        _check_shape(config.policy)


def check_room(config: Any, horizon: int) -> None:
    """Refuses replies that leave a policy's context no room for a prompt, and predictions that no reply has room for.

    Args:
        config: a :class:`~roleagent.config.Config`.
        horizon: steps that predictions look ahead.

    Raises:
        ConfigError: one line that names the option.
    """
    if horizon > config.rollout.prediction_tokens:
        raise ConfigError(
            f"predictions of {horizon} steps do not fit into rollout.prediction_tokens="
            f"{config.rollout.prediction_tokens}: set prompt.horizon"
        )
    lengths = {"rollout.action_tokens": config.rollout.action_tokens}
    if config.wia:
        lengths["rollout.prediction_tokens"] = config.rollout.prediction_tokens
    if config.aiw and config.curriculum.analyst == "model":
        lengths["curriculum.reflection_tokens"] = config.curriculum.reflection_tokens
        lengths["curriculum.selection_tokens"] = config.curriculum.selection_tokens
    for option, tokens in lengths.items():
        if tokens >= config.policy.context:
            raise ConfigError(
                f"{option}={tokens} leaves no room for a prompt in policy.context={config.policy.context}"
            )


def _check_shape(policy: Any) -> None:
    size, heads, kv_heads = policy.hidden_size, policy.heads, policy.kv_heads
    if size % heads:
        raise ConfigError(f"policy.heads must divide policy.hidden_size, but {heads} does not divide {size}")
    if size // heads % 2:
        raise ConfigError(f"policy.hidden_size / policy.heads must be even, for rotary positions, not {size} / {heads}")
    if heads % kv_heads:
        raise ConfigError(f"policy.kv_heads must divide policy.heads, but {kv_heads} does not divide {heads}")


def _numbers(options: Any, prefix: str) -> Iterator[tuple[str, float]]:
    for field in dataclasses.fields(options):
        value, name = getattr(options, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{name}.")
        elif isinstance(value, (int, float)):
            yield name, value
        elif isinstance(value, Mapping) and name in _WEIGHTS:
            for key, weight in value.items():
                _WEIGHTS[name].check(f"{name}.{key}", weight)
