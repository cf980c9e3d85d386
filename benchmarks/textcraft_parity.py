"""Replays recorded episodes of the original TextCraft, compares every answer, and measures the speed.

    python benchmarks/textcraft_parity.py --traces reference_traces.json.gz --data recipes

A recording is an object of a JSON list: ``goal``, ``commands``, ``initial`` and ``steps``, each with action,
observation, reward and end. ``--data`` names the folder with the recipe files that they were recorded with. Without
``--traces`` the program records the oracle in generated recipes and replays that: a check of the program, not of the
claim. The speed is that of the environment, resets included, in CPU time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from parts.textcraft_recordings import Recording, RecordingError, read_recordings, replay

from roleagent.envs.textcraft.data.dataset import open_book, recipe_folder
from roleagent.envs.textcraft.data.recipes import RecipeBook, RecipeError
from roleagent.envs.textcraft.engine.tasks import CraftingTask
from roleagent.envs.textcraft.env import TextCraftEnv
from roleagent.options import user_path

SHOWN = 10  # differences that are printed


def record(book: RecipeBook) -> list[Recording]:
    """The oracle's episodes."""
    env = TextCraftEnv(data_dir="generated")
    recordings = []
    for task_id in env.task_split.task_ids:
        task = CraftingTask(book, task_id)
        initial, _ = env.reset(options={"task_id": task_id})
        steps = [(command, *env.step(command)[:3]) for command in task.plan()]
        recordings.append(Recording(task.goal, tuple(one.text for one in task.shown), initial, tuple(steps)))
    return recordings


def speed(data: str | None, seconds: float) -> float:
    """Steps per second of CPU time: the oracle, task after task, for so long."""
    env = TextCraftEnv(data_dir=data)
    plans = []
    for task_id in env.task_split.task_ids:
        env.reset(options={"task_id": task_id})
        plans.append((task_id, env.walkthrough()))
    began, steps = time.process_time(), 0
    while time.process_time() - began < seconds:
        for task_id, plan in plans:
            env.reset(options={"task_id": task_id})
            for command in plan:
                env.step(command)
            steps += len(plan)
    return steps / (time.process_time() - began)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=user_path, help="recorded episodes, a JSON list, plain or gzipped")
    parser.add_argument("--data", help="folder with the recipe files (default: TEXTCRAFT_DATA, else generated ones)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of the speed test (default: %(default)s)")
    options = parser.parse_args(arguments)
    steps = mismatches = 0
    try:
        book = open_book(recipe_folder(options.data), 0)
        recordings = read_recordings(options.traces) if options.traces else record(open_book(None, 0))
        for recording in recordings:
            beginning, *differences = replay(book if options.traces else open_book(None, 0), recording)
            steps += len(differences)
            for difference in filter(None, (beginning, *differences)):
                mismatches += 1
                if mismatches <= SHOWN:
                    print(difference)
    except (RecipeError, RecordingError, ValueError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2
    rate = speed(options.data, options.seconds)
    print(f"{len(recordings)} episodes, {steps} steps, {mismatches} mismatches; {rate:,.0f} steps/s")
    result = {"steps": steps, "mismatches": mismatches, "episodes": len(recordings), "steps_per_s": round(rate)}
    print("RESULT", json.dumps(result | {"recorded": "original" if options.traces else "oracle, generated recipes"}))
    return 1 if mismatches or not steps else 0


if __name__ == "__main__":
    sys.exit(main())
