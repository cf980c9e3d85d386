"""Run configuration: frozen dataclasses, filled from YAML files and ``key=value`` overrides.

``load`` merges, in this order, the defaults, what the chosen method stands for, a YAML file and overrides such as
``optim.lr=1e-4`` or ``wia=off``; an unknown key is an error that names the nearest one, so that a misspelled one never
silently trains the default.

>>> load(overrides=["optim.lr=1e-4", "wia=off"]).optim.lr
0.0001
>>> load(overrides=["rollout.temprature=0.9"])
Traceback (most recent call last):
  ...
roleagent.options.UnknownOption: unknown key 'rollout.temprature'; did you mean 'rollout.temperature'?
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field
from pydantic.dataclasses import dataclass

from roleagent.config.curriculum import CurriculumConfig, EndpointConfig, LessonsConfig, SimulatorConfig
from roleagent.config.settings import (
    KNOWN_KEYS,
    AgentConfig,
    CriticConfig,
    DeepSpeedConfig,
    DistillConfig,
    EnvConfig,
    Environments,
    EstimatorOptions,
    LoRAConfig,
    LossConfig,
    OptimConfig,
    PolicyConfig,
    PromptConfig,
    RolloutConfig,
    TrackingConfig,
    TrainConfig,
    VLLMConfig,
    WarmStartConfig,
    environment_name,
)
from roleagent.config.words import WORDS
from roleagent.env_card import EnvCard, card_of
from roleagent.imports import load_object, searched_first
from roleagent.options import ConfigError, UnknownOption, parse_yaml, shown, user_path
from roleagent.validation import Integer, PathText, Switch, Text, validated

METHODS = {
    "role_agent": "roleagent.learners.method:RoleAgent",
    "gigpo": "roleagent.learners.method:GiGPO",
    "grpo": "roleagent.learners.method:GRPO",
    "rloo": "roleagent.learners.method:RLOO",
    "reinforce_pp": "roleagent.learners.method:ReinforcePlusPlus",
    "reinforce_pp_baseline": "roleagent.learners.method:ReinforcePlusPlusBaseline",
    "ppo": "roleagent.learners.method:PPO",
    "dapo": "roleagent.learners.method:DAPO",
    "gspo": "roleagent.learners.method:GSPO",
    "distill": "roleagent.learners.method:Distillation",
    "agent_r": "roleagent.learners.agent_r.method:AgentR",
    "eto": "roleagent.learners.agent_r.method:ETO",
    "sft": "roleagent.learners.sft.method:SFT",
}
"""``method=NAME`` chooses one of these classes, ``method=module:Class`` one of a user's (docs/write_a_method.md).

The configuration needs two parts of it: ``settings``, the options that it sets below a file and the command line, and
``Options``, the dataclass of its own section ``options``.
"""

GENENV = "roleagent.learners.genenv.method:GenEnv"
"""With ``genenv=on`` this class is mixed into the method."""


@dataclass(frozen=True, config=KNOWN_KEYS)
class NoOptions:
    """The options of a method that has none of its own."""


_MOST, _DEEPEST = 10_000, 32  # values in a file, and sections within sections


@dataclass(frozen=True, config=KNOWN_KEYS)
class Config:
    """The configuration of a run."""

    method: Text = "role_agent"  # one of METHODS, or module:Class
    wia: Switch = True  # World-In-Agent: predictions are asked for, scored, trained, and modulate returns.
    # Off by default with agent.command
    aiw: Switch = True  # Agent-In-World: failures are analyzed and steer the choice of tasks
    genenv: Switch = False  # GenEnv: a simulator writes training tasks, and learns which fit the agent
    seed: Annotated[Integer, Field(ge=0, le=2**32 - 1)] = 0  # of everything random in the run
    run_dir: PathText = ""  # empty: runs/<method>-<environment>-seed<seed>
    env: Environments = field(default_factory=EnvConfig)  # or a list of several (docs/several_environments.md)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    warmstart: WarmStartConfig = field(default_factory=WarmStartConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    vllm: VLLMConfig = field(default_factory=VLLMConfig)
    estimator: EstimatorOptions = field(default_factory=EstimatorOptions)
    loss: LossConfig = field(default_factory=LossConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    lessons: LessonsConfig = field(default_factory=LessonsConfig)
    simulator: SimulatorConfig = field(default_factory=SimulatorConfig)
    endpoint: EndpointConfig = field(default_factory=EndpointConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    options: Any = field(default_factory=NoOptions)  # of the method alone (its class Options)

    @property
    def folder(self) -> Path:
        """The run folder."""
        name = self.environment.split("/")[-1].lower()
        return Path(self.run_dir or f"runs/{self.method.replace(':', '.')}-{name}-seed{self.seed}")

    @property
    def reads_failures(self) -> bool:
        """Whether the curriculum has a failure library; its control ``types`` has none."""
        return self.aiw and self.curriculum.analyst != "types"

    @property
    def environment(self) -> str:
        """The Gymnasium id, or the names of several environments, for people."""
        return self.env.id if isinstance(self.env, EnvConfig) else "+".join(one.name for one in self.env)

    @property
    def environments(self) -> Mapping[str, Config]:
        """The configuration of each environment by its name; of a single one this configuration, by ``""``.

        A share of a warm start for ``name/type`` is that of the type in the environment of this name.
        """
        if isinstance(self.env, EnvConfig):
            return {"": self}
        each, names = {}, {one.name for one in self.env}
        for one in self.env:
            others = names - {one.name}
            shares = {
                kind.removeprefix(f"{one.name}/"): share
                for kind, share in self.warmstart.shares.items()
                if kind.partition("/")[0] not in others
            }
            warmstart = dataclasses.replace(self.warmstart, shares=shares)
            each[one.name] = dataclasses.replace(self, env=one, warmstart=warmstart)
        return each

    def turn_limit(self, iteration: int) -> int | None:
        """Most turns of a training episode in an iteration, numbered from 1; None: as many as the environment allows.

        >>> config = load(overrides=["rollout.turns=[4, 8]", "train.iterations=5"])
        >>> [config.turn_limit(iteration) for iteration in range(1, 6)]
        [4, 4, 4, 8, 8]
        """
        limits = self.rollout.turns
        place = (iteration - 1) * len(limits) // max(1, self.train.iterations)
        return limits[min(place, len(limits) - 1)] if limits else None

    @property
    def reads_start(self) -> str:
        """The option that needs the policy after the warm start beside the one that learns; ``""``: none does."""
        if self.distill.teacher == "self":
            return "distill.teacher=self"
        return f"loss.kl={self.loss.kl:g}" if self.loss.kl else ""

    @property
    def simulator_is_model(self) -> bool:
        """Whether a language model of the run writes training tasks."""
        return self.genenv and self.simulator.kind == "model"

    @property
    def simulator_is_served(self) -> bool:
        """Whether a model behind a server writes tasks, during training or a list before it."""
        return self.simulator.kind == "endpoint" or (self.simulator.kind == "static" and bool(self.endpoint.url))

    @property
    def shares_simulator(self) -> bool:
        """Whether that model is the agent itself."""
        return self.simulator_is_model and self.simulator.weights == "shared"


def load(path: str | Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Defaults, then the method's options, then the YAML file, then the overrides.

    Args:
        path: a YAML file with any subset of the keys. A path such as ``configs/toy.yaml`` that does not exist is looked
            for among the configurations of the package. The key ``base`` names another file, relative to this one, on
            which it is built: an ablation is then the one line in which it differs.
        overrides: strings ``dotted.key=value``; values are read as YAML (``on``/``off`` are booleans).

    Another ``env.id`` than that of the ``base``, or of the file, drops its ``env`` section, which belongs to its own
    environment. Splits that nothing names are those of the environment's card. Another ``method`` likewise drops the
    section ``options``, unless it has those options, too.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or an unreadable file.
    """
    return overridden({} if path is None else _read(_find(user_path(path)), ()), overrides)


def overridden(tree: Mapping[str, Any], overrides: Iterable[str]) -> Config:
    """The configuration of nested mappings with overrides, as :func:`load` reads them."""
    tree, given = dict(tree), [_override(one) for one in overrides]
    for env_id in [value for key, value in given if key == "env.id"]:
        tree = _for_environment(tree, env_id)
    for method in [value for key, value in given if key == "method"][-1:]:
        tree = for_method(tree, method)
    for key, value in given:
        tree = _replaced(tree, key.split("."), value)
    return from_dict(tree)


def _override(override: str) -> tuple[str, Any]:
    """Key and value of ``key=value``."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"{shown(override)} is not of the form key=value, e.g. optim.lr=1e-4")
    if key.count(".") > _DEEPEST:
        raise ConfigError(f"no option lies as deep as {shown(key)}")
    try:
        return key, _parsed(text)
    except ValueError as error:
        raise ConfigError(f"the value of {shown(key)} cannot be read as YAML: {shown(text)}") from error


def _for_environment(tree: dict[str, Any], env_id: Any) -> dict[str, Any]:
    """The tree without the section of another environment, whose arguments and splits do not fit.

    An environment whose card names no splits keeps those of the section. Of a list of several it is the one of that id.

    >>> _for_environment({"env": {"eval_split": "test", "kwargs": {"size": "tiny"}}}, "RoleAgent/Toy-v0")
    {'env': {}}
    >>> _for_environment({"env": {"eval_split": "test", "kwargs": {"size": "tiny"}}}, "Someone/Else-v1")
    {'env': {'eval_split': 'test'}}
    >>> _for_environment({"env": [{"id": "a", "kwargs": {"size": 1}, "share": 0.5}, {"id": "b", "share": 0.5}]}, "a")
    {'env': {'id': 'a', 'kwargs': {'size': 1}}}
    """
    section = tree.get("env")
    if isinstance(section, list):
        chosen = [one for one in section if isinstance(one, Mapping) and one.get("id") == env_id]
        if len(chosen) > 1:
            names = ", ".join(str(one.get("name")) for one in chosen)
            raise ConfigError(f"env lists {env_id} as {names}: an id names none of them; give one a file of its own")
        own = chosen[0] if chosen else {}
        return {**tree, "env": {key: value for key, value in own.items() if key not in ("name", "share")}}
    if not isinstance(section, Mapping) or section.get("id", EnvConfig.id) == env_id:
        return tree
    kept = ("train_split", "eval_split") if _card(env_id).splits == EnvCard.splits else ()
    return {**tree, "env": {key: section[key] for key in kept if key in section}}


def for_method(tree: dict[str, Any], name: Any) -> dict[str, Any]:
    """The tree without the section ``options`` of another method, unless this one has those options, too.

    >>> for_method({"method": "agent_r", "options": {"search": {"depth": 9}}}, "grpo")
    {'method': 'agent_r'}
    """
    if not {"method", "options"} <= tree.keys():
        return tree
    own, other = (method_class(one).Options for one in (tree["method"], name))
    return tree if issubclass(other, own) else {key: value for key, value in tree.items() if key != "options"}


def _card(env_id: Any) -> EnvCard:
    """The card of an environment, whose module is imported if the id names one."""
    module, _, name = str(env_id).rpartition(":")
    if module:
        with suppress(Exception), searched_first():  # making the environment says what is wrong with the module
            importlib.import_module(module)
    return card_of(name)


def _splits(env_id: Any) -> dict[str, str]:
    """The splits that are trained and measured on where a configuration names none.

    >>> _splits("RoleAgent/ALFWorld-v0"), _splits("RoleAgent/BFCL-v0")
    ({'train_split': 'train', 'eval_split': 'valid_unseen'}, {'train_split': 'all', 'eval_split': 'all'})
    """
    splits = _card(env_id).splits
    held_out = EnvConfig.eval_split if EnvConfig.eval_split in splits else splits[:2][-1]
    return {"train_split": splits[0], "eval_split": held_out}


def _with_splits(section: Mapping[str, Any]) -> dict[str, Any]:
    """The section of an environment; splits that it does not name are those of the card."""
    known = "id" not in section or {"train_split", "eval_split"} <= section.keys()
    return dict(section) if known else {**_splits(section["id"]), **section}


def _find(path: Path) -> Path:
    shipped = Path(__file__).parents[1] / path
    return shipped if not path.exists() and path.parts[:1] == ("configs",) and shipped.is_file() else path


def _read(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    """The tree of a file, laid over that of its ``base``."""
    try:
        tree = _parsed(path.read_text(encoding="utf-8-sig")) or {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {' '.join(str(error).split())}") from error
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path} must hold keys and values, not a {type(tree).__name__}")
    base = tree.get("base")
    if base is None:
        return dict(tree)
    resolved = path.resolve()
    if not isinstance(base, str) or resolved in readers:
        raise ConfigError(f"the base of {path} must be the name of another file, not {shown(base)}")
    own = {key: value for key, value in tree.items() if key != "base"}
    below = _read(path.parent / user_path(base), (*readers, resolved))
    below = for_method(below, own["method"]) if "method" in own else below
    section = own.get("env")
    if isinstance(section, Mapping) and "id" in section:
        below = _for_environment(below, section["id"])
    elif isinstance(section, Mapping) and isinstance(below.get("env"), list):
        raise ConfigError(f"env is a list in the base of {path}: write the whole list, or the id of one environment")
    return merged(below, own)


def _parsed(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        ValueError: it has none, or too much: an alias in YAML stands for all of what it names, perhaps itself.
    """
    try:
        tree = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except RecursionError:
        raise ValueError("sections within sections without end") from None
    waiting, seen = [(tree, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        seen += 1
        if depth > _DEEPEST or seen + len(waiting) + len(inner) > _MOST:
            raise ValueError(f"more than {_MOST} values, or sections more than {_DEEPEST} deep")
        waiting += [(item, depth + 1) for item in inner]
    return tree


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees in one; where both have a value that is no section, that of ``upper``.

    >>> merged({"optim": {"lr": 1, "minibatches": 2}}, {"optim": {"lr": 3}})
    {'optim': {'lr': 3, 'minibatches': 2}}
    """
    both = dict(lower)
    for key, value in upper.items():
        below = both.get(key)
        both[key] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return both


def _replaced(tree: Any, path: Sequence[str], value: Any) -> Any:
    """The tree with another value at a path, whatever was there.

    >>> _replaced({"env": {"kwargs": {"size": "tiny"}}}, ["env", "kwargs"], {})
    {'env': {'kwargs': {}}}
    >>> _replaced({"env": [{"id": "a"}, {"id": "b"}]}, ["env", "1", "share"], 0.5)
    {'env': [{'id': 'a'}, {'id': 'b', 'share': 0.5}]}
    """
    if not path:
        return value
    if isinstance(tree, list):
        if path[0] not in map(str, range(len(tree))):
            raise ConfigError(_no_place(tree, path))
        return [_replaced(one, path[1:], value) if str(n) == path[0] else one for n, one in enumerate(tree)]
    below = tree if isinstance(tree, Mapping) else {}
    return {**below, path[0]: _replaced(below.get(path[0]), path[1:], value)}


def _no_place(members: Sequence[Any], path: Sequence[str]) -> str:
    """What is wrong with a path that names no place of the list ``env``, and what to write."""
    names = [one.get("name") or environment_name(str(one.get("id"))) for one in members if isinstance(one, Mapping)]
    if path[0] in names:
        right = ".".join(["env", str(names.index(path[0])), *path[1:]])
        return f"env is a list: name the place of {path[0]}, {right}"
    if path[0].isdigit():
        return f"env has no place {path[0]}: it lists {len(members)} environments, from env.0 to env.{len(members) - 1}"
    return f"env is a list: name the place of an environment, such as env.0.{path[0]}"


def from_dict(tree: Mapping[str, Any], imports: bool = True) -> Config:
    """A checked :class:`Config` from nested mappings.

    Missing options have the defaults of their ``method``, missing splits those of the environment. With
    ``agent.command`` ``wia`` is off unless the tree has it.

    Args:
        imports: whether to import a user's method; else the section ``options`` stays as it is. A report imports none.

    Raises:
        ConfigError: an unknown key or method, a value of the wrong type, or a number that is not finite or not in its
            range.

    >>> from_dict({"method": "gspo"}).loss.importance_level
    'sequence'
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"a configuration holds keys and values, not a {type(tree).__name__}")
    name = tree.get("method", Config.method)
    method = method_class(name) if imports or name in METHODS else None
    settings = dict(_settings(method)) if method else {}
    agent = tree.get("agent")
    if isinstance(agent, Mapping) and agent.get("command"):
        settings["wia"] = False  # a program writes its own prompts
    tree = merged(settings, tree)
    section = tree.get("env")
    if isinstance(section, Mapping):
        tree["env"] = _with_splits(section)
    elif isinstance(section, list | tuple):
        shared = any(isinstance(one, Mapping) and "share" in one for one in section)
        equal = {} if shared else {"share": 1 / max(1, len(section))}
        tree["env"] = [{**equal, **_with_splits(one)} if isinstance(one, Mapping) else one for one in section]
    own = tree.pop("options", {})
    config = validated(Config, tree, WORDS)
    if not method:
        return dataclasses.replace(config, options=own)
    try:
        return dataclasses.replace(config, options=validated(method.Options, own, WORDS, "options"))
    except UnknownOption as error:
        raise UnknownOption(f"{error} (options.* are those of method={config.method})") from None


def _settings(method: type) -> Mapping[str, Any]:
    """What a method sets: its own settings over those of its base classes."""
    return reduce(merged, (vars(one).get("settings", {}) for one in reversed(method.__mro__)))


def to_dict(config: Config) -> dict[str, Any]:
    """The whole configuration as nested dictionaries, every default written out."""
    return dataclasses.asdict(config)


def check_lengths(config: Config, horizon: int) -> None:
    """Refuses replies that leave a policy's context no room for a prompt, and predictions that no reply has room for.

    Args:
        config: the run's.
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
    if config.lessons.show != "none":
        lengths["lessons.tokens"] = config.lessons.tokens
    for option, tokens in lengths.items():
        if tokens >= config.policy.context:
            raise ConfigError(
                f"{option}={tokens} leaves no room for a prompt in policy.context={config.policy.context}"
            )


def method_class(name: Any) -> Any:
    """The class of a method.

    Args:
        name: one of :data:`METHODS`, or ``module:Class``; the working directory is searched first.

    Raises:
        ConfigError: there is no such method, or it lacks a part.

    >>> method_class("grpo").__name__
    'GRPO'
    """
    if isinstance(name, str) and name in METHODS:
        return load_object(METHODS[name])
    if not isinstance(name, str) or ":" not in name:
        near = difflib.get_close_matches(str(name)[:100], METHODS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"method must be one of {', '.join(METHODS)}, or module:Class, not {shown(name)}{hint}")
    found, base = load_object(name), load_object("roleagent.learners.method:Method")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(
            f"method={name} is no method: derive a class from roleagent.learners.method.Method (docs/write_a_method.md)"
        )
    own: Any = found
    for settings in (vars(one).get("settings", {}) for one in own.__mro__):
        if not isinstance(settings, Mapping):
            raise ConfigError(f"method={name}: settings must be a mapping of sections, not {shown(settings)}")
    if own.training is not None and own.stage == base.stage:
        raise ConfigError(f"method={name}: what it does in training needs a name in the log: give the class a stage")
    if not dataclasses.is_dataclass(own.Options):
        raise ConfigError(f"method={name}: Options must be a dataclass")
    for option in dataclasses.fields(own.Options):
        if option.default is option.default_factory is dataclasses.MISSING:
            raise ConfigError(f"method={name}: the option {option.name} needs a default")
    return own
