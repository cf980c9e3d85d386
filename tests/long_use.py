"""Plays many episodes of an environment, then reports how its process has grown: ``long_use.py ENV EPISODES MANY``.

Prints, in bytes, by how much memory grew over the episodes after the same number of episodes to warm up, and what each
of ``MANY`` more environments of the process costs.
"""

import gc
import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
from hostile import NOT_TEXT, ODD

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.wrappers import PredictedState, Tags


def resident():
    """Bytes of memory that the process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def make(env_id):
    return Tags(PredictedState(gymnasium.make(env_id, disable_env_checker=True)))


def play(env, episodes, rng):
    """Half of the actions work, the others are odd."""
    for _ in range(episodes):
        _, info = env.reset(seed=int(rng.integers(2**31)))
        done = False
        while not done:
            works = info["admissible_actions"] or ["search[a town]", "search[a teacher]", "answer[nobody]"]
            works += ["search[red mug]"] * ("WebShop" in env.spec.id)
            odd = (*ODD, *NOT_TEXT)
            action = works[rng.integers(len(works))] if rng.random() < 0.5 else odd[rng.integers(len(odd))]
            reply = f'<action>{action}</action><prediction h="1">{action}</prediction>'
            _, _, terminated, truncated, info = env.step(reply)
            done = terminated or truncated


def main(env_id, episodes, many):
    rng = np.random.default_rng(0)
    env = make(env_id)
    play(env, episodes, rng)
    before = resident()
    play(env, episodes, rng)
    grown = resident() - before
    before, others = resident(), [make(env_id) for _ in range(many)]
    for number, other in enumerate(others):
        other.reset(seed=number)
        other.step("<action>look</action>")
    each = (resident() - before) / many
    print(json.dumps({"env": env_id, "episodes": episodes, "grown": grown, "environments": many, "each": each}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
