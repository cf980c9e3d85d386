"""Run configuration: frozen dataclasses, filled from YAML files and ``key=value`` overrides.

Every option of a run has one place here, with its unit and its default. ``load`` merges, in this order, the defaults,
a YAML file and overrides such as ``optim.lr=1e-4`` or ``wia=off``; an unknown key is an error that names the nearest
one, so that a misspelt option never silently trains the default.

>>> load(overrides=["optim.lr=1e-4", "wia=off"]).optim.lr
0.0001
>>> load(overrides=["rollout.temprature=0.9"])
Traceback (most recent call last):
  ...
roleagent.options.ConfigError: unknown key 'rollout.temprature'; did you mean 'rollout.temperature'?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from roleagent.options import ConfigError, fill


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
    failures: float = 0.25  # per demonstration an episode failed on purpose: curriculum.analyst=model learns from it
    failure_weight: float = 0.3  # of a token of an analysis in the loss, relative to an action token
    shares: Mapping[str, float] = field(default_factory=dict)  # task type: share of its demonstrations; others: 1


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
class EndpointConfig:
    """An OpenAI-compatible server; its key is in the environment, as ROLEAGENT_API_KEY or OPENAI_API_KEY."""

    url: str = ""  # e.g. https://host/v1
    model: str = ""  # empty: the only one that the server offers
    concurrency: int = 8  # most questions at the same time
    timeout: float = 60.0  # seconds for one attempt
    context: int = 16384  # tokens
    answer_tokens: int = 2048  # most tokens of an answer, and of what a model thinks before it
    candidate_tokens: int = 4096  # most tokens of the question that lists the candidates
    prompt_price: float = 0.0  # money per million tokens
    completion_price: float = 0.0


@dataclass(frozen=True)
class CurriculumConfig:
    """Agent-In-World (AIW 5)."""

    epsilon: float = 0.5
    decay: float = 0.9
    success_factor: float = 0.5
    library: str = ""  # SQLAlchemy URL; empty: a SQLite file in the run folder
    analyst: Literal["model", "rule", "endpoint"] = "model"  # the policy itself, written rules, or a server
    temperature: float = 0.5  # of an analyst that samples
    reflection_tokens: int = 256  # most tokens of a reflection by the policy
    selection_tokens: int = 128  # most tokens of a selection by the policy
    candidates: int = 32  # most failures that the analyst chooses from
    candidate_tokens: int = 2048  # most tokens of the question to the policy that lists them
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)


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
        path: a YAML file with any subset of the keys. The key ``base`` names another file, relative to this one, on
            which it is built: an ablation is then the one line in which it differs.
        overrides: strings ``dotted.key=value``; values are read as YAML (``on``/``off`` are booleans).

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or an unreadable file.
    """
    tree = {} if path is None else _read(Path(path), ())
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise ConfigError(f"{override!r} is not of the form key=value, e.g. optim.lr=1e-4")
        try:
            value: Any = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"the value of {key!r} cannot be read as YAML: {text!r}") from error
        tree = _replaced(tree, key.split("."), value)
    return from_dict(tree)


def _read(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    """The tree of a file, laid over that of its ``base``."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path} must hold keys and values, not a {type(tree).__name__}")
    base = tree.get("base")
    if base is None:
        return dict(tree)
    resolved = path.resolve()
    if not isinstance(base, str) or resolved in readers:
        raise ConfigError(f"the base of {path} must be the name of another file, not {base!r}")
    own = {key: value for key, value in tree.items() if key != "base"}
    return _merged(_read(path.parent / base, (*readers, resolved)), own)


def _merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees in one; where both have a value that is no section, that of ``upper``.

    >>> _merged({"optim": {"lr": 1, "updates": 2}}, {"optim": {"lr": 3}})
    {'optim': {'lr': 3, 'updates': 2}}
    """
    both = dict(lower)
    for key, value in upper.items():
        below = both.get(key)
        both[key] = _merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return both


def _replaced(tree: Any, path: Sequence[str], value: Any) -> Any:
    """The tree with another value at a path, whatever was there.

    >>> _replaced({"env": {"kwargs": {"size": "tiny"}}}, ["env", "kwargs"], {})
    {'env': {'kwargs': {}}}
    """
    if not path:
        return value
    below = tree if isinstance(tree, Mapping) else {}
    return {**below, path[0]: _replaced(below.get(path[0]), path[1:], value)}


def from_dict(tree: Mapping[str, Any]) -> Config:
    """A :class:`Config` from nested mappings, checked. Raises :class:`ConfigError`."""
    return fill(Config, tree)


def to_dict(config: Config) -> dict[str, Any]:
    """The whole configuration as nested dictionaries, every default written out."""
    return dataclasses.asdict(config)
