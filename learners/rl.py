"""The steps of an RL iteration: sample tasks, play them, estimate advantages, update the policy, analyze failures.

Each function runs on every rank, books its time in ``run.timer``, and takes care of the ranks. The loop over these
steps is in ``train.py``.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from roleagent.agents.builders import EnvSplit, open_analyst, open_rollout_policy
from roleagent.agents.policies.hf import HFPolicy, reason_of
from roleagent.agents.policies.model_check import check_sampler
from roleagent.agents.policies.protocol import HasBackend, Policy
from roleagent.agents.rollout import Rollout, RolloutStats
from roleagent.config import Config, ConfigError
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.mixed_sampler import MixedSampler
from roleagent.curricula.samplers import TypeSampler, UniformSampler
from roleagent.files import make_whole, write_checksums
from roleagent.learners.advantages import Advantages, Estimator, compared_turns
from roleagent.learners.batch import Batch, build_batch
from roleagent.learners.critic import open_critic
from roleagent.learners.dealing import (
    RankSampler,
    SharedPolicy,
    bring_home,
    deal_again,
    environment_of,
    play_groups,
    play_own,
)
from roleagent.learners.distillation import add_teacher, open_teacher
from roleagent.learners.engine.engine import Learner, policy_computes
from roleagent.learners.engine.lora import Adapter, ModuleWeights, adapted
from roleagent.learners.lessons import training_lessons
from roleagent.learners.rewards import (
    Shuffle,
    Values,
    has_zero_variance,
    normalize_process,
    reward_variance,
    shuffle_process,
)
from roleagent.learners.run.ranks import dealt_back
from roleagent.learners.run.run import LOST_START, Run
from roleagent.learners.run.trajectory_log import ScoredGroup
from roleagent.learners.update import Mismatch, prepared, update
from roleagent.slow_notice import waiting
from roleagent.timer import ROLLOUT, Timer
from roleagent.types import ACTION, CONTEXT, Analyst, Group, Request, Sampler, Segment

_NAME = re.compile(r"[A-Za-z0-9_]+")
_TAKEN = ("policy", "adapter", "learner", "critic", "state")  # folders of a checkpoint
_PROBES = 8  # replies that show whether the sampler has the learner's weights


def open_actor(config: Config, policy: HFPolicy) -> Policy:
    """The policy that plays, with the weights of ``policy``: that of ``rollout.backend``, or ``policy`` itself.

    Raises:
        ConfigError, PolicyError: it cannot be opened, or computes another model; one line.
    """
    actor = open_rollout_policy(config, policy)
    actor.sync(ModuleWeights(policy.model), policy.version)
    if actor is not policy:
        check_sampler(policy.model, policy.known, actor)
    return actor


def open_learner(run: Run, split: EnvSplit, policy: HFPolicy, actor: Policy) -> Learner:
    """The learner of the RL stage with critic, reference and what the method adds, as the last checkpoint has it."""
    actor.offload()  # vLLM has most of the memory, and DeepSpeed takes its own now
    critic = open_critic(run.config, policy)
    optim = run.config.optim
    reference = open_reference(run, policy) if run.method.needs_reference() else None
    learner = Learner(policy, run.config, optim.lr, reference, computes=policy_computes(run.config))
    learner.critic = critic
    learner.teacher = open_teacher(run.config, split, policy, run.stream)
    run.method.setup(run, split, learner, actor)
    for name in learner.beside:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            raise ConfigError(
                f"method={run.config.method}: a model in learner.beside is saved in a folder of its name, and {name!r} "
                f"cannot be that: take letters, digits and _, and none of {', '.join(_TAKEN)}"
            )
    run.restore(learner)
    if (state := run.progress.method.get(run.config.method)) is not None:
        run.method.load_state_dict(state)
    return learner


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


def open_sampler(run: Run, split: EnvSplit, actor: Policy) -> RankSampler:
    """The Agent-In-World curriculum, or uniform sampling with ``aiw=off``, or what the method makes of it.

    It is resumed where the run stopped.
    """
    policy = SharedPolicy(actor, run.ranks)
    if not run.ranks.first:
        return RankSampler(run, None, policy)
    library = open_library(run)
    # vLLM itself decides how much it computes side by side.
    batch = 4096 if isinstance(actor, HasBackend) else 64 * run.ranks.size
    analyst = None if library is None else open_analyst(run.config, policy, batch)
    opened = {name: _sampler_of(run, name, part, library, analyst) for name, part in split.environments.items()}
    sampler = opened[""] if not split.parts else MixedSampler(opened, {one.name: one.share for one in run.config.env})
    if run.progress.sampler is not None:
        sampler.load_state_dict(run.progress.sampler)
    return RankSampler(run, sampler, policy)


def open_library(run: Run) -> FailureLibrary | None:
    """The failure library of a run whose curriculum reads failures; several environments share it."""
    config = run.config
    if not config.reads_failures:
        return None
    library = FailureLibrary(*run.library)
    if run.resumed and run.progress.sampler is None:
        library.rollback(0)  # a run killed before its first checkpoint may have saved failures
    return library


def _sampler_of(
    run: Run,
    name: str,
    split: EnvSplit,
    library: FailureLibrary | None,
    analyst: Analyst | None,
) -> Sampler:
    """The sampler of one environment, whose ``name`` is empty where it is the only one."""
    options, task_type = run.config.curriculum, split.task_type
    stream = partial(run.stream, *filter(None, [name]))
    if run.config.aiw and options.analyst == "types":
        sampler: Sampler = TypeSampler(split.task_split, stream("sampler"), options.epsilon, task_type)
    elif library is not None:
        sampler = CurriculumSampler(
            split.task_split,
            library,
            analyst,
            stream("sampler"),
            epsilon=options.epsilon,
            candidates=options.candidates,
            learnability=options.learnability,
            **({} if options.learnability else {"overlooked": 0.0}),
            task_type=task_type,
            control=options.analyst if options.analyst in ("replay", "text", "frozen") else "",
        )
        if run.progress.stage == "train":  # a fork of a run without a library files its failures where the run stands
            sampler.iteration = run.progress.step
    else:
        sampler = UniformSampler(split.task_split, stream("sampler"))
    sampler = run.method.sampler(run, split, sampler)
    needed = ("sample", "observe", "choices", "metrics", "state_dict", "load_state_dict")
    if missing := [name for name in needed if not callable(getattr(sampler, name, None))]:
        raise ConfigError(
            f"the sampler of method={run.config.method} has no {missing[0]}: it needs {', '.join(needed)} "
            "(roleagent.types.Sampler)"
        )
    return sampler


class Episodes:
    """Samples the tasks of an iteration, and plays ``rollout.group_size`` episodes of each.

    With ``rollout.async_level=1`` the episodes of the next iteration are played during the update on this one's: by
    weights that are one update older than those that learn from them. ``loss.importance_cap`` corrects for it.

    Attributes:
        staleness: optimizer steps since the weights that sampled the last episodes.
    """

    def __init__(self, run: Run, rollout: Rollout, sampler: RankSampler, split: EnvSplit):
        self._run, self._rollout, self._sampler, self._split = run, rollout, sampler, split
        self._ahead: threading.Thread | None = None
        self._played: tuple[list[Group], RolloutStats] | BaseException | None = None
        self.staleness = 0.0

    def next(self) -> list[Group]:
        """The groups of this iteration; those of the next one are begun."""
        run, options = self._run, self._run.config
        if self._played is None:
            self._played = self._play(self._sample(run.iteration), run.iteration, run.timer)
        self._sampler.ahead = []
        assert not isinstance(self._played, BaseException)
        (played, self._rollout.stats), self._played = self._played, None
        groups = bring_home(run.ranks, options.rollout.num_groups, options.rollout.group_size, played)
        versions = [
            turn.completion.policy_version
            for group in groups
            for episode in group.trajectories
            for turn in episode.turns
        ]
        self.staleness = float(self._rollout.policy.version - np.mean(versions)) if versions else 0.0
        if options.rollout.async_level and run.iteration < options.train.last:
            self._sampler.ahead = self._sample(run.iteration + 1)
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

    def _sample(self, iteration: int) -> list[str]:
        """The tasks of an iteration; what they read is read now."""
        self._rollout.lessons = training_lessons(self._run, self._split, iteration)
        return self._sampler.sample(self._run.config.rollout.num_groups)

    def _play(self, task_ids: Sequence[str], iteration: int, watch: Timer) -> tuple[list[Group], RolloutStats]:
        """This rank's episodes; it waits for no other rank."""
        run, rollout, options = self._run, self._rollout, self._run.config.rollout
        rollout.policy.reseed(int(run.own_stream("episodes", iteration).integers(2**62)))
        rollout.stats, rollout.watch = RolloutStats(), watch
        rollout.most_turns = run.config.turn_limit(iteration)
        progress = partial(run.inner, "episodes") if watch is run.timer else None
        played = play_own(run.ranks, rollout, task_ids, options.group_size, options.temperature, progress)
        return played, rollout.stats

    def _play_ahead(self, task_ids: Sequence[str], iteration: int) -> None:
        watch = Timer()
        try:
            played, stats = self._play(task_ids, iteration, watch)
            stats.seconds = sum(watch.seconds[part] for part in ROLLOUT)
            self._played = played, stats
        except BaseException as error:
            self._played = error


def dynamic_sampling(
    run: Run, rollout: Rollout, sampler: RankSampler, groups: Sequence[Group]
) -> tuple[list[Group], list[Group]]:
    """Replaces zero-variance groups by groups of new tasks, ``rollout.dynamic_sampling_rounds`` times at most.

    A replacement is of the group's environment, and goes to the rank that had the group. A method that compares no
    episodes learns from every group, and replaces none.

    Returns:
        the groups to train on, and the replaced ones.
    """
    kept, replaced = list(groups), []
    for _ in range(run.config.rollout.dynamic_sampling_rounds if run.method.compares_outcomes else 0):
        zero_variance = [number for number, group in enumerate(kept) if has_zero_variance(group)]
        wanted = run.ranks.everywhere([environment_of(run, kept[number]) for number in zero_variance])
        if not any(wanted):
            break
        homes = [rank for rank, names in enumerate(wanted) for _ in names]
        played = play_groups(
            run.ranks,
            rollout,
            sampler.replace([name for names in wanted for name in names]),
            run.config.rollout.group_size,
            run.config.rollout.temperature,
            partial(run.inner, "episodes"),
            homes,
        )
        for number, group in zip(zero_variance, played, strict=True):
            replaced.append(kept[number])
            kept[number] = group
    return kept, replaced


def filter_groups(run: Run, groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """Keeps the share ``rollout.keep_groups`` of each environment's groups, those with the highest variance of rewards.

    This is the filter of RAGEN (arXiv 2504.20073). Groups with little variance have small gradients, in which noise and
    the KL penalty outweigh the reward (RAGEN-2, arXiv 2604.06268).

    Returns:
        the groups to train on, and the others, each dealt in turn.
    """
    share, ranks = run.config.rollout.keep_groups, run.ranks
    if share == 1:
        return list(groups), []
    rewards = run.method.estimator.rewards
    own = [(environment_of(run, group), reward_variance(group, rewards)) for group in groups]
    everywhere = dealt_back(ranks.everywhere(own))
    kept, left_out = list[int](), list[int]()
    for name in dict.fromkeys(name for name, _ in everywhere):
        places = [number for number, (other, _) in enumerate(everywhere) if other == name]
        places.sort(key=lambda number: -everywhere[number][1])
        count = math.ceil(share * len(places) - 1e-9)  # 0.28 * 25 is a bit more than 7
        kept += places[:count]
        left_out += places[count:]
    return deal_again(ranks, groups, sorted(kept)), deal_again(ranks, groups, sorted(left_out))


def open_rollout(run: Run, split: EnvSplit, actor: Policy) -> Rollout:
    """The rollout of training episodes; with ``rollout.predicted_turns=compared`` it plays them without predictions."""
    return split.rollout(actor, plain=run.config.rollout.predicted_turns == "compared")


def sample_predictions(run: Run, rollout: Rollout, groups: Sequence[Group]) -> list[Group]:
    """The groups with predictions of the turns that they compare, if the episodes were played without predictions."""
    config = run.config
    if rollout.predicts or not config.wia or not run.method.modulates:
        return list(groups)
    chosen = [compared_turns(group, run.method.estimator) for group in groups]
    return rollout.predict(groups, chosen, config.rollout.temperature, partial(run.inner, "predictions"))


def estimate_advantages(run: Run, groups: Sequence[Group]) -> list[Advantages]:
    """Each turn's advantage and its terms, by the method.

    The control ``train.shuffle`` shuffles them, or only the process rewards, over the turns.
    """
    config = run.config
    with run.timer("grouping"):
        options = config.estimator
        normalized = normalize_process(groups, options.rewards, options.process_norm, options.process_gate)
        if config.train.shuffle == "process":
            normalized = shuffle_process(normalized, options.rewards, _shuffle(run, "shuffled process rewards"))
        estimated = [run.method.estimate(group) for group in normalized]
        if config.train.shuffle != "advantages":
            return estimated
        shuffle = _shuffle(run, "shuffled advantages")
        values = shuffled([of_group.values for of_group in estimated], shuffle)
        predictions = shuffled([of_group.prediction or [] for of_group in estimated], shuffle)
        return [
            replace(of_group, values=own, prediction=prediction)
            for of_group, own, prediction in zip(estimated, values, predictions, strict=True)
        ]


def _shuffle(run: Run, stream: str) -> Shuffle:
    """Deals the values of all ranks anew; every rank must call it, equally often."""
    ranks = run.ranks
    rng = ranks.once(lambda: run.own_stream(stream, run.iteration))

    def shuffle(own: Sequence[float]) -> list[float]:
        each = ranks.everywhere(list(own))
        dealt = rng.permutation([value for part in each for value in part]).tolist()
        first = sum(map(len, each[: ranks.rank]))
        return dealt[first : first + len(own)]

    return shuffle


def shuffled(advantages: Sequence[Values], shuffle: Shuffle) -> list[Values]:
    """The same values on other turns, shuffled over the whole batch."""
    values = iter(shuffle([value for group in advantages for row in group for value in row]))
    return [[[next(values) for _ in row] for row in group] for group in advantages]


def make_batch(
    run: Run, learner: Learner, rollout: Rollout, groups: Sequence[Group], advantages: Sequence[Advantages]
) -> Batch:
    """The episodes as token columns (:func:`~roleagent.learners.batch.build_batch`), with their final advantages."""
    with run.timer("grouping"):
        batch = build_batch(groups, advantages, run.config, rollout, run.own_stream("batch", run.iteration))
    with run.timer("update"):
        if not run.config.rollout.async_level:  # then it plays during the update
            rollout.policy.offload()  # the critic and the update need its memory
        return add_teacher(learner, rollout, groups, prepared(learner, batch))


def update_policy(run: Run, learner: Learner, batch: Batch) -> dict[str, float]:
    """``optim.epochs`` passes over the batch; returns the metrics of the update.

    ``update_flop``, this rank's floating-point operations, becomes a speed at the end of the iteration.
    """
    options = run.config.train
    with run.timer("update"):
        learner.flop = 0.0
        learner.share = (run.iteration - 1) / options.iterations
        epochs = range(run.config.optim.epochs)
        orders = run.ranks.once(lambda: [run.own_stream("minibatches", run.iteration, epoch) for epoch in epochs])
        alone = learner.critic is not None and run.iteration <= run.config.critic.warmup
        metrics = update(learner, batch, orders, run.method, critic_alone=alone)
        return metrics | {"update_flop": learner.flop}


def sync_weights(run: Run, learner: Learner, actor: Policy) -> None:
    """Gives the actor the learner's weights."""
    with run.timer("sync"):
        actor.sync(learner, learner.policy.version)


def sync_mismatch(run: Run, learner: Learner, actor: Policy, batch: Batch) -> dict[str, float]:
    """With ``rollout.async_level=1``, the difference of learner and actor right after the actor received the weights.

    The episodes are older there, so their ``mismatch`` does not show whether weights arrive. Every rank must call it.

    Returns:
        ``sync_mismatch``: mean |learner - sampler| of the log-probabilities of a few sampled replies, in nats.
    """
    if not run.config.rollout.async_level:
        return {}
    options, probes = run.config.rollout, []
    with run.timer("sync"):
        starts = [(one.token_ids, np.flatnonzero(one.token_kind == ACTION)) for one in batch.segments]
        asked = [
            Request(tuple(ids[: places[0]].tolist()), slot, options.action_tokens, actor.end_ids)
            for slot, (ids, places) in enumerate(one for one in starts if len(one[1]))
        ][:_PROBES]
        for request, reply in zip(asked, actor.generate(asked, options.temperature), strict=True):
            prompt, sampled = len(request.prompt_ids), len(reply.token_ids)
            probes.append(
                Segment(
                    [*request.prompt_ids, *reply.token_ids],
                    [CONTEXT] * prompt + [ACTION] * sampled,
                    [*[0.0] * prompt, *reply.logprobs],
                    [0.0] * (prompt + sampled),
                )
            )
        scores, difference = learner.score(probes, options.temperature), Mismatch(0.0)
        for probe, row in zip(probes, scores, strict=True):
            chosen = probe.token_kind == ACTION
            difference.add(torch.as_tensor(row - probe.sampler_logprobs, dtype=torch.float32)[chosen])
        return {"sync_mismatch": difference.over_ranks(run.ranks)["mismatch"]}


def gather(
    run: Run,
    rollout: Rollout,
    groups: Sequence[Group],
    advantages: Sequence[Advantages],
    batch: Batch,
    replaced: Sequence[Group],
) -> list[ScoredGroup]:
    """The groups of all ranks, on the first rank; elsewhere none. Those that were not trained on come last, with zero
    advantages.

    ``rollout.stats`` of the first rank then covers all ranks.

    Raises:
        ConfigError: the environment failed in every episode.
    """
    zero = [Advantages.zero(group, Estimator.of(run.config)) for group in replaced]
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
        failed, reason = rollout.stats.errors, next(iter(rollout.stats.failures.values()), "")
        if not any(scored_group.group.trajectories for scored_group in scored):
            raise ConfigError(f"the environment failed in every episode of an iteration: {reason}")
        if failed:
            run.display.warn(
                f"iteration {run.iteration}: {failed} episodes failed and are left out, the first with: {reason}"
            )

    run.ranks.once(check)
    return scored
