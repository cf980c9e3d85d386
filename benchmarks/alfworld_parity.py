"""Compares the native ALFWorld simulator with unmodified TextWorld, answer by answer.

    python benchmarks/alfworld_parity.py --data DIR --games 300 --steps 60
    python benchmarks/alfworld_parity.py --games 100    (games of the project's own generator)

Every game is played twice: along its walkthrough, and with random, invalid and malformed commands. Compared are the
observation, the admissible commands with their order, and ``won``. DIR is any folder with ``game.tw-pddl`` files in it,
of either format. TextWorld needs about 65 ms per step and 2 s per game.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import time
from functools import partial
from pathlib import Path

from parts.alfworld_walks import Mismatch, compare, walk, wander

from roleagent.envs.alfworld.engine.game import Game, GameSource
from roleagent.envs.alfworld.engine.game_version import UnknownGameVersion
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.engine.textworld import TextWorldEngine
from roleagent.envs.alfworld.official.games import GAME, read_game
from roleagent.options import user_path

_ENGINE: list[TextWorldEngine] = []  # one per process


def play(source: GameSource, steps: int, seed: int) -> tuple[int, list[Mismatch], str]:
    """Returns the answers compared, the differences, and why the game was skipped (``""`` if it was not)."""
    try:
        game = Game.from_source(source)
    except UnknownGameVersion as error:
        return 0, [], f"{source.task_id}: not for the native simulator: {error}"
    if not _ENGINE:
        _ENGINE.append(TextWorldEngine())
    rng, native, reference = random.Random(f"{seed} {source.task_id}"), Simulator(game), _ENGINE[0].load(source)
    played, found = 0, []
    for commands in (walk(source, native, rng), wander(game, native, rng, steps)):
        count, mismatch = compare(source, native, reference, commands)
        played += count
        found += [mismatch] if mismatch else []
    return played, found, ""


def play_file(path: Path, steps: int, seed: int) -> tuple[int, list[Mismatch], str]:
    try:
        source = read_game(path.parent.parent.parent, f"{path.parent.parent.name}/{path.parent.name}")
    except ValueError as error:
        return 0, [], str(error)
    return play(source, steps, seed)


def play_generated(task_id: str, steps: int, seed: int) -> tuple[int, list[Mismatch], str]:
    from roleagent.envs.alfworld.generated.generate import generate

    return play(generate(task_id), steps, seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=user_path, help="folder with official games, at any depth (default: generated)")
    parser.add_argument("--games", type=int, default=8, help="how many, spread evenly over those found (0: all)")
    parser.add_argument("--steps", type=int, default=20, help="random commands per game, beside the walkthrough")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()

    if options.data is None:
        from roleagent.envs.alfworld.generated.generate import split_ids

        found = [*split_ids("train", "standard"), *split_ids("train", "small"), *split_ids("valid_unseen", "standard")]
        job = partial(play_generated, steps=options.steps, seed=options.seed)
    else:
        found = sorted(p for p in options.data.rglob(GAME) if "movable" not in str(p) and "Sliced" not in str(p))
        job = partial(play_file, steps=options.steps, seed=options.seed)
    if not found:
        print(f"no {GAME} under {options.data}", file=sys.stderr)
        return 2
    count = min(options.games or len(found), len(found))
    chosen = [found[i * len(found) // count] for i in range(count)]

    games = steps = mismatches = 0
    began = last = time.perf_counter()
    pool = multiprocessing.get_context("spawn").Pool(options.processes) if options.processes > 1 else None
    for played, differences, skipped in pool.imap_unordered(job, chosen) if pool else map(job, chosen):
        if skipped:
            print(f"skipped {skipped}")
            continue
        games, steps, mismatches = games + 1, steps + played, mismatches + len(differences)
        for difference in differences:
            if mismatches <= 10:
                print(difference)
        if time.perf_counter() - last > 10:
            last = time.perf_counter()
            print(f"{games}/{count} games, {steps} steps, {mismatches} mismatches, {last - began:.0f} s", flush=True)
    if pool:
        pool.close()
        pool.join()
    print("RESULT", json.dumps({"games": games, "steps": steps, "mismatches": mismatches}))
    return 1 if mismatches or not games else 0


if __name__ == "__main__":
    sys.exit(main())
