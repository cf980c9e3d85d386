"""Run configuration: frozen dataclasses, filled from YAML files and ``key=value`` overrides.

Every option of a run has one place here, with its unit and its default. ``load`` merges, in this order, the defaults,
a YAML file and overrides such as ``optim.lr=1e-4`` or ``wia=off``; an unknown key is an error that names the nearest
one, so that a misspelt option never silently trains the default.

>>> load(overrides=["optim.lr=1e-4", "wia=off"]).optim.lr
0.0001
>>> load(overrides=["rollout.temprature=0.9"])
Traceback (most recent call last):
  ...
roleagent.config.ConfigError: unknown key 'rollout.temprature'; did you mean 'rollout.temperature'?
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line that says what to change."""


@dataclass(frozen=True)
class EnvConfig:
    """Which environment is played, and which of its panels."""

    id: str = "RoleAgent/ALFWorld-v0"
    train_split: str = "train"
    eval_split: str = "valid_unseen"
    eval_tasks: int = 0  # tasks of the evaluation panel, from its start; 0: all of them
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # for gymnasium.make, e.g. size: small


@dataclass(frozen=True)
class PolicyConfig:
    """The language model: a path or hub name, or a small one built from these sizes."""

    path: str = ""  # empty: build one from scratch with a tokenizer of its own
    hidden_size: int = 160
    layers: int = 4
    heads: int = 5
    kv_heads: int = 5
    mlp_size: int = 480
    vocabulary: int = 2048  # most tokens of the tokenizer trained on environment text
    context: int = 1024  # tokens
    dtype: Literal["float32", "bfloat16"] = "float32"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class PromptConfig:
    """What the model reads and how it answers."""

    style: Literal["transcript", "window"] = "transcript"
    history: int = 2  # past steps shown by the window style
    think: Literal["none", "optional", "required"] = "none"
    predictions: Literal["followup", "inline"] = "followup"
    horizon: int = 0  # steps ahead; 0: max(1, floor(0.05 T_max + 0.5))


@dataclass(frozen=True)
class WarmStartConfig:
    """Imitation of a scripted expert that sees only what the agent sees."""

    episodes: int = 1200  # demonstrations
    epochs: float = 3.0
    noise: float = 0.1  # share of steps replaced by a random admissible command (not imitated)
    decoys: float = 0.3  # share of predictions replaced by a wrong one (shown, not imitated)
    text_weight: float = 0.3  # of the world's own text in the loss, relative to an action token
    optimiser: Literal["adamw", "muon"] = "muon"
    lr: float = 1e-2
    batch_tokens: int = 2500  # tokens per update
    minutes: float = 0.0  # stop earlier than `epochs` after this long; 0: no limit


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played."""

    tasks: int = 12  # groups per iteration
    group_size: int = 8
    temperature: float = 1.0
    eval_temperature: float = 0.0
    eval_batch: int = 100  # episodes side by side in evaluation
    action_tokens: int = 24  # most tokens of an action reply
    prediction_tokens: int = 64  # most tokens of a prediction reply


@dataclass(frozen=True)
class EstimatorOptions:
    """Advantages (specification of the method, WIA 3–8)."""

    gamma: float = 0.95
    alpha: float = 1.0
    norm: Literal["std", "mean"] = "std"
    similarity_threshold: float = 0.0  # 0: states are the same by hash; otherwise LMS at least this


@dataclass(frozen=True)
class LossConfig:
    """Clipped surrogate with KL penalty (Eq. 9)."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 1e-3
    prediction_weight: float = 0.5
    train_predictions: bool = True


@dataclass(frozen=True)
class OptimConfig:
    """The learner's steps."""

    optimiser: Literal["adamw", "muon"] = "adamw"
    lr: float = 5e-4
    weight_decay: float = 0.01
    warmup_steps: int = 5
    max_grad_norm: float = 1.0
    updates: int = 2  # optimiser steps per pass over an iteration's episodes; each sees its share of whole groups
    epochs: int = 1  # passes over an iteration's episodes; the clipped ratio keeps later ones near the sampler
    micro_batch_tokens: int = 8192


@dataclass(frozen=True)
class CurriculumConfig:
    """Agent-In-World (AIW 5)."""

    epsilon: float = 0.5
    decay: float = 0.9
    success_factor: float = 0.5
    library: str = ""  # SQLAlchemy URL; empty: a SQLite file in the run folder


@dataclass(frozen=True)
class DeepSpeedConfig:
    """What is handed to DeepSpeed."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    offload: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """The length of a run and what it leaves behind."""

    iterations: int = 30
    minutes: float = 0.0  # wall-clock budget for the RL stage; 0: no limit
    evaluate_every: int = 0  # iterations; 0: only before and after
    checkpoint_every: int = 1  # iterations
    keep_checkpoints: int = 2
    shuffle_advantages: bool = False  # a control: credit goes to the wrong turns, and nothing may be learnt
    stage: Literal["rl", "sft"] = "rl"  # a control: sft goes on imitating instead


@dataclass(frozen=True)
class Config:
    """A whole run."""

    method: Literal["role_agent", "gigpo", "grpo"] = "role_agent"
    wia: bool = True
    aiw: bool = True
    seed: int = 0
    run_dir: str = ""  # empty: runs/<method>-<environment>-seed<seed>
    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    warmstart: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    estimator: EstimatorOptions = field(default_factory=EstimatorOptions)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    @property
    def folder(self) -> Path:
        """The run folder."""
        name = self.env.id.split("/")[-1].lower()
        return Path(self.run_dir or f"runs/{self.method}-{name}-seed{self.seed}")


def load(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Defaults, then the YAML file, then the overrides.

    Args:
        path: a YAML file with any subset of the keys.
        overrides: strings ``dotted.key=value``; values are read as YAML (``on``/``off`` are booleans).

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or an unreadable file.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        try:
            loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as error:
            raise ConfigError(f"cannot read the configuration {path}: {' '.join(str(error).split())}") from error
        if not isinstance(loaded or {}, Mapping):
            raise ConfigError(f"{path} must hold keys and values, not a {type(loaded).__name__}")
        tree = dict(loaded or {})
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"{override!r} is not of the form key=value, e.g. optim.lr=1e-4")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key!r} cannot be read as YAML: {text!r}") from error
        node = tree
        *parents, leaf = key.split(".")
        for name in parents:
            child = node.get(name)
            child = dict(child) if isinstance(child, Mapping) else {}
            node[name] = child
            node = child
        node[leaf] = value
    return from_dict(tree)


def from_dict(tree: Mapping[str, Any]) -> Config:
    """A :class:`Config` from nested mappings, checked. Raises :class:`ConfigError`."""
    return _build(Config, tree, "")


def to_dict(config: Config) -> dict[str, Any]:
    """The whole configuration as nested dictionaries, every default written out."""
    return dataclasses.asdict(config)


def _known_keys(cls: type, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, kind in typing.get_type_hints(cls).items():
        keys.append(prefix + name)
        if dataclasses.is_dataclass(kind):
            keys += _known_keys(typing.cast(type, kind), f"{prefix}{name}.")
    return keys


def _nearest(key: str) -> str:
    """A hint: a key of the same section spelt nearly so, else one of that name elsewhere, else the nearest of all."""
    known = _known_keys(Config)
    section, _, leaf = key.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in known if name.rpartition(".")[0] == section}
    near = [siblings[name] for name in difflib.get_close_matches(leaf, siblings, n=1)]
    near = near or [name for name in known if name.rpartition(".")[2] == leaf]
    near = near or difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _build(cls: type, tree: Any, prefix: str) -> Any:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{prefix.rstrip('.')!r} is a section with keys of its own, not a value: {tree!r}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, value in tree.items():
        full = f"{prefix}{key}"
        if key not in hints:
            raise ConfigError(f"unknown key {full!r}{_nearest(full)}")
        kind = hints[key]
        section = isinstance(kind, type) and dataclasses.is_dataclass(kind)
        values[key] = _build(kind, value, f"{full}.") if section else _check(kind, value, full)
    return cls(**values)


def _check(kind: Any, value: Any, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value is False and "none" in choices:
            value = "none"
        if value in choices and not isinstance(value, bool):
            return value
        raise ConfigError(f"{key} must be one of {', '.join(map(str, choices))}, not {value!r}")
    if origin is not None and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return dict(value)
    elif kind is bool:
        if isinstance(value, bool):
            return value
    elif kind is float:
        try:
            # YAML reads `1e-4` (no dot) as text.
            if not isinstance(value, bool):
                return float(value)
        except (TypeError, ValueError):
            pass
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    elif kind is str:
        if value is None:
            return ""
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
    name = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else "mapping"
    raise ConfigError(f"{key} must be of type {name}, not {value!r}")
