"""Imitation, step by step: an expert's episodes, a policy that can read them, supervised updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import torch

from roleagent.agents.hf import HFPolicy
from roleagent.agents.mistakes.slips import Slips
from roleagent.agents.prompts import STYLES
from roleagent.agents.session import World
from roleagent.agents.small import build_policy, train_tokenizer
from roleagent.config import Config, ConfigError
from roleagent.learners import objectives
from roleagent.learners.display import Display
from roleagent.learners.learner import Learner
from roleagent.learners.ranks import Ranks
from roleagent.learners.reflecting import Lesson
from roleagent.learners.run import Run
from roleagent.learners.warmstart import (
    Decoys,
    Demonstration,
    batches,
    demonstrate,
    segments_from,
    taught_turns,
    texts_of,
)
from roleagent.reflections import FIELDS, TAGS
from roleagent.types import Segment

CHUNK = 50
"""Updates between checkpoints."""


def demonstrations(world: World, rng: np.random.Generator, display: Display) -> list[Demonstration]:
    """Episodes of the environment's scripted expert on training tasks; with the same ``rng`` the same on every rank.

    Raises:
        ConfigError: the expert wins too rarely.
    """
    config = world.config.warmstart
    expert = world.base.unwrapped.expert(rng)  # type: ignore[attr-defined]
    slips = Slips((), rng)
    order = rng.permutation(len(world.panel))
    display.stage("demonstrations", config.episodes)
    shown: list[Demonstration] = []
    attempts = 0
    least = min((share for share in config.shares.values() if share > 0), default=1.0)
    while len(shown) < config.episodes:
        if attempts * least >= 3 * config.episodes:
            raise ConfigError(f"the expert won only {len(shown)} of {attempts} games: no warm start from that")
        task_id = world.panel.task_ids[order[attempts % len(order)]]
        demonstration = demonstrate(world.base, task_id, expert, config.noise, slips, rng)
        attempts += 1
        if demonstration is not None and _is_shown(demonstration, config.shares, rng):
            shown.append(demonstration)
        if attempts % 20 == 0:
            display.advance(len(shown))
    return shown


def _is_shown(demonstration: Demonstration, shares: Mapping[str, float], rng: np.random.Generator) -> bool:
    """Whether a demonstration is among the share of its task type that is to be shown."""
    share = shares.get(demonstration.task.task_type, 1.0)
    return share >= 1 or rng.random() < share


def new_policy(
    config: Config,
    ranks: Ranks,
    shown: Sequence[Demonstration],
    taught: Sequence[Lesson],
    horizon: int,
    generator: torch.Generator,
) -> HFPolicy:
    """A small policy from scratch, with a tokenizer that the first rank makes of all that it will be shown.

    Args:
        shown: at least one.
        taught: questions and answers of the environment role.
        horizon: how many predictions a reply may hold; their tags become tokens.
    """
    tags = ["<action>", "</action>", "</prediction>", *(f'<prediction h="{h}">' for h in range(1, horizon + 1))]
    tags += [tag for tag in (*TAGS, *(f"{name}:" for name in FIELDS)) if taught]
    texts = [*texts_of(shown, STYLES[config.prompt.style], config.prompt.history)]
    texts += [text for lesson in taught for text in (lesson.question, lesson.answer)]
    tokenizer = ranks.once(lambda: train_tokenizer(texts, config.policy.vocabulary, tags))
    return build_policy(config.policy, tokenizer, generator)


def lessons(world: World, policy: HFPolicy, shown: Sequence[Demonstration], rng: np.random.Generator) -> list[Segment]:
    """The demonstrations in the policy's tokens; those beyond its context are left out.

    Args:
        rng: draws the wrong predictions that are shown among the true ones, and the demonstrations without any.
    """
    options = world.config.warmstart
    predicting, plain = world.rollout(policy), replace(world, horizon=0).rollout(policy)
    detached = world.config.prompt.predictions == "detached"
    decoys = None if detached else Decoys(shown, world.horizon, options.decoys, rng)  # nobody reads detached ones again

    def built(demonstration: Demonstration) -> list[Segment]:
        if options.forecasts < 1 and rng.random() >= options.forecasts:
            return segments_from(demonstration, plain)
        if not (detached and world.horizon):
            return segments_from(demonstration, predicting, decoys)
        step = _predicted_step(demonstration, rng)
        return segments_from(demonstration, plain if step is None else predicting, only=step)

    rows = map(built, shown)
    return [segment for row in rows for segment in row if len(segment) <= policy.context_length]


def _predicted_step(demonstration: Demonstration, rng: np.random.Generator) -> int | None:
    """The step whose outcome a detached prediction is taught of; None where no step has a state that can be known."""
    known = [number for number, state in enumerate(demonstration.states[1:]) if state is not None]
    failed = [number for number in known if not demonstration.steps[number].info.get("valid_action", True)]
    return next(iter(taught_turns(known, failed, 1, rng)), None)


def imitate(run: Run, policy: HFPolicy, segments: Sequence[Segment], epochs: float, minutes: float) -> Learner:
    """Supervised updates for some epochs or minutes, whichever ends first; goes on where the stage was left.

    The ranks go through the same batches and share out the segments of each: the updates are those of a single rank.

    Args:
        run: in the stage that the updates belong to. It is checkpointed every :data:`CHUNK` updates.
        epochs: passes over the segments.
        minutes: wall-clock budget; 0: no limit.
    """
    config = run.config.warmstart
    if not segments:
        return Learner(policy, run.config, run.config.optim.lr, optimiser=run.config.optim.optimiser)
    learner = Learner(policy, run.config, config.lr, optimiser=config.optimiser)
    run.restore(learner)

    def epoch(number: int) -> Iterator[list[Segment]]:
        return batches(segments, config.batch_tokens, run.stream(2, number))

    done = run.progress.step
    total = max(1, round(sum(1 for _ in epoch(0)) * epochs))
    run.begin(total, minutes)
    # One endless order of batches; a resumed run skips what was done.
    for step, batch in enumerate((batch for number in count() for batch in epoch(number)), start=1):
        if step <= done:
            continue
        learner.share = run.share_of(step, total, minutes)
        if step > total or learner.share > 1.0:
            break
        metrics = objectives.imitate(learner, run.ranks.share(batch))
        run.progress.step = step
        if step % 10 == 0:
            run.log(metrics, **{"imitation loss": metrics["loss"]})
        if step % CHUNK == 0:
            run.save(learner)
    return learner
