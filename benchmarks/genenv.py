"""Does a task simulator find tasks at the edge of an agent that stands still? (GenEnv)

    python benchmarks/genenv.py
    python benchmarks/genenv.py --env toy --seeds 10
    python benchmarks/genenv.py --train                   # also the simulator's share of a real iteration

The agent is the scripted expert, which slips per step, at a rate for each task type. A slip loses the episode; with
``--noise`` it is a wrong command, and costs a step or more. The agent wins some types nearly always and others never,
and does not learn. So nothing but the simulator can change what is in the band.

Arms: ``genenv`` (a table that learns), ``shuffled`` (each reward goes to another task), and ``base`` (never learns).
``task`` and ``batch`` are two ways of credit, for an agent that always wins one family of tasks and never others: with
``batch`` easy and hopeless tasks together look right (docs/genenv.md).

``in_band`` is the share of tasks that the agent solves in 2 to 6 of 8 attempts, ``live`` that of tasks that it neither
always nor never solves. "start" is the untrained simulator, "end" the last third of the updates. "no repeats" is the
start under the rule that holds for the end, too: the same field values are not accepted twice in eight updates. Types
with few combinations then become rare, without any learning. ``shuffled_change`` is the end of ``shuffled`` less that
start. "not written" is the share of wanted tasks for which no proposal was accepted. Figures are means over seeds;
``missed`` names missed targets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from parts.slipping_agent import ATTEMPTS, NOISES, SLIPS, Agent
from rich.console import Console
from rich.table import Table
from task_levers import ENVS

import roleagent  # noqa: F401 - registers the environments
from roleagent.curricula.generated_sampler import GeneratedSampler
from roleagent.curricula.samplers import UniformSampler
from roleagent.curricula.simulators import BaseSimulator, TableSimulator
from roleagent.experiments.runs import Run, iterations_of
from roleagent.tasks.grammar import Refused, TaskSpec, grammar_of
from roleagent.types import Group

UPDATES, TASKS = 30, 16
BAND = range(2, 7)  # successes of 8
TRAP = {"bring": 0.0, "heat": 0.08, "cool": 1.0, "clean": 1.0}
"""The slips for the comparison of credits: a trivial family, a possible one, which is rare, and hopeless ones."""
TRAP_SHARES = {"heat": 0.25}  # of the listed tasks of that type
TRAIN = ("genenv=on", "simulator.kind=table", "aiw=off", "wia=off", "warmstart.episodes=100", "warmstart.epochs=1")
"""Options of the real training; aiw=off: all analysis is the simulator's."""
TARGETS = {
    "in_band_start": (0.0, 0.35),
    "in_band_end": (0.65, 1.0),
    "alignment_error": (0.0, 0.22),
    "shuffled_change": (-0.1, 0.1),
    "live_ratio": (0.0, 0.5),
    "plan_wins": (1.0, 1.0),
    "held_out_leaks": (0.0, 0.0),
    "simulator_share": (0.0, 0.01),
}
MOST_MS = {"toy": 1.0, "alfworld": 5.0}


@dataclass
class Course:
    """One arm's tasks: p̂ of each, by update, and of the untrained simulator's tasks, with and without repeats."""

    rates: list[list[float]] = field(default_factory=list)
    start: list[float] = field(default_factory=list)
    no_repeats: list[float] = field(default_factory=list)
    seconds: float = 0.0  # of the sampler: writing, checking, learning

    def end(self) -> list[float]:
        """p̂ in the last third of the updates."""
        return [rate for batch in self.rates[-(len(self.rates) // 3) :] for rate in batch]


def in_band(rates: Sequence[float]) -> float:
    return float(np.mean([round(rate * ATTEMPTS) in BAND for rate in rates]))


def live(rates: Sequence[float]) -> float:
    return float(np.mean([0 < rate < 1 for rate in rates]))


def error(rates: Sequence[float]) -> float:
    return float(np.mean([abs(rate - 0.5) for rate in rates]))


def success(group: Group) -> float:
    return float(np.mean([one.success for one in group.trajectories]))


def play_arm(
    name: str, seed: int, arm: str, slips: Mapping[str, float], noise: bool = False, **arguments: Any
) -> Course:
    """Updates a simulator against the agent that stands still."""
    env_id, usual, _ = ENVS[name]
    env = gymnasium.make(env_id, generated_tasks=True, **usual, **arguments)
    grammar, rng = grammar_of(env), np.random.default_rng(seed)
    agent = Agent(env.unwrapped, grammar, slips, noise, seed)
    simulator = BaseSimulator(grammar) if arm == "base" else TableSimulator(grammar, rng)
    base = UniformSampler(env.get_wrapper_attr("task_split"), rng)
    credit = "batch" if arm == "batch" else "task"
    options = {"fresh": 1.0, "replay": 0.0, "credit": credit, "shuffle_rewards": arm == "shuffled"}
    if arm == "base":
        options["variation_share"] = 0.0
    sampler = GeneratedSampler(base, grammar, simulator, rng, **options)
    course = Course()
    for _ in range(UPDATES):
        began = time.process_time()
        written = sample(sampler)
        drawn = time.process_time()
        groups = [agent.play(task_id) for task_id in written]
        played = time.process_time()
        sampler.observe(groups)
        course.seconds += time.process_time() - played + drawn - began
        course.rates.append([success(group) for group in groups])
    untrained = sampler.probe(UPDATES // 3 * TASKS, np.random.default_rng((seed, 2)))["initial"]
    course.start = [success(agent.play(task_id)) for task_id in untrained]
    still = GeneratedSampler(base, grammar, simulator.initial(), np.random.default_rng((seed, 4)), **options)
    for _ in range(UPDATES // 3):
        course.no_repeats += [success(agent.play(task_id)) for task_id in sample(still)]
        still.observe([])  # an iteration that leaves no record
    return course


def sample(sampler: GeneratedSampler) -> list[str]:
    """The tasks of an update, without the fallbacks."""
    task_ids = sampler.sample(TASKS)
    return [task_id for task_id in task_ids if task_id in sampler.choices()]


def validate(name: str, count: int, seed: int) -> dict[str, float]:
    """Validates proposals of an untrained table, replays plans in another environment, and looks for held-out tasks.

    Args:
        count: accepted tasks.
    """
    env_id, arguments, _ = ENVS[name]
    env = gymnasium.make(env_id, generated_tasks=True, **arguments)
    grammar, rng = grammar_of(env), np.random.default_rng((seed, 3))
    held_out = grammar.held_out_contents()
    simulator, accepted, seconds = TableSimulator(grammar, rng), dict[TaskSpec, tuple[str, ...]](), []
    while len(accepted) < count:
        [lines] = simulator.propose([None], count, rng)  # type: ignore[list-item]
        for line in lines:
            began = time.process_time()
            try:
                spec = grammar.complete(grammar.read(line)[0], rng)
                verdict = grammar.check(spec)
                if verdict.accepted and len(accepted) < count:
                    accepted[spec] = verdict.plan
            except Refused:
                pass
            seconds.append(time.process_time() - began)
    wins = 0
    for spec, plan in accepted.items():
        _, info = env.reset(options={"task_id": grammar.task_id(spec)})
        for command in plan:
            *_, info = env.step(command)
        wins += info["won"]
    return {
        "proposals": len(seconds),
        "validation_ms": round(1000 * float(np.mean(seconds)), 3),
        "plan_wins": wins / count,
        "held_out_leaks": sum(grammar.content(spec) in held_out for spec in accepted),
    }


def train_share(console: Console) -> float:
    """The share of a real run's iterations that the table simulator takes."""
    with tempfile.TemporaryDirectory() as folder:
        options = [*TRAIN, "env.eval_tasks=4", "train.iterations=3"]
        run = Run(Path(folder) / "run", Path("configs/toy.yaml"), options, quiet=True)
        run.finish()
        rows = iterations_of(run.folder)
    own, whole = (
        sum(row["simulator_seconds"] + row["analysis_seconds"] for row in rows),
        sum(r["seconds"] for r in rows),
    )
    console.print(f"simulator: {1000 * own / len(rows):.1f} ms of an iteration of {whole / len(rows):.1f} s")
    return own / whole


def measure(name: str, seeds: int, checked: int, noise: bool, console: Console) -> dict[str, Any]:
    """One environment's figures."""
    slips = (NOISES if noise else SLIPS)[name]
    arms = {
        arm: [play_arm(name, seed, arm, slips, noise) for seed in range(seeds)]
        for arm in ("genenv", "shuffled", "base")
    }
    table = Table(
        "arm",
        "in band: start",
        "no repeats",
        "end",
        "each seed",
        "live",
        "mean p̂",
        "|p̂ - 0.5|",
        "not written",
        title=name,
    )
    found: dict[str, Any] = {}
    for arm, courses in arms.items():
        ends = [in_band(course.end()) for course in courses]
        start, no_repeats = (
            float(np.mean([in_band(rates) for rates in given]))
            for given in ([course.start for course in courses], [course.no_repeats for course in courses])
        )
        end = float(np.mean(ends))
        rates = [rate for course in courses for rate in course.end()]
        missing = 1 - len(rates) / (seeds * (UPDATES // 3) * TASKS)
        table.add_row(
            *(arm, f"{start:.2f}", f"{no_repeats:.2f}", f"{end:.2f}", " ".join(f"{one:.2f}" for one in ends)),
            *(f"{number:.2f}" for number in (live(rates), np.mean(rates), error(rates), missing)),
        )
        numbers = {
            "start": start,
            "no_repeats": no_repeats,
            "end": end,
            "live": live(rates),
            "error": error(rates),
            "not_written": missing,
        }
        found[arm] = {key: round(number, 3) for key, number in numbers.items()}
    console.print(table)
    writing = [course.seconds / UPDATES for course in arms["genenv"]]
    return {**found, "sampler_ms": round(1000 * float(np.mean(writing)), 1), **validate(name, checked, 0)}


def compare_credits(seeds: int, console: Console) -> dict[str, float]:
    """Live share with credit by task and by batch, on the toy grammar."""
    courses = {
        arm: [play_arm("toy", seed, arm, TRAP, shares=TRAP_SHARES) for seed in range(seeds)]
        for arm in ("task", "batch")
    }
    table = Table("credit", "live: start", "end", "each seed", "mean p̂", title="toy, easy and hopeless families")
    for arm, own in courses.items():
        start, rates = [rate for c in own for rate in c.start], [rate for c in own for rate in c.end()]
        each = " ".join(f"{live(course.end()):.2f}" for course in own)
        table.add_row(arm, f"{live(start):.2f}", f"{live(rates):.2f}", each, f"{np.mean(rates):.2f}")
    console.print(table)
    return {arm: round(live([rate for c in own for rate in c.end()]), 3) for arm, own in courses.items()}


def summary(environments: Mapping[str, Mapping[str, Any]], credits: Mapping[str, float]) -> dict[str, Any]:
    """The figures that have targets: of each the worst over environments."""

    def worst(pick: Any, of: Any) -> float:
        return of(pick(numbers) for numbers in environments.values())

    return {
        "in_band_start": worst(lambda n: n["genenv"]["start"], max),
        "in_band_end": worst(lambda n: n["genenv"]["end"], min),
        "alignment_error": worst(lambda n: n["genenv"]["error"], max),
        "shuffled_end": worst(lambda n: n["shuffled"]["end"], max),
        "shuffled_change": round(
            max((n["shuffled"]["end"] - n["shuffled"]["no_repeats"] for n in environments.values()), key=abs), 3
        ),
        "live_ratio": round(credits["batch"] / max(credits["task"], 1e-9), 3),
        "plan_wins": worst(lambda n: n["plan_wins"], min),
        "held_out_leaks": worst(lambda n: n["held_out_leaks"], sum),
        "validation_ms": {name: numbers["validation_ms"] for name, numbers in environments.items()},
    }


def missed(found: Mapping[str, Any]) -> list[str]:
    """The names of the targets that are missed."""
    outside = [name for name, (low, high) in TARGETS.items() if name in found and not low <= found[name] <= high]
    return outside + [f"validation_ms {name}" for name, ms in found["validation_ms"].items() if ms > MOST_MS[name]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=SLIPS, nargs="+", default=list(SLIPS), help="default: all")
    parser.add_argument("--seeds", type=int, default=2, metavar="N", help="seeds 0 … N-1 (default: %(default)s)")
    parser.add_argument("--checked", type=int, default=200, metavar="N", help="accepted tasks to check (default: 200)")
    parser.add_argument("--noise", action="store_true", help="a slip is a wrong command, and does not lose the episode")
    parser.add_argument("--train", action="store_true", help="also train for three iterations (half a minute)")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.checked) < 1:
        parser.error("--seeds and --checked must be at least 1")
    console, began = Console(), time.perf_counter()
    environments = {name: measure(name, options.seeds, options.checked, options.noise, console) for name in options.env}
    credits = compare_credits(options.seeds, console)
    found = summary(environments, credits)
    if options.train:
        found["simulator_share"] = round(train_share(console), 4)
    found |= {"missed": missed(found), "seeds": options.seeds, "seconds": round(time.perf_counter() - began)}
    print("RESULT", json.dumps({**found, "environments": environments, "live": credits}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
