"""GenEnv in a run: the sampler of written tasks, and the probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from roleagent.agents.builders import EnvSplit, open_simulator
from roleagent.agents.rollout import Rollout, RolloutStats
from roleagent.config import Config
from roleagent.curricula.alignment import Alignment
from roleagent.curricula.generated_sampler import GeneratedSampler
from roleagent.curricula.metrics import alignment_metrics, played
from roleagent.learners.run.run import Run
from roleagent.tasks.grammar import grammar_of
from roleagent.tasks.simulator import Simulator
from roleagent.timer import Timer
from roleagent.types import Sampler


class Probing(Protocol):
    """Writes the tasks of a probe."""

    def probe(self, count: int) -> tuple[Mapping[str, Sequence[str]], Mapping[str, float]]:
        """``count`` tasks of each simulator, by name, and what they cost."""
        ...


def alignment_of(config: Config) -> Alignment:
    """The reward of the simulator, the band and the weights, as configured."""
    options = config.simulator
    debias = options.debias == "always" or (options.debias == "auto" and options.alpha != 0.5)
    return Alignment(options.alpha, options.beta, options.k_min, options.rwr_lambda, debias)


def generated_sampler(
    run: Run, split: EnvSplit, inner: Sampler, simulator: Simulator | None = None
) -> GeneratedSampler:
    """GenEnv's sampler; ``inner`` chooses the base tasks.

    Args:
        run: the run.
        split: the training tasks.
        inner: a sampler of the split's tasks.
        simulator: writes the new tasks; None: the configured one that is no model of the run.
    """
    options = run.config.simulator
    never_learns = options.kind in ("base", "static")  # varying the tasks in the band would be a way to learn
    grammar = grammar_of(split.base, plan_share=options.plan_share)
    if simulator is None:
        simulator = open_simulator(run.config, grammar, len(split.task_split), run.stream("task writer"))
    return GeneratedSampler(
        inner,
        grammar,
        simulator,
        run.stream("generated tasks"),
        alignment_of(run.config),
        fresh=options.fresh,
        replay=options.replay,
        variations=options.variations,
        variation_share=0.0 if never_learns else options.variation_share,
        attempts=options.attempts,
        novelty=options.novelty,
        window=options.window,
        update_every=options.update_every,
        credit=options.credit,
        shuffle_rewards=options.shuffle_rewards,
        relabel=options.relabel,
    )


def play_probe(run: Run, rollout: Rollout, sampler: Probing) -> dict[str, float]:
    """Plays tasks of the initial and of the present simulator with the same weights; every rank must call it.

    It separates "the tasks fit the agent" from "the agent improved". Nothing is trained on these episodes. They are
    played every ``train.evaluate_every`` iterations, ``simulator.probe`` tasks of each simulator.

    Returns:
        ``genenv_probe_<simulator>_<metric>`` (:func:`alignment_metrics`), which are known on the first rank alone, and
        ``genenv_probe_<cost>`` of writing the tasks; nothing if no probe is due.
    """
    options, every = run.config.simulator, run.config.train.evaluate_every
    if not (run.config.genenv and options.probe and every and run.iteration % every == 0):
        return {}
    stats, watch = rollout.stats, rollout.watch
    with run.timer("probe"):
        rollout.stats, rollout.watch = RolloutStats(), Timer()
        rollout.policy.reseed(int(run.own_stream("probe episodes", run.iteration).integers(2**62)))
        tasks, costs = sampler.probe(options.probe)
        found = {f"genenv_probe_{name}": cost for name, cost in costs.items()}
        for name, task_ids in tasks.items():
            rollouts = run.config.rollout
            groups = rollout.play(run.ranks.share(task_ids), rollouts.group_size, rollouts.temperature)
            groups = [group for group in run.ranks.collect(groups) if played(group)]
            metrics = alignment_metrics(groups, alignment_of(run.config))
            found |= {f"genenv_probe_{name}_{metric}": value for metric, value in metrics.items()}
        rollout.stats, rollout.watch = stats, watch
    return found
