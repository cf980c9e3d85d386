"""A language model that writes tasks: its warm start, and its updates by reward-weighted regression."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator

from roleagent.agents.builders import EnvSplit
from roleagent.agents.policies.hf import HFPolicy, PolicyError, own_device
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.policies.scratch_model import build_policy
from roleagent.agents.task_simulator import ModelSimulator, simulator_examples
from roleagent.config import Config, ConfigError, merged
from roleagent.files import make_whole, write_checksums
from roleagent.learners.batch import Column
from roleagent.learners.engine.engine import Learner, zero_stage
from roleagent.learners.engine.logprobs import TokenScores
from roleagent.learners.loss import MetricSums, k3
from roleagent.learners.run.checkpoints import save_policy
from roleagent.learners.run.run import LOST_START, Run
from roleagent.learners.sft.imitation import batches
from roleagent.tasks.grammar import Refused, TaskGrammar, grammar_of
from roleagent.tasks.simulator import SimulatorRecord, Situation
from roleagent.types import Segment

KL = 0.01
"""Weight of the distance to the initial simulator."""

MAX_KL = 0.05
"""Nats per token, at which an update stops."""

ROUNDS = 12
"""Most rounds of a simulator's warm start; they end when it writes as base tasks are drawn."""

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
    [written] = split.written.values()  # GenEnv.check_tasks has refused several
    grammar = grammar_of(written.base, plan_share=options.plan_share)
    if config.shares_simulator:
        start = None
        if options.probe and agent.reference is not None:
            model = agent.reference.model
            start = HFPolicy(model, agent.policy.tokenizer, _generator(config), agent.policy.context_length)  # type: ignore[arg-type]
        simulator = ModelSimulator(actor, grammar, config.prompt.thinks, start)
        if not run.progress.step:
            tasks, situations = run.stream("quality tasks"), run.stream("quality situations")
            _report(run, run.ranks.once(lambda: quality(simulator, tasks, situations)))
            simulator.costs()  # which are no iteration's
        return SimulatorTraining(simulator, agent, shared=True)
    path = run.folder.path / _FOLDER
    if run.needs_start(path):
        policy = _new_policy(config, agent.policy)
        run.display.stage("simulator", ROUNDS)
        found = warm_start(policy, grammar, config, run.stream, lambda number, found: _show(run, number, found))
        _report(run, found)
        run.ranks.once(lambda: make_whole(path, lambda partial: _write(policy, partial)))
    spreads = zero_stage(config) == 3

    def read(device: torch.device) -> HFPolicy:
        return HFPolicy.from_path(path, _generator(config, device), config.policy.dtype, agent.policy.context_length)

    try:
        policy, start = read(own_device()), read(torch.device("cpu") if spreads else own_device())
        initial = start if not spreads else read(own_device()) if options.probe and run.ranks.first else None
    except PolicyError as error:
        raise ConfigError(f"{error}: {LOST_START}") from error
    start.model.requires_grad_(False)
    if not spreads:
        agent.beside["simulator"] = learner = Learner(policy, config, options.lr, start.model)
        return SimulatorTraining(ModelSimulator(policy, grammar, config.prompt.thinks, initial), learner)
    agent.beside["simulator"] = learner = Learner(policy, offloaded(config), options.lr, start.model, computes=False)
    return SimulatorTraining(VisitingSimulator(policy, grammar, config.prompt.thinks, initial), learner)


def offloaded(config: Config) -> Config:
    """The configuration of a learner that has nothing on the accelerator between its updates, at ZeRO stage 3."""
    cpu = {"device": "cpu", "pin_memory": True}
    extra = merged({"zero_optimization": {"offload_optimizer": cpu, "offload_param": cpu}}, config.deepspeed.extra)
    return replace(config, deepspeed=replace(config.deepspeed, extra=extra))


class VisitingSimulator(ModelSimulator):
    """A task writer whose model is on the accelerator only while it writes."""

    def propose(self, situations: Sequence[Situation], n: int, rng: Generator) -> list[list[str]]:
        model = self.policy.model  # type: ignore[attr-defined]
        model.to(own_device())
        try:
            return super().propose(situations, n, rng)
        finally:
            model.to("cpu")
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # for vLLM, which allocates by itself


def _write(policy: HFPolicy, folder: Path) -> None:
    save_policy(policy, folder)
    write_checksums(folder)


def _generator(config: Config, device: torch.device | None = None) -> torch.Generator:
    return torch.Generator(device or own_device()).manual_seed(config.seed + 1)


def _new_policy(config: Config, agent: HFPolicy) -> HFPolicy:
    """A policy of the agent's size: of random weights, or the pretrained one that the agent began as."""
    options = config.policy
    if options.path:
        return HFPolicy.from_path(options.path, _generator(config), options.dtype, options.context)
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

    It stops behind the step that brings the simulator more than ``MAX_KL`` nats per token away from where the
    update began, in the mean over the tokens of all records.

    Returns:
        ``loss`` (mean of the steps) and ``steps``; ``step_kl``, that distance; ``updates_cut``, 1 if it stopped before
        the end; and ``kl``, the distance from the initial simulator in nats per task.
    """
    learner, options = training.learner, config.simulator
    ranks, temperature = learner.ranks, training.simulator.temperature
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
            losses.append(regress(learner, part, temperature, KL, reference))
            now = scores()
            moved = ranks.sum(_k3(now, before)) / tokens
            if moved > MAX_KL:
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


def update_simulator(run: Run, training: SimulatorTraining, agent: Learner, actor: Policy) -> dict[str, float]:
    """Updates a simulator that is a language model with the records that it was given; every rank must call it.

    Args:
        run: the run.
        training: the simulator.
        agent: the agent's learner.
        actor: the agent's policy that samples. It gives its memory to the update, and the agent's weights come anew.

    Returns:
        the metrics of :func:`learn` as ``genenv_…``; nothing without records.
    """
    with run.timer("simulator"):
        records = run.ranks.once(training.simulator.take_records)
        if not records:
            return {}
        actor.offload()
        options, learner = run.config.train, training.learner
        learner.share = (run.iteration - 1) / options.iterations
        metrics = learn(training, records, run.config, run.stream("simulator update", run.iteration))
        learner.sync_policy()
        actor.sync(agent, agent.policy.version)
    return {f"genenv_{name}": value for name, value in metrics.items()}


EXAMPLES = 1024  # of a round
SAMPLED = 200  # proposals that a quality is measured on
ACCEPTED, DISTANCE = 0.95, 0.1  # share of them that must be accepted, and distance that a marginal may have
_BASE = 2000  # base tasks that they are compared with


@dataclass(frozen=True)
class Quality:
    """How well a simulator writes tasks as the base distribution has them.

    Attributes:
        accepted: share of the proposals that are accepted.
        distance: largest distance (total variation) of a field's marginal from the base distribution's, less what as
            many base tasks have by chance; 0 in free form.
    """

    accepted: float
    distance: float

    @property
    def good(self) -> bool:
        """Whether a warm start may end."""
        return self.accepted >= ACCEPTED and self.distance <= DISTANCE

    def __str__(self) -> str:
        return (
            f"{self.accepted:.0%} of {SAMPLED} proposals accepted, marginals within {self.distance:.2f} of base tasks"
        )


def warm_start(
    policy: HFPolicy,
    grammar: TaskGrammar,
    config: Config,
    stream: Callable[..., Generator],
    report: Callable[[int, Quality], None] = lambda number, found: None,
) -> Quality:
    """Teaches a policy to write tasks as the base distribution has them, whatever the situation reports.

    Each of at most ``ROUNDS`` rounds goes through new examples once, until the :func:`quality` is good. One
    more round follows, in which the learning rate falls: at the full rate one line in fifty stays malformed, and an
    update that re-weights tasks cannot unlearn what never becomes a record.

    Args:
        policy: is trained.
        grammar: draws the tasks.
        config: of the run.
        stream: random numbers by name (:meth:`Run.stream`).
        report: is called with the number of each round and the quality after it.

    Returns:
        the quality at the end.
    """
    learner = Learner(policy, config, config.warmstart.lr, optimizer=config.warmstart.optimizer)
    simulator = ModelSimulator(policy, grammar, config.prompt.thinks)

    def measured(number: int) -> Quality:
        return learner.ranks.once(
            lambda: quality(simulator, stream("quality tasks"), stream("quality situations", number))
        )

    found = measured(0) if config.policy.path or not ROUNDS else Quality(0.0, 1.0)
    number, last = 0, found.good or not ROUNDS
    while not last:
        number += 1
        last = found.good or number > ROUNDS
        examples = simulator_examples(grammar, EXAMPLES, stream("simulator examples", number))
        segments = [simulator.segment(situation, values) for situation, values in examples]
        steps = [*batches(segments, config.warmstart.batch_tokens, stream("simulator batches", number))]
        for step, batch in enumerate(steps):
            learner.share = (1 + step / len(steps)) / 2 if last else 0.0  # of ``optim.schedule``
            regress(learner, batch, 1.0)
        learner.sync_policy()
        found = measured(number)
        report(number, found)
    learner.close()
    return found


def quality(simulator: ModelSimulator, base: Generator, rng: Generator) -> Quality:
    """Measures :data:`SAMPLED` proposals on made-up situations.

    Args:
        simulator: writes the proposals.
        base: draws the base tasks to compare with.
        rng: draws situations, and seeds the sampling.
    """
    grammar = simulator.grammar
    drawn = [grammar.base(base).values for _ in range(_BASE)]
    situations = [situation for situation, _ in simulator_examples(grammar, SAMPLED, rng)]
    found, accepted = [], 0
    for [line] in simulator.propose(situations, 1, rng):
        with contextlib.suppress(Refused):
            values, _ = grammar.read(line)
            found.append(values)
            accepted += grammar.check(grammar.complete(values, rng)).accepted
    if not found:
        return Quality(0.0, 1.0)
    fields = range(len(grammar.fields)) if grammar.varies else ()  # a text of its own has no frequency
    excess = [
        _distance([row[place] for row in found], own := [row[place] for row in drawn])
        - float(np.mean([_distance(own[start : start + len(found)], own) for start in range(0, _BASE, SAMPLED)]))
        for place in fields
    ]
    return Quality(accepted / SAMPLED, max([0.0, *excess]))


def _distance(some: Sequence[str], others: Sequence[str]) -> float:
    """Total variation between the frequencies of values.

    >>> _distance("aab", "abbb")
    0.41666666666666663
    """
    first, second = Counter(some), Counter(others)
    return math.fsum(abs(first[v] / len(some) - second[v] / len(others)) for v in first.keys() | second.keys()) / 2


def regress(
    learner: Learner,
    segments: Sequence[Segment],
    temperature: float,
    kl: float = 0.0,
    reference: Column | None = None,
) -> float:
    """One step of reward-weighted regression: −Σ w_i log π(τ_i | c_i) / Σ w_i + ``kl`` · k3(π‖π_0).

    k3 is the estimator q − log q − 1 with q = π_0/π on the tokens of the tasks, weighted as they are. Every rank must
    call it with the same segments; they share them.

    Args:
        learner: of the simulator's policy.
        segments: situations and tasks; a task's weight is the advantage of its tokens.
        temperature: at which the tasks were sampled.
        kl: weight of the penalty.
        reference: the initial simulator's log-probabilities of this rank's segments; needed if ``kl`` > 0.

    Returns:
        the loss, in nats per task.
    """
    own = learner.ranks.share(segments)
    total = math.fsum(float(segment.advantages.max()) for segment in segments)
    columns: dict[str, Column] = {"weights": [segment.advantages / total for segment in own]}
    if kl and reference is not None:
        columns["reference"] = reference
    sums = MetricSums()

    def objective(tokens: TokenScores) -> torch.Tensor:
        loss = -tokens.logprobs
        if "reference" in tokens.columns:
            loss = loss + kl * k3(tokens.columns["reference"] - tokens.logprobs)
        loss = (tokens.columns["weights"] * loss).sum()
        sums.add({"loss": loss})
        return loss

    learner.update(own, columns, objective, temperature)
    return sums.over_ranks(learner.ranks)["loss"]
