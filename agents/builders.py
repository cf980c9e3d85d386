"""Builders: environments, rollouts, policies and analysts from a configuration."""

from __future__ import annotations

import math
import shlex
import shutil
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
from numpy.random import Generator

from roleagent.agents.analysts.models import EndpointAnalyst, ModelAnalyst
from roleagent.agents.chat.types import EndpointError
from roleagent.agents.gateway.rollout import ProgramRollout
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.prompt_templates import read_templates
from roleagent.agents.rollout import Rollout
from roleagent.agents.task_simulator import EndpointSimulator
from roleagent.config import Config, ConfigError
from roleagent.config.curriculum import EndpointConfig
from roleagent.config.methods import method_class
from roleagent.curricula.rule_analyst import RuleAnalyst, UnreadAnalyst
from roleagent.curricula.simulators import BaseSimulator, StaticSimulator, TableSimulator
from roleagent.env_card import Instructions, card_of, instructions_of, step_limit
from roleagent.envs.pool import EnvPool
from roleagent.envs.registry import make_env
from roleagent.envs.wrappers import PredictedState, ReplyReader, StepTimeout, Tags, ToolTags, read_replies
from roleagent.envs.wrappers.predicted_state import default_horizon
from roleagent.imports import load_class
from roleagent.similarity import similarity_of
from roleagent.tasks.grammar import TaskGrammar
from roleagent.tasks.simulator import Simulator
from roleagent.tasks.split import TaskSplit, data_of, first_tasks
from roleagent.types import Analyst

if TYPE_CHECKING:  # agents without a model or a server need neither torch nor openai, which take seconds to load
    from roleagent.agents.chat.endpoint import Endpoint
    from roleagent.agents.policies.hf import HFPolicy


def make_base(config: Config, split: str) -> gymnasium.Env:
    """The configured base environment, on one split.

    Raises:
        ConfigError: there is no such environment or split, it has no such argument, or it lacks data or a package; or
            ``genenv=on`` and it has no task grammar.
    """
    arguments: dict[str, Any] = {"split": split, **config.env.kwargs}
    if config.genenv and split == config.env.train_split:
        if ":" not in config.env.id and not card_of(config.env.id).task_grammar:
            raise ConfigError(f"genenv=on writes tasks, but the environment {config.env.id} has no task grammar")
        arguments["generated_tasks"] = True
    env = make_env(config.env.id, arguments, "env.kwargs.")
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
        return read_replies(env, config.prompt.think, horizon, config.prompt.tool_format, config.revision.notes)
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
    if method_class(config.method).stage != "train":
        raise ConfigError(f"agent.command works with reinforcement, not with method={config.method}")


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
            reflection_tokens=server.answer_tokens,
            selection_tokens=server.answer_tokens,
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
    if name in ("replay", "text"):
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


def open_simulator(config: Config, grammar: TaskGrammar, tasks: int, rng: Generator) -> Simulator:
    """The configured task simulator that is no model of the run: a table, the base distribution, a fixed list, a model
    behind a server, or ``module:Class``, called with the grammar and the generator.

    Args:
        tasks: of the training split.
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
        return StaticSimulator(grammar, math.ceil(options.augmentation * tasks), rng, author)
    if ":" in options.kind:
        return simulator_class(options.kind)(grammar, rng)
    return endpoint_simulator(config, grammar)


@dataclass(frozen=True)
class EnvSplit:
    """One split of the configured environment.

    Attributes:
        base: an environment outside the pool, for experts and task types.
        task_split: its tasks, limited as configured for evaluation.
        horizon: steps that predictions look ahead; 0 with ``wia=off``.
    """

    config: Config
    base: gymnasium.Env
    task_split: TaskSplit
    horizon: int

    @classmethod
    def open(cls, config: Config, split: str, limit: int = 0) -> EnvSplit:
        """Opens a split; ``limit`` > 0 keeps so many tasks, see :func:`~roleagent.tasks.split.first_tasks`.

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
            except (RuntimeError, OSError) as error:
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
    def held_out(cls, config: Config) -> EnvSplit:
        """Opens the split of evaluations, with ``env.eval_tasks`` tasks.

        Raises:
            ConfigError: see :meth:`open`; or ``rollout.eval_predictions`` is off where predictions change the play.
        """
        split = cls.open(config, config.env.eval_split, config.env.eval_tasks)
        if not split.horizon or config.rollout.eval_predictions:
            return split
        if config.prompt.predictions != "detached":
            raise ConfigError(
                f"with prompt.predictions={config.prompt.predictions} predictions change the play: leave "
                "rollout.eval_predictions on"
            )
        return replace(split, horizon=0)

    def first(self, tasks: int) -> EnvSplit:
        """The first ``tasks`` of the split, of all types (:func:`~roleagent.tasks.split.first_tasks`); 0: all."""
        if not 0 < tasks < len(self.task_split):
            return self
        return replace(self, task_split=first_tasks(self.base, tasks))

    def manifest(self) -> dict[str, Any]:
        """The tasks and the data, as results name them."""
        return {**self.task_split.manifest(), "data": data_of(self.base)}

    @property
    def reader(self) -> ReplyReader:
        """Reads and writes replies, as the outermost wrapper of the split's environments does."""
        return _read_replies(self.base, self.config, self.horizon).reader

    @property
    def guide(self) -> Instructions:
        """The environment's instructions, with the form of a reply that the outermost wrapper reads."""
        guide = instructions_of(self.base)
        return replace(guide, form=self.reader.form or guide.form)

    def rollout(self, policy: Policy, plain: bool = False) -> Rollout:
        """A rollout of a policy on this split, with its own pool; a ``plain`` one plays without predictions.

        With ``agent.command`` that program plays.
        """
        if self.config.agent.command:
            return self._program_rollout(policy)
        pool = EnvPool(partial(make_wrapped, self.config, self.task_split.split, self.horizon))
        prompt, limits = self.config.prompt, self.config.rollout
        return Rollout(
            policy, pool, self.task_split.env_id, prompt, limits, self.horizon, self.guide, self.reader, plain
        )

    def _program_rollout(self, policy: Policy) -> Rollout:
        config = self.config
        pool = EnvPool(partial(make_base, config, self.task_split.split))
        return ProgramRollout(
            *(policy, pool, self.task_split.env_id, config.prompt, config.rollout, 0),
            agent=config.agent,
            log=config.folder / "agent.log",
        )
