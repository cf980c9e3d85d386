"""The steps of an RL iteration: sample tasks, play them, estimate advantages, update the policy, analyze failures.

Each function runs on every rank, books its time in ``run.timer``, and takes care of the ranks. The loop over these
steps is in ``train.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from roleagent.agents.builders import EnvSplit, open_analyst, open_rollout_policy
from roleagent.agents.policies.hf import HFPolicy, reason_of
from roleagent.agents.policies.protocol import Policy
from roleagent.agents.rollout import Rollout, RolloutStats
from roleagent.config import ConfigError
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.samplers import UniformSampler
from roleagent.files import make_whole, write_checksums
from roleagent.learners import policy_update
from roleagent.learners.advantages import has_zero_variance
from roleagent.learners.batch import Batch, build_batch
from roleagent.learners.credit import Credit, estimator_config
from roleagent.learners.critic import open_critic
from roleagent.learners.genenv.generated_tasks import generated_sampler, play_probe
from roleagent.learners.genenv.simulator import SimulatorTraining, open_simulator_training, update_simulator
from roleagent.learners.model.learner import Learner
from roleagent.learners.model.lora import Adapter, ModuleWeights, adapted
from roleagent.learners.process_rewards import normalize_process, shuffle_process
from roleagent.learners.returns import Values
from roleagent.learners.run.rank_sampler import RankSampler
from roleagent.learners.run.run import LOST_START, Run
from roleagent.learners.run.trajectory_log import ScoredGroup
from roleagent.types import Group, Sampler


def open_actor(run: Run, policy: HFPolicy) -> Policy:
    """The policy that plays, with the weights of ``policy``: that of ``rollout.backend``, or ``policy`` itself."""
    actor = policy if run.config.train.stage == "sft" else open_rollout_policy(run.config, policy)
    actor.sync(ModuleWeights(policy.model), policy.version)
    return actor


def open_learner(
    run: Run, split: EnvSplit, policy: HFPolicy, actor: Policy
) -> tuple[Learner, SimulatorTraining | None]:
    """The learner of the RL stage with critic, reference and task simulator, restored from the last checkpoint.

    Returns:
        the learner, and the simulator of ``simulator.kind=model`` with its own one.
    """
    critic = open_critic(run.config, policy)
    optim = run.config.optim
    compared = run.config.loss.kl or run.config.shares_simulator  # whose start is the agent's
    reference = open_reference(run, policy) if compared else None
    learner = Learner(policy, run.config, optim.lr, reference, optim.optimizer)
    learner.critic = critic
    simulator = open_simulator_training(run, split, learner, actor)
    run.restore(learner)
    return learner, simulator


def open_reference(run: Run, policy: HFPolicy) -> PreTrainedModel | Adapter:
    """The policy after the warm start, which the first call saves in the run folder.

    With adapters it is the adapter alone, for the policy's own model.

    Raises:
        ConfigError: the run has begun to learn, and the folder is missing or damaged.
    """
    path = run.folder.path / "reference"

    def fill(partial: Path) -> None:
        if adapted(policy.model):
            Adapter.of(policy.model).save(partial)
        else:
            policy.model.save_pretrained(partial, safe_serialization=True)
        write_checksums(partial)

    if run.needs_start(path):
        run.ranks.once(lambda: make_whole(path, fill))
    try:
        if adapted(policy.model):
            return Adapter.load(path)
        model = type(policy.model).from_pretrained(str(path), dtype=policy.model.dtype)
    except Exception as error:  # safetensors raises many types for a damaged file
        raise ConfigError(f"{path} cannot be read ({reason_of(error)}): {LOST_START}") from error
    return model.requires_grad_(False)


def open_sampler(run: Run, split: EnvSplit, actor: Policy, simulator: SimulatorTraining | None = None) -> RankSampler:
    """The Agent-In-World curriculum, or uniform sampling with ``aiw=off``; resumed where the run stopped.

    With ``genenv=on`` it chooses the base tasks of a :class:`~roleagent.curricula.generated_sampler.GeneratedSampler`,
    whose new tasks ``simulator`` writes, if it is a language model.
    """
    if not run.ranks.first:
        return RankSampler(run, None)
    options = run.config.curriculum
    if run.config.aiw:
        if options.library:
            library = FailureLibrary(options.library, run.folder.identity)
        else:
            library = FailureLibrary(f"sqlite:///{run.folder.path / 'failures.db'}")
        sampler: Sampler = CurriculumSampler(
            split.task_split,
            library,
            open_analyst(run.config, actor),
            run.stream("sampler"),
            epsilon=options.epsilon,
            decay=options.decay,
            success_factor=options.success_factor,
            candidates=options.candidates,
            learnability=options.learnability,
            candidates_from=options.candidates_from,
            overlooked=options.overlooked,
            task_type=getattr(split.base.unwrapped, "task_type", None),
        )
        if run.resumed and run.progress.sampler is None:
            library.rollback(0)  # a run killed before its first checkpoint may have saved failures
    else:
        sampler = UniformSampler(split.task_split, run.stream("sampler"))
    if run.config.genenv:
        sampler = generated_sampler(run, split, sampler, simulator.simulator if simulator else None)
    if run.progress.sampler is not None:
        sampler.load_state_dict(run.progress.sampler)
    return RankSampler(run, sampler)


def play(run: Run, rollout: Rollout, task_ids: Sequence[str]) -> list[Group]:
    """``rollout.group_size`` episodes of each task."""
    options = run.config.rollout
    rollout.policy.reseed(int(run.own_stream("episodes", run.iteration).integers(2**62)))
    rollout.stats, rollout.watch = RolloutStats(), run.timer
    return _episodes(run, rollout, task_ids, options.group_size, options.temperature)


def _episodes(run: Run, rollout: Rollout, task_ids: Sequence[str], size: int, temperature: float) -> list[Group]:
    return rollout.play(task_ids, size, temperature, partial(run.inner, "episodes"))


def dynamic_sampling(
    run: Run, rollout: Rollout, sampler: RankSampler, groups: Sequence[Group]
) -> tuple[list[Group], list[Group]]:
    """Replaces zero-variance groups by groups of new tasks, ``rollout.dynamic_sampling_rounds`` times at most.

    A replacement is played by the rank that had the group.

    Returns:
        the groups to train on, and the replaced ones.
    """
    options = run.config.rollout
    kept, replaced = list(groups), []
    for _ in range(options.dynamic_sampling_rounds):
        zero_variance = [number for number, group in enumerate(kept) if has_zero_variance(group)]
        task_ids = sampler.sample_own(len(zero_variance))
        if task_ids is None:
            break
        played = _episodes(run, rollout, task_ids, options.group_size, options.temperature)
        for number, group in zip(zero_variance, played, strict=True):
            replaced.append(kept[number])
            kept[number] = group
    return kept, replaced


def estimate_advantages(run: Run, groups: Sequence[Group]) -> list[Credit]:
    """Each turn's advantage and its terms, by the configured estimator.

    The controls ``train.shuffle_advantages`` and ``train.shuffle_process`` shuffle them, or only the process rewards,
    over the turns.
    """
    config = run.config
    with run.timer("grouping"):
        options = config.estimator
        normalized = normalize_process(
            groups, options.rewards, options.process_norm, options.process_gate, run.ranks.largest
        )
        if config.train.shuffle_process:
            normalized = shuffle_process(
                normalized, options.rewards, run.own_stream("shuffled process rewards", run.iteration)
            )
        credits = [Credit.of(group, options.kind, estimator_config(config)) for group in normalized]
        if not config.train.shuffle_advantages:
            return credits
        rng = run.own_stream("shuffled advantages", run.iteration)
        values = shuffled([one.values for one in credits], rng)
        predicted = shuffled([one.of_predictions or [] for one in credits], rng)
        return [
            replace(one, values=own, of_predictions=of_predictions)
            for one, own, of_predictions in zip(credits, values, predicted, strict=True)
        ]


def shuffled(advantages: Sequence[Values], rng: np.random.Generator) -> list[Values]:
    """The same values on other turns, shuffled over the whole batch."""
    flat = [value for group in advantages for row in group for value in row]
    values = iter(rng.permutation(flat).tolist())
    return [[[next(values) for _ in row] for row in group] for group in advantages]


def make_batch(
    run: Run, learner: Learner, rollout: Rollout, groups: Sequence[Group], credits: Sequence[Credit]
) -> Batch:
    """The episodes as token columns (:func:`~roleagent.learners.batch.build_batch`), with their final advantages."""
    with run.timer("grouping"):
        batch = build_batch(groups, credits, run.config, rollout, run.own_stream("batch", run.iteration))
    with run.timer("update"):
        rollout.policy.offload()  # the critic and the update need its memory
        return policy_update.prepared(learner, batch)


def update_policy(run: Run, learner: Learner, batch: Batch) -> dict[str, float]:
    """``optim.epochs`` passes over the batch; returns the metrics of the update."""
    options = run.config.train
    with run.timer("update"):
        learner.share = (run.iteration - 1) / options.iterations
        orders = [run.own_stream("minibatches", run.iteration, epoch) for epoch in range(run.config.optim.epochs)]
        return policy_update.update(learner, batch, orders)


def sync_weights(run: Run, learner: Learner, actor: Policy) -> None:
    """Gives the actor the learner's weights."""
    with run.timer("sync"):
        actor.sync(learner, learner.policy.version)


def gather(
    run: Run,
    rollout: Rollout,
    groups: Sequence[Group],
    credits: Sequence[Credit],
    batch: Batch,
    replaced: Sequence[Group],
) -> list[ScoredGroup]:
    """The groups of all ranks, on the first rank; elsewhere none. Replaced groups come last, with zero advantages.

    ``rollout.stats`` of the first rank then covers all ranks.

    Raises:
        ConfigError: the environment failed in every episode.
    """
    zero = [Credit.zero(group, estimator_config(run.config)) for group in replaced]
    scored = run.ranks.collect(
        [
            ScoredGroup(group, credit, advantages, whitening=batch.whitening)
            for group, credit, advantages in zip(groups, credits, batch.advantages_by_turn(), strict=True)
        ]
    )
    scored += run.ranks.collect(
        [ScoredGroup(group, credit, credit.values, True) for group, credit in zip(replaced, zero, strict=True)]
    )
    rollout.stats = RolloutStats.gather(run.ranks.gather(rollout.stats))

    def check() -> None:
        if not any(one.group.trajectories for one in scored):
            reason = next(iter(rollout.stats.failures.values()), "")
            raise ConfigError(f"the environment failed in every episode of an iteration: {reason}")

    run.ranks.once(check)
    return scored


__all__ = [
    "dynamic_sampling",
    "estimate_advantages",
    "gather",
    "make_batch",
    "open_actor",
    "open_learner",
    "open_reference",
    "open_sampler",
    "play",
    "play_probe",
    "sync_weights",
    "update_policy",
    "update_simulator",
]
