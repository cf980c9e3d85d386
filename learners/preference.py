"""ETO (arXiv 2403.02502), a baseline of Agent-R: preferences between a good and a bad path of one search tree.

    L = −log σ(β·[Δ_good − Δ_bad]),  Δ = Σ log π(a)/π_ref(a)

The sum is over the action tokens behind the common prefix of both paths; π_ref is the policy at the start of the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import torch

from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.search.tree import Node, Tree
from roleagent.learners.batch import ACTION, Column
from roleagent.learners.model.learner import Learner
from roleagent.learners.model.token_logprobs import TokenScores
from roleagent.learners.revision.data import RevisionData, TreeData
from roleagent.learners.revision.examples import Example
from roleagent.learners.revision.pairs import Pair, good_leaves, leaves_of, make_pairs
from roleagent.learners.revision.splice import whole
from roleagent.learners.revision.updates import make_updates
from roleagent.learners.run.run import Run
from roleagent.learners.sft.tokenization import segments_from
from roleagent.types import Segment


class PreferenceData(RevisionData):
    """Makes preferences of trees: each pair of :func:`make_pairs` is one example, the good path's segments first."""

    def make(self, trees: Sequence[Tree], streams: Sequence[np.random.Generator]) -> list[TreeData]:
        found = [TreeData(tree) for tree in trees]
        for data, rng in zip(found, streams, strict=True):
            leaves = leaves_of(data.tree)
            good, pairs = good_leaves(leaves, self.alpha), make_pairs(data.tree, self.options, self.alpha, rng)
            data.count(leaves, good, pairs)
            for pair in pairs:
                self._add_pair(data, pair)
        self._add_leaves(found, [])
        return found

    def _add_pair(self, data: TreeData, pair: Pair) -> None:
        most = pair.good.depth + self.split.config.preference.extra_turns
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


def learn(run: Run, policy: HFPolicy, examples: Sequence[Example]) -> Learner:
    """Updates towards an iteration's preferences; continues a resumed run. The learner is to be closed.

    Every rank has the same examples and takes its share of each batch.
    """
    config, options = run.config, run.config.preference
    iteration, began, ranks = run.progress.searched, run.progress.began, run.ranks
    lr, beta = (values[min(iteration, len(values)) - 1] for values in (options.lr, options.beta))
    learner = Learner(policy, config, lr, optimizer=config.optim.optimizer)
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
    size = options.batch_pairs
    updates = max(1, round(len(examples) * options.epochs / size))
    run.display.stage(f"prefer {iteration}", began + updates, run.progress.step)
    order = (
        part
        for number in count()
        for part in np.array_split(
            run.stream("preference batches", iteration, number).permutation(len(examples)),
            max(1, round(len(examples) / size)),
        )
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


__all__ = ["PreferenceData", "learn", "log_ratios", "preference_step"]
