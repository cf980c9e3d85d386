"""The learning of Agent-R (arXiv 2501.11425, Eq. 6): imitation of an iteration's examples.

The iteration's loss is made of parts (good paths, spliced paths, general conversations, demonstrations); see
:mod:`roleagent.learners.revision.loss`. With ``train.stage=eto`` the examples are preferences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count

import numpy as np
from transformers import PreTrainedModel

from roleagent.agents.policies.hf import HFPolicy
from roleagent.learners.model.learner import Learner
from roleagent.learners.model.lora import Adapter
from roleagent.learners.preference import learn as learn_preferences
from roleagent.learners.revision.examples import Example
from roleagent.learners.revision.general import read_conversations, tokenize_conversations
from roleagent.learners.revision.loss import AGENT, Member, batches, part_shares, weights_of
from roleagent.learners.revision.updates import make_updates
from roleagent.learners.rl import open_reference
from roleagent.learners.run.run import Run
from roleagent.learners.sft.imitation import likelihood_step, with_text
from roleagent.types import Segment


def learn_examples(run: Run, policy: HFPolicy, examples: Sequence[Example], replayed: Sequence[Segment]) -> Learner:
    """Imitates the examples for the iteration's epochs; with ``train.stage=eto`` prefers the good path of each pair.

    It continues a resumed run. The learner is to be closed.

    Args:
        policy: is trained.
        examples: of :func:`~roleagent.learners.revision.iterate.collect`; without any, nothing is imitated.
        replayed: segments of the warm start.
    """
    config, options = run.config, run.config.revision
    if config.train.stage == "eto":
        return learn_preferences(run, policy, examples)
    iteration, began = run.progress.searched, run.progress.began
    if options.start == "base" and examples and run.progress.step == began:
        _load(policy, open_reference(run, policy))
    learner = Learner(policy, config, options.lr or config.warmstart.lr, optimizer=config.warmstart.optimizer)
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
        run.display.warn(f"no conversation of revision.general fits into policy.context={policy.context_length}")
    parts["replay"] = replayed
    shares, tokens = part_shares(parts, options), options.batch_tokens or config.warmstart.batch_tokens

    def epoch(number: int) -> Iterator[list[Member]]:
        return batches(parts, shares, tokens, run.stream("revision batches", iteration, number))

    updates = max(1, round(sum(1 for _ in epoch(0)) * options.of_iteration("epochs", iteration)))
    order = chain.from_iterable(map(epoch, count()))
    run.display.stage(f"imitate {iteration}", began + updates, run.progress.step)

    def step(batch: Sequence[Member]) -> dict[str, float]:
        return imitation_step(learner, run.ranks.share(batch), shares)

    make_updates(run, learner, order, updates, step, "imitation loss")
    return learner


def _load(policy: HFPolicy, weights: PreTrainedModel | Adapter) -> None:
    if isinstance(weights, Adapter):
        weights.put_into(policy.model)
    else:
        policy.model.load_state_dict(weights.state_dict())


def imitation_step(learner: Learner, batch: Sequence[Member], shares: Mapping[str, float]) -> dict[str, float]:
    """One update towards the examples (Eq. 6)."""
    config, ranks = learner.config, learner.ranks
    true_text = config.revision.splice != "published" and not config.policy.path
    text_weight = config.warmstart.text_weight if true_text else 0.0
    members = [Member(part, with_text(segment) if text_weight else segment) for part, segment in batch]
    weights = weights_of(
        members, shares, config.revision.balance, config.loss.prediction_weight, text_weight, ranks.sum
    )
    numbers = {name: number for number, name in enumerate(shares)}
    segments = [segment for _, segment in members]
    parts = [np.full(len(segment), numbers[part]) for part, segment in members]
    return likelihood_step(learner, segments, weights, parts, {number: name for name, number in numbers.items()})


__all__ = ["imitation_step", "learn_examples"]
