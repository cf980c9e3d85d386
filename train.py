"""Trains an agent. Without arguments: a small policy, on generated ALFWorld games, on this machine, in ten minutes.

    python train.py
    python train.py --config configs/alfworld_official.yaml
    python train.py method=gigpo wia=off seed=3 run_dir=runs/gigpo-3
    python train.py --resume

Any option of the configuration can be given as key=value; `--show-config` prints them all with their values.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import yaml

from roleagent.agents.evaluation import Record, evaluate_policy, result_rows, summarise
from roleagent.agents.hf import HFPolicy, PolicyError
from roleagent.agents.prompts import STYLES
from roleagent.agents.rollout import RolloutStats
from roleagent.agents.session import World
from roleagent.agents.small import build_policy, train_tokenizer
from roleagent.config import Config, ConfigError, load, to_dict
from roleagent.curricula.library import FailureLibrary, LibraryError
from roleagent.curricula.rules import RuleAnalyst
from roleagent.curricula.samplers import CurriculumSampler, UniformSampler
from roleagent.learners.advantages import ESTIMATORS, EstimatorConfig, summary
from roleagent.learners.checkpoints import CheckpointError, Checkpoints
from roleagent.learners.display import Display
from roleagent.learners.engine import Learner, join_processes
from roleagent.learners.run_folder import RunFolder
from roleagent.learners.segments import segments_of
from roleagent.learners.warmstart import Decoys, Demonstration, batches, demonstrate, segments_from, texts_of
from roleagent.types import Group, Sampler, Segment

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "default.yaml"
WARM_CHUNK = 50  # updates between the warm start's checkpoints


class Training:
    """One run, from nothing to a policy measured on tasks it never saw."""

    def __init__(self, config: Config, resume: bool, display: Display):
        self.config, self.display = config, display
        self.rank, self.world_size = join_processes()
        # What may be misspelt or missing comes first, so that a refused run leaves no folder behind.
        self.train_world = World.open(config, config.env.train_split)
        self.eval_world = World.open(config, config.env.eval_split, config.env.eval_tasks)
        if config.train.stage == "sft" and not config.train.minutes:
            raise ConfigError("train.stage=sft goes on imitating for train.minutes: say how long")
        if config.aiw and config.curriculum.library:
            FailureLibrary(config.curriculum.library).close()  # reachable? Better asked now than after the warm start
        self.folder = RunFolder(config.folder, config, resume)
        self.checkpoints = Checkpoints(self.folder.path / "checkpoints", config.train.keep_checkpoints)
        self.state: dict[str, Any] = {"stage": "warmstart", "step": 0, "iteration": 0, "seconds": 0.0, "counters": {}}
        self.latest = self.checkpoints.latest() if resume else None
        if self.latest is not None:
            self.state = self.checkpoints.state(self.latest)
            self.display.say(f"going on from {self.latest} ({self.state['stage']}, step {self.state['step']})")
        self.folder.rewind("warmstart" if self.state["stage"] == "warmstart" else "train", self.state["step"])

    def stream(self, *name: int) -> np.random.Generator:
        """A random stream that is a function of the seed and a name, so that a resumed run draws the same numbers."""
        return np.random.default_rng([self.config.seed, self.rank, *name])

    def run(self) -> dict[str, Any]:
        """Warm start, measurement, training, measurement; returns the result."""
        torch.manual_seed(self.config.seed)  # for dropout inside foreign models, if any; nothing of ours draws from it
        self.policy, segments = self.prepare()
        if self.state["stage"] == "warmstart":
            self.warm_start(segments)
        before = self.measure("before")
        if self.config.train.stage == "sft":
            self.continue_imitation(segments)
        else:
            self.reinforce()
        after = self.measure("after")
        return self.report(before, after)

    # -- the warm start ------------------------------------------------------------------------------------------

    def prepare(self) -> tuple[HFPolicy, list[Segment]]:
        """The policy (from the checkpoint, from the configured path, or new) and the demonstrations in its tokens."""
        config = self.config
        generator = torch.Generator().manual_seed(config.seed)
        needed = self.state["stage"] == "warmstart" or config.train.stage == "sft"
        needed = needed and config.warmstart.episodes > 0
        demonstrations = self.demonstrations() if needed else []
        if self.latest is not None:
            policy = self.checkpoints.policy(self.latest, generator, config.policy)
        elif config.policy.path:
            policy = HFPolicy.from_path(
                config.policy.path,
                generator,
                config.policy.dtype,
                config.policy.context,
                config.policy.trust_remote_code,
            )
        elif demonstrations:
            tags = ["<action>", "</action>", "</prediction>"]
            tags += [f'<prediction h="{h}">' for h in range(1, self.train_world.horizon + 1)]
            texts = texts_of(demonstrations, STYLES[config.prompt.style], config.prompt.history)
            tokenizer = train_tokenizer(texts, config.policy.vocabulary, tags)
            policy = build_policy(config.policy, tokenizer, generator)
        else:
            raise ConfigError("a policy from scratch needs a warm start: set warmstart.episodes or policy.path")
        policy.version = self.state.get("version", 0)
        rollout = self.train_world.rollout(policy)
        decoys = Decoys(demonstrations, config.warmstart.decoys, self.stream(7))
        segments = [
            segment
            for demonstration in demonstrations
            for segment in segments_from(
                demonstration,
                rollout.open,
                policy.encode,
                rollout.action_stops,
                rollout.prediction_stops,
                policy.eos_id,
                self.train_world.horizon,
                config.prompt.predictions == "inline",
                decoys,
            )
            if len(segment) <= policy.context_length
        ]
        size = sum(parameter.numel() for parameter in policy.model.parameters())
        self.display.say(f"policy: {size / 1e6:.2f} M parameters, vocabulary {len(policy.tokenizer)}")
        return policy, segments

    def demonstrations(self) -> list[Demonstration]:
        """Episodes of the environment's scripted expert on training tasks."""
        config, world = self.config.warmstart, self.train_world
        rng = self.stream(1)
        expert = world.base.unwrapped.expert(rng)  # type: ignore[attr-defined]
        order = rng.permutation(len(world.panel))
        self.display.stage("demonstrations", config.episodes)
        shown: list[Demonstration] = []
        attempts = 0
        while len(shown) < config.episodes:
            if attempts >= 3 * config.episodes:
                raise ConfigError(f"the expert won only {len(shown)} of {attempts} games: no warm start from that")
            task_id = world.panel.task_ids[order[attempts % len(order)]]
            demonstration = demonstrate(world.base, task_id, expert, config.noise, rng)
            attempts += 1
            if demonstration is not None:
                shown.append(demonstration)
            if attempts % 20 == 0:
                self.display.advance(len(shown))
        return shown

    def warm_start(self, segments: list[Segment]) -> None:
        """Imitation, weak on purpose where the budget is small; checkpointed every few updates."""
        config = self.config
        if segments:
            learner = self.imitate(segments, "warmstart", config.warmstart.epochs, config.warmstart.minutes * 60)
        else:
            learner = Learner(self.policy, config, config.optim.lr, optimiser=config.optim.optimiser)
        self.state.update(stage="train", step=0)
        self.latest = self.save(learner)

    def imitate(self, segments: list[Segment], stage: str, epochs: float, seconds: float) -> Learner:
        """Supervised updates for some epochs or seconds, whichever ends first (0 seconds: no limit)."""
        config = self.config
        learner = Learner(self.policy, config, config.warmstart.lr, optimiser=config.warmstart.optimiser)
        if self.latest is not None and self.state["step"]:
            self.checkpoints.restore(self.latest, learner)
        per_epoch = sum(1 for _ in batches(segments, config.warmstart.batch_tokens, self.stream(2, 0)))
        total = max(1, round(per_epoch * epochs))
        self.display.stage(stage, total, self.state["step"])
        started = time.monotonic() - self.state["seconds"]
        # One endless order of batches; a resumed run skips what was done.
        order = (
            batch
            for epoch in range(10**6)
            for batch in batches(segments, config.warmstart.batch_tokens, self.stream(2, epoch))
        )
        for step, batch in enumerate(order, start=1):
            share = max(step / total, (time.monotonic() - started) / seconds if seconds else 0.0)
            if step > total or (share >= 1.0 and seconds):
                break
            if step <= self.state["step"]:
                continue
            learner.lr = config.warmstart.lr * fading(share)
            metrics = learner.imitate(batch)
            if step % 10 == 0:
                self.folder.log("warmstart", step, metrics)
                self.display.advance(step, **{"imitation loss": metrics["loss"]})
            if step % WARM_CHUNK == 0 and stage == "warmstart":
                self.state.update(step=step, seconds=time.monotonic() - started)
                self.latest = self.save(learner)
        self.state["seconds"] = 0.0
        return learner

    def continue_imitation(self, segments: list[Segment]) -> None:
        """The control: as long as reinforcement learning would take, but imitating the same demonstrations."""
        if self.state["stage"] != "done":
            self.latest = None
            learner = self.imitate(segments, "more imitation", 10**4, self.config.train.minutes * 60)
            self.state.update(stage="done")
            self.save(learner)

    # -- reinforcement learning ----------------------------------------------------------------------------------

    def sampler(self) -> Sampler:
        """Agent-In-World's curriculum, or uniform draws with ``aiw=off``."""
        config = self.config
        rng = self.stream(3)
        if not config.aiw:
            return UniformSampler(self.train_world.panel, rng)
        library = FailureLibrary(config.curriculum.library or f"sqlite:///{self.folder.path / 'failures.db'}")
        options = config.curriculum
        return CurriculumSampler(
            self.train_world.panel,
            library,
            RuleAnalyst(),
            rng,
            epsilon=options.epsilon,
            decay=options.decay,
            success_factor=options.success_factor,
        )

    def reinforce(self) -> None:
        """Sample tasks, play, credit, update, learn from the failures; once per iteration."""
        config = self.config
        reference = None
        if config.loss.kl:
            reference = self.reference()
        learner = Learner(self.policy, config, config.optim.lr, reference, config.optim.optimiser)
        sampler = self.sampler()
        if self.state["iteration"]:
            assert self.latest is not None
            self.checkpoints.restore(self.latest, learner)
            sampler.load_state_dict(self.state["sampler"])
        rollout = self.train_world.rollout(self.policy)
        budget = config.train.minutes * 60
        started = time.monotonic() - self.state["seconds"]
        self.display.stage("train", config.train.iterations, self.state["iteration"])
        for iteration in range(self.state["iteration"] + 1, config.train.iterations + 1):
            if budget and time.monotonic() - started > budget:
                self.display.say(f"the budget of {config.train.minutes:g} minutes is spent")
                break
            self.policy.generator.manual_seed(int(self.stream(4, iteration).integers(2**62)))
            rollout.stats = RolloutStats()
            clock = time.monotonic()
            learner.lr = config.optim.lr * fading((iteration - 1) / config.train.iterations)
            groups = self.play(rollout, sampler.sample(config.rollout.tasks))
            played = time.monotonic() - clock
            if not any(group.trajectories for group in groups):
                reason = next(iter(rollout.stats.failures.values()), "")
                raise ConfigError(f"every episode of iteration {iteration} failed in the environment: {reason}")
            metrics = self.update(learner, groups, iteration)
            updated = time.monotonic() - clock - played
            sampler.observe(groups)
            metrics |= self.metrics(groups, rollout.stats, sampler)
            metrics |= {"rollout_seconds": played, "update_seconds": updated}
            metrics["seconds"] = time.monotonic() - clock
            self.log(iteration, metrics)
            self.state.update(
                step=iteration,
                iteration=iteration,
                seconds=time.monotonic() - started,
                sampler=sampler.state_dict(),
                version=self.policy.version,
            )
            if iteration % config.train.checkpoint_every == 0:
                self.latest = self.save(learner)
            if config.train.evaluate_every and iteration % config.train.evaluate_every == 0:
                self.measure(f"iteration-{iteration:06d}")
        self.warn_of_idle_mechanisms()

    def reference(self) -> torch.nn.Module:
        """The policy as the warm start left it, kept beside the run for the KL penalty."""
        path = self.folder.path / "reference"
        if not path.exists():
            self.policy.model.save_pretrained(str(path.with_suffix(".partial")), safe_serialization=True)
            path.with_suffix(".partial").rename(path)
        model = type(self.policy.model).from_pretrained(str(path), dtype=self.policy.model.dtype)
        return model.requires_grad_(False)

    def play(self, rollout: Any, task_ids: Sequence[str]) -> list[Group]:
        return rollout.play(
            task_ids,
            self.config.rollout.group_size,
            self.config.rollout.temperature,
            lambda done, total: self.display.inner("episodes", done, total),
        )

    def update(self, learner: Learner, groups: list[Group], iteration: int) -> dict[str, float]:
        """Credit, segments, and some optimiser steps over whole groups."""
        config = self.config
        options = config.estimator
        estimator_config = EstimatorConfig(
            options.gamma, options.alpha, options.norm, options.similarity_threshold or None
        )
        estimate = ESTIMATORS[config.method]
        advantages = [estimate(group, estimator_config) for group in groups]
        if config.train.shuffle_advantages:
            advantages = shuffled(advantages, self.stream(5, iteration))
        if self.rank == 0:
            self.folder.trajectories(iteration, groups, advantages)
        collected = [
            metrics
            for epoch in range(config.optim.epochs)
            for part in np.array_split(self.stream(8, iteration, epoch).permutation(len(groups)), config.optim.updates)
            if (metrics := self.improve(learner, [(groups[i], advantages[i]) for i in part])) is not None
        ]
        values = summary(groups, estimator_config)
        names: dict[str, float] = collected[0] if collected else dict.fromkeys(("entropy", "logprob_gap"), 0.0)
        return {**values, **{name: float(np.mean([m.get(name, 0.0) for m in collected or [names]])) for name in names}}

    def improve(self, learner: Learner, credited: Sequence[tuple[Group, list[list[float]]]]) -> dict[str, float] | None:
        """One optimiser step on some groups; None where nothing in them teaches anything."""
        segments: list[Segment] = []
        trajectories = 0
        for group, advantages in credited:
            for trajectory, row in zip(group.trajectories, advantages, strict=True):
                for segment in segments_of(trajectory, row, trajectories, self.config.loss.train_predictions):
                    # Without a KL term a segment of advantage 0 has gradient 0, so it need not be computed.
                    if self.config.loss.kl or any(segment.advantages):
                        segments.append(segment)
                trajectories += 1
        if self.world_size == 1 and not segments:
            return None
        return learner.improve(segments, trajectories, self.config.rollout.temperature)

    def metrics(self, groups: list[Group], stats: RolloutStats, sampler: Sampler) -> dict[str, float]:
        """What the iteration's episodes were like."""
        episodes = [trajectory for group in groups for trajectory in group.trajectories]
        turns = [turn for trajectory in episodes for turn in trajectory.turns]
        sampled = stats.action_tokens + stats.prediction_tokens
        values = {
            "success": float(np.mean([trajectory.success for trajectory in episodes])),
            "turns": float(np.mean([len(trajectory.turns) for trajectory in episodes])),
            "format_errors": float(sum(turn.info.get("format_error") is not None for turn in turns)),
            "invalid_actions": float(sum(not turn.info.get("valid_action", True) for turn in turns)),
            "action_tokens": float(stats.action_tokens),
            "prediction_tokens": float(stats.prediction_tokens),
            "tokens_per_second": sampled / max(stats.policy_seconds, 1e-9),
            "environment_seconds": stats.environment_seconds,
            "crashed_episodes": float(stats.errors),
        }
        # `curriculum_share` names itself; the rest gets the room's name, for entropy is also a property of the policy.
        told = {name.removeprefix("curriculum_"): value for name, value in sampler.metrics().items()}
        return values | {f"curriculum_{name}": value for name, value in told.items()}

    def log(self, iteration: int, metrics: dict[str, float]) -> None:
        counters = self.state["counters"]
        for name in ("predictions_scored", "returns_modulated", "dead_groups"):
            counters[name] = counters.get(name, 0.0) + metrics[name]
        for name in ("curriculum_sampled", "curriculum_from_curriculum", "curriculum_failures", "curriculum_retrieved"):
            counters[name] = metrics.get(name, 0.0)  # the sampler counts since the start
        self.folder.log("train", iteration, metrics)
        self.display.advance(
            iteration,
            **{
                "success": metrics["success"],
                "turns": metrics["turns"],
                "predictive reward": metrics["prediction_score"],
                "dead groups": f"{metrics['dead_groups']:.0f}/{self.config.rollout.tasks}",
                "curriculum share": metrics.get("curriculum_share", 0.0),
                "entropy": metrics["entropy"],
                "tokens/s": round(metrics["tokens_per_second"]),
            },
        )

    def warn_of_idle_mechanisms(self) -> None:
        """A mechanism that is switched on and did nothing is worth a warning, not silence."""
        config, counters = self.config, self.state["counters"]
        if not self.state["iteration"]:
            return
        expected = {}
        if config.wia:
            expected["predictions_scored"] = "wia is on, but no prediction was ever scored"
            if config.method == "role_agent":
                expected["returns_modulated"] = "wia is on, but no prediction ever changed a return"
        if config.aiw:
            expected["curriculum_from_curriculum"] = "aiw is on, but no task was ever sampled from the failure library"
        for name, text in expected.items():
            if not counters.get(name):
                self.display.warn(text)

    # -- measuring and saving ------------------------------------------------------------------------------------

    def measure(self, name: str) -> dict[str, Any]:
        """Success on the evaluation panel; kept in the run folder, so that it is measured once."""
        known = self.folder.read_json(f"{name}.json")
        # A run that has gone on since then is measured again; what was before stays as it was.
        if known is not None and (name == "before" or known["policy_version"] == self.policy.version):
            return known
        config = self.config
        self.policy.generator.manual_seed(int(self.stream(6).integers(2**62)))
        rollout = self.eval_world.rollout(self.policy)
        panel = self.eval_world.panel
        self.display.stage(f"evaluate {name}", len(panel))
        records: list[Record] = []
        for record in evaluate_policy(
            rollout,
            panel.task_ids,
            config.rollout.eval_temperature,
            config.rollout.eval_batch,
            lambda done, total: self.display.advance(done),
        ):
            records.append(record)
        result = {
            "panel": panel.manifest(),
            "policy_version": self.policy.version,
            **summarise(records),
            "records": [asdict(record) for record in records],
        }
        self.folder.write_json(f"{name}.json", result)
        return result

    def save(self, learner: Learner) -> Path:
        # Numbers ascend over both stages: the warm start's updates come first.
        number = self.state["step"] + (10**6 // 2 if self.state["stage"] != "warmstart" else 0)
        return self.checkpoints.save(number, self.policy, learner, self.state)

    def report(self, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
        """Prints and keeps the result."""
        self.display.table(
            f"success on {before['panel']['split']} ({before['panel']['tasks']} tasks, "
            f"panel {before['panel']['digest']}), 95 % intervals",
            ["task type", "before", "after"],
            result_rows({"before": before, "after": after}),
        )
        result = {
            "before": before["success"],
            "after": after["success"],
            "gain": after["success"] - before["success"],
            "counters": self.state["counters"],
        }
        self.folder.write_json("result.json", result)
        self.display.say(f"gain {100 * result['gain']:+.1f} points; everything is in {self.folder.path}")
        return result


def fading(share: float) -> float:
    """The learning rate's factor after a share of a stage: full for the first half, then linearly down to a tenth.

    >>> fading(0.2), fading(0.75), fading(1.0)
    (1.0, 0.5, 0.1)
    """
    return max(0.1, min(1.0, 2.0 * (1.0 - share)))


def shuffled(advantages: list[list[list[float]]], rng: np.random.Generator) -> list[list[list[float]]]:
    """The same values on other turns, drawn over the whole batch."""
    flat = [value for group in advantages for row in group for value in row]
    values = iter(rng.permutation(flat).tolist())
    return [[[next(values) for _ in row] for row in group] for group in advantages]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="YAML file (default: %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on with the run that lies in the run folder")
    parser.add_argument("--show-config", action="store_true", help="print the resolved configuration and stop")
    parser.add_argument("--local_rank", type=int, default=0, help=argparse.SUPPRESS)  # the deepspeed launcher's
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options, e.g. optim.lr=1e-4 wia=off")
    options = parser.parse_intermixed_args(arguments)  # options may stand between overrides
    transformers.logging.disable_progress_bar()  # there is one display, and it is ours
    try:
        config = load(options.config, options.overrides)
        if options.show_config:
            print(yaml.safe_dump(to_dict(config), sort_keys=False), end="")
            return 0
        title = f"{config.method} on {config.env.id}, seed {config.seed}, into {config.folder}"
        with Display(title) as display:
            result = Training(config, options.resume, display).run()
        print(json.dumps(result))
    except (ConfigError, PolicyError, CheckpointError, LibraryError, ValueError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, mostly; what is in the last checkpoint is safe
        print(f"train.py: {error}; when that is mended, go on with --resume", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("train.py: stopped; go on with --resume", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
