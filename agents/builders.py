"""Builders: environments, rollouts, policies and analysts from a configuration."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import gymnasium
from numpy.random import Generator

from roleagent.agents.analysts.models import EndpointAnalyst, ModelAnalyst
from roleagent.agents.chat.types import EndpointError
from roleagent.agents.chat_template import ChatTemplate
from roleagent.agents.gateway.rollout import ProgramRollout
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rollout import Rollout
from roleagent.agents.task_simulator import EndpointSimulator
from roleagent.config import Config, ConfigError
from roleagent.config.curriculum import EndpointConfig
from roleagent.config.settings import AgentConfig, EnvConfig, EnvMemberConfig
from roleagent.curricula.rule_analyst import RuleAnalyst, UnreadAnalyst
from roleagent.curricula.simulators import BaseSimulator, StaticSimulator, TableSimulator
from roleagent.env_card import Instructions, card_of, instructions_of, step_limit
from roleagent.envs.mixture import Mixture
from roleagent.envs.pool import EnvPool
from roleagent.envs.registry import make_env
from roleagent.envs.tools.formats import FORMATS
from roleagent.envs.wrappers import PredictedState, ReplyReader, StepTimeout, Tags, ToolTags, read_replies
from roleagent.envs.wrappers.predicted_state import default_horizon
from roleagent.imports import load_class
from roleagent.similarity import similarity_of
from roleagent.tasks.grammar import OpenTaskSplit, TaskGrammar, grammar_of
from roleagent.tasks.simulator import Simulator
from roleagent.tasks.split import JointTaskSplit, TaskSplit, data_of, first_tasks
from roleagent.types import Analyst

if TYPE_CHECKING:  # agents without a model or a server need neither torch nor openai, which take seconds to load
    from roleagent.agents.chat.endpoint import Endpoint
    from roleagent.agents.policies.hf import HFPolicy
    from roleagent.curricula.lessons import Lessons


def make_base(config: Config, split: str) -> gymnasium.Env:
    """The configured base environment, on one split.

    Raises:
        ConfigError: there is no such environment or split, it has no such argument, or it lacks data or a package; or
            ``genenv=on`` and it has no task grammar.
    """
    arguments: dict[str, Any] = {"split": split, **config.env.kwargs}
    if config.genenv and split == config.env.train_split:
        if ":" in config.env.id or card_of(config.env.id).task_grammar:
            arguments["generated_tasks"] = True
        elif not isinstance(config.env, EnvMemberConfig):
            raise ConfigError(f"genenv=on writes tasks, but the environment {config.env.id} has no task grammar")
    env = make_env(config.env.id, arguments, "kwargs." if isinstance(config.env, EnvMemberConfig) else "env.kwargs.")
    return StepTimeout(env, config.env.step_timeout) if config.env.step_timeout else env


def make_wrapped(config: Config, split: str, horizon: int) -> gymnasium.Env:
    """The environment with its wrappers: takes raw replies, scores predictions if ``horizon`` > 0."""
    return wrap(make_base(config, split), config, horizon)


def wrap(env: gymnasium.Env, config: Config, horizon: int) -> gymnasium.Env:
    """A base environment with the wrappers of :func:`make_wrapped`."""
    if horizon:
        env = PredictedState(env, horizon, similarity_of(config.estimator.similarity))
    return _read_replies(env, config, horizon)


def _read_replies(env: gymnasium.Env, config: Config, horizon: int) -> Tags | ToolTags:
    try:
        return read_replies(env, config.prompt.think, horizon, config.prompt.call_format, config.prompt.notes)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def model_analyst(config: Config, policy: Policy, batch: int = 64) -> ModelAnalyst:
    """The policy in the environment role, as configured; it answers ``batch`` questions side by side."""
    options = config.curriculum
    return ModelAnalyst(
        policy,
        options.temperature,
        options.reflection_tokens,
        options.selection_tokens,
        options.candidate_tokens,
        batch,
        templates=read_templates(config.prompt.templates),
        thinks=config.prompt.thinks,
    )


def simulator_class(kind: str) -> type:
    """The class of a third party's task simulator; ConfigError if it cannot be loaded or lacks a method."""
    return load_class(kind, "propose", "update", "initial", "costs", "state_dict", "load_state_dict")


def analyst_class(name: str) -> type:
    """The class of a third party's analyst; ConfigError if it cannot be loaded or lacks a method."""
    return load_class(name, "reflect", "select", "costs")


def open_rollout_policy(config: Config, policy: HFPolicy) -> Policy:
    """The policy that samples: the model itself, vLLM, or ``module:Class``, called with ``(config, policy)``.

    Raises:
        ConfigError, PolicyError: it cannot be opened; one line.
    """
    if config.rollout.backend == "local":
        return policy
    if ":" in config.rollout.backend:
        return load_class(config.rollout.backend, "generate", "sync", "offload")(config, policy)
    from roleagent.agents.policies.vllm.policy import open_vllm

    return open_vllm(config, policy)


def check_rollout_backend(config: Config) -> None:
    """Refuses a rollout backend that cannot work, before anything is computed.

    Raises:
        ConfigError, PolicyError: one line that explains what to change.
    """
    if ":" in config.rollout.backend:
        load_class(config.rollout.backend, "generate", "sync", "offload")
    elif config.rollout.backend == "vllm":
        from roleagent.agents.policies.vllm.policy import check

        check(config)


def check_agent(config: Config) -> None:
    """Refuses an agent program that cannot be started, and options that it cannot be trained with.

    Raises:
        ConfigError: one line that explains what to change.
    """
    if not config.agent.command:
        return
    try:
        words = shlex.split(config.agent.command)
    except ValueError as error:
        raise ConfigError(f"agent.command is no command ({error}): {config.agent.command}") from error
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(f"agent.command: there is no program {words[0] if words else repr('')} that can be started")
    if config.wia:
        raise ConfigError("an agent program writes its own prompts, so nothing asks for predictions: set wia=off")


def _open_endpoint(server: EndpointConfig, user: str) -> Endpoint:
    """A configured server.

    Args:
        user: the option that needs the server.

    Raises:
        ConfigError: no server is named, or its URL or key is malformed.
    """
    if not server.url:
        raise ConfigError(f"{user} needs endpoint.url, e.g. http://127.0.0.1:8000/v1")
    from roleagent.agents.chat.endpoint import Endpoint

    try:
        return Endpoint(server.url, server.model, concurrency=server.concurrency, timeout=server.timeout)
    except (EndpointError, ValueError) as error:
        raise ConfigError(str(error)) from error


def _prices(server: EndpointConfig) -> tuple[float, float] | None:
    return (server.prices[0], server.prices[1]) if server.prices else None


def endpoint_analyst(config: Config) -> EndpointAnalyst:
    """The model behind the configured server in the environment role.

    Raises:
        ConfigError: no server is named, its URL or key is malformed, or its context has no room for an answer.
    """
    options, server = config.curriculum, config.endpoint
    endpoint = _open_endpoint(server, "curriculum.analyst=endpoint")
    try:
        return EndpointAnalyst(
            endpoint,
            temperature=options.temperature,
            answer_tokens=server.answer_tokens,
            prices=_prices(server),
            templates=read_templates(config.prompt.templates),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def open_analyst(config: Config, policy: Policy, batch: int = 64) -> Analyst:
    """The configured analyst: the policy itself, rules, a model behind a server, none for the controls that read no
    failures, or ``module:Class``, called without arguments.

    Args:
        batch: questions that the policy answers side by side.

    Raises:
        ConfigError: it cannot be opened; one line.
    """
    name = config.curriculum.analyst
    if name == "rule":
        return RuleAnalyst()
    if name in ("replay", "text", "frozen"):
        return UnreadAnalyst()
    if name == "endpoint":
        return endpoint_analyst(config)
    if ":" in name:
        return analyst_class(name)()
    return model_analyst(config, policy, batch)


def endpoint_simulator(config: Config, grammar: TaskGrammar) -> EndpointSimulator:
    """The model behind the configured server as a task simulator, during training or before it.

    Raises:
        ConfigError: no server is named, or its URL or key is malformed.
    """
    server = config.endpoint
    endpoint = _open_endpoint(server, f"simulator.kind={config.simulator.kind}")
    return EndpointSimulator(endpoint, grammar, answer_tokens=server.answer_tokens, prices=_prices(server))


def open_simulator(config: Config, grammar: TaskGrammar, rng: Generator) -> Simulator:
    """The configured task simulator that is no model of the run: a table, the base distribution, a fixed list, a model
    behind a server, or ``module:Class``, called with the grammar and the generator.

    Args:
        rng: draws what the simulator begins with.

    Raises:
        ConfigError: it cannot be opened; one line.
    """
    options = config.simulator
    if options.kind == "table":
        return TableSimulator(grammar, rng)
    if options.kind == "base":
        return BaseSimulator(grammar)
    if options.kind == "static":
        author = endpoint_simulator(config, grammar) if config.endpoint.url else None
        return StaticSimulator(grammar, options.tasks, rng, author)
    if ":" in options.kind:
        return simulator_class(options.kind)(grammar, rng)
    return endpoint_simulator(config, grammar)


@dataclass(frozen=True)
class EnvSplit:
    """One split of the configured environment, or of each of several.

    Attributes:
        base: an environment outside the pool, for experts and task types; it takes bare commands.
        task_split: its tasks, limited as configured for evaluation.
        horizon: steps that predictions look ahead; 0 with ``wia=off``. Of several environments the furthest.
        parts: where the configuration lists several environments, the split of each, by name. Their tasks have the ids
            of their environments, without the name.
        lessons: of earlier failures, for the prompts of its rollouts.
    """

    config: Config
    base: gymnasium.Env
    task_split: TaskSplit
    horizon: int
    parts: Mapping[str, EnvSplit] = field(default_factory=dict)
    lessons: Lessons | None = None

    @classmethod
    def open(cls, config: Config, split: str, limit: int = 0) -> EnvSplit:
        """Opens a split of one environment; ``limit`` > 0 keeps so many tasks, see
        :func:`~roleagent.tasks.split.first_tasks`.

        Raises:
            ConfigError: see :func:`make_base`; or the environment has no ``task_split``, or is not ready.
        """
        base: Any = make_base(config, split)
        if not isinstance(getattr(base.unwrapped, "task_split", None), TaskSplit):
            raise ConfigError(
                f"the environment {config.env.id} has no task_split of the class TaskSplit; docs/add_environment.md "
                "shows what a run needs"
            )
        if hasattr(base.unwrapped, "check_ready"):
            try:
                base.unwrapped.check_ready()
            except (RuntimeError, OSError, gymnasium.error.DependencyNotInstalled) as error:
                raise ConfigError(f"the environment {config.env.id} is not ready: {error}") from error
        task_split: TaskSplit = base.unwrapped.task_split
        if limit:
            task_split = first_tasks(base, limit)
        horizon = config.prompt.horizon if config.wia else 0
        if config.wia and not horizon:
            steps = step_limit(base)
            if steps is None:
                raise ConfigError(f"{config.env.id} has no max_steps: set prompt.horizon, the steps to predict ahead")
            horizon = default_horizon(steps)
        return cls(config, base, task_split, horizon)

    @classmethod
    def training(cls, config: Config) -> EnvSplit:
        """Opens the split that is trained on, of each environment.

        Raises:
            ConfigError: see :meth:`open`; or ``genenv=on`` and no environment has a task grammar.
        """
        split = cls._joined(config, lambda one: cls.open(one, one.env.train_split))
        try:
            written = split.written
        except ValueError as error:
            raise ConfigError(f"genenv=on: {error}") from error
        if config.genenv and not written:
            free = any(isinstance(part.task_split, OpenTaskSplit) for part in split.environments.values())
            raise ConfigError(
                f"simulator.kind=table fits fields, and tasks of {config.environment} are free text: set "
                "simulator.kind=model, endpoint, base or static"
                if free
                else f"genenv=on writes tasks, but no environment of {config.environment} has a task grammar"
            )
        return split

    @classmethod
    def held_out(cls, config: Config) -> EnvSplit:
        """Opens the split of evaluations, of each environment, with ``env.eval_tasks`` tasks.

        Raises:
            ConfigError: see :meth:`open`; or ``rollout.eval_predictions`` is off where predictions change the play.
        """
        split = cls._joined(config, lambda one: cls.open(one, one.env.eval_split, one.env.eval_tasks))
        if not split.horizon or config.rollout.eval_predictions:
            return split
        if config.prompt.predictions != "detached":
            raise ConfigError(
                f"with prompt.predictions={config.prompt.predictions} predictions change the play: leave "
                "rollout.eval_predictions on"
            )
        return split.without_predictions()

    @classmethod
    def _joined(cls, config: Config, opened: Callable[[Config], EnvSplit]) -> EnvSplit:
        """The split of one environment itself, or one of several."""
        if isinstance(config.env, EnvConfig):
            return opened(config)
        parts = {}
        for name, one in config.environments.items():
            try:
                parts[name] = opened(one)
                _ = parts[name].reader
            except ConfigError as error:
                raise ConfigError(f"the environment {name} of env: {error}") from error
        ids, named = [part.task_split.env_id for part in parts.values()], dict(parts)
        for name, part in parts.items():
            own = part.task_split
            if ids.count(own.env_id) > 1:
                # Two environments of one class are two in the failure library; a card is found behind the colon.
                named[name] = replace(part, task_split=replace(own, env_id=f"{name}:{own.env_id}"))
        task_split = JointTaskSplit.of({name: part.task_split for name, part in named.items()})
        base = Mixture({name: partial(_itself, part.base) for name, part in named.items()}, task_split)
        return cls(config, base, task_split, max(part.horizon for part in named.values()), named)

    @property
    def environments(self) -> Mapping[str, EnvSplit]:
        """The split of each environment, by name; of a single one itself, by ``""``."""
        return self.parts or {"": self}

    @cached_property
    def written(self) -> dict[str, EnvSplit]:
        """Those of :attr:`environments` for which ``genenv=on`` writes tasks; a table fits no free text."""
        if not self.config.genenv:
            return {}
        parts = {name: one for name, one in self.environments.items() if isinstance(one.task_split, OpenTaskSplit)}
        if self.config.simulator.kind != "table":
            return parts
        return {name: part for name, part in parts.items() if grammar_of(part.base).varies}

    def of(self, task_id: str) -> EnvSplit:
        """The split of the environment that has a task of this split."""
        return self.parts[task_id.partition("/")[0]] if self.parts else self

    def without_predictions(self) -> EnvSplit:
        """The same tasks, played without predictions."""
        parts = {name: part.without_predictions() for name, part in self.parts.items()}
        return replace(self, horizon=0, parts=parts)

    def without_program(self) -> EnvSplit:
        """The same tasks, played by the built-in loop and not by ``agent.command``."""
        parts = {name: part.without_program() for name, part in self.parts.items()}
        return replace(self, config=replace(self.config, agent=AgentConfig()), parts=parts)

    def with_calls_of(self, policy: Policy | None, say: Callable[[str], None] | None = None) -> EnvSplit:
        """The same tasks, with calls of tools as the policy's chat template writes them (``prompt.tool_format``).

        Args:
            policy: opened from a path; None: it has no template.
            say: receives a line about the format, if ``auto`` has chosen it.

        Raises:
            ConfigError: the template writes another format than the configured one.
        """
        prompt, bases = self.config.prompt, [part.base for part in self.environments.values()]
        calls = self.config.agent.command or any(base.has_wrapper_attr("tools") for base in bases)
        if policy is None or not calls or not policy.tokenizer.chat_template:
            return self
        found = ChatTemplate(policy.tokenizer).call_format
        if found and prompt.tool_format not in ("auto", found):
            raise ConfigError(
                f"prompt.tool_format={prompt.tool_format}, but the model's chat template writes calls as {found}, "
                f"{FORMATS[found].form}: set prompt.tool_format=auto"
            )
        if prompt.tool_format != "auto":
            return self
        chosen = found or prompt.call_format
        why = {"": "the chat template shows none", None: "the chat template has a format that is not known"}
        if say is not None:
            say(f"calls of tools: {chosen} ({why.get(found, 'as in the chat template')})")
        return self._with_format(chosen)

    def _with_format(self, name: str) -> EnvSplit:
        config = replace(self.config, prompt=replace(self.config.prompt, tool_format=name))
        parts = {key: part._with_format(name) for key, part in self.parts.items()}
        return replace(self, config=config, parts=parts)

    def reading(self, lessons: Lessons | None) -> EnvSplit:
        """The same tasks, with lessons in the prompts."""
        parts = {name: part.reading(lessons) for name, part in self.parts.items()}
        return replace(self, lessons=lessons, parts=parts)

    def only(self, task_ids: Sequence[str]) -> EnvSplit:
        """Some tasks of the split, in this order."""
        parts = {}
        for name, part in self.parts.items():
            own = [task_id.removeprefix(f"{name}/") for task_id in task_ids if task_id.startswith(f"{name}/")]
            parts |= {name: part.only(own)} if own else {}
        return replace(self, task_split=replace(self.task_split, task_ids=tuple(task_ids)), parts=parts)

    def first(self, tasks: int) -> EnvSplit:
        """The first ``tasks`` of the split, of all types (:meth:`~roleagent.tasks.split.TaskSplit.first`); 0: all."""
        if not 0 < tasks < len(self.task_split):
            return self
        return self.only(self.task_split.first(tasks, self.task_type or (lambda task_id: "")).task_ids)

    @property
    def task_type(self) -> Callable[[str], str] | None:
        """The type of a task id; None where the environment does not say it."""
        known = self.base if self.parts else self.base.unwrapped
        return getattr(known, "task_type", None)

    def manifest(self) -> dict[str, Any]:
        """The tasks and the data, as results name them; of several environments also those of each."""
        if not self.parts:
            return {**self.task_split.manifest(), "data": data_of(self.base)}
        each = {name: part.manifest() for name, part in self.parts.items()}
        return {**self.task_split.manifest(), "environments": each}

    @property
    def reader(self) -> ReplyReader:
        """Reads and writes replies, as the outermost wrapper of the environment does; several have several readers."""
        assert not self.parts, "of several environments each has its own: split.of(task_id).reader"
        return _read_replies(self.base, self.config, self.horizon).reader

    @property
    def guide(self) -> Instructions:
        """The environment's instructions, with the form of a reply that the outermost wrapper reads."""
        guide = instructions_of(self.base)
        return replace(guide, form=self.reader.form or guide.form)

    def make_base(self) -> gymnasium.Env:
        """Another environment like :attr:`base`."""
        return self._make(lambda part: make_base(part.config, part.task_split.split))

    def make_wrapped(self) -> gymnasium.Env:
        """Another environment with its wrappers: takes raw replies, scores predictions."""
        return self._make(lambda part: make_wrapped(part.config, part.task_split.split, part.horizon))

    def _make(self, make: Callable[[EnvSplit], gymnasium.Env]) -> gymnasium.Env:
        if not self.parts:
            return make(self)
        assert isinstance(self.task_split, JointTaskSplit)
        return Mixture({name: partial(make, part) for name, part in self.parts.items()}, self.task_split)

    def rollout(self, policy: Policy, plain: bool = False, pool: EnvPool | None = None) -> Rollout:
        """A rollout of a policy on this split; a ``plain`` one plays without predictions.

        With ``agent.command`` that program plays.

        Args:
            pool: of environments as :meth:`make_wrapped` makes them; None: one of its own.
        """
        if self.config.agent.command:
            return self._program_rollout(policy)
        pool = pool or EnvPool(self.make_wrapped)
        prompt, limits = self.config.prompt, self.config.rollout
        if self.parts:
            parts = {name: part.rollout(policy, plain, pool) for name, part in self.parts.items()}
            found = Rollout(
                policy, pool, self.task_split.env_id, prompt, limits, self.horizon, plain=plain, parts=parts
            )
        else:
            found = Rollout(
                policy, pool, self.task_split.env_id, prompt, limits, self.horizon, self.guide, self.reader, plain
            )
        found.lessons = self.lessons
        return found

    def _program_rollout(self, policy: Policy) -> ProgramRollout:
        config = self.config
        check_agent(config)
        return ProgramRollout(
            *(policy, EnvPool(self.make_base), self.task_split.env_id, config.prompt, config.rollout, 0),
            parts={name: part._program_rollout(policy) for name, part in self.parts.items()},
            agent=config.agent,
            log=config.folder / "agent.log",
        )


def _itself(env: gymnasium.Env) -> gymnasium.Env:
    return env
