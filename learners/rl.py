"""The steps of an RL iteration: sample tasks, play them, estimate advantages, update the policy, analyze failures.

Each function runs on every rank, books its time in ``run.timer``, and takes care of the ranks. The loop over these
steps is in ``train.py``.

:func:`update` takes the optimizer steps: passes over the batch with the clipped policy gradient (Eq. 9).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from roleagent.agents.builders import EnvSplit, open_analyst, open_rollout_policy
from roleagent.agents.policies.hf import HFPolicy, reason_of
from roleagent.agents.policies.protocol import HasBackend, Policy
from roleagent.agents.rollout import Rollout, RolloutStats
from roleagent.config import Config, ConfigError
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.samplers import TypeSampler, UniformSampler
from roleagent.files import make_whole, write_checksums
from roleagent.learners.advantages import Advantages, estimator_config, estimator_of
from roleagent.learners.batch import Batch, Column, build_batch, whiten
from roleagent.learners.critic import critic_advantages, fit, open_critic
from roleagent.learners.dealing import (
    Minibatch,
    Outline,
    SharedPolicy,
    bring_home,
    deal_segments,
    play_groups,
    play_own,
)
from roleagent.learners.engine.engine import Columns, Engine, Learner, NotFinite, policy_computes
from roleagent.learners.engine.logprobs import TokenScores
from roleagent.learners.engine.lora import Adapter, ModuleWeights, adapted
from roleagent.learners.genenv import (
    SimulatorTraining,
    generated_sampler,
    open_simulator_training,
)
from roleagent.learners.loss import MetricSums, mean_metrics, policy_loss, token_weights
from roleagent.learners.returns import Values, compared_turns, has_zero_variance, normalize_process, shuffle_process
from roleagent.learners.run.iterations import RankSampler
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.run.run import LOST_START, Run
from roleagent.learners.run.trajectory_log import ScoredGroup
from roleagent.segment import ACTION, CONTEXT, PREDICTION, TEXT
from roleagent.slow_notice import waiting
from roleagent.timer import Timer
from roleagent.types import Group, Sampler, Segment


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
        the learner, and the simulator of ``simulator.kind=model`` with its learner.
    """
    actor.offload()  # vLLM has most of the memory, and DeepSpeed takes its own now
    critic = open_critic(run.config, policy)
    optim = run.config.optim
    compared = run.config.loss.kl or run.config.shares_simulator  # a shared simulator starts as the policy
    reference = open_reference(run, policy) if compared else None
    learner = Learner(policy, run.config, optim.lr, reference, computes=policy_computes(run.config))
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
        with waiting(f"{path} to be written"):
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
    policy = SharedPolicy(actor, run.ranks)
    if not run.ranks.first:
        return RankSampler(run, None, policy)
    options = run.config.curriculum
    task_type = getattr(split.base.unwrapped, "task_type", None)
    if run.config.aiw and options.analyst == "types":
        sampler: Sampler = TypeSampler(
            split.task_split, run.stream("sampler"), options.epsilon, task_type or (lambda task_id: "")
        )
    elif run.config.aiw:
        if options.library:
            library = FailureLibrary(options.library, run.folder.identity)
        else:
            library = FailureLibrary(f"sqlite:///{run.folder.path / 'failures.db'}")
        sampler = CurriculumSampler(
            split.task_split,
            library,
            # vLLM itself decides how much it computes side by side.
            open_analyst(run.config, policy, 4096 if isinstance(actor, HasBackend) else 64 * run.ranks.size),
            run.stream("sampler"),
            epsilon=options.epsilon,
            candidates=options.candidates,
            learnability=options.learnability,
            **({} if options.learnability else {"overlooked": 0.0}),
            task_type=task_type,
        )
        if run.resumed and run.progress.sampler is None:
            library.rollback(0)  # a run killed before its first checkpoint may have saved failures
    else:
        sampler = UniformSampler(split.task_split, run.stream("sampler"))
    if run.config.genenv:
        sampler = generated_sampler(run, split, sampler, simulator.simulator if simulator else None)
    if run.progress.sampler is not None:
        sampler.load_state_dict(run.progress.sampler)
    return RankSampler(run, sampler, policy)


class Episodes:
    """Samples the tasks of an iteration, and plays ``rollout.group_size`` episodes of each.

    With ``rollout.ahead=1`` the episodes of the next iteration are played while this one's are learned: by weights that
    are one update older than those that learn from them. ``loss.importance_cap`` corrects for it.

    Attributes:
        staleness: optimizer steps since the weights that sampled the last episodes.
    """

    def __init__(self, run: Run, rollout: Rollout, sampler: RankSampler):
        self._run, self._rollout, self._sampler = run, rollout, sampler
        self._ahead: threading.Thread | None = None
        self._played: tuple[list[Group], RolloutStats] | BaseException | None = None
        self.staleness = 0.0

    def next(self) -> list[Group]:
        """The groups of this iteration; those of the next one are begun."""
        run, options = self._run, self._run.config
        if self._played is None:
            self._played = self._play(self._sample(), run.iteration, run.timer)
        self._sampler.ahead = []
        assert not isinstance(self._played, BaseException)
        (played, self._rollout.stats), self._played = self._played, None
        groups = bring_home(run.ranks, options.rollout.num_groups, options.rollout.group_size, played)
        versions = [
            turn.completion.policy_version for group in groups for one in group.trajectories for turn in one.turns
        ]
        self.staleness = float(self._rollout.policy.version - np.mean(versions)) if versions else 0.0
        if options.rollout.ahead and run.iteration < options.train.iterations:
            self._sampler.ahead = self._sample()
            arguments = self._sampler.ahead, run.iteration + 1
            # A daemon: a run that ends in an error does not wait for the episodes.
            self._ahead = threading.Thread(target=self._play_ahead, args=arguments, name="rollout", daemon=True)
            self._stats = self._rollout.stats
            self._ahead.start()
        return groups

    def wait(self) -> None:
        """Waits for the episodes that were begun: the policy is then free for new weights."""
        if self._ahead is None:
            return
        with self._run.timer("generation"):
            self._ahead.join()
        self._ahead, self._rollout.stats, self._rollout.watch = None, self._stats, self._run.timer
        if isinstance(self._played, BaseException):
            raise self._played

    def _sample(self) -> list[str]:
        return self._sampler.sample(self._run.config.rollout.num_groups)

    def _play(self, task_ids: Sequence[str], iteration: int, watch: Timer) -> tuple[list[Group], RolloutStats]:
        """This rank's episodes; it waits for no other rank."""
        run, rollout, options = self._run, self._rollout, self._run.config.rollout
        rollout.policy.reseed(int(run.own_stream("episodes", iteration).integers(2**62)))
        rollout.stats, rollout.watch = RolloutStats(), watch
        progress = partial(run.inner, "episodes") if watch is run.timer else None
        played = play_own(run.ranks, rollout, task_ids, options.group_size, options.temperature, progress)
        return played, rollout.stats

    def _play_ahead(self, task_ids: Sequence[str], iteration: int) -> None:
        watch = Timer()
        try:
            played, stats = self._play(task_ids, iteration, watch)
            stats.sampling_seconds = watch.seconds["generation"] + watch.seconds["prediction"]
            self._played = played, stats
        except BaseException as error:
            self._played = error


def dynamic_sampling(
    run: Run, rollout: Rollout, sampler: RankSampler, groups: Sequence[Group]
) -> tuple[list[Group], list[Group]]:
    """Replaces zero-variance groups by groups of new tasks, ``rollout.dynamic_sampling_rounds`` times at most.

    A replacement goes to the rank that had the group.

    Returns:
        the groups to train on, and the replaced ones.
    """
    kept, replaced = list(groups), []
    for _ in range(run.config.rollout.dynamic_sampling_rounds):
        zero_variance = [number for number, group in enumerate(kept) if has_zero_variance(group)]
        counts = run.ranks.everywhere(len(zero_variance))
        if not any(counts):
            break
        homes = [rank for rank, count in enumerate(counts) for _ in range(count)]
        played = play_groups(
            run.ranks,
            rollout,
            sampler.sample(len(homes)),
            run.config.rollout.group_size,
            run.config.rollout.temperature,
            partial(run.inner, "episodes"),
            homes,
        )
        for number, group in zip(zero_variance, played, strict=True):
            replaced.append(kept[number])
            kept[number] = group
    return kept, replaced


def open_rollout(run: Run, split: EnvSplit, actor: Policy) -> Rollout:
    """The rollout of training episodes; with ``rollout.predicted_turns=compared`` it plays them without predictions."""
    return split.rollout(actor, plain=run.config.rollout.predicted_turns == "compared")


def sample_predictions(run: Run, rollout: Rollout, groups: Sequence[Group]) -> list[Group]:
    """The groups with predictions of the turns that they compare, if the episodes were played without predictions."""
    config = run.config
    if rollout.predicts or not config.wia or not estimator_of(config.estimator.kind).modulates:
        return list(groups)
    chosen = [compared_turns(group, estimator_config(config)) for group in groups]
    return rollout.predict(groups, chosen, config.rollout.temperature, partial(run.inner, "predictions"))


def estimate_advantages(run: Run, groups: Sequence[Group]) -> list[Advantages]:
    """Each turn's advantage and its terms, by the configured estimator.

    The control ``train.shuffle`` shuffles them, or only the process rewards, over the turns.
    """
    config = run.config
    with run.timer("grouping"):
        options = config.estimator
        normalized = normalize_process(groups, options.rewards, options.process_norm, options.process_gate)
        if config.train.shuffle == "process":
            normalized = shuffle_process(
                normalized, options.rewards, run.own_stream("shuffled process rewards", run.iteration)
            )
        estimated = [Advantages.of(group, options.kind, estimator_config(config)) for group in normalized]
        if config.train.shuffle != "advantages":
            return estimated
        rng = run.own_stream("shuffled advantages", run.iteration)
        values = shuffled([one.values for one in estimated], rng)
        predicted = shuffled([one.prediction or [] for one in estimated], rng)
        return [
            replace(one, values=own, prediction=prediction)
            for one, own, prediction in zip(estimated, values, predicted, strict=True)
        ]


def shuffled(advantages: Sequence[Values], rng: np.random.Generator) -> list[Values]:
    """The same values on other turns, shuffled over the whole batch."""
    flat = [value for group in advantages for row in group for value in row]
    values = iter(rng.permutation(flat).tolist())
    return [[[next(values) for _ in row] for row in group] for group in advantages]


def make_batch(
    run: Run, learner: Learner, rollout: Rollout, groups: Sequence[Group], advantages: Sequence[Advantages]
) -> Batch:
    """The episodes as token columns (:func:`~roleagent.learners.batch.build_batch`), with their final advantages."""
    with run.timer("grouping"):
        batch = build_batch(groups, advantages, run.config, rollout, run.own_stream("batch", run.iteration))
    with run.timer("update"):
        rollout.policy.offload()  # the critic and the update need its memory
        return prepared(learner, batch)


def update_policy(run: Run, learner: Learner, batch: Batch) -> dict[str, float]:
    """``optim.epochs`` passes over the batch; returns the metrics of the update."""
    options = run.config.train
    with run.timer("update"):
        learner.share = (run.iteration - 1) / options.iterations
        epochs = range(run.config.optim.epochs)
        orders = run.ranks.once(lambda: [run.own_stream("minibatches", run.iteration, epoch) for epoch in epochs])
        return update(learner, batch, orders)


def sync_weights(run: Run, learner: Learner, actor: Policy) -> None:
    """Gives the actor the learner's weights."""
    with run.timer("sync"):
        actor.sync(learner, learner.policy.version)


def gather(
    run: Run,
    rollout: Rollout,
    groups: Sequence[Group],
    advantages: Sequence[Advantages],
    batch: Batch,
    replaced: Sequence[Group],
) -> list[ScoredGroup]:
    """The groups of all ranks, on the first rank; elsewhere none. Replaced groups come last, with zero advantages.

    ``rollout.stats`` of the first rank then covers all ranks.

    Raises:
        ConfigError: the environment failed in every episode.
    """
    zero = [Advantages.zero(group, estimator_config(run.config)) for group in replaced]
    scored = run.ranks.collect(
        [
            ScoredGroup(group, estimated, final, whitening=batch.whitening)
            for group, estimated, final in zip(groups, advantages, batch.advantages_by_turn(), strict=True)
        ]
    )
    scored += run.ranks.collect(
        [ScoredGroup(group, estimated, estimated.values, True) for group, estimated in zip(replaced, zero, strict=True)]
    )
    rollout.stats = RolloutStats.gather(run.ranks.gather(rollout.stats))

    def check() -> None:
        if not any(one.group.trajectories for one in scored):
            reason = next(iter(rollout.stats.failures.values()), "")
            raise ConfigError(f"the environment failed in every episode of an iteration: {reason}")

    run.ranks.once(check)
    return scored


def prepared(learner: Learner, batch: Batch) -> Batch:
    """The batch with its final advantages: by GAE, if there is a critic, and whitened (``estimator.whiten``)."""
    options = learner.config.estimator
    if learner.critic is not None:
        batch = critic_advantages(batch, learner.critic, learner.config)
    if not options.whiten:
        return batch
    level = options.gae_level if learner.critic is not None else "token"
    return whiten(batch, options.action_mask, learner.ranks.sum, level)


def update(learner: Learner, batch: Batch, orders: Sequence[np.random.Generator]) -> dict[str, float]:
    """Passes over the batch, each with as many optimizer steps as :func:`minibatches` returns.

    Args:
        learner: the policy, and its critic if the estimator needs one.
        batch: the groups of this rank, :func:`prepared`. The ranks exchange segments first, so that each trains nearly
            as many tokens.
        orders: one generator per pass, the same on every rank; it shuffles the minibatches.

    Returns:
        the metrics of :func:`policy_step` and :func:`~roleagent.learners.critic.fit`, each in the mean over the steps
        that have it.
    """
    ranks, numbers = learner.ranks, range(len(batch.segments))
    outline = Outline.of(ranks, batch, [learner.critic is not None or _is_trained(learner, batch, i) for i in numbers])
    weights = _weights(learner, batch, numbers, len(outline.tasks))
    world = world_shares(batch, weights, ranks.sum)
    passes = [minibatches(learner.config, outline, order) for order in orders]
    batch = replace(batch, columns={**batch.columns, "weights": weights})
    batch, passes = deal_segments(ranks, batch, outline, passes)
    if learner.critic is not None:
        learner.critic.share = learner.share
    batch = with_logprobs(batch, learner, [[part.segments for part in parts] for parts in passes])
    policy_metrics: list[dict[str, float]] = []
    critic_metrics: list[dict[str, float]] = []
    try:
        for part, count in ((part, len(parts)) for parts in passes for part in parts):
            weights = _minibatch_weights(learner, batch, part, count)
            metrics = _minibatch_step(learner, batch, part.segments, weights, fresh=not policy_metrics)
            if metrics is not None:
                policy_metrics.append(metrics)
            if learner.critic is not None and (metrics := _critic_step(learner.critic, batch, part.segments)):
                critic_metrics.append(metrics)
    except NotFinite as error:
        error.tasks = batch.tasks
        raise
    return {"entropy": 0.0, "logprob_gap": 0.0} | _means(policy_metrics) | _means(critic_metrics) | world


def world_shares(batch: Batch, weights: Column, sum_over_ranks: Callable[[float], float] = float) -> dict[str, float]:
    """The share of the world's tokens after the first reply, relative to actions and without predictions.

    Args:
        weights: of each token in the loss (:func:`~roleagent.learners.loss.token_weights`).

    Returns:
        ``world_share``: of the tokens from the first reply on, in the mean over the trajectories, those of the
        world; in [0, 1]. ``world_loss_share``: their share of the loss's weight, exactly 0 with ``loss.action_mask``.
    """
    world, every = np.zeros(len(batch.tasks)), np.zeros(len(batch.tasks))
    trained = total = 0.0
    for segment, turns, row in zip(batch.segments, batch.turns, weights, strict=True):
        said = (turns > 0) & ((segment.token_kind == CONTEXT) | (segment.token_kind == TEXT))
        world[segment.trajectory] += said.sum()
        every[segment.trajectory] += said.sum() + (segment.token_kind == ACTION).sum()
        trained += math.fsum(row[said].tolist())
        total += math.fsum(row[said | (segment.token_kind == ACTION)].tolist())
    played = every > 0
    shares = sum_over_ranks(math.fsum((world[played] / every[played]).tolist()))
    trained, total = sum_over_ranks(trained), sum_over_ranks(total)
    return {
        "world_share": shares / max(1.0, sum_over_ranks(float(played.sum()))),
        "world_loss_share": trained / total if total else 0.0,
    }


def minibatches(config: Config, outline: Outline, order: np.random.Generator) -> list[Minibatch]:
    """The minibatches of one pass over the batches of all ranks: ``optim.minibatches`` of groups, or
    ``minibatch_turns``.

    Counted in turns, a pass has one step per ``minibatch_turns`` turns. Segments are dealt evenly, whatever their
    trajectory. A segment is one turn (style ``window``) or a whole episode.

    Args:
        config: the run's configuration (section ``optim``).
        outline: of the batches of all ranks.
        order: shuffles groups or segments; the same on every rank.
    """
    options = config.optim
    if not options.minibatch_turns:
        members: list[list[int]] = [[] for _ in outline.lengths]
        for number, group in enumerate(outline.groups):
            members[group].append(number)
        parts = np.array_split(order.permutation(len(members)), options.minibatches)
        numbers = [[number for group in part for number in members[group]] for part in parts]
        trajectories = [sum(len(outline.lengths[group]) for group in part) for part in parts]
        return list(map(Minibatch, numbers, trajectories))
    count = max(1, math.ceil(sum(map(sum, outline.lengths)) / options.minibatch_turns))
    parts = np.array_split(order.permutation(len(outline.groups)), count)
    return [Minibatch(part.tolist(), None) for part in parts]


def with_logprobs(batch: Batch, learner: Learner, passes: Sequence[Sequence[Sequence[int]]]) -> Batch:
    """The batch with the columns ``reference`` and ``old``, if needed, as they are before the first step.

    ``reference`` is scored with the reference policy of the KL penalty. ``old`` is scored with the learner's present
    weights, if the ratio starts from them and more than one step follows: the first step computes them itself.

    Args:
        passes: per pass and minibatch the numbers of its segments.
    """
    config = learner.config
    temperature, segments = config.rollout.temperature, batch.segments
    zeros = [np.zeros(len(segment)) for segment in segments]
    first_pass = passes[0] if passes else []
    columns = dict(batch.columns)
    if config.loss.kl:
        rows = columns["reference"] = list(zeros)
        for chosen in first_pass:  # minibatch by minibatch, so that the micro-batches are those of the update
            scores = learner.score([segments[i] for i in chosen], temperature, learner.reference)
            for i, row in zip(chosen, scores, strict=True):
                rows[i] = row
    if (starts_from_learner(config) or not config.loss.action_mask) and sum(map(len, passes)) > 1:
        rows = columns["old"] = list(zeros)
        chosen = sorted(range(len(segments)) if len(passes) > 1 else chain(*first_pass[1:]))
        for i, row in zip(chosen, learner.score([segments[i] for i in chosen], temperature), strict=True):
            rows[i] = row
    return replace(batch, columns=columns)


def policy_step(
    learner: Learner, segments: Sequence[Segment], columns: Columns, temperature: float, fresh: bool = False
) -> dict[str, float] | None:
    """One optimizer step of the clipped policy-gradient objective (Eq. 9); None if no rank has segments.

    With ``loss.prediction_credit=imitate`` prediction tokens are true states, which were not sampled. They are trained
    by likelihood: weight times -log p, at the same temperature. The clipped surrogate, the KL penalty and all
    statistics of sampled tokens leave them out.

    Args:
        learner: the policy.
        segments: those of this rank; may be none.
        columns: ``weights`` (:func:`~roleagent.learners.loss.token_weights`), ``advantages``, ``sampler`` and, if
            needed, ``reference`` and ``old`` (:func:`with_logprobs`).
        temperature: of the sampling.
        fresh: whether the learner still has the weights that sampled. A ratio that starts from the learner then starts
            from this pass, and the pass measures the mismatch of learner and sampler.

    Returns:
        ``loss``, ``grad_norm`` and ``tokens`` (sampled and trained). With imitation ``imitated_tokens`` and, if there
        are any, ``prediction_loss`` (nats per imitated token). If there are sampled tokens, means over them:
        ``clip_fraction``, ``ratio``, ``kl``, ``entropy`` and ``logprob_gap``; and of a fresh step ``mismatch`` and
        ``mismatch_max`` (mean and maximum of |learner - sampler| log-probabilities, in nats) and ``importance`` (mean
        of exp(learner - sampler), truncated at ``loss.importance_cap``).
    """
    ranks, options = learner.ranks, learner.config.loss
    if not ranks.max(len(segments)):
        return None
    of_learner = starts_from_learner(learner.config)
    sums, mismatch = MetricSums(), Mismatch(options.importance_cap if of_learner else 0.0)
    imitates = options.prediction_credit == "imitate"

    def objective(tokens: TokenScores) -> torch.Tensor:
        known, now = tokens.columns, tokens.logprobs.detach()
        imitated = (tokens.token_kind == PREDICTION) & imitates
        weights = known["weights"].masked_fill(imitated, 0.0)
        old = _old_logprobs(tokens, now if fresh else known.get("old"), of_learner)
        loss, metrics = policy_loss(
            tokens.logprobs,
            old,
            known["advantages"],
            weights,
            options.clip_low,
            options.clip_high,
            known.get("reference"),
            options.kl,
            options.importance_level,
            tokens.segments,
            importance(tokens, old, options.importance_cap, options.importance_mode) if of_learner else None,
        )
        if fresh:
            mismatch.add((now - known["sampler"])[(weights != 0) & (tokens.token_kind != TEXT)])
        entropy = torch.where(weights != 0, tokens.entropies, 0.0).sum()
        if imitates:
            shares = torch.where(imitated, known["weights"], 0.0)
            loss = loss - (shares * tokens.logprobs).sum()
            chosen = shares != 0
            surprise = torch.where(chosen, -now, 0.0).sum()
            metrics |= {"prediction_loss": surprise, "imitated_tokens": chosen.sum()}
        sums.add({"loss": loss, "entropy": entropy, **metrics})
        return loss

    norm = learner.update(segments, columns, objective, temperature, entropy=True)
    total = sums.over_ranks(ranks)
    metrics = {"tokens": total["tokens"], "loss": total["loss"], "grad_norm": norm}
    if imitates:
        metrics["imitated_tokens"] = total["imitated_tokens"]
    if metrics.get("imitated_tokens"):
        metrics["prediction_loss"] = total["prediction_loss"] / total["imitated_tokens"]
    if total["tokens"]:  # a step of imitation alone has no statistics of sampled tokens
        metrics |= {**mean_metrics(total), "entropy": total["entropy"] / total["tokens"]}
        metrics |= mismatch.over_ranks(ranks) if fresh else {}
    return metrics


class Mismatch:
    """The difference between the log-probabilities of learner and sampler at the same weights.

    Args:
        cap: largest importance weight of a token; 0 for no limit.
    """

    def __init__(self, cap: float):
        self.limit = math.log(cap) if cap else 20.0
        self.tokens, self.sums, self.largest = 0, MetricSums(), torch.zeros(())

    def add(self, difference: torch.Tensor) -> None:
        """Adds tokens: learner minus sampler, in nats; float32 (N,)."""
        if difference.numel():
            self.tokens += difference.numel()
            self.sums.add({"gap": difference.abs().sum(), "importance": difference.clamp(max=self.limit).exp().sum()})
            self.largest = torch.maximum(self.largest.to(difference.device), difference.abs().max())

    def over_ranks(self, ranks: Ranks) -> dict[str, float]:
        """Means over the tokens of all ranks; the maximum is over all ranks on the first, elsewhere the rank's own."""
        gap, importance = (float(self.sums.sums.get(name, 0.0)) for name in ("gap", "importance"))
        tokens, largest = max(1.0, ranks.sum(float(self.tokens))), float(self.largest)
        return {
            "mismatch": ranks.sum(gap) / tokens,
            "mismatch_max": max(ranks.gather(largest), default=largest),
            "importance": ranks.sum(importance) / tokens,
        }


def starts_from_learner(config: Config) -> bool:
    """Whether the ratio of an update starts from the learner's log-probabilities, and not from the sampler's.

    Another engine rounds otherwise. If the ratio started from its log-probabilities, the difference would use up the
    clip's range and stop tokens that no update has moved yet.
    """
    source = config.loss.old_logprobs
    return source == "learner" or (source == "auto" and config.rollout.backend != "local")


def _old_logprobs(tokens: TokenScores, learner: torch.Tensor | None, of_learner: bool) -> torch.Tensor:
    """The old policy's log-probabilities; those of TEXT tokens are always the learner's."""
    sampler = tokens.columns["sampler"]
    if learner is None:
        return sampler
    return learner if of_learner else torch.where(tokens.token_kind == TEXT, learner, sampler)


def importance(tokens: TokenScores, old: torch.Tensor, cap: float, mode: str = "cap") -> torch.Tensor | None:
    """The weights (N,) that make tokens of an engine with other numerics count as the learner's own.

    Args:
        tokens: with the column ``sampler``.
        old: (N,) the learner's log-probabilities before the update.
        cap: largest weight; 0: None is returned.
        mode: ``"cap"`` weighs each token by min(exp(old - sampler), cap), ``"mask"`` by exp(old - sampler), and all
            tokens of a segment whose product is above the cap by 0 (the sequence mask of TRL).
    """
    if not cap:
        return None
    apart = torch.where(tokens.token_kind == TEXT, 0.0, old - tokens.columns["sampler"])
    if mode == "cap":
        return apart.clamp(max=math.log(cap)).exp()
    sums = apart.new_zeros(int(tokens.segments.max()) + 1).index_add_(0, tokens.segments, apart)
    return torch.where(sums[tokens.segments] > math.log(cap), 0.0, apart.exp())


def _minibatch_weights(learner: Learner, batch: Batch, part: Minibatch, count: int) -> Column:
    """Each token's weight within a minibatch.

    A trajectory that is spread over minibatches keeps its weights in the whole batch, times the number of minibatches:
    the mean over the minibatches is the objective, however the turns are dealt.
    """
    if part.trajectories is None:
        return [batch.columns["weights"][i] * count for i in part.segments]
    return _weights(learner, batch, part.segments, part.trajectories)


def _weights(learner: Learner, batch: Batch, chosen: Sequence[int], trajectories: int) -> Column:
    options = learner.config.loss
    return token_weights(
        [batch.segments[i] for i in chosen],
        max(1, trajectories),
        aggregation=options.aggregation,
        action_mask=options.action_mask,
        sum_over_ranks=learner.ranks.sum,
    )


def _is_taught(learner: Learner, batch: Batch, number: int) -> bool:
    """Whether the sampled tokens of a segment have a gradient: without a KL term those of advantage 0 have none."""
    return bool(learner.config.loss.kl or batch.columns["advantages"][number].any())


def _is_trained(learner: Learner, batch: Batch, number: int) -> bool:
    """Whether a segment has a gradient, be it for the states that it imitates. Others are skipped, but weights count
    them.
    """
    imitates = learner.config.loss.prediction_credit == "imitate"
    states = imitates and (batch.segments[number].token_kind == PREDICTION).any()
    return bool(_is_taught(learner, batch, number) or states)


def _minibatch_step(
    learner: Learner, batch: Batch, chosen: Sequence[int], weights: Column, fresh: bool
) -> dict[str, float] | None:
    """One optimizer step on some segments; None if nothing in them has a gradient."""
    kept = [place for place, number in enumerate(chosen) if _is_trained(learner, batch, number)]
    shares: Column = []
    for place in kept:
        # If it is kept for the states that it imitates, its sampled tokens enter no statistics.
        states = batch.segments[chosen[place]].token_kind == PREDICTION
        taught = _is_taught(learner, batch, chosen[place])
        shares.append(weights[place] if taught else np.where(states, weights[place], 0.0))
    kept = [chosen[place] for place in kept]
    columns = {name: [rows[number] for number in kept] for name, rows in batch.columns.items()}
    segments = [batch.segments[number] for number in kept]
    return policy_step(learner, segments, {**columns, "weights": shares}, learner.config.rollout.temperature, fresh)


def _critic_step(critic: Engine, batch: Batch, chosen: Sequence[int]) -> dict[str, float] | None:
    """One optimizer step of the critic on some segments, with equal token weights; None if no rank has segments."""
    config = critic.config
    segments = [batch.segments[i] for i in chosen]
    if not critic.ranks.max(len(segments)):
        return None
    weights = token_weights(
        segments, 1, 0.0, "token", action_mask=config.estimator.action_mask, sum_over_ranks=critic.ranks.sum
    )
    if config.estimator.gae_level == "turn":  # the critic learns at one token per turn
        fitted = [row * batch.columns["fitted"][i] for i, row in zip(chosen, weights, strict=True)]
        total = critic.ranks.sum(math.fsum(value for row in fitted for value in row.tolist()))
        weights = [row / max(total, 1e-9) for row in fitted]
    columns = {name: [batch.columns[name][i] for i in chosen] for name in ("values", "returns")}
    return fit(critic, segments, {**columns, "weights": weights}, config.rollout.temperature)


def _means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number over the rows that have it.

    >>> _means([{"loss": 1.0, "mismatch": 0.5}, {"loss": 3.0}])
    {'loss': 2.0, 'mismatch': 0.5}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
