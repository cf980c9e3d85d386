"""Are the fields of task grammars levers? The scripted expert's success by the values of each field (GenEnv).

    python benchmarks/task_levers.py --env webshop --tasks 200

A noisy expert (:class:`roleagent.envs.failures.command_noise.CommandNoise`) plays tasks that have one value of a field,
and are else drawn as the training split is. A field is a lever if its easiest and its hardest value differ by ten
points. With ``--tasks 200`` a difference of ten points is 2.0 to 3.3 standard errors.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np

import roleagent  # noqa: F401 - registers the environments
from roleagent.envs.failures.command_noise import CommandNoise
from roleagent.envs.failures.scripted_episode import ScriptedEpisode
from roleagent.tasks.grammar import Refused, TaskGrammar, grammar_of

ENVS = {
    "toy": ("RoleAgent/Toy-v0", {}, 0.4),
    "alfworld": ("RoleAgent/ALFWorld-v0", {"data_dir": "generated", "size": "tiny", "max_steps": 12}, 0.5),
    "alfworld_official": ("RoleAgent/ALFWorld-v0", {"data_dir": "official", "max_steps": 20}, 0.4),
    "webshop": ("RoleAgent/WebShop-v0", {}, 0.3),
    "searchqa": ("RoleAgent/SearchQA-v0", {}, 0.3),
    "office": ("RoleAgent/Office-v0", {}, 0.3),
    "textcraft": ("RoleAgent/TextCraft-v0", {"data_dir": "generated", "max_steps": 24}, 0.6),
}
"""By name: the environment, its arguments, and the share of the expert's commands that are replaced."""
DEFAULT = ("toy", "alfworld", "webshop", "searchqa", "office", "textcraft")
LEVER = 10  # points
LEARNED = 40  # episodes whose commands the noise knows
TRIES = 20  # base tasks that are changed in search of a task with a value, per task wanted


class NoisyExpert:
    """The scripted expert of an environment with command noise."""

    def __init__(self, env: gymnasium.Env, rng: np.random.Generator, rate: float):
        self.env, self.rng, self.rate = env, rng, rate
        self.noise = CommandNoise((), rng)

    def play(self, task_id: str, learn: bool = False) -> bool:
        """Whether it wins a task; ``learn`` plays without noise and remembers the commands."""
        episode = ScriptedEpisode(self.env, task_id, self.rng)
        if not learn:
            self.noise.play(episode, self.rate)
            return episode.info["won"]
        won = episode.finish()
        for turn in episode.turns:
            self.noise.learn(turn.action)
        return won


def tasks_with(grammar: TaskGrammar, place: int, value: str, count: int, rng: np.random.Generator) -> list[str]:
    """Ids of accepted tasks with a value of a field; fewer where they are rare."""
    found: list[str] = []
    for _ in range(TRIES * count):
        if len(found) == count:
            break
        values = list(grammar.base(rng).values)
        values[place] = value
        try:
            spec = grammar.complete(values, rng)
        except Refused:
            continue
        if grammar.check(spec).accepted:
            found.append(grammar.task_id(spec))
    return found


def measure(name: str, count: int, seed: int) -> dict[str, dict[str, float]]:
    """By field and value: the success in percent; values with too few tasks are left out."""
    env_id, arguments, rate = ENVS[name]
    env = gymnasium.make(env_id, generated_tasks=True, **arguments).unwrapped
    grammar, rng = grammar_of(env), np.random.default_rng(seed)
    expert = NoisyExpert(env, rng, rate)
    for _ in range(LEARNED):
        expert.play(grammar.task_id(grammar.base(rng)), learn=True)
    base = [expert.play(grammar.task_id(grammar.base(rng))) for _ in range(count)]
    print(f"\n{name}: noise {rate:.0%}, base {np.mean(base):.0%}")
    success: dict[str, dict[str, float]] = {}
    for place, (field, values) in enumerate(grammar.fields.items()):
        success[field] = {}
        for value in values:
            tasks = tasks_with(grammar, place, value, count, rng)
            if len(tasks) == count:
                success[field][value] = round(100 * float(np.mean([expert.play(task) for task in tasks])), 1)
        rates = success[field]
        easiest, hardest = (max(rates, key=rates.__getitem__), min(rates, key=rates.__getitem__)) if rates else ("", "")
        spread = rates[easiest] - rates[hardest] if rates else 0.0
        print(f"  {field:12} {spread:5.1f} points: {easiest} {rates.get(easiest)}, {hardest} {rates.get(hardest)}")
    return success


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=ENVS, nargs="+", default=list(DEFAULT), help="default: generated data")
    parser.add_argument("--tasks", type=int, default=40, metavar="N", help="per value (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    result = {}
    for name in options.env:
        rates = {field: values for field, values in measure(name, options.tasks, options.seed).items() if values}
        spreads = {field: round(max(values.values()) - min(values.values()), 1) for field, values in rates.items()}
        result[name] = {"spread": spreads, "levers": sum(spread >= LEVER for spread in spreads.values())}
    print("RESULT " + json.dumps({"tasks": options.tasks, "seconds": round(time.perf_counter() - start), **result}))


if __name__ == "__main__":
    main()
