"""Small environments without downloads, and an expert's episode in one."""

import numpy as np

from roleagent.env_card import make_expert

SMALL = {
    "RoleAgent/Toy-v0": {},
    "RoleAgent/ALFWorld-v0": {"size": "tiny", "data_dir": "generated"},
    "RoleAgent/WebShop-v0": {"data_dir": "generated", "num_products": 200},
    "RoleAgent/SearchQA-v0": {"data_dir": "generated"},
    "RoleAgent/TextCraft-v0": {"data_dir": "generated"},
}


def by_expert(env, task_id, slip=lambda step, info: None, rng=None):
    """(command, observation, reward, info) by step; ``slip`` may name a command to play instead of the expert's."""
    observation, info = env.reset(options={"task_id": task_id})
    expert = make_expert(env, np.random.default_rng(0) if rng is None else rng)
    expert.reset(info["goal"], observation)
    steps, over = [("", observation, 0.0, info)], False
    while not over:
        proposed = expert.act()
        command = slip(len(steps) - 1, info) or proposed
        observation, reward, terminated, truncated, info = env.step(command)
        expert.observe(command, observation)
        steps.append((command, observation, reward, info))
        over = terminated or truncated
    return steps
