"""The warm start of a task simulator that is a language model, and the step that its updates are made of (GenEnv)."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.task_simulator import ModelSimulator, simulator_examples
from roleagent.config import Config
from roleagent.learners.batch import Column
from roleagent.learners.loss import MetricSums
from roleagent.learners.model.learner import Learner
from roleagent.learners.model.token_logprobs import TokenScores
from roleagent.learners.sft.imitation import batches
from roleagent.tasks.grammar import Refused, TaskGrammar
from roleagent.types import Segment

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
            many base tasks have by chance.
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

    Each of at most ``simulator.rounds`` rounds goes through new examples once, until the :func:`quality` is good. One
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
    simulator = ModelSimulator(policy, grammar, config.simulator.temperature)

    def measured(number: int) -> Quality:
        return learner.ranks.once(
            lambda: quality(simulator, stream("quality tasks"), stream("quality situations", number))
        )

    found = measured(0) if config.policy.path or not config.simulator.rounds else Quality(0.0, 1.0)
    number, last = 0, found.good or not config.simulator.rounds
    while not last:
        number += 1
        last = found.good or number > config.simulator.rounds
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
    excess = [
        _distance([row[place] for row in found], own := [row[place] for row in drawn])
        - float(np.mean([_distance(own[start : start + len(found)], own) for start in range(0, _BASE, SAMPLED)]))
        for place in range(len(grammar.fields))
    ]
    return Quality(accepted / SAMPLED, max(0.0, *excess))


def _distance(some: Sequence[str], others: Sequence[str]) -> float:
    """Total variation between the frequencies of values.

    >>> _distance("aab", "abbb")
    0.41666666666666663
    """
    first, second = Counter(some), Counter(others)
    return sum(abs(first[v] / len(some) - second[v] / len(others)) for v in first.keys() | second.keys()) / 2


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
            log_q = (tokens.columns["reference"] - tokens.logprobs).clamp(-20.0, 20.0)
            loss = loss + kl * (log_q.exp() - 1.0 - log_q)
        loss = (tokens.columns["weights"] * loss).sum()
        sums.add({"loss": loss})
        return loss

    learner.update(own, columns, objective, temperature)
    return sums.over_ranks(learner.ranks)["loss"]


__all__ = ["Quality", "quality", "regress", "warm_start"]
