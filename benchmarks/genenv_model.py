"""Does a language model, as task simulator, find tasks at the edge of an agent that stands still? (GenEnv)

    python benchmarks/genenv_model.py
    python benchmarks/genenv_model.py --updates 40 --weights own shared

A small policy from scratch writes tasks of the toy kitchen. The agent that plays them is the scripted expert, which
slips per step, at a rate for each task type (as in benchmarks/genenv.py), and does not learn. ``own``: the simulator is
a second model. ``shared``: it is the model that imitated the expert, which is not trained otherwise here.

``accepted`` is the least share of an update's proposals that passed the checks. A valid task that was written a short
time ago is a duplicate, and counts as passed. ``in_band`` is the share of tasks that the agent solves in 2 to 6 of 8
attempts: "start" of the untrained simulator's tasks, "end" in the last third of the updates. ``kl`` is the distance
from the start in nats per task. ``distinct`` is the share of different tasks among all that the simulator wrote in an
update, those refused included, in the mean over the last third; ``distinct_third`` is the same over the whole third.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from genenv import TASKS, in_band, success
from parts.slipping_agent import ATTEMPTS, SLIPS, Agent

from roleagent.agents.builders import EnvSplit
from roleagent.config import load
from roleagent.curricula.samplers import UniformSampler
from roleagent.learners.genenv.method import GenEnv
from roleagent.learners.genenv.training import SimulatorTraining, update_simulator
from roleagent.learners.rl import open_learner
from roleagent.learners.run.display import Display
from roleagent.learners.run.launch import open_run
from roleagent.learners.run.run import Run
from roleagent.learners.sft.data import SFTData
from roleagent.learners.sft.imitation import imitate

ROOT = Path(__file__).parent.parent
OPTIONS = (
    *("genenv=on", "simulator.kind=model", "simulator.shares=[1, 0]", "aiw=off", "wia=off"),
    *("policy.hidden_size=64", "policy.layers=2", "policy.heads=2", "policy.kv_heads=2", "policy.mlp_size=192"),
)
EPISODES = {"own": 20, "shared": 400}  # demonstrations, as configs/toy.yaml has; of the former only the words are used
START = 640  # tasks of the untrained simulator that are played: a share within two points
TARGETS = {"accepted": 0.9, "in_band_end": 0.55, "in_band_ratio": 1.8, "kl": 0.05, "distinct": 0.5}


def open_simulator(run: Run, split: EnvSplit) -> SimulatorTraining:
    """The simulator after its warm start, and its learner."""
    data = SFTData.collect(run, split)
    policy = run.build_policy(data.new_policy)
    if run.config.shares_simulator:
        imitate(run, policy, data.tokenize(policy), run.config.warmstart.epochs).close()
    run.enter("train")
    open_learner(run, split, policy, policy)
    assert isinstance(run.method, GenEnv) and run.method.simulator is not None
    return run.method.simulator


def play(run: Run, split: Any, simulator: SimulatorTraining, updates: int) -> dict[str, float]:
    """Updates the simulator against the agent that stands still; returns the figures."""
    env = gymnasium.make(split.config.env.id, generated_tasks=True)
    sampler: Any = run.method.sampler(run, split, UniformSampler(split.task_split, run.stream("sampler")))
    agent = Agent(env.unwrapped, sampler.grammar, SLIPS["toy"], noise=False, seed=run.config.seed)
    rates: list[list[float]] = []
    written: list[list[str]] = []
    accepted: list[float] = []
    metrics: dict[str, float] = {}
    cut, began = 0.0, time.process_time()
    for number in range(updates):
        chosen = sampler.sample(TASKS)
        fresh = [task_id for task_id in chosen if task_id in sampler.choices()]  # without fallbacks
        groups = [agent.play(task_id) for task_id in fresh]
        sampler.observe(groups)
        metrics |= update_simulator(run, simulator, simulator.learner, simulator.simulator.policy)
        events = sampler.take_events()
        proposed = [one for one in events if one["event"] == "written" and not one["varied"]]
        accepted.append(float(np.mean([one.get("refused", "duplicate") == "duplicate" for one in proposed])))
        written.append([one["line"] for one in proposed])
        rates.append([success(group) for group in groups])
        cut += metrics.get("genenv_updates_cut", 0.0)
        run.progress.step += 1
        print(
            f"{number + 1:3d}/{updates}: accepted {accepted[-1]:.2f}, in the band {in_band(rates[-1]):.2f}, "
            f"kl {metrics.get('genenv_kl', 0.0):.2f}, step kl {metrics.get('genenv_step_kl', 0.0):.3f}, refused "
            f"{dict(Counter(one['refused'] for one in proposed if 'refused' in one))}",
            file=sys.stderr,
            flush=True,
        )
    seconds = time.process_time() - began
    first = sampler.probe(START, run.stream("probe tasks"))["initial"]
    start = in_band([success(agent.play(task_id)) for task_id in first])
    last = slice(-max(1, updates // 3), None)
    lines = [line for batch in written[last] for line in batch]
    distinct = float(np.mean([len(set(batch)) / len(batch) for batch in written[last]]))
    end = in_band([rate for batch in rates[last] for rate in batch])
    return {
        "accepted": round(min(accepted), 3),
        "in_band_start": round(start, 3),
        "in_band_end": round(end, 3),
        "in_band_ratio": round(end / max(start, 1 / len(first)), 2),
        "kl": round(metrics.get("genenv_kl", 0.0), 3),
        "distinct": round(distinct, 3),
        "distinct_third": round(len(set(lines)) / len(lines), 3),
        "updates_cut": cut,
        "seconds": round(seconds, 1),
    }


def measure(weights: str, updates: int, seed: int, options: Sequence[str]) -> dict[str, float]:
    """The figures of one simulator."""
    given = [f"simulator.weights={weights}", f"warmstart.episodes={EPISODES[weights]}", f"seed={seed}"]
    given.append(f"train.iterations={updates}")
    with tempfile.TemporaryDirectory() as folder, Display(f"simulator.weights={weights}", quiet=True) as display:
        config = load(ROOT / "configs" / "toy.yaml", [*OPTIONS, *given, *options, f"run_dir={folder}/run"])
        split = EnvSplit.training(config)
        with open_run(config, split, display, resume=False) as run:
            return play(run, split, open_simulator(run, split), updates)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status: 1 if a target of the experiment is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=3, help="of the simulator; 40 are the experiment (default: 3)")
    parser.add_argument("--weights", nargs="+", choices=["own", "shared"], default=["own"], help="default: own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("options", nargs="*", metavar="key=value", help="options of the run")
    given = parser.parse_intermixed_args(arguments)
    found: dict[str, Any] = {
        weights: measure(weights, given.updates, given.seed, given.options) for weights in given.weights
    }
    missed = [
        f"{weights}: {name} {figures[name]} < {least}"
        for weights, figures in found.items()
        for name, least in TARGETS.items()
        if given.updates >= 40 and figures[name] < least
    ]
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    result = {"updates": given.updates, "tasks": TASKS, "attempts": ATTEMPTS, "seed": given.seed, **found}
    print("RESULT", json.dumps(result))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
