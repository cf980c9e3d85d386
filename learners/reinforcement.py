"""Reinforcement learning, step by step: credit for what was played, updates from it, and an account of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from roleagent.agents.hf import HFPolicy
from roleagent.agents.rollout import Rollout, RolloutStats
from roleagent.config import Config, ConfigError
from roleagent.learners.adapters import Adapter, adapted
from roleagent.learners.advantages import ESTIMATORS, EstimatorConfig, Values, summary
from roleagent.learners.engine import Learner
from roleagent.learners.objectives import improve
from roleagent.learners.run import Run
from roleagent.learners.segments import segments_of
from roleagent.stopwatch import PARTS, Stopwatch
from roleagent.types import Group, Sampler, Segment


def reference(run: Run, policy: HFPolicy) -> torch.nn.Module | Adapter | None:
    """The policy as the warm start left it, kept in the run folder for the KL penalty; None without one.

    With adapters that is the adapter alone: the policy's own model stands in for the rest.
    """
    if not run.config.loss.kl:
        return None
    path = run.folder.path / "reference"

    def keep() -> None:
        if not path.exists():
            if run.progress.step:
                raise ConfigError(f"{path} is missing: without it the KL penalty would pull towards something else")
            partial = path.with_suffix(".partial")
            if adapted(policy.model):
                Adapter.of(policy.model).save(partial)
            else:
                policy.model.save_pretrained(str(partial), safe_serialization=True)
            partial.rename(path)

    run.ranks.once(keep)
    if adapted(policy.model):
        return Adapter.load(path)
    model = type(policy.model).from_pretrained(str(path), dtype=policy.model.dtype)
    return model.requires_grad_(False)


def play(run: Run, rollout: Rollout, task_ids: Sequence[str], iteration: int) -> list[Group]:
    """This rank's episodes of the iteration: whole groups, one for each of its share of the tasks."""
    options = run.config.rollout
    rollout.policy.reseed(int(run.own_stream(4, iteration).integers(2**62)))
    rollout.stats, rollout.watch = RolloutStats(), run.watch
    return rollout.play(
        run.ranks.share(task_ids),
        options.group_size,
        options.temperature,
        lambda done, total: run.display.inner("episodes", done, total),
    )


def together(
    run: Run, groups: Sequence[Group], advantages: Sequence[Values], stats: RolloutStats
) -> tuple[list[Group], list[Values], RolloutStats]:
    """What all ranks played, on the first rank; elsewhere nothing.

    Raises:
        ConfigError: the environment failed in every episode.
    """
    played = run.ranks.collect(list(zip(groups, advantages, strict=True)))
    stats = RolloutStats.together(run.ranks.gather(stats))
    if run.ranks.first and not any(group.trajectories for group, _ in played):
        reason = next(iter(stats.failures.values()), "")
        raise ConfigError(f"every episode of an iteration failed in the environment: {reason}")
    return [group for group, _ in played], [values for _, values in played], stats


def credit(run: Run, groups: Sequence[Group], rng: np.random.Generator) -> list[Values]:
    """Each turn's advantage, by the configured estimator.

    Args:
        rng: shuffles them over the turns in the control ``train.shuffle_advantages``.
    """
    config = run.config
    advantages = [ESTIMATORS[config.estimator.kind](group, estimator_config(config)) for group in groups]
    return shuffled(advantages, rng) if config.train.shuffle_advantages else advantages


def estimator_config(config: Config) -> EstimatorConfig:
    """The estimator's part of a run's configuration."""
    options = config.estimator
    return EstimatorConfig(options.gamma, options.alpha, options.norm, options.similarity_threshold or None)


def shuffled(advantages: Sequence[Values], rng: np.random.Generator) -> list[Values]:
    """The same values on other turns, drawn over the whole batch."""
    flat = [value for group in advantages for row in group for value in row]
    values = iter(rng.permutation(flat).tolist())
    return [[[next(values) for _ in row] for row in group] for group in advantages]


def update(
    learner: Learner, groups: Sequence[Group], advantages: Sequence[Values], orders: Sequence[np.random.Generator]
) -> dict[str, float]:
    """Optimiser steps over whole groups: ``optim.updates`` of them per pass, of all ranks together.

    Args:
        orders: one generator per pass over the groups; it deals them out to the updates.

    Returns:
        the updates' metrics, in the mean.
    """
    collected = [
        metrics
        for order in orders
        for part in np.array_split(order.permutation(len(groups)), learner.config.optim.updates)
        if (metrics := _improve(learner, [(groups[i], advantages[i]) for i in part])) is not None
    ]
    if not collected:
        return {"entropy": 0.0, "logprob_gap": 0.0}
    return {name: float(np.mean([metrics.get(name, 0.0) for metrics in collected])) for name in collected[0]}


def _improve(learner: Learner, credited: Sequence[tuple[Group, Values]]) -> dict[str, float] | None:
    """One optimiser step on some groups; None where nothing in them teaches anything."""
    loss = learner.config.loss
    segments: list[Segment] = []
    trajectories = 0
    for group, advantages in credited:
        for trajectory, row in zip(group.trajectories, advantages, strict=True):
            for segment in segments_of(trajectory, row, trajectories, loss.train_predictions):
                # Without a KL term a segment of advantage 0 has gradient 0, so it need not be computed.
                if loss.kl or any(segment.advantages):
                    segments.append(segment)
            trajectories += 1
    return improve(learner, segments, trajectories, learner.config.rollout.temperature)


def account(config: Config, groups: Sequence[Group], stats: RolloutStats, sampler: Sampler) -> dict[str, float]:
    """What the iteration's episodes were like, what the mechanisms made of them, and what the sampler says."""
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    turns = [turn for trajectory in episodes for turn in trajectory.turns]
    # `curriculum_share` names itself; the rest gets the room's name, for entropy is also a property of the policy.
    told = {name.removeprefix("curriculum_"): value for name, value in sampler.metrics().items()}
    return {
        **summary(groups, estimator_config(config)),
        "success": float(np.mean([trajectory.success for trajectory in episodes])),
        "turns": float(np.mean([len(trajectory.turns) for trajectory in episodes])),
        "environment_steps": float(len(turns)),
        "format_errors": float(sum(turn.info.get("format_error") is not None for turn in turns)),
        "invalid_actions": float(sum(not turn.info.get("valid_action", True) for turn in turns)),
        "action_tokens": float(stats.action_tokens),
        "prediction_tokens": float(stats.prediction_tokens),
        "crashed_episodes": float(stats.errors),
        **{f"curriculum_{name}": value for name, value in told.items()},
    }


def times(watches: Sequence[Stopwatch], stats: RolloutStats, seconds: float) -> dict[str, float]:
    """Where an iteration's wall-clock time went, of all ranks the slowest; what has no name is ``other_seconds``."""
    spent = Stopwatch.slowest(watches)
    sampling = spent.get("generation", 0.0) + spent.get("prediction", 0.0)
    return {
        **{f"{name}_seconds": spent.get(name, 0.0) for name in PARTS},
        "other_seconds": max(0.0, seconds - sum(spent.values())),
        "seconds": seconds,
        "tokens_per_second": (stats.action_tokens + stats.prediction_tokens) / max(sampling, 1e-9),
    }


def headlines(config: Config, metrics: Mapping[str, float]) -> dict[str, float | int | str]:
    """The few of an iteration's numbers that a person sees go by."""
    return {
        "success": metrics["success"],
        "turns": metrics["turns"],
        "predictive reward": metrics["prediction_score"],
        "dead groups": f"{metrics['dead_groups']:.0f}/{config.rollout.tasks}",
        "curriculum share": metrics.get("curriculum_share", 0.0),
        "analyses read": 1 - metrics.get("curriculum_reflections_fallback_share", 1.0),
        "entropy": metrics["entropy"],
        "tokens/s": round(metrics["tokens_per_second"]),
    }


def tally(counters: dict[str, float], metrics: Mapping[str, float]) -> None:
    """Adds an iteration to what the mechanisms did over the whole run."""
    for name in ("predictions_scored", "returns_modulated", "dead_groups"):
        counters[name] = counters.get(name, 0.0) + metrics[name]
    for name in ("sampled", "from_curriculum", "failures", "retrieved", "reflections_fallback", "selections_fallback"):
        counters[f"curriculum_{name}"] = metrics.get(f"curriculum_{name}", 0.0)  # the sampler counts since the start


def idle_mechanisms(config: Config, counters: Mapping[str, float]) -> list[str]:
    """A warning for each mechanism that is switched on and did nothing."""
    expected = {}
    if config.wia:
        expected["predictions_scored"] = "wia is on, but no prediction was ever scored"
        if config.estimator.kind == "role_agent":
            expected["returns_modulated"] = "wia is on, but no prediction ever changed a return"
    if config.aiw:
        expected["curriculum_from_curriculum"] = "aiw is on, but no task was ever sampled from the failure library"
    idle = [text for name, text in expected.items() if not counters.get(name)]
    failures = counters.get("curriculum_failures", 0.0)
    if failures and counters.get("curriculum_reflections_fallback") == failures:
        idle.append("none of the analyst's reflections could be read: tasks were chosen by text search alone")
    return idle
