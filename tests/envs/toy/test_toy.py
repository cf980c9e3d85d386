"""The toy kitchen: the contract of an environment, its rules, and an expert that sees only observations."""

import random

import gymnasium
import pytest
from small_envs import by_expert

from roleagent.envs.toy.expert import ToyExpert


def test_the_texts_of_an_episode():
    """A change here changes the task behind an id: bump the environment's version."""
    env = gymnasium.make("RoleAgent/Toy-v0", split="valid")
    text, info = env.reset(options={"task_id": "heat-egg-tray-7"})
    assert text == (
        "You are in a kitchen. There are: basket, cupboard 2, drawer 2, shelf, counter, table, tray, stove, fridge, "
        "sink. Your task is to: put a hot egg on the tray."
    )
    script = {
        "go to cupboard 2": "You arrive at cupboard 2. It is closed. You carry nothing.",
        "open cupboard 2": "You open the cupboard 2. You see egg, tomato. You carry nothing.",
        "take egg from cupboard 2": "You take the egg from the cupboard 2. You see tomato. You carry egg.",
        "go to fridge": "You arrive at fridge. You see nothing. You carry egg.",
        "cool egg with fridge": "You cool the egg with the fridge. You see nothing. You carry cool egg.",
        "go to tray": "You arrive at tray. You see nothing. You carry cool egg.",
        "move egg to tray": "You move the egg to the tray. You see cool egg. You carry nothing.",
        "take egg from tray": "You take the egg from the tray. You see nothing. You carry cool egg.",
        "go to stove": "You arrive at stove. You see nothing. You carry cool egg.",
        "heat egg with stove": "You heat the egg with the stove. You see nothing. You carry hot egg.",
    }
    for command, expected in script.items():
        assert command in info["admissible_actions"]
        text, reward, terminated, _, info = env.step(command)
        assert text == expected == info["state"] and not (reward or terminated or info["won"])  # not in the wrong state
    env.step("go to tray")
    text, reward, terminated, _, info = env.step("move egg to tray")
    assert text == "You move the egg to the tray. You see hot egg. You carry nothing."
    assert (reward, terminated, info["won"]) == (1.0, True, True)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_the_expert_solves_every_task_in_time_and_sees_only_observations(split):
    env = gymnasium.make("RoleAgent/Toy-v0", split=split)
    for task_id in env.unwrapped.task_split.task_ids:
        commands, texts, _, infos = zip(*by_expert(env, task_id), strict=True)
        assert infos[-1]["won"] and len(commands) <= 14 and all(info["valid_action"] for info in infos)
        item, take = task_id.split("-")[1], next(n for n, c in enumerate(commands) if c.startswith("take "))
        assert any(item in text.split("You carry")[0] for text in texts[1:take])  # it was shown before
        assert not any(item in text for text in texts[1 : take - 1])
    with pytest.raises(ValueError, match="not a task of the toy kitchen"):
        ToyExpert().reset("buy a red mug", "")


def test_the_expert_recovers_from_other_commands():
    env, rng = gymnasium.make("RoleAgent/Toy-v0", max_steps=60), random.Random(1)

    def slip(step, info):
        return rng.random() < 0.3 and rng.choice(info["admissible_actions"])

    assert all(by_expert(env, task_id, slip)[-1][-1]["won"] for task_id in env.unwrapped.task_split.task_ids[:150])


def distance(env, most):
    """The length of the shortest solution from the present state by breadth-first search; None if above ``most``."""
    seen, states = set(), [env.snapshot()]
    for steps in range(most):
        following = []
        for state in states:
            env.restore(state)
            for command in env._commands():
                env.restore(state)
                env._steps = 0  # of the states that are searched, not of the episode
                _, _, won, _, _ = env.step(command)
                key = (env._here, env._carried, str(env._contents), str(sorted(env._shut)), str(env._condition))
                if won:
                    return steps + 1
                if key not in seen:
                    seen.add(key)
                    following.append(env.snapshot())
        states = following
    return None


def test_no_plan_is_shorter():
    """From any state: a plan wins, and a search of all states finds none that is shorter."""
    env = gymnasium.make("RoleAgent/Toy-v0", split="train", max_steps=60).unwrapped
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.shortest_plan()
    rng, compared = random.Random(0), 0
    for task_id in rng.sample(env.task_split.task_ids, 60):
        env.reset(options={"task_id": task_id})
        assert env.shortest_plan() == env.walkthrough()
        for _ in range(rng.randrange(12)):
            if not env._won:
                env.step(rng.choice([*env._commands(), env.shortest_plan()[0]]))
        if env._won:
            assert env.shortest_plan() == ()
            continue
        state, plan = env.snapshot(), env.shortest_plan()
        if len(plan) <= 4:
            compared += 1
            assert distance(env, 4) == len(plan), (task_id, plan)
        env.restore(state)
        for command in plan:
            assert not env._won and env.step(command)[4]["valid_action"]
        assert env._won
    assert compared > 3
