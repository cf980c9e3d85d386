"""GenEnv (arXiv 2512.19682) over a method: a simulator writes training tasks, and learns which fit the agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from roleagent.agents.builders import EnvSplit, endpoint_simulator, open_simulator, simulator_class
from roleagent.agents.rollout import RolloutStats
from roleagent.config import Config, ConfigError
from roleagent.config.curriculum import NEVER_TRAINED
from roleagent.config.settings import EnvMemberConfig
from roleagent.curricula.alignment import Alignment
from roleagent.curricula.generated_sampler import GeneratedSampler
from roleagent.curricula.metrics import alignment_metrics, played
from roleagent.curricula.task_writer import VARIATION_SHARE
from roleagent.envs.mixture import joined
from roleagent.learners.method import Iteration, Method
from roleagent.slow_notice import waiting
from roleagent.tasks.grammar import REFUSALS, grammar_of
from roleagent.timer import Timer
from roleagent.types import Sampler

if TYPE_CHECKING:
    from roleagent.agents.policies.protocol import Policy
    from roleagent.learners.engine.engine import Learner
    from roleagent.learners.genenv.training import SimulatorTraining
    from roleagent.learners.run.run import Run


_COUNTED = (
    *("genenv_proposed", "genenv_accepted", "genenv_wanted", "genenv_fallback", "genenv_fresh", "genenv_replayed"),
    *("genenv_records_in_band", *(f"genenv_refused_{reason}" for reason in REFUSALS)),
)
_SMALL_KL = 1e-4  # nats


class GenEnv(Method):
    """Written tasks for any method of reinforcement, whose sampler chooses the base tasks.

    ``genenv=on`` derives a class from this one and the run's method. To change a part of it, derive one yourself:
    ``class Mine(GenEnv, GRPO)``, for ``method=module:Mine``.

    Attributes:
        simulator: with its learner, if it is a language model of the run.
        writers: the samplers that write tasks, by the name of their environment; on the first rank.
    """

    settings: ClassVar[Mapping[str, Any]] = {"genenv": True}
    simulator: SimulatorTraining | None = None

    def __init__(self, config: Config):
        super().__init__(config)
        self.writers: dict[str, GeneratedSampler] = {}

    def check(self) -> None:
        from roleagent.learners.engine.engine import zero_stage

        config, options = self.config, self.config.simulator
        if not self.reinforces:
            raise ConfigError(f"genenv=on works with reinforcement, not with method={config.method}: set genenv=off")
        super().check()
        if ":" in options.kind:
            simulator_class(options.kind)
        if config.shares_simulator and options.probe and (config.lora.rank or zero_stage(config) == 3):
            raise ConfigError(
                "simulator.probe asks the initial simulator, which simulator.weights=shared does not have as a whole "
                "with lora.rank or deepspeed.zero_stage=3: set simulator.probe=0 or simulator.weights=own"
            )
        if config.rollout.async_level:
            raise ConfigError(
                "genenv=on writes tasks by what the last ones came to, before rollout.async_level=1 knows: set "
                "rollout.async_level=0"
            )

    def check_tasks(self, split: EnvSplit) -> None:
        super().check_tasks(split)
        if self.config.simulator_is_model and len(split.written) > 1:
            raise ConfigError(
                f"simulator.kind=model learns to write the tasks of one environment, and {' and '.join(split.written)} "
                "have a task grammar: set another simulator.kind"
            )
        for part in split.written.values():
            try:
                grammar = grammar_of(part.base)
            except ValueError as error:
                raise ConfigError(f"genenv=on: {error}") from error
            if self.config.simulator_is_served:
                simulator = endpoint_simulator(self.config, grammar)
                with waiting("the server of endpoint.url to answer"):
                    simulator.endpoint.check(simulator.temperature)

    def needs_reference(self) -> bool:
        return super().needs_reference() or self.config.shares_simulator  # which starts as the policy

    def setup(self, run: Run, split: EnvSplit, learner: Learner, actor: Policy) -> None:
        from roleagent.learners.genenv.training import open_simulator_training

        super().setup(run, split, learner, actor)
        self.simulator = open_simulator_training(run, split, learner, actor)

    def sampler(self, run: Run, split: EnvSplit, chosen: Sampler) -> Sampler:
        base = super().sampler(run, split, chosen)
        if not split.written:
            return base
        options, env = run.config.simulator, split.config.env
        name = env.name if isinstance(env, EnvMemberConfig) else ""
        stream = partial(run.stream, *filter(None, [name]))
        never_learns = options.kind in NEVER_TRAINED  # varying the tasks in the band would be a way to learn
        grammar = grammar_of(split.base, plan_share=options.plan_share)
        if self.simulator is None:
            simulator = open_simulator(run.config, grammar, stream("task writer"))
        else:
            simulator = self.simulator.simulator
        self.writers[name] = GeneratedSampler(
            base,
            grammar,
            simulator,
            stream("generated tasks"),
            self.alignment(),
            fresh=options.shares[0],
            replay=options.shares[1],
            variations=options.variations,
            variation_share=0.0 if never_learns else VARIATION_SHARE,
            window=options.window,
            credit=options.credit,
            shuffle_rewards=run.config.train.shuffle == "success_rates",
        )
        return self.writers[name]

    def alignment(self) -> Alignment:
        """The reward of the simulator, the band and the weights, as configured."""
        options = self.config.simulator
        return Alignment(options.alpha, options.beta, options.k_min, options.rwr_lambda, debias=options.alpha != 0.5)

    def after(self, iteration: Iteration) -> dict[str, float]:
        """Logs what became of the written tasks, updates a simulator that is a language model, and plays the probe."""
        from roleagent.learners.genenv.training import update_simulator

        metrics = dict(super().after(iteration) or {})
        run = iteration.run
        if run.ranks.first:
            run.folder.tasks(run.iteration, self._events())
        if self.simulator is not None:
            metrics |= update_simulator(run, self.simulator, iteration.learner, iteration.actor)
        return metrics | self.probe(iteration)

    def add_counters(self, counters: dict[str, float], metrics: Mapping[str, float]) -> None:
        super().add_counters(counters, metrics)
        if "genenv_proposed" not in metrics:
            return
        for name in _COUNTED:
            counters[name] = counters.get(name, 0.0) + metrics[name]
        for name, happened in (
            ("genenv_unequal_weights", metrics.get("genenv_weight_spread", 1.0) > 1),
            ("genenv_moved", metrics.get("genenv_kl", 0.0) >= _SMALL_KL),
        ):
            counters[name] = counters.get(name, 0.0) + happened
        counters["genenv_pool"] = metrics["genenv_pool"]

    def idle(self, counters: Mapping[str, float]) -> list[str]:
        found = [text for name, text in self._expected(counters).items() if not counters.get(name)]
        if 2 * counters.get("genenv_fallback", 0.0) > counters.get("genenv_wanted", 0.0):
            found.append(
                "more than half of the tasks that genenv wanted could not be written: base tasks took their place"
            )
        return [*super().idle(counters), *found]

    def _expected(self, counters: Mapping[str, float]) -> dict[str, str]:
        """For each counter that must not be 0, the warning if it is."""
        options = self.config.simulator
        if not options.shares[0]:
            return {}
        if not counters.get("genenv_accepted"):
            reasons = {reason: counters.get(f"genenv_refused_{reason}", 0.0) for reason in REFUSALS}
            why = ", ".join(f"{reason} {number:.0f}" for reason, number in reasons.items() if number)
            return {
                "genenv_accepted": f"genenv is on, but no task of simulator.kind={options.kind} was accepted ({why})"
            }
        if not counters.get("genenv_fresh"):
            return {"genenv_fresh": "genenv is on, but no written task was played"}
        expected = {"genenv_pool": "genenv is on, but the pool of written tasks is empty"}
        if options.shares[1]:
            expected["genenv_replayed"] = "simulator.shares replays tasks, but no written task was ever played again"
        if options.kind in NEVER_TRAINED:
            return expected
        expected["genenv_records_in_band"] = (
            "genenv is on, but no written task was ever in the band: nothing was learned"
        )
        if counters.get("genenv_records_in_band"):
            expected["genenv_unequal_weights"] = "all records of written tasks had equal weights: beta does nothing"
            expected["genenv_moved"] = f"the simulator never moved {_SMALL_KL:g} nats from where it began"
        return expected

    def _events(self) -> list[dict[str, Any]]:
        """What happened to each written task since the last call."""
        events = [(name, event) for name, writer in self.writers.items() for event in writer.take_events()]
        return [
            event | {"task_id": joined(name, event["task_id"])} if "task_id" in event else event
            for name, event in events
        ]

    def probe(self, iteration: Iteration) -> dict[str, float]:
        """Plays tasks of the initial and of the present simulator with the same weights; every rank must call it.

        It separates "the tasks fit the agent" from "the agent improved". Nothing is trained on these episodes. They are
        played every ``train.evaluate_every`` iterations, ``simulator.probe`` tasks of each simulator.

        Returns:
            ``genenv_probe_<simulator>_<metric>`` of :func:`~roleagent.curricula.metrics.alignment_metrics`, known
            on the first rank alone; and ``genenv_probe_<cost>`` of writing the tasks. Nothing if no probe is due.
        """
        from roleagent.learners.dealing import play_groups

        run, rollout = iteration.run, iteration.rollout
        config, every = run.config, run.config.train.evaluate_every
        if not (config.simulator.probe and every and run.iteration % every == 0):
            return {}

        def write() -> tuple[dict[str, list[str]], Mapping[str, float]]:
            rng, tasks, costs = run.stream("probe tasks", run.iteration), {}, Counter[str]()
            for name, writer in self.writers.items():
                for when, task_ids in writer.probe(config.simulator.probe, rng).items():
                    tasks.setdefault(when, []).extend(joined(name, task_id) for task_id in task_ids)
                costs.update(writer.costs())  # which are not the next iteration's
            return tasks, costs

        stats, watch = rollout.stats, rollout.watch
        with run.timer("probe"):
            rollout.stats, rollout.watch = RolloutStats(), Timer()
            rollout.policy.reseed(int(run.own_stream("probe episodes", run.iteration).integers(2**62)))
            tasks, costs = run.ranks.once(write)
            metrics = {f"genenv_probe_{name}": cost for name, cost in costs.items()}
            for name, task_ids in tasks.items():
                size, temperature = config.rollout.group_size, config.rollout.temperature
                groups = play_groups(run.ranks, rollout, task_ids, size, temperature)
                groups = [group for group in run.ranks.collect(groups) if played(group)]
                of_tasks = alignment_metrics(groups, self.alignment())
                metrics |= {f"genenv_probe_{name}_{metric}": value for metric, value in of_tasks.items()}
            rollout.stats, rollout.watch = stats, watch
        return metrics


__all__ = ["GenEnv"]
