"""Shortest plans of the toy kitchen."""

import random

import gymnasium
import pytest

import roleagent  # noqa: F401 - registers the environments


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
