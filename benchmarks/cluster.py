"""How long an iteration takes on many GPUs, computed: rollout, weight sync, analysis, update and checkpoint of Qwen2.5
1.5B and 7B on 1 to 256 GPUs.

    python benchmarks/cluster.py [--picture FILE …]
    python benchmarks/cluster.py --plan published_alfworld --gpus 8    # the hours of an experiment's runs

A discrete simulation plays the episodes: the sampler of a GPU decodes all of its running replies token by token, and
each reply has a drawn length. Turn by turn, all episodes of a GPU wait for the longest reply; independent episodes
do not. One step ahead, some of the GPUs sample the next iteration while the others learn from the last one. Everything
else is arithmetic on the rates of ASSUMPTIONS. No GPU is used: these are estimates, for comparisons between rows.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from parts.gpu_memory import CARD, GIB, OVERHEAD, SIZES, Size

from roleagent.config import Config, load
from roleagent.envs.wrappers.predicted_state import default_horizon
from roleagent.experiments.plan import Plan, find_plan
from roleagent.learners.method import method_of

PARTS = ("rollout", "sync", "analysis", "update", "checkpoint")
MODES = ("turn by turn", "independent", "one step ahead")
MODELS = {"1.5B": SIZES["Qwen/Qwen2.5-1.5B-Instruct"], "7B": SIZES["Qwen/Qwen2.5-7B-Instruct"]}
GPUS = (1, 8, 32, 256)
HOST = 8  # GPUs


class Assumption(NamedTuple):
    """A number that the figures rest on."""

    value: float
    unit: str
    meaning: str
    source: str


DATA_SHEET = "NVIDIA H100 SXM data sheet"
DGX = "NVIDIA DGX H100 data sheet"
OURS = "assumed"
SCHEDULER = "measured: vLLM 0.32 on one EPYC core, with an executor that does nothing"
ASSUMPTIONS = {
    "flops": Assumption(989e12, "FLOP/s", "dense bfloat16 of a GPU", DATA_SHEET),
    "bandwidth": Assumption(3.35e12, "B/s", "memory of a GPU", DATA_SHEET),
    "nvlink": Assumption(450e9, "B/s", "between GPUs of a host, one way", DATA_SHEET),
    "network": Assumption(50e9, "B/s", "between hosts, per GPU (400 Gb/s)", DGX),
    "training": Assumption(0.32, "", "share of the FLOP/s that an update reaches, without torch.compile", OURS),
    "prefill": Assumption(0.40, "", "share of the FLOP/s that reading prompts reaches", OURS),
    "decoding": Assumption(0.60, "", "share of the memory's bandwidth that decoding reaches", OURS),
    "step": Assumption(1.6e-3, "s", "of a decoding step beside reading memory and the scheduler", OURS),
    "token": Assumption(
        45e-6, "s", "of vLLM's scheduler per sampled token, in Python, before the GPU begins", SCHEDULER
    ),
    "turn": Assumption(0.35e-3, "s", "of rendering and submitting a turn, in Python, one after another", SCHEDULER),
    "environment": Assumption(5e-3, "s", "of a step of the world", OURS),
    "reply": Assumption(200, "tokens", "of a reply in the mean (lognormal, sigma 0.6)", OURS),
    "spread": Assumption(0.6, "", "sigma of the reply's length", OURS),
    "state": Assumption(40, "tokens", "of a predicted state", OURS),
    "prompt": Assumption(1000, "tokens", "of a turn's prompt that are not in the prefix cache", OURS),
    "turns": Assumption(
        50, "", "of an episode that fails; one that succeeds has 10 to 50", "configs/published/alfworld.yaml"
    ),
    "success": Assumption(0.5, "", "share of the episodes that succeed", OURS),
    "reflection": Assumption(512, "tokens", "of the analysis of a failure", "configs/published/alfworld.yaml"),
    "history": Assumption(4000, "tokens", "of the failure that it reads", OURS),
    "passes": Assumption(
        12, "FLOP", "per parameter and token: update 8, reference 2, old log-probabilities 2", "counted"
    ),
    "critic": Assumption(10, "FLOP", "per parameter and token of a critic: its update 8, its values 2", "counted"),
    "updates": Assumption(20, "", "updates of an iteration, however large it is", "configs/published/alfworld.yaml"),
    "gather": Assumption(5e9, "B/s", "of the weights from learner to sampler", OURS),
    "wake": Assumption(2.0, "s", "vLLM falls asleep and wakes", OURS),
    "disk": Assumption(2e9, "B/s", "shared disk", OURS),
    "adam": Assumption(1e9, "/s", "parameters of an offloaded step on a host", OURS),
}
A = {name: one.value for name, one in ASSUMPTIONS.items()}


def decoding_step(size: Size, replies: int) -> float:
    """Seconds in which a sampler makes one token of each of so many replies."""
    read = 2 * size.parameters + replies * (A["prompt"] + A["reply"]) * size.cache
    computed = 2 * size.parameters * replies / (A["flops"] * A["prefill"])
    return A["step"] + A["token"] * replies + max(read / (A["bandwidth"] * A["decoding"]), computed)


def prompt_seconds(size: Size, tokens: float) -> float:
    """Seconds in which a sampler reads prompts."""
    return 2 * size.parameters * tokens / (A["flops"] * A["prefill"])


def draw_episodes(count: int, rng: np.random.Generator, states: int = 0) -> list[np.ndarray]:
    """The lengths of the replies of each episode, in tokens, each with so many predicted states."""
    turns = np.where(rng.random(count) < A["success"], rng.integers(10, int(A["turns"]), count), A["turns"]).astype(int)
    mean = math.log(A["reply"]) - A["spread"] ** 2 / 2
    predicted = round(states * A["state"])
    return [np.maximum(1, rng.lognormal(mean, A["spread"], n)).astype(int) + predicted for n in turns]


def play_together(size: Size, episodes: list[np.ndarray]) -> float:
    """Seconds of a GPU whose episodes wait for each other in every turn."""
    seconds = 0.0
    for turn in range(max(map(len, episodes))):
        lengths = np.sort([episode[turn] for episode in episodes if len(episode) > turn])
        seconds += prompt_seconds(size, A["prompt"] * len(lengths)) + A["turn"] * len(lengths) + A["environment"]
        done = 0
        for number, length in enumerate(lengths):
            seconds += (length - done) * decoding_step(size, len(lengths) - number)
            done = length
    return seconds


def play_apart(size: Size, episodes: list[np.ndarray]) -> float:
    """Seconds of a GPU whose episodes go on as soon as their own reply is there."""
    now, steps = 0.0, 0  # decoding steps so far: a reply that begins at step n ends at n + its length
    turns = [0] * len(episodes)
    away = [(0.0, number) for number in range(len(episodes))]  # in the world until then
    running: list[tuple[int, int]] = []  # the step at which each reply ends
    while away or running:
        if not running:
            now = max(now, away[0][0])
        while away and away[0][0] <= now:
            _, number = heapq.heappop(away)
            heapq.heappush(running, (steps + int(episodes[number][turns[number]]), number))
            now += prompt_seconds(size, A["prompt"]) + A["turn"]
        step = decoding_step(size, len(running))
        ahead = running[0][0] - steps
        if away:
            ahead = min(ahead, max(1, math.ceil((away[0][0] - now) / step)))
        steps, now = steps + ahead, now + ahead * step
        while running and running[0][0] <= steps:
            _, number = heapq.heappop(running)
            turns[number] += 1
            if turns[number] < len(episodes[number]):
                heapq.heappush(away, (now + A["environment"], number))
    return now


def rollout_seconds(size: Size, episodes: list[np.ndarray], gpus: int, apart: bool) -> float:
    """Seconds until the last GPU has played its share of the episodes."""
    play = play_apart if apart else play_together
    return max(play(size, share) for rank in range(gpus) if (share := episodes[rank::gpus]))


def learn_seconds(size: Size, episodes: list[np.ndarray], gpus: int) -> dict[str, float]:
    """Seconds of the other parts of an iteration on so many GPUs."""
    turns = sum(map(len, episodes))
    tokens = turns * A["prompt"] + sum(int(episode.sum()) for episode in episodes)
    link = A["nvlink"] if gpus <= HOST else A["network"]
    weights, updates = 2 * size.parameters, A["updates"]
    computed = A["passes"] * size.parameters * tokens / (gpus * A["flops"] * A["training"])
    # Gradients are reduced while the backward pass goes on, once per micro-batch; weights are gathered after each step.
    micro = max(updates, tokens / gpus / 16_384)
    exchanged = 0.0 if gpus == 1 else micro * weights / link
    update = max(computed, exchanged) + (0.0 if gpus == 1 else updates * weights / link)
    if offloads(size, gpus):
        update += updates * size.parameters / (A["adam"] * max(1, gpus / HOST))
    failures = math.ceil(len(episodes) * (1 - A["success"]) / gpus)
    read = prompt_seconds(size, A["history"] * failures)
    return {
        "sync": A["wake"] + weights / A["gather"],
        "analysis": read + A["reflection"] * decoding_step(size, failures),
        "update": update,
        "checkpoint": 16 * size.parameters / A["disk"],
    }


def run_hours(config: Config, gpus: int, seed: int) -> dict[str, float]:
    """Hours of a run with vLLM on so many GPUs: its iterations' parts, its evaluations, and ``total``."""
    size, method = SIZES[config.policy.path], method_of(config)
    rng = np.random.default_rng(seed)
    env: Any = config.env  # one
    states = (config.prompt.horizon or default_horizon(env.kwargs["max_steps"])) if config.wia else 0
    episodes = draw_episodes(config.rollout.num_groups * config.rollout.group_size, rng, states)
    parts = {"rollout": rollout_seconds(size, episodes, gpus, True), **learn_seconds(size, episodes, gpus)}
    if method.critic:
        parts["update"] *= 1 + A["critic"] / A["passes"]
    if not config.aiw:
        parts["analysis"] = 0.0
    train, write = config.train, parts.pop("checkpoint")
    parts = {name: train.iterations * seconds for name, seconds in parts.items()}
    played = draw_episodes(env.eval_tasks, rng, states if config.rollout.eval_predictions else 0)
    parts["evaluation"] = (2 + train.iterations // train.evaluate_every) * rollout_seconds(size, played, gpus, True)
    parts["checkpoint"] = write * sum(parts.values()) / 900  # one every quarter of an hour
    return {name: seconds / 3600 for name, seconds in {**parts, "total": sum(parts.values())}.items()}


def plan_hours(plan: Plan, gpus: int, seed: int) -> dict[str, dict[str, float]]:
    """Hours of one run of each arm of an experiment, as :func:`run_hours`."""
    options = {name: [*plan.options, *arm.options] for name, arm in plan.arms.items()}
    return {name: run_hours(load(plan.config, own), gpus, seed) for name, own in options.items()}


def offloads(size: Size, gpus: int) -> bool:
    """Whether the optimizer's state does not fit beside weights, reference, gradients and 20 GiB of activations."""
    return (4 + 16 / gpus) * size.parameters / GIB + 20 + OVERHEAD > CARD


def iteration(size: Size, gpus: int, count: int, mode: str, seed: int) -> dict[str, float] | None:
    """Seconds of each part, with ``total``; None where a GPU cannot sample beside another that learns.

    One step ahead, ``total`` is the slower side and what comes after both; ``samplers``: the GPUs that sample.
    """
    episodes = draw_episodes(count, np.random.default_rng(seed))
    if mode != "one step ahead":
        parts = {"rollout": rollout_seconds(size, episodes, gpus, mode == "independent")}
        parts |= learn_seconds(size, episodes, gpus)
        return {**parts, "total": sum(parts.values())}
    found = []
    for eighths in range(1, 8):
        samplers = gpus * eighths // 8
        if not samplers:
            continue
        parts = {"rollout": rollout_seconds(size, episodes, samplers, True)}
        parts |= learn_seconds(size, episodes, gpus - samplers)
        # Failures are analyzed where replies are sampled.
        parts["analysis"] = learn_seconds(size, episodes, samplers)["analysis"]
        alone = sum(parts[name] for name in ("sync", "analysis", "checkpoint"))
        found.append({**parts, "total": max(parts["rollout"], parts["update"]) + alone, "samplers": samplers})
    return min(found, key=lambda one: one["total"]) if found else None


def episodes_for(gpus: int) -> int:
    """The published batch of 16 groups of 8, or 16 episodes per GPU where that is more."""
    return max(128, 16 * gpus)


def draw(rows: list[dict[str, object]], *files: Path) -> None:
    """Stacked bars of the parts, one panel per model."""
    from matplotlib.figure import Figure

    from roleagent.experiments.pictures import COLORS, save

    figure = Figure(figsize=(9.0, 5.6), layout="constrained")
    for axes, model in zip(figure.subplots(1, 2), MODELS, strict=True):
        chosen = [row for row in rows if row["model"] == model]
        labels = [f"{row['gpus']} · {row['mode']}" for row in chosen]
        left = np.zeros(len(chosen))
        for part, color in zip(PARTS, COLORS, strict=False):
            widths = np.array([float(row[part]) / 60 for row in chosen])  # type: ignore[arg-type]
            ahead = [row["mode"] == MODES[2] for row in chosen]
            axes.barh(labels, widths, left=left, color=color, label=part, alpha=1.0)
            for bar, pale in zip(axes.containers[-1], ahead, strict=True):
                bar.set_alpha(0.45 if pale else 1.0)
            left += widths
        totals = [float(row["total"]) / 60 for row in chosen]  # type: ignore[arg-type]
        axes.plot(totals, labels, "|", color="black", markersize=11, label="iteration")
        axes.set_title(f"Qwen2.5 {model}")
        axes.set_xlabel("minutes per iteration")
        axes.invert_yaxis()
    figure.axes[0].legend(fontsize=8)
    save(figure, *files)


def print_plan(name: str, gpus: int, seed: int) -> None:
    """Prints the hours of an experiment's runs on so many GPUs."""
    plan = Plan.read(find_plan(name))
    found = plan_hours(plan, gpus, seed)
    parts = next(iter(found.values()))
    print(f"\n| hours of a run on {gpus} GPUs | runs | " + " | ".join(parts) + " |")
    print("|---" * (len(parts) + 2) + "|")
    for arm, hours in found.items():
        print(f"| {arm} | {len(plan.seeds_of(arm))} | " + " | ".join(f"{hours[part]:.2f}" for part in parts) + " |")
    total = sum(hours["total"] * len(plan.seeds_of(arm)) for arm, hours in found.items())
    print(f"\nAll {len(plan.jobs())} runs: {total:.0f} hours, {gpus * total:.0f} GPU-hours.")
    print("RESULT", json.dumps({"minutes": {arm: round(60 * hours["total"]) for arm, hours in found.items()}}))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, nargs="*", default=[], metavar="FILE", help=".svg or .png to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gpus", type=int, nargs="*", default=GPUS)
    parser.add_argument(
        "--plan", metavar="NAME", help="an experiment: hours of its runs, on the first number of --gpus"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help=f"assumptions: {', '.join(A)}")
    options = parser.parse_args()
    for name, _, value in (one.partition("=") for one in options.set):
        if name not in A:
            parser.error(f"no such assumption: {name}")
        A[name] = float(value)
    print("| number | value | source |\n|---|---|---|")
    for name, one in ASSUMPTIONS.items():
        print(f"| {one.meaning} | {A[name]:g} {one.unit} | {one.source if A[name] == one.value else 'given'} |")
    if options.plan:
        print_plan(options.plan, options.gpus[0], options.seed)
        return
    rows: list[dict[str, object]] = []
    print("\n| model | GPUs | episodes | rollouts | " + " | ".join(PARTS) + " | iteration, s | tokens/s per GPU |")
    print("|---" * (len(PARTS) + 6) + "|")
    for model, size in MODELS.items():
        for gpus in options.gpus:
            count = episodes_for(gpus)
            sampled = sum(int(one.sum()) for one in draw_episodes(count, np.random.default_rng(options.seed)))
            for mode in MODES:
                found = iteration(size, gpus, count, mode, options.seed)
                if found is None:
                    continue
                rate = sampled / found["total"] / gpus
                rows.append({"model": model, "gpus": gpus, "episodes": count, "mode": mode, **found, "rate": rate})
                where = f", {found['samplers']:.0f} sample" if "samplers" in found else ""
                parts = " | ".join(f"{found[part]:.0f}" for part in PARTS)
                print(f"| {model} | {gpus} | {count} | {mode}{where} | {parts} | {found['total']:.0f} | {rate:.0f} |")
    if options.picture:
        draw(rows, *options.picture)
    rounded = [{name: round(v, 1) if isinstance(v, float) else v for name, v in row.items()} for row in rows]
    print("RESULT", json.dumps({"iterations": rounded}))


if __name__ == "__main__":
    main()
