"""Measures Agent-R's search: the cost of the world, restored states, and model calls.

    python benchmarks/agent_r.py
    python benchmarks/agent_r.py --trees 1000

A tree of random commands grows in every native environment. Each expansion restores the state of a node and plays
``width`` commands. The same expansions are then made by replay, as without snapshots, and every result is compared.
Times are CPU times of the world alone. The model calls are those of a search in the toy kitchen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

import roleagent  # noqa: F401 - registers the environments
from roleagent.agents.builders import EnvSplit
from roleagent.agents.search.search import Search, SearchStats
from roleagent.config import load
from roleagent.envs.restoring import RecordedStep, Restorer
from roleagent.envs.toy.env import CONTAINERS, PLACES, TOOLS
from roleagent.types import Completion, Request

WORLDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ALFWorld, tiny rooms": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "tiny"}),
    "ALFWorld, standard rooms": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "standard"}),
    "WebShop": ("RoleAgent/WebShop-v0", {"data_dir": "generated"}),
    "search QA": ("RoleAgent/SearchQA-v0", {"data_dir": "generated"}),
    "TextCraft": ("RoleAgent/TextCraft-v0", {"data_dir": "generated"}),
    "toy kitchen": ("RoleAgent/Toy-v0", {}),
}
WIDTH, DEPTH = 4, 20  # as published


@dataclass
class Place:
    """A node of a random tree: how it was reached, what can be done there, and its snapshot."""

    steps: tuple[RecordedStep, ...]
    commands: Sequence[str]
    snapshot: Any


def expansions(restorer: Restorer, task_id: str, count: int, rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """A random tree; yields what each expansion gave. The draws are the same with and without snapshots."""
    _, info = restorer.env.reset(options={"task_id": task_id})
    places = [Place((), info["admissible_actions"], restorer.save())]
    for _ in range(count):
        place = places[int(rng.integers(len(places)))]
        given = []
        for _ in range(WIDTH):
            commands = place.commands or ("look",)
            command = str(commands[int(rng.integers(len(commands)))]) if rng.random() < 0.95 else "nonsense"
            restorer.restore(place.snapshot, task_id, place.steps)
            text, reward, terminated, truncated, info = restorer.env.step(command)
            ended = bool(terminated or truncated)
            given.append((command, text, float(reward), ended, info["won"], info["state"]))
            if not ended and len(place.steps) + 1 < DEPTH:
                step = RecordedStep(command, text, float(reward), ended)
                places.append(Place((*place.steps, step), info["admissible_actions"], restorer.save()))
        yield tuple(given)


def measure_world(name: str, trees: int, count: int, seed: int) -> dict[str, float]:
    """Expansions per second by snapshot and by replay, and the differences between both."""
    env_id, arguments = WORLDS[name]
    seconds, grown = {}, {}
    for replay in (False, True):
        env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
        ids = env.get_wrapper_attr("task_split").task_ids
        restorer = Restorer(env, replay)
        for task_id in ids[:trees]:  # games and pages are read once
            env.reset(options={"task_id": task_id})
        began = time.process_time()
        grown[replay] = [
            list(expansions(restorer, ids[number % len(ids)], count, np.random.default_rng((seed, number))))
            for number in range(trees)
        ]
        seconds[replay] = time.process_time() - began
    different = sum(
        one != other
        for tree, same in zip(grown[False], grown[True], strict=True)
        for one, other in zip(tree, same, strict=True)
    )
    total = trees * count
    return {
        "per_s": total / max(seconds[False], 1e-9),
        "per_s_replay": total / max(seconds[True], 1e-9),
        "mismatches": float(different),
    }


class RandomCommands:
    """A policy that knows the kitchen's commands and draws them; its tokens are bytes."""

    version, context_length, eos_id = 0, 1 << 20, 256

    def __init__(self, seed: int):
        self.tokenizer = SimpleNamespace(chat_template=None)
        self._rng = np.random.default_rng(seed)
        self._names = (*CONTAINERS, *PLACES, *(tool for tool, _ in TOOLS.values()))

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token != self.eos_id).decode("utf-8", "replace")

    def literal(self, text: str) -> str:
        return text

    def single_token(self, text: str) -> None:
        return None

    def clear_cache(self) -> None:
        """There is none."""

    def offload(self) -> None:
        """There is nothing to free."""

    def sync(self, weights: object, version: int) -> None:
        """There are no weights."""

    def reseed(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def generate(self, requests: Sequence[Request], temperature: float) -> list[Completion]:
        commands = [f"go to {name}" for name in self._names] + [f"open {name}" for name in CONTAINERS] + ["look"]
        drawn = self._rng.integers(len(commands), size=len(requests))
        replies = [(*self.encode(f"<action>{commands[int(place)]}</action>"), self.eos_id) for place in drawn]
        return [Completion(reply, (0.0,) * len(reply), "stop") for reply in replies]


def measure_calls(trees: int, seed: int) -> SearchStats:
    """Searches tasks of the toy kitchen side by side, as published: 8 descents, width 4."""
    overrides = ["env.id=RoleAgent/Toy-v0", "env.train_split=train", "wia=off", "env.kwargs={max_steps: 20}"]
    split = EnvSplit.open(load(None, overrides), "train")
    search = Search.open(split, RandomCommands(seed))
    rngs = [np.random.default_rng((seed, number)) for number in range(trees)]
    search.wave(split.task_split.task_ids[:trees], rngs)
    return search.stats


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=60, help="random trees, over all worlds (default: %(default)s)")
    parser.add_argument("--expansions", type=int, default=100, help="of each tree (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {}
    mismatches = 0.0
    for name in WORLDS:
        measured = measure_world(name, max(1, options.trees // len(WORLDS)), options.expansions, options.seed)
        mismatches += measured["mismatches"]
        rates = f"{measured['per_s']:>9,.0f} expansions/s by snapshot, {measured['per_s_replay']:>7,.0f} by replay"
        print(f"{name:<26}{rates}, {measured['mismatches']:.0f} mismatches", flush=True)
        if name == "ALFWorld, standard rooms":
            result |= {"expansions_per_s_world": round(measured["per_s"])}
            result |= {"expansions_per_s_replay": round(measured["per_s_replay"])}
    stats = measure_calls(8, options.seed)
    sequential, batched = stats.requests / stats.trees, stats.calls / stats.trees
    print(
        f"a tree asks for {sequential:.0f} replies; 8 trees side by side make {batched:.1f} calls each; "
        f"UCT decided {stats.uct_share:.1%} of the selections"
    )
    result |= {"calls_per_tree_sequential": round(sequential), "calls_per_tree": round(batched, 1)}
    result |= {"uct_share": round(stats.uct_share, 3)}
    result |= {"trees": options.trees, "replay_mismatches": int(mismatches)}
    print("RESULT", json.dumps(result))
    return 1 if mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
