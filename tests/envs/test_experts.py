"""Experts win, see observations alone, and go on from where somebody else's commands have led."""

import random

import gymnasium
import pytest
from small_envs import SMALL, by_expert

EXPERTS = {  # the share that is won, in how many steps on average, and the share that is won despite others' commands
    "RoleAgent/Toy-v0": (1.0, 12, 0.95),
    "RoleAgent/ALFWorld-v0": (0.97, 9, 0.95),
    "RoleAgent/WebShop-v0": (0.9, 8, 0.75),
    "RoleAgent/SearchQA-v0": (0.97, 3, 0.9),
    "RoleAgent/TextCraft-v0": (1.0, 10, 0.95),
}
FREE = ("search[zebra]", "search[Old Wex]", "nonsense")
each_env = pytest.mark.parametrize("env_id", EXPERTS)


def episodes(env_id, split, count, slip=lambda step, info: None, **options):
    env = gymnasium.make(env_id, split=split, **SMALL[env_id], **options)
    return [by_expert(env, task_id, slip) for task_id in env.unwrapped.task_split.task_ids[:count]]


@each_env
@pytest.mark.parametrize("split", ["train", "valid"])
def test_an_expert_wins_in_few_steps(env_id, split):
    share, steps, _ = EXPERTS[env_id]
    split = "valid_seen" if (split, env_id) == ("valid", "RoleAgent/ALFWorld-v0") else split
    played = episodes(env_id, split, 100)
    assert sum(one[-1][-1]["won"] for one in played) >= share * len(played)
    assert sum(len(one) - 1 for one in played) <= steps * len(played)


@each_env
def test_an_expert_goes_on_after_other_commands(env_id):
    rng = random.Random(1)

    def slip(step, info):
        return rng.random() < 0.2 and rng.choice(info["admissible_actions"] or FREE)

    played = episodes(env_id, "train", 60, slip, **({} if env_id == "RoleAgent/SearchQA-v0" else {"max_steps": 60}))
    assert sum(one[-1][-1]["won"] for one in played) >= EXPERTS[env_id][2] * len(played)
