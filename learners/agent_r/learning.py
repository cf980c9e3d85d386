"""What Agent-R and ETO learn from an iteration's examples; the updates continue in a resumed run.

Agent-R (arXiv 2501.11425, Eq. 6) imitates good and spliced trajectories beside other data:

    L = −(1 − ρ)·{ η·E_good log π + η·E_revision log π + (1 − η)·E_general log π } / (1 + η) − ρ·E_replay log π

Every expectation is a mean over the trained tokens of a batch, so that its share does not depend on the number of its
examples; ρ is ``options.revision.replay`` and η ``options.revision.eta``. The shares sum to 1, which AdamW does not
see. With another ``options.revision.share`` s than 1/2 the larger of the first two weights is η, and they are as 1 − s
to s.

ETO (arXiv 2403.02502, ``method=eto``), its baseline, prefers the good path of a tree to the bad one:

    L = −log σ(β·[Δ_good − Δ_bad]),  Δ = Σ log π(a)/π_ref(a)

The sum is over the action tokens behind the common prefix of both paths; π_ref is the policy at the start of the round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from math import ceil
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from roleagent.agents.policies.hf import HFPolicy
from roleagent.learners.agent_r.data import Example, RevisionData, TreeData, read_conversations, tokenize_conversations
from roleagent.learners.agent_r.options import RevisionConfig
from roleagent.learners.agent_r.search import Node, Tree
from roleagent.learners.agent_r.splice import Pair, good_leaves, leaves_of, make_pairs, whole
from roleagent.learners.batch import Column
from roleagent.learners.engine.engine import Learner, policy_computes
from roleagent.learners.engine.logprobs import TokenScores
from roleagent.learners.loss import PREDICTION_WEIGHT, imitation_weights
from roleagent.learners.run.run import Run
from roleagent.learners.sft.demonstrations import segments_from
from roleagent.learners.sft.imitation import CHUNK, likelihood_step, with_text
from roleagent.types import ACTION, PREDICTION, TEXT, Segment

Batch = TypeVar("Batch")


def make_updates(
    run: Run,
    learner: Learner,
    order: Iterator[Batch],
    updates: int,
    step: Callable[[Batch], dict[str, float]],
    shown: str,
) -> None:
    """Makes those of the iteration's updates that are left.

    Args:
        run: is saved every :data:`~roleagent.learners.sft.imitation.CHUNK` updates, but not after the last one.
        learner: its learning rate follows the share of the updates that is done.
        order: a batch for each update, from the iteration's first one.
        updates: of the iteration.
        step: makes one update; returns its metrics, with the ``loss``.
        shown: the name of the loss on the display.
    """
    began = run.progress.began
    for number, batch in zip(range(1, updates + 1), order, strict=False):
        if began + number <= run.progress.step:
            continue
        learner.share = (number - 1) / updates
        metrics = step(batch)
        run.progress.step = began + number
        if number % 10 == 0 or number == updates:
            run.log({"revision": run.progress.searched, **metrics}, **{shown: metrics["loss"]})
        if run.progress.step % CHUNK == 0 and number < updates:
            run.save(learner)


AGENT = ("good", "revision")
Parts = Mapping[str, Sequence[Segment]]
"""Segments by the part of the loss that they belong to: good, revision, general, replay."""


class Member(NamedTuple):
    """A segment of a batch and the part of the loss that it belongs to."""

    part: str
    segment: Segment


def part_shares(parts: Parts, options: RevisionConfig) -> dict[str, float]:
    """Each part's share of the loss, sum 1. A part without segments has none, and the others share what is left.

    >>> shares = part_shares({"good": [1], "revision": [1], "replay": [1]}, RevisionConfig())
    >>> {name: round(share, 2) for name, share in shares.items()}
    {'good': 0.4, 'revision': 0.4, 'replay': 0.2}
    >>> shares = part_shares({"good": [1], "revision": [1], "general": [1]}, RevisionConfig(eta=0.2, replay=0.0))
    >>> {name: round(share, 3) for name, share in shares.items()}
    {'good': 0.167, 'revision': 0.167, 'general': 0.667}
    """
    eta = options.eta if parts.get("general") else 1.0
    larger = max(options.share, 1 - options.share)
    weights = {  # as Eq. 6 adds them up
        "good": eta * (1 - options.share) / larger,
        "revision": eta * options.share / larger,
        "general": 1 - eta,
    }
    scale = (1 - options.replay) / sum(weights.values())
    wanted = {name: weight * scale for name, weight in weights.items()} | {"replay": options.replay}
    found = {name: share for name, share in wanted.items() if parts.get(name) and share}
    total = sum(found.values())
    return {name: share / total for name, share in found.items()}


def weights_of(
    batch: Sequence[Member],
    shares: Mapping[str, float],
    text_weight: float = 0.0,
    sum_over_ranks: Callable[[float], float] = float,
) -> Column:
    """Each token's weight in the loss.

    Args:
        batch: this rank's segments.
        shares: of :func:`part_shares`.
        text_weight: of the world's text, where a segment marks it, relative to action tokens.
        sum_over_ranks: adds a number up over all ranks; every rank calls it equally often.

    >>> shown = Segment((5, 6, 7, 8), (0, 1, 0, 1), (0.0,) * 4, (0.0, 0.0, 0.0, 1.0))
    >>> good = Segment((5, 6, 7), (0, 1, 1), (0.0,) * 3, (0.0, 1.0, 1.0))
    >>> [row.tolist() for row in weights_of([("revision", shown), ("good", good)], {"good": 0.5, "revision": 0.5})]
    [[0.0, 0.0, 0.0, 0.5], [0.0, 0.25, 0.25]]
    """
    column: list[np.ndarray] = [np.zeros(len(segment)) for _, segment in batch]
    for name in (*AGENT, *(name for name in shares if name not in AGENT)):
        share = shares.get(name, 0.0)
        places = [place for place, (part, _) in enumerate(batch) if part == name]
        weight_of = {ACTION: share, PREDICTION: share * PREDICTION_WEIGHT, TEXT: share * text_weight}
        rows = imitation_weights([batch[place][1] for place in places], weight_of, sum_over_ranks)
        for place, row in zip(places, rows, strict=True):
            column[place] = row
    return column


def batches(parts: Parts, shares: Mapping[str, float], tokens: int, rng: np.random.Generator) -> Iterator[list[Member]]:
    """One pass over the agent's data, in batches of about ``tokens`` tokens that hold every part.

    A part of few segments takes turns in the batches; general and replayed data are drawn, by their share of the loss.
    """
    agent = {name: parts[name] for name in AGENT if name in shares}
    of_agent = sum(shares[name] for name in agent)
    size = sum(len(segment) for segments in agent.values() for segment in segments)
    number = max(1, ceil(size / (of_agent * tokens)))
    chunks: dict[str, list[np.ndarray]] = {}
    for name, segments in agent.items():
        order = rng.permutation(len(segments))
        few = len(order) < number
        chunks[name] = [order[[k % len(order)]] for k in range(number)] if few else np.array_split(order, number)
    for k in range(number):
        batch = [Member(name, parts[name][place]) for name in agent for place in chunks[name][k]]
        for name in (name for name in shares if name not in AGENT):
            left = shares[name] * tokens
            while left > 0:
                segment = parts[name][int(rng.integers(len(parts[name])))]
                batch.append(Member(name, segment))
                left -= len(segment)
        yield batch


PAIR_BETA = (0.1, 0.5)
"""β, by round; the last one from then on."""

PAIR_LR = (1e-6, 5e-7)
"""Peak learning rate, by round, where ``options.revision.lr`` is 0."""

PAIR_EPOCHS = 3
"""Passes over a round's pairs."""

BATCH_PAIRS = 32
"""Pairs per update."""

EXTRA_TURNS = 5
"""By which a bad path may be longer than its good one; the rest is cut."""


class PreferenceData(RevisionData):
    """Makes preferences of trees: each pair of :func:`make_pairs` is one example, the good path's segments first."""

    def make(self, trees: Sequence[Tree], streams: Sequence[np.random.Generator]) -> list[TreeData]:
        found = [TreeData(tree) for tree in trees]
        for data, rng in zip(found, streams, strict=True):
            leaves = leaves_of(data.tree)
            good, pairs = good_leaves(leaves, self.alpha), make_pairs(data.tree, self.alpha, self.options, rng)
            data.count(leaves, good, pairs)
            with self._replays(data):
                for pair in pairs:
                    self._add_pair(data, pair)
        self._add_leaves(found, [])
        return found

    def _add_pair(self, data: TreeData, pair: Pair) -> None:
        most = pair.good.depth + EXTRA_TURNS
        good = self._segments(data.tree, pair.good, pair.shared, pair.good.depth)
        bad = self._segments(data.tree, pair.bad, pair.shared, most)
        if any(len(segment) > self.rollout.policy.context_length for segment in (*good, *bad)):
            data.counts.update(dropped_context=1)
        elif good and bad:
            text = {"shared": pair.shared, "good": len(good), "outcome": pair.good.outcome}
            text |= {"bad_outcome": pair.bad.outcome, "length": pair.good.depth, "bad_length": pair.bad.depth}
            example = Example("pair", data.tree.task.task_id, pair.bad.number, text, (*good, *bad))
            data.examples.append(example)

    def _segments(self, tree: Tree, leaf: Node, shared: int, most: int) -> list[Segment]:
        """The first ``most`` steps of a path; those behind the shared ones have weight."""
        path = whole(self.split.base, tree.trajectory(leaf))
        steps = [
            replace(step, imitated=step.imitated and number >= shared) for number, step in enumerate(path.steps[:most])
        ]
        found = segments_from(replace(path, steps=tuple(steps)), self.rollout)
        return [segment for segment in found if any(_trained(segment))]


def learn_preferences(run: Run, policy: HFPolicy, examples: Sequence[Example]) -> Learner:
    """Updates towards an iteration's preferences; continues a resumed run. The learner is to be closed.

    Every rank has the same examples and takes its share of each batch.
    """
    config = run.config
    iteration, began, ranks = run.progress.searched, run.progress.began, run.ranks
    lr, beta = (values[min(iteration, len(values)) - 1] for values in (PAIR_LR, PAIR_BETA))
    learner = Learner(policy, config, config.options.revision.lr or lr, computes=policy_computes(config))
    name = f"revision/iteration-{iteration:03d}/reference.json"
    if run.progress.step > began:
        run.restore(learner)
        reference = (ranks.once(lambda: run.folder.read_json(name)) or {"ratios": []})["ratios"]
    else:
        reference = [] if not examples else log_ratios(learner, examples)
        ranks.once(lambda: run.folder.write_json(name, {"ratios": reference}))
        run.save(learner)
    if not examples:
        return learner
    each = max(1, round(len(examples) / BATCH_PAIRS))  # updates of a pass
    updates = PAIR_EPOCHS * each
    run.display.stage(f"prefer {iteration}", began + updates, run.progress.step)
    order = (
        part
        for number in count()
        for part in np.array_split(run.stream("preference batches", iteration, number).permutation(len(examples)), each)
    )

    def step(batch: np.ndarray) -> dict[str, float]:
        own = ranks.share([int(place) for place in batch])
        chosen, past = [examples[place] for place in own], [reference[place] for place in own]
        return preference_step(learner, chosen, past, beta, len(batch))

    make_updates(run, learner, order, updates, step, "preference loss")
    return learner


def log_ratios(learner: Learner, examples: Sequence[Example]) -> list[float]:
    """For each pair log π(good) − log π(bad) behind the common prefix, with the learner's present weights, in nats."""
    segments = [segment for example in examples for segment in example.segments]
    scores = iter(learner.score(segments, 1.0))
    return [
        float(sum(sign * (next(scores) * _trained(segment)).sum() for sign, segment in _signed(example)))
        for example in examples
    ]


def preference_step(
    learner: Learner, examples: Sequence[Example], reference: Sequence[float], beta: float, total: int
) -> dict[str, float]:
    """One update. The gradient is exact: ∇L = −β σ(−β z) ∇z with z = Δ_good − Δ_bad of the present weights.

    Args:
        examples: this rank's pairs of the batch.
        reference: :func:`log_ratios` of the policy at the start of the round.
        beta: β.
        total: pairs of the batch on all ranks; the loss is their mean.

    Returns:
        ``loss``, ``grad_norm``, ``margin`` (mean z) and ``accuracy`` (the share of pairs with z > 0).
    """
    margins = np.array(log_ratios(learner, examples)) - np.array(reference)
    slopes = beta / (1 + np.exp(beta * margins)) / total
    segments: list[Segment] = []
    weights: list[np.ndarray] = []
    for example, slope in zip(examples, slopes, strict=True):
        for sign, segment in _signed(example):
            segments.append(segment)
            weights.append(sign * slope * _trained(segment))

    def objective(tokens: TokenScores) -> torch.Tensor:
        return -(tokens.columns["weights"] * tokens.logprobs).sum()

    columns: dict[str, Column] = {"weights": weights}
    norm = learner.update(segments, columns, objective, temperature=1.0)
    sums = [np.logaddexp(0.0, -beta * margins).sum(), margins.sum(), (margins > 0).sum()]
    loss, margin, right = (learner.ranks.sum(float(one)) / total for one in sums)
    return {"loss": loss, "margin": margin, "accuracy": right, "grad_norm": norm}


def _signed(example: Example) -> list[tuple[float, Segment]]:
    """The segments of a pair: +1 for the good path, −1 for the bad one."""
    good = int(example.text["good"])
    return [(1.0 if place < good else -1.0, segment) for place, segment in enumerate(example.segments)]


def _trained(segment: Segment) -> np.ndarray:
    return ((np.asarray(segment.token_kind) == ACTION) & (np.asarray(segment.advantages) > 0)).astype(np.float64)


def learn_examples(run: Run, policy: HFPolicy, examples: Sequence[Example], replayed: Sequence[Segment]) -> Learner:
    """Imitates the examples for the iteration's epochs; with ``method=eto`` prefers the good path of each pair.

    It continues a resumed run. The learner is to be closed.

    Args:
        policy: is trained.
        examples: of :func:`~roleagent.learners.agent_r.iterate.collect`; without any, nothing is imitated.
        replayed: segments of the warm start.
    """
    config, options = run.config, run.config.options.revision
    if not run.method.imitates:
        return learn_preferences(run, policy, examples)
    iteration, began = run.progress.searched, run.progress.began
    warm = config.warmstart
    learner = Learner(policy, config, options.lr or warm.lr, optimizer=warm.optimizer, computes=policy_computes(config))
    if run.progress.step > began:
        run.restore(learner)
    else:
        run.save(learner)  # the trees are searched: a resumed run goes on from here
    if not examples:
        return learner
    parts: dict[str, Sequence[Segment]] = {
        name: [segment for one in examples if one.part == name for segment in one.segments] for name in AGENT
    }
    parts["general"] = tokenize_conversations(read_conversations(options.general), policy) if options.general else []
    if options.general and not parts["general"]:
        run.display.warn(
            f"no conversation of options.revision.general fits into policy.context={policy.context_length}"
        )
    parts["replay"] = replayed
    shares, tokens = part_shares(parts, options), config.warmstart.batch_tokens

    def epoch(number: int) -> Iterator[list[Member]]:
        return batches(parts, shares, tokens, run.stream("revision batches", iteration, number))

    updates = max(1, round(sum(1 for _ in epoch(0)) * options.of_iteration("epochs", iteration)))
    order = chain.from_iterable(map(epoch, count()))
    run.display.stage(f"imitate {iteration}", began + updates, run.progress.step)

    def step(batch: Sequence[Member]) -> dict[str, float]:
        return imitation_step(learner, run.ranks.share(batch), shares)

    make_updates(run, learner, order, updates, step, "imitation loss")
    return learner


def imitation_step(learner: Learner, batch: Sequence[Member], shares: Mapping[str, float]) -> dict[str, float]:
    """One update towards the examples (Eq. 6)."""
    config, ranks = learner.config, learner.ranks
    true_text = config.options.revision.splice != "published" and not config.policy.path
    text_weight = config.warmstart.text_weight if true_text else 0.0
    members = [Member(part, with_text(segment) if text_weight else segment) for part, segment in batch]
    weights = weights_of(members, shares, text_weight, ranks.sum)
    numbers = {name: number for number, name in enumerate(shares)}
    segments = [segment for _, segment in members]
    parts = [np.full(len(segment), numbers[part]) for part, segment in members]
    return likelihood_step(learner, segments, weights, parts, {number: name for name, number in numbers.items()})
