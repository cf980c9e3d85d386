"""Measures ScienceWorld against a naive client, which opens a Java machine for each world and calls the package's step.

    python benchmarks/scienceworld_speed.py --worlds 4 --steps 20

Both play the same commands in turns, in as many worlds: CPU time of this process and of its Java machines, wall time,
and their resident memory. The starts are counted apart from the steps. The package's step lists all valid actions;
``ours_listed`` is this environment with ``list_actions=True``. ``ratio`` is the naive client's CPU time of a step over
ours. The scores of all worlds have to be equal. It needs the extra ``scienceworld`` and Linux; without them the result
reports it and measures nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymnasium.error import DependencyNotInstalled

from roleagent.envs.scienceworld import java
from roleagent.envs.scienceworld.env import ScienceWorldEnv

TASK, VARIATION = "boil", 0  # begins in the hallway
COMMANDS = (
    *("look around", "open door to kitchen", "go to kitchen", "look around", "pick up thermometer", "open cupboard"),
    *("pick up metal pot", "move metal pot to sink", "activate sink", "deactivate sink", "pick up metal pot"),
    *("inventory", "use thermometer on water", "focus on water", "move metal pot to stove", "activate stove", "wait1"),
    *("examine water", "use thermometer on water", "wait1", "look around", "open fridge", "look in fridge"),
)
Started = tuple[list[Callable[[str], Any]], list[int]]
"""The step function of each world, which returns the score, and the ids of the Java machines."""
Start = Callable[[], Started]
_TICKS = os.sysconf("SC_CLK_TCK")


def spent(pids: list[int]) -> float:
    """CPU seconds of this process and of others so far."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return time.process_time() + sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS


def resident(pids: list[int]) -> float:
    """Resident MB of other processes."""
    lines = [dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()) for pid in pids]
    return sum(int(each["VmRSS"].split()[0]) for each in lines) / 1e3


def measure(start: Start, steps: int) -> dict[str, Any]:
    """Starts worlds and plays so many commands in each of them, in turns."""
    began, cpu = time.perf_counter(), time.process_time()
    worlds, pids = start()
    started, started_cpu = time.perf_counter() - began, spent(pids) - cpu
    began, cpu, scores = time.perf_counter(), spent(pids), []
    for number in range(steps):
        scores = [world(COMMANDS[number % len(COMMANDS)]) for world in worlds]
    played, total = spent(pids) - cpu, steps * len(worlds)
    return {
        "start_s": round(started, 2),
        "start_cpu_s": round(started_cpu, 2),
        "step_cpu_ms": round(1e3 * played / total, 2),
        "steps_per_s": round(total / (time.perf_counter() - began), 1),
        "machines": len(pids),
        "machines_mb": round(resident(pids)),
        "scores": scores,
    }


def ours(worlds: int, list_actions: bool = False) -> Start:
    """This environment: its worlds share a Java machine."""

    def start() -> Started:
        envs = [ScienceWorldEnv(list_actions=list_actions, max_steps=10**6) for _ in range(worlds)]
        for env in envs:
            env.reset(options={"task_id": f"{TASK}/{VARIATION}"})
        return [lambda command, env=env: env.step(command)[-1]["score"] for env in envs], [
            machine.pid for machine in java.machines()
        ]

    return start


def naive(worlds: int) -> Start:
    """The package as it is: a Java machine for each world."""

    def start() -> Started:
        package: Any = importlib.import_module("scienceworld")
        envs = [package.ScienceWorldEnv() for _ in range(worlds)]
        for env in envs:
            env.load(TASK, VARIATION, "")
        return [lambda command, env=env: env.step(command)[-1]["score"] for env in envs], [
            env._gateway.java_process.pid for env in envs
        ]

    return start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=4, help="side by side (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=len(COMMANDS), help="per world (default: %(default)s)")
    options = parser.parse_args()
    try:
        java.require_scienceworld()
        if not Path("/proc/self/stat").exists():
            raise OSError("CPU times of Java machines are read from /proc, which is missing here")
    except (DependencyNotInstalled, OSError) as error:
        print("RESULT " + json.dumps(dict.fromkeys(("same_scores", "ratio"), f"not run: {error}")))
        return
    clients = {"ours": ours(options.worlds), "ours_listed": ours(options.worlds, True), "naive": naive(options.worlds)}
    result: dict[str, Any] = {"worlds": options.worlds, "steps": options.steps}
    for name, start in clients.items():
        result[name] = found = measure(start, options.steps)
        java.close_machines()
        print(
            f"{name:12} {found['step_cpu_ms']:7.2f} ms CPU and {found['steps_per_s']:6.1f} steps/s; started in "
            f"{found['start_s']:.1f} s; {found['machines']} Java machines with {found['machines_mb']} MB"
        )
    scores = [result[name].pop("scores") for name in clients]
    result["same_scores"] = all(score == scores[0] for score in scores)
    result["ratio"] = round(result["naive"]["step_cpu_ms"] / result["ours"]["step_cpu_ms"], 1)
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main()
