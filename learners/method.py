"""What a method is: how a policy learns from its episodes.

A method is a class. The trainer asks its object, in this order:

==============  ========================================================================================
``check``       before anything is built: what cannot work together
``setup``       once: opens what else learns
``sampler``     once per environment: which tasks are played
``advantages``  for each group of episodes: how much better each turn was than its peers
``loss``        for each micro-batch: the objective of its sampled tokens
``after``       after each update: whatever else learns
==============  ========================================================================================

The base class is reinforcement with the clipped objective (Eq. 9); a method writes ``advantages``, and what else it
changes. The methods of reinforcement, which follow it, differ in what they compare a turn with:

=========================  ====================================  ===========================================
method                     compared across the G rollouts        compared inside groups of the same state
=========================  ====================================  ===========================================
``grpo``, ``dapo``,        outcome R^E(τ)                        nothing
``gspo``
``rloo``                   outcome, with the mean of the others  nothing
``gigpo``                  outcome R^E(τ)                        discounted return
``role_agent``             outcome R^E(τ)                        modulated return R_task(a_t)·(1 + R_pre(a_t))
``reinforce_pp``           nothing: the discounted return, compared over the batch (``estimator.whiten``)
``ppo``                    nothing: the turn's reward, which a critic turns into advantages
``distill``                nothing: a teacher scores each token
=========================  ==================================================================================

``examples/methods/`` has others in a file each. No torch is imported here: options are read before it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from roleagent.config import GENENV, METHODS, Config, ConfigError, NoOptions, method_class
from roleagent.imports import load_object
from roleagent.learners.advantages import (
    Advantages,
    Estimator,
    discounted_returns,
    joint_advantages,
    modulated_returns,
    outcome_advantages,
    outcome_counts,
    state_advantages,
    states_of,
    with_terms,
)
from roleagent.learners.rewards import Values
from roleagent.types import Group, Sampler, Segment, Turn, is_flat

if TYPE_CHECKING:
    from torch import Tensor

    from roleagent.agents.builders import EnvSplit
    from roleagent.agents.policies.hf import HFPolicy
    from roleagent.agents.policies.protocol import Policy
    from roleagent.agents.rollout import Rollout
    from roleagent.learners.dealing import RankSampler
    from roleagent.learners.engine.engine import Learner
    from roleagent.learners.loss import Loss, SampledTokens
    from roleagent.learners.run.checkpoints import Progress
    from roleagent.learners.run.run import Run
    from roleagent.learners.run.trajectory_log import ScoredGroup
    from roleagent.learners.sft.data import SFTData


@dataclass(frozen=True)
class Iteration:
    """What an iteration leaves to its method, behind the update.

    Attributes:
        run: folder, display, random streams and timer.
        learner: of the policy.
        actor: the policy that plays, with the new weights.
        rollout: plays further episodes.
        sampler: chose the tasks.
        groups: the episodes of all ranks with their advantages, on the first rank; elsewhere none.
    """

    run: Run
    learner: Learner
    actor: Policy
    rollout: Rollout
    sampler: RankSampler
    groups: Sequence[ScoredGroup]


@dataclass(frozen=True)
class Start:
    """What a training begins with, behind the warm start.

    Attributes:
        run: folder, display, random streams and timer.
        split: the training tasks.
        held_out: the tasks of the evaluation.
        policy: is trained.
        actor: the policy that plays.
        data: the demonstrations as text.
        segments: the demonstrations as tokens.
    """

    run: Run
    split: EnvSplit
    held_out: EnvSplit
    policy: HFPolicy
    actor: Policy
    data: SFTData
    segments: list[Segment]


class Method:
    """A method with the advantages of GRPO and the objective of Eq. 9; the base of all others.

    Args:
        config: of the run.

    Attributes:
        settings: the options that the method sets, below a file and the command line, as nested mappings. Those of a
            base class hold where a derived one sets nothing else.
        Options: the dataclass of the section ``options``, whose fields have defaults.
        compares_outcomes: whether groups whose episodes all have the same outcome teach nothing.
        compares_states: whether turns of the same state are compared.
        modulates: whether predictions change advantages: they are then asked for where they do.
        critic: whether a value model turns ``advantages``, which are rewards, into advantages (PPO).
        reads_world: whether the loss takes the tokens of the world, too (``SampledTokens.world``).
        own_loss: whether it has another loss than Eq. 9: then ``loss.clip_*`` have no effect, and tokens of advantage 0
            may have a gradient. True of a class that writes ``loss``, unless it says False.
        training: None: reinforcement (``train.py``); a method of another kind defines ``training(self, start)``.
        reinforces: whether it is reinforcement: it has no ``training``.
        stage: of a method of another kind: the name of its steps in the log and in checkpoints (``run.enter``).
        length: the option that a longer run raises.
        label: its name in the last lines of a run.
        imitates: whether it imitates; ``train.tokens`` limits it.
        disjoint_splits: whether training and evaluation may share no task, as it imitates episodes of its own.
        plays: whether it plays episodes.
        config: of the run.
        options: an object of ``Options``.
        estimator: rewards, and the options of section ``estimator``.
    """

    settings: ClassVar[Mapping[str, Any]] = {}
    Options: ClassVar[type] = NoOptions
    compares_outcomes: ClassVar[bool] = True
    compares_states: ClassVar[bool] = False
    modulates: ClassVar[bool] = False
    critic: ClassVar[bool] = False
    reads_world: ClassVar[bool] = False
    own_loss: ClassVar[bool] = False
    training: Callable[[Start], None] | None = None
    reinforces: ClassVar[bool] = True
    stage: ClassVar[str] = "train"
    length: ClassVar[str] = "train.iterations"
    label: ClassVar[str] = "reinforcement"
    imitates: ClassVar[bool] = False
    disjoint_splits: ClassVar[bool] = False
    plays: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        if "loss" in vars(cls) and "own_loss" not in vars(cls):
            cls.own_loss = True
        cls.reinforces = cls.training is None

    def __init__(self, config: Config):
        self.config, self.options, self.estimator = config, config.options, Estimator.of(config)

    def check(self) -> None:
        """Refuses options that cannot work together.

        Raises:
            ConfigError: one line that says what to change.
        """
        rollout = self.config.rollout
        if self.compares_outcomes and rollout.group_size < 2:
            raise ConfigError(
                f"method={self.config.method} compares the episodes of a group: set rollout.group_size to at least 2"
            )

    def check_tasks(self, split: EnvSplit) -> None:
        """As :meth:`check`, with the opened training tasks.

        Raises:
            ConfigError: one line that says what to change.
        """

    def needs_demonstrations(self) -> bool:
        """Whether the training reads the demonstrations of the warm start again."""
        return False

    def needs_reference(self) -> bool:
        """Whether the policy after the warm start is kept beside the one that learns.

        ``loss.kl`` and ``distill.teacher=self`` need it.
        """
        return bool(self.config.reads_start)

    def finished(self, progress: Progress) -> bool:
        """Whether nothing is left to train: a run that is resumed then has its result."""
        return self.reinforces and progress.stage == "train" and progress.step >= self.config.train.last

    def setup(self, run: Run, split: EnvSplit, learner: Learner, actor: Policy) -> None:
        """Opens what else learns, before a checkpoint is restored; every rank calls it.

        Args:
            run: the run.
            split: the training tasks.
            learner: of the policy. Another model's learner in ``learner.beside`` is saved and restored with it.
            actor: the policy that plays.
        """

    def sampler(self, run: Run, split: EnvSplit, chosen: Sampler) -> Sampler:
        """Which tasks are played; the first rank asks.

        Args:
            run: the run.
            split: the training tasks.
            chosen: the curriculum of the run, or uniform sampling.
        """
        return chosen

    def advantages(self, group: Group) -> Values | Advantages:
        """The advantage of each turn: one list per trajectory, with a finite number per turn.

        Args:
            group: the episodes of a task.
        """
        outcomes = outcome_advantages(group, self.estimator)
        return [[value] * len(t.turns) for value, t in zip(outcomes, group.trajectories, strict=True)]

    def loss(self, tokens: SampledTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """The objective of a micro-batch, to be minimized, and sums for the log, which shows them per sampled token.

        ``loss.function`` of the configuration takes its place.
        """
        from roleagent.learners.loss import policy_loss

        return policy_loss(tokens, self.config.loss)

    def after(self, iteration: Iteration) -> Mapping[str, float]:
        """Whatever else learns after an update; every rank calls it. Returns metrics for the log: numbers by name."""
        return {}

    def add_counters(self, counters: dict[str, float], metrics: Mapping[str, float]) -> None:
        """Adds what an iteration logged to the counters of the run, as :meth:`idle` needs it.

        Args:
            counters: of all iterations so far; they are saved.
            metrics: of this one.
        """

    def idle(self, counters: Mapping[str, float]) -> list[str]:
        """A warning for each part of the method that was on and had no effect in the whole run."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """What the method remembers beyond an iteration, in JSON's types; a checkpoint has that of the first rank."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`, behind :meth:`setup`; every rank calls it. Not called without a state."""

    def estimate(self, group: Group) -> Advantages:
        """The advantages of a group whose process terms are normalized, with all terms that the log shows.

        Raises:
            ValueError: :meth:`advantages` returned something else than a finite number per turn.
        """
        estimated = self.advantages(group)
        if isinstance(estimated, Advantages):
            estimated = replace(estimated, values=self._checked(estimated.values, group))
        else:
            estimated = Advantages(self._checked(estimated, group))
            if self.compares_outcomes and all(len(set(row)) < 2 for row in estimated.values):
                estimated = replace(estimated, outcome=[row[0] if row else 0.0 for row in estimated.values])
        return with_terms(estimated, group, self.estimator)

    def _checked(self, values: Any, group: Group) -> Values:
        try:
            rows = [[float(value) for value in row] for row in values]
            fits = [len(row) for row in rows] == [len(trajectory.turns) for trajectory in group.trajectories]
            fits = fits and all(math.isfinite(value) for row in rows for value in row)
        except (TypeError, ValueError):
            rows, fits = [], False
        if not fits:
            raise ValueError(
                f"the advantages of method={self.config.method} must be one list per trajectory, with one finite "
                "number per turn"
            )
        return rows


class GRPO(Method):
    """Every turn gets its trajectory's advantage A^E(τ) (Eq. 1)."""


class RLOO(Method):
    """Every turn gets its trajectory's outcome minus the mean of the other rollouts' outcomes (leave one out)."""

    def advantages(self, group: Group) -> Values:
        outcomes = [self.estimator.rewards.outcome(trajectory) for trajectory in group.trajectories]
        if len(outcomes) < 2 or is_flat(outcomes):
            return [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]
        counts = outcome_counts(group, self.estimator)
        total = math.fsum(value * count for value, count in zip(outcomes, counts, strict=True))
        others = sum(counts) - 1
        values = [outcome - (total - outcome) / others for outcome in outcomes]
        return [[value] * len(t.turns) for value, t in zip(values, group.trajectories, strict=True)]


class ReinforcePlusPlus(Method):
    """Every turn gets its discounted return, which is whitened over the batch."""

    settings: ClassVar[Mapping[str, Any]] = {"estimator": {"gamma": 1.0, "whiten": True}}
    compares_outcomes = False

    def advantages(self, group: Group) -> Values:
        return discounted_returns(group, self.estimator)


class ReinforcePlusPlusBaseline(Method):
    """GRPO without the deviation of the group, whitened over the batch."""

    settings: ClassVar[Mapping[str, Any]] = {"estimator": {"norm": "mean", "whiten": True}}


class PPO(Method):
    """Every turn gets its own reward; the critic turns rewards into advantages, token by token."""

    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": {"gamma": 1.0, "whiten": True},
        "loss": {"clip_high": 0.2},
    }
    compares_outcomes = False
    critic = True

    def advantages(self, group: Group) -> Values:
        return [self._of_replies(trajectory.turns) for trajectory in group.trajectories]

    def _of_replies(self, turns: Sequence[Turn]) -> list[float]:
        """The turns' rewards; a command without a reply of its own leaves its reward to the reply before it."""
        earned, reply = [0.0] * len(turns), None
        for number, turn in enumerate(turns):
            reply = number if turn.completion.token_ids else reply
            if reply is not None:
                earned[reply] += self.estimator.rewards.of(turn)
        return earned


class Distillation(Method):
    """No turn gets anything: a teacher's word for each token is all (:mod:`roleagent.learners.distillation`)."""

    settings: ClassVar[Mapping[str, Any]] = {"wia": False, "aiw": False, "loss": {"kl": 0.0}}
    compares_outcomes = False

    def check(self) -> None:
        super().check()
        if not self.config.distill.teacher:
            raise ConfigError("method=distill learns from a teacher alone: set distill.teacher")

    def advantages(self, group: Group) -> Values:
        return [[0.0] * len(trajectory.turns) for trajectory in group.trajectories]


class DAPO(Method):
    """GRPO with a mean over all tokens, without KL penalty, with dynamic sampling and a price of overlong replies."""

    settings: ClassVar[Mapping[str, Any]] = {
        "estimator": {"rewards": {"overlong": -0.1}},
        "loss": {"aggregation": "token", "clip_low": 0.2, "clip_high": 0.28, "kl": 0.0},
        "rollout": {"dynamic_sampling_rounds": 2},
    }


class GSPO(Method):
    """GRPO with the ratio of a sequence: the geometric mean of its tokens'."""

    settings: ClassVar[Mapping[str, Any]] = {
        "loss": {"importance_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4}
    }


class GiGPO(Method):
    """A^S over discounted returns, plus α·A^E (Eq. 8 without predictions)."""

    compares_states = True

    def returns(self, group: Group) -> Values:
        """The return of each turn, which is compared with those of other turns in the same state."""
        return discounted_returns(group, self.estimator)

    def advantages(self, group: Group) -> Advantages:
        outcomes, states = outcome_advantages(group, self.estimator), states_of(group, self.estimator)
        of_states = state_advantages(self.returns(group), states, self.estimator)
        values = joint_advantages(outcomes, of_states, self.estimator.options.alpha)
        return Advantages(values, states, of_states, outcomes)


class RoleAgent(GiGPO):
    """A^S over returns that each turn's own prediction modulates, plus α·A^E (Eq. 5-8)."""

    modulates = True

    def returns(self, group: Group) -> Values:
        return modulated_returns(group, self.estimator)


def known_class(config: Config) -> type[Method]:
    """The class of a method of this project; of a user's, which a report does not import, the base class."""
    return method_class(config.method) if config.method in METHODS else Method


def method_of(config: Config) -> Method:
    """The method of a configuration; with ``genenv=on`` its class is derived from GenEnv, too."""
    return _mixed(method_class(config.method), config)


def known_method(config: Config) -> Method:
    """The same with :func:`known_class`, for reports."""
    return _mixed(known_class(config), config)


def _mixed(own: type[Method], config: Config) -> Method:
    if config.genenv and not issubclass(own, genenv := load_object(GENENV)):
        own = type(f"GenEnv{own.__name__}", (genenv, own), {})
    return own(config)


def loss_of(method: Method) -> Loss:
    """The method's loss, or ``loss.function``: a function of the tokens and of section ``loss``.

    Raises:
        ConfigError: there is no such function.
    """
    options = method.config.loss
    if not options.function:
        return method.loss
    function = load_object(options.function)
    try:
        signature(function).bind(None, options)
        fits = not isinstance(function, type)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigError(f"loss.function={options.function} is no function of (tokens, options)")
    return lambda tokens: function(tokens, options)


__all__ = [
    "DAPO",
    "GRPO",
    "GSPO",
    "PPO",
    "RLOO",
    "Distillation",
    "GiGPO",
    "Iteration",
    "Method",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "RoleAgent",
    "Start",
    "known_class",
    "loss_of",
    "method_of",
]
