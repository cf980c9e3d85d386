"""Compares the speed of the native ALFWorld simulator with TextWorld.

    python benchmarks/alfworld_speed.py [--data DIR] [--games 3] [--steps 20]

Both load the same game files (generated ones, or official games in DIR), reset, and play the same random admissible
commands. Both report observation, admissible commands and ``won`` at every step. Times are CPU times. Ratios are
TextWorld's time over the simulator's.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.generated.generate import generate, split_ids, write_game
from roleagent.envs.alfworld.official.games import GAME, read_game
from roleagent.options import user_path

NATIVE_REPEATS = 50  # the simulator is too fast to be timed once


def seconds(action: Callable[[], object], repeats: int = 1) -> float:
    """CPU seconds of one call, the mean of several."""
    began = time.process_time()
    for _ in range(repeats):
        action()
    return (time.process_time() - began) / repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=user_path, help="folder with official games, at any depth")
    parser.add_argument("--games", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="per game")
    options = parser.parse_args()

    # TextWorld through the classes that alfworld itself uses, with nothing of this project in between.
    import textworld  # pyright: ignore[reportMissingImports] - of the extra
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler  # pyright: ignore[reportMissingImports]
    from textworld.envs.pddl import PddlEnv  # pyright: ignore[reportMissingImports] - of the extra

    stock = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
    with tempfile.TemporaryDirectory() as folder:
        if options.data:
            found = sorted(options.data.rglob(GAME))
        else:
            ids = split_ids("train", "standard")[: options.games]
            found = [write_game(generate(task_id), folder) for task_id in ids]
        if not found:
            print(f"no {GAME} under {options.data}", file=sys.stderr)
            return 2
        chosen = found[:: max(1, len(found) // options.games)][: options.games]
        totals = {"load": [0.0, 0.0], "reset": [0.0, 0.0], "step": [0.0, 0.0]}

        def add(what: str, native: float, reference: float) -> None:
            totals[what][0] += native
            totals[what][1] += reference

        for path in chosen:
            home, task_id = path.parents[2], f"{path.parent.parent.name}/{path.parent.name}"

            def load(home: Path = home, task_id: str = task_id) -> Simulator:
                return Simulator(Game.from_source(read_game(home, task_id)))

            add("load", seconds(load, NATIVE_REPEATS), seconds(lambda path=path: stock.load(str(path))))
            native = load()
            add("reset", seconds(native.reset, NATIVE_REPEATS), seconds(stock.reset))

            rng, commands = random.Random(task_id), []
            for _ in range(options.steps):
                commands.append(rng.choice(native.admissible_commands))
                native.step(commands[-1])

            def play(native: Simulator = native, commands: list[str] = commands) -> None:
                native.reset()  # its time counts against the simulator
                for command in commands:
                    native.step(command)
                    _ = native.admissible_commands, native.won

            ours = seconds(play, NATIVE_REPEATS)
            add("step", ours, seconds(lambda commands=commands: [stock.step(command) for command in commands]))

    games, steps = len(chosen), len(chosen) * options.steps
    print(f"{games} games, {steps} steps; CPU time per call")
    for what, calls in (("load", games), ("reset", games), ("step", steps)):
        native, reference = (total / calls for total in totals[what])
        times = f"native {native * 1e6:8.1f} µs   TextWorld {reference * 1e3:7.1f} ms"
        print(f"{what:6} {times}   {reference / native:8.0f} x")
    print("RESULT", json.dumps({f"{what}_ratio": round(theirs / ours, 1) for what, (ours, theirs) in totals.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
