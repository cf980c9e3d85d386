"""A language model as GenEnv's task simulator: how it is opened, and updated by reward-weighted regression."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy, PolicyError, own_device
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.policies.scratch_model import build_policy
from roleagent.agents.task_simulator import ModelSimulator
from roleagent.config import Config, ConfigError
from roleagent.files import make_whole, write_checksums
from roleagent.learners.batch import Column
from roleagent.learners.model.learner import Learner
from roleagent.learners.model.lora import adapted
from roleagent.learners.run.checkpoints import save_policy
from roleagent.learners.run.run import LOST_START, Run
from roleagent.learners.sft.simulator import ACCEPTED, DISTANCE, Quality, quality, regress, warm_start
from roleagent.tasks.grammar import grammar_of
from roleagent.tasks.simulator import SimulatorRecord

_BATCH = 8  # records of a step
_FOLDER = "simulator"  # of the run: the simulator after its warm start


@dataclass(frozen=True)
class SimulatorTraining:
    """A simulator that is a language model, and the learner that updates it.

    Attributes:
        simulator: writes the tasks.
        learner: of its policy; the agent's with ``simulator.weights=shared``.
        shared: whether that is so.
    """

    simulator: ModelSimulator
    learner: Learner
    shared: bool = False


def open_simulator_training(run: Run, split: EnvSplit, agent: Learner, actor: Policy) -> SimulatorTraining | None:
    """The simulator of ``simulator.kind=model``; None for other kinds.

    With weights of its own it is a second model of the agent's size, with the agent's tokenizer, which begins as the
    base distribution. Its learner is saved and loaded with the agent's. With ``simulator.weights=shared`` it is the
    agent itself.

    Args:
        run: the run.
        split: the training tasks.
        agent: the agent's learner.
        actor: the agent's policy that samples.

    Raises:
        ConfigError: the run has begun to learn, and the simulator's start is missing or damaged.
        PolicyError: the context has no room for a situation and a task.
    """
    config, options = run.config, run.config.simulator
    if not config.simulator_is_model:
        return None
    grammar = grammar_of(split.base, plan_share=options.plan_share)
    if config.shares_simulator:
        start = None
        if agent.reference is not None and not adapted(agent.policy.model):
            model = agent.reference.model
            start = HFPolicy(model, agent.policy.tokenizer, _generator(config), agent.policy.context_length)  # type: ignore[arg-type]
        simulator = ModelSimulator(actor, grammar, options.temperature, start)
        if not run.progress.step:
            tasks, situations = run.stream("quality tasks"), run.stream("quality situations")
            _report(run, run.ranks.once(lambda: quality(simulator, tasks, situations)))
            simulator.costs()  # which are no iteration's
        return SimulatorTraining(simulator, agent, shared=True)
    path = run.folder.path / _FOLDER
    if run.needs_start(path):
        policy = _new_policy(config, agent.policy)
        run.display.stage("simulator", options.rounds)
        found = warm_start(policy, grammar, config, run.stream, lambda number, found: _show(run, number, found))
        _report(run, found)
        run.ranks.once(lambda: make_whole(path, lambda partial: _write(policy, partial)))
    try:
        policy, start = (
            HFPolicy.from_path(path, _generator(config), config.policy.dtype, agent.policy.context_length)
            for _ in range(2)
        )
    except PolicyError as error:
        raise ConfigError(f"{error}: {LOST_START}") from error
    start.model.requires_grad_(False)
    agent.simulator = Learner(policy, config, options.lr, start.model)
    return SimulatorTraining(ModelSimulator(policy, grammar, options.temperature, start), agent.simulator)


def _write(policy: HFPolicy, folder: Path) -> None:
    save_policy(policy, folder)
    write_checksums(folder)


def _generator(config: Config) -> torch.Generator:
    return torch.Generator(own_device()).manual_seed(config.seed + 1)


def _new_policy(config: Config, agent: HFPolicy) -> HFPolicy:
    """A policy of the agent's size: of random weights, or the pretrained one that the agent began as."""
    options = config.policy
    if options.path:
        return HFPolicy.from_path(
            options.path, _generator(config), options.dtype, options.context, options.trust_remote_code
        )
    return build_policy(options, agent.tokenizer, _generator(config))  # type: ignore[arg-type]


def _show(run: Run, number: int, found: Quality) -> None:
    run.display.advance(number, accepted=found.accepted, distance=found.distance)


def _report(run: Run, found: Quality) -> None:
    if found.good:
        run.display.say(f"simulator: {found}")
    else:
        run.display.warn(f"the simulator's warm start is weak: {found} (wanted: {ACCEPTED:.0%} and {DISTANCE})")


def learn(
    training: SimulatorTraining, records: Sequence[SimulatorRecord], config: Config, order: Generator
) -> dict[str, float]:
    """One pass over the records, in steps of about :data:`_BATCH`; every rank must call it with the same ones.

    It stops behind the step that brings the simulator more than ``simulator.max_kl`` nats per token away from where the
    update began, in the mean over the tokens of all records.

    Returns:
        ``loss`` (mean of the steps) and ``steps``; ``step_kl``, that distance; ``updates_cut``, 1 if it stopped before
        the end; and ``kl``, the distance from the initial simulator in nats per task.
    """
    learner, options = training.learner, config.simulator
    ranks, temperature = learner.ranks, options.temperature or 1.0
    segments = [training.simulator.segment(one.situation, one.values, one.weight) for one in records]
    steps = max(1, round(len(segments) / _BATCH))
    parts = [[segments[i] for i in part] for part in np.array_split(order.permutation(len(segments)), steps)]
    own = [ranks.share(part) for part in parts]
    tokens = sum(int((segment.token_kind > 0).sum()) for segment in segments)

    def scores(module: torch.nn.Module | None = None) -> list[Column]:
        return [learner.score(part, temperature, module) for part in own]

    initial, before = scores(learner.reference), scores()
    losses: list[float] = []
    moved, now = 0.0, before
    with _learning_rate(learner, options.lr):
        for part, reference in zip(parts, initial, strict=True):
            losses.append(regress(learner, part, temperature, options.kl, reference))
            now = scores()
            moved = ranks.sum(_k3(now, before)) / tokens
            if options.max_kl and moved > options.max_kl:
                break
    return {
        "loss": float(np.mean(losses)),
        "steps": float(len(losses)),
        "step_kl": moved,
        "updates_cut": float(len(losses) < len(parts)),
        "kl": ranks.sum(_k3(now, initial)) / len(segments),
    }


def _k3(now: Sequence[Column], then: Sequence[Column]) -> float:
    """The sum over all tokens of k3, which estimates the KL divergence of the present policy from an earlier one."""
    gaps = [before - row for rows, old in zip(now, then, strict=True) for row, before in zip(rows, old, strict=True)]
    return math.fsum(float((np.exp(gap) - 1 - gap).sum()) for gap in gaps)


@contextlib.contextmanager
def _learning_rate(learner: Learner, lr: float) -> Iterator[None]:
    """Within the context the learner's peak learning rate is ``lr``."""
    kept, learner.lr = learner.lr, lr
    try:
        yield
    finally:
        learner.lr = kept


def update_simulator(run: Run, training: SimulatorTraining | None, actor: Policy) -> dict[str, float]:
    """Updates a simulator that is a language model with the records that it was given; every rank must call it.

    Args:
        run: the run.
        training: the simulator; None if it is no language model.
        actor: the agent's policy that samples; it has the new weights if it is the simulator.

    Returns:
        the metrics of :func:`learn` as ``genenv_…``; nothing without records.
    """
    if training is None:
        return {}
    with run.timer("simulator"):
        records = run.ranks.once(training.simulator.take_records)
        if not records:
            return {}
        actor.offload()
        options, learner = run.config.train, training.learner
        learner.share = (run.iteration - 1) / options.iterations
        metrics = learn(training, records, run.config, run.stream("simulator update", run.iteration))
        learner.sync_policy()
        if training.shared:
            actor.sync(learner, learner.policy.version)
    return {f"genenv_{name}": value for name, value in metrics.items()}


__all__ = ["SimulatorTraining", "learn", "open_simulator_training", "update_simulator"]
