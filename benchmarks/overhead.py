"""Measures the cost of Role-Agent over GiGPO, everything else equal.

    python benchmarks/overhead.py                         # less than a minute of one core
    python benchmarks/overhead.py --full
    python benchmarks/overhead.py --reply 6 --prediction 25 --style transcript    # as in the default run

Whole iterations (rollout, advantages, update, analysis) of both methods alternate in one process. A policy with random
weights samples replies of exactly ``--reply`` tokens and, for Role-Agent, predictions of ``--prediction`` tokens. The
content of the replies is ignored: the expert controls every second episode and a random agent the others. Both methods
therefore play the same episodes, win some and lose some, and Role-Agent scores predictions and analyzes failures as in
a real run.

Figures are medians over a method's iterations, in CPU time, or in wall-clock time with an accelerator.
``parts_percent`` excludes the shared work (sampling actions, environments), so a busy machine affects it less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
import transformers

from roleagent.agents.builders import EnvSplit, make_base, model_analyst
from roleagent.agents.policies.hf import HFPolicy
from roleagent.agents.rollout import Rollout
from roleagent.config import Config, load
from roleagent.curricula.failure_sampler import CurriculumSampler
from roleagent.curricula.library import FailureLibrary
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.curricula.samplers import UniformSampler
from roleagent.env_card import make_expert
from roleagent.envs.pool import EnvPool
from roleagent.envs.wrappers import PredictedState, Tags
from roleagent.learners.engine.engine import Learner
from roleagent.learners.rl import estimate_advantages, make_batch, open_reference
from roleagent.learners.run.display import Display
from roleagent.learners.run.ranks import Ranks
from roleagent.learners.run.run import Run
from roleagent.learners.sft.data import SFTData
from roleagent.learners.sft.demonstrations import collect_demonstrations
from roleagent.learners.update import update
from roleagent.timer import PARTS, Timer
from roleagent.types import Completion, Request

CLOCK = time.perf_counter if torch.cuda.is_available() else time.process_time
PUBLISHED = 5.2  # percent of a step, the paper's own figure
PREDICTED = "You arrive at the counter 1. On the counter 1, you see a mug 1, a plate 2 and a knife 1."
SHARED = ("generation", "environment", "sync")  # the same work in both methods
SIZE = ["policy.hidden_size=128", "policy.layers=2", "policy.heads=4", "policy.kv_heads=4", "policy.mlp_size=384"]


class Metronome(HFPolicy):
    """A policy that samples exactly the allowed number of tokens; its decoded text is fixed."""

    reply = prediction = 0

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        return super().generate([replace(request, stop_ids=frozenset()) for request in requests], temperature)

    def decode(self, token_ids: Sequence[int]) -> str:
        if len(token_ids) == self.reply:
            return "<action>look</action>"
        if len(token_ids) == self.prediction:
            return f'<prediction h="1">{PREDICTED}</prediction>'
        return super().decode(token_ids)


class Led(gymnasium.Wrapper):
    """An environment controlled by an expert in even episodes and at random in the others; it ignores the given
    command.
    """

    def __init__(self, env: gymnasium.Env, number: int):
        super().__init__(env)
        self.number = number

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        observation, info = self.env.reset(seed=seed, options=options)
        self.rng = np.random.default_rng([self.number, zlib.crc32(info["task_id"].encode())])
        self.expert = make_expert(self.env, self.rng)
        self.expert.reset(info["goal"], observation)
        self.admissible = info["admissible_actions"]
        return observation, info

    def step(self, action: Any):
        command = self.rng.choice(self.admissible) if self.number % 2 else self.expert.act()
        observation, reward, terminated, truncated, info = self.env.step(command)
        self.expert.observe(command, observation)
        self.admissible = info["admissible_actions"]
        return observation, reward, terminated, truncated, info


class Method:
    """One method with its own policy, learner and environments."""

    def __init__(self, config: Any, ranks: Ranks, display: Display):
        self.run = Run(config, ranks, display, resume=False)
        world = EnvSplit.open(config, config.env.train_split)
        # For the tokenizer; the expert needs its time even where the episodes that are measured are short.
        lessons = replace(config.env, kwargs={**config.env.kwargs, "max_steps": 14})
        longer = EnvSplit.open(replace(config, env=lessons), config.env.train_split)
        demonstrations = collect_demonstrations(longer, self.run.stream("demonstrations"), display)
        data = SFTData(self.run, replace(world, horizon=1), demonstrations)
        policy: Any = self.run.build_policy(data.new_policy)
        policy.__class__ = Metronome  # the same model, that keeps to a length
        policy.reply, policy.prediction = config.rollout.action_tokens, config.rollout.prediction_tokens
        self.policy, self.config, self.horizon = policy, config, world.horizon
        self.learner = Learner(
            *(policy, config, config.optim.lr),
            open_reference(self.run, policy) if config.loss.kl else None,
        )
        self.numbers = iter(range(10**6))
        pool = EnvPool(self._make)
        self.rollout = Rollout(policy, pool, config.env.id, config.prompt, config.rollout, world.horizon)
        self.task_ids = [
            world.task_split.task_ids[i] for i in self.run.stream("tasks").permutation(len(world.task_split))
        ]
        self.sampler: Any = UniformSampler(world.task_split, self.run.stream("sampler"))
        if config.aiw:
            library = FailureLibrary(self.run.folder.path / "failures.db")
            analyst = RuleAnalyst() if config.curriculum.analyst == "rule" else model_analyst(config, policy)
            self.sampler = CurriculumSampler(world.task_split, library, analyst, self.run.stream("sampler"))

    def _make(self) -> gymnasium.Env:
        env: Any = Led(make_base(self.config, self.config.env.train_split), next(self.numbers))
        if self.horizon:
            env = PredictedState(env, self.horizon)
        return Tags(env, think=self.config.prompt.think, horizon=self.horizon)

    def iterate(self, number: int) -> dict[str, float]:
        """Runs an iteration like ``train.py``'s; returns seconds by part, of the whole and of CPU time, and sampled
        tokens.
        """
        run, options = self.run, self.config.rollout
        run.timer = self.rollout.watch = watch = Timer(CLOCK)
        before = replace(self.rollout.stats)
        wall, begun = time.perf_counter(), CLOCK()
        self.sampler.sample(options.num_groups)
        start = number * options.num_groups % (len(self.task_ids) - options.num_groups)
        played = self.task_ids[start : start + options.num_groups]  # whatever was drawn: both methods play the same
        groups = self.rollout.play(played, options.group_size, options.temperature)
        batch = make_batch(run, self.learner, self.rollout, groups, estimate_advantages(run, groups))
        with watch("update"):
            update(self.learner, batch, [run.stream("minibatches", number)])
        with watch("sync"):
            self.policy.sync(self.learner, self.policy.version)
        with watch("analysis"):
            self.sampler.observe(groups)
        wall, whole = time.perf_counter() - wall, CLOCK() - begun
        after, episodes = self.rollout.stats, [t for group in groups for t in group.trajectories]
        scores = [s for t in episodes for turn in t.turns if turn.prediction for s in turn.prediction.scores]
        return {
            **{name: watch.seconds[name] for name in PARTS},
            "whole": whole,
            "wall": wall,
            "turns": after.turns - before.turns,
            "action_tokens": after.action_tokens - before.action_tokens,
            "prediction_tokens": after.prediction_tokens - before.prediction_tokens,
            "success": statistics.mean(t.success for t in episodes),
            "scored": float(sum(not score.absent for score in scores)),
        }


def configuration(options: argparse.Namespace, folder: Path, name: str, *more: str) -> Config:
    """The configuration of a method: the common options and ``more``."""
    common = [
        f"run_dir={folder / name}",
        "env.train_split=train",
        f"env.kwargs={{data_dir: generated, size: tiny, max_steps: {options.turns}}}",
        *SIZE,
        "policy.context=16384",
        f"prompt.style={options.style}",
        "warmstart.episodes=40",
        "warmstart.rounds=0",
        f"rollout.num_groups={options.groups}",
        f"rollout.group_size={options.copies}",
        f"rollout.action_tokens={options.reply}",
        f"rollout.prediction_tokens={options.prediction}",
        "loss.kl=1e-3",
        "optim.minibatches=1",
        "optim.lr=1e-6",
        "curriculum.reflection_tokens=80",
        "curriculum.selection_tokens=48",
        "tracking.to=[]",
        "prompt.horizon=1",
    ]
    return load(overrides=[*common, *more])


def compare(methods: dict[str, Method], pairs: int) -> dict[str, list[dict[str, float]]]:
    """The methods' iterations, alternating, in reversed order every other round; the first round warms up."""
    timed: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    for number in range(pairs + 1):
        order = list(methods) if number % 2 else list(reversed(methods))
        for name in order:
            row = methods[name].iterate(number)
            if number:
                timed[name].append(row)
    return timed


def percent(rows: Sequence[dict[str, float]], base: Sequence[dict[str, float]], name: str) -> float:
    """The additional cost in percent of the medians."""
    return round(100 * (middle(rows, name) / middle(base, name) - 1), 1)


def middle(rows: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; the default size takes less than a minute of one core."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reply", type=int, default=512, help="tokens of an action reply (default 512)")
    parser.add_argument("--prediction", type=int, default=30, help="tokens of a prediction (default 30)")
    parser.add_argument("--turns", type=int, help="most turns of an episode (default 2; --full: 12)")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--copies", type=int, default=2, help="episodes per group (default 2)")
    parser.add_argument("--pairs", type=int, help="iterations of each method that count (default 3; --full: 8)")
    parser.add_argument("--style", choices=["window", "transcript"], default="window")
    parser.add_argument("--full", action="store_true", help="longer episodes, and more ways of being Role-Agent")
    options = parser.parse_args(arguments)
    options.turns = options.turns or (12 if options.full else 2)
    options.pairs = options.pairs or (8 if options.full else 3)
    return options


def main() -> None:
    options = options_of()
    transformers.logging.disable_progress_bar()
    role = ("method=role_agent", "wia=on", "aiw=on", "curriculum.analyst=rule")
    variants = {"gigpo": ("method=gigpo", "wia=off", "aiw=off"), "role_agent": role}
    if options.full:
        variants["untrained"] = (*role, "loss.prediction_credit=none")
        variants["model_analyst"] = (*role[:-1], "curriculum.analyst=model")
    with tempfile.TemporaryDirectory() as folder, Ranks.join() as ranks, Display("", quiet=True) as display:
        made = {
            name: Method(configuration(options, Path(folder), name, *more), ranks, display)
            for name, more in variants.items()
        }
        timed = compare(made, options.pairs)
    base, rows = timed["gigpo"], timed["role_agent"]
    shape = f"replies of {options.reply} tokens, predictions of {options.prediction}, up to {options.turns} turns"
    print(f"{shape}; {middle(base, 'turns'):.0f} turns per iteration, success {middle(base, 'success'):.2f}")
    print(f"{'seconds, median':<16}" + "".join(f"{name:>16}" for name in timed))
    for part in (*PARTS, "whole", "wall"):
        print(f"{part:<16}" + "".join(f"{middle(timed[name], part):>16.3f}" for name in timed))
    for name in [name for name in timed if name != "gigpo"]:
        print(f"{name}: {percent(timed[name], base, 'whole'):+.1f} %")
    gigpo = middle(base, "whole")
    more = {part: middle(rows, part) - middle(base, part) for part in PARTS if part not in SHARED}
    predicted = (sum(more.values()) - more["analysis"]) / middle(rows, "prediction_tokens")
    acted = gigpo / middle(base, "action_tokens")
    print(f"a prediction's token costs {1e6 * predicted:.0f} µs in all, an action's {1e6 * acted:.0f} µs")
    result = {
        "overhead_percent": percent(rows, base, "whole"),
        "overhead_wall_percent": percent(rows, base, "wall"),
        "published_percent": PUBLISHED,
        "tokens_percent": round(100 * middle(rows, "prediction_tokens") / middle(rows, "action_tokens"), 1),
        "parts_percent": round(100 * sum(more.values()) / gigpo, 1),
        "breakdown_percent": {part: round(100 * seconds / gigpo, 2) for part, seconds in more.items()},
        "prediction_token_over_action_token": round(predicted / acted, 2),
        "scored": middle(rows, "scored"),
        **{
            f"{name}_percent": percent(timed[name], base, "whole")
            for name in timed
            if name not in ("gigpo", "role_agent")
        },
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
