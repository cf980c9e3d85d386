"""Shortest plans from any state, against a search of all states."""

import random
from collections import deque

import pytest

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.planner import shortest_plan
from roleagent.envs.alfworld.engine.simulator import NOTHING, Simulator
from roleagent.envs.alfworld.generated.generate import generate, split_ids

IDLE = ("examine", "look", "inventory", "help", "close", "slice")
LONGEST = 6  # a search of longer plans takes seconds


def wandered(task_id, rng, steps):
    """A state that a random player comes to, who often does what a plan would."""
    simulator = Simulator(Game.from_source(generate(task_id)))
    for _ in range(steps):
        plan = shortest_plan(simulator)
        if not plan:
            break
        commands = [one for one in simulator.admissible_commands if not one.startswith(IDLE)]
        simulator.step(plan[0] if rng.random() < 0.6 else rng.choice(commands))
    return simulator


def key(simulator):
    return simulator.place, simulator.held, tuple(simulator.contents), frozenset(simulator.facts)


def distance(simulator, most):
    """The length of the shortest plan by breadth-first search; None if it is above ``most``."""
    seen, queue = {key(simulator)}, deque([(simulator, 0)])
    while queue:
        state, steps = queue.popleft()
        if state.won:
            return steps
        if steps == most:
            continue
        for command in state.admissible_commands:
            if command.startswith(IDLE):
                continue
            after = state.copy()
            assert after.step(command) != NOTHING
            if (now := key(after)) not in seen:
                seen.add(now)
                queue.append((after, steps + 1))
    return None


@pytest.mark.parametrize("seed", range(3))
def test_no_plan_is_shorter(seed):
    rng, compared = random.Random(seed), 0
    tasks = rng.sample(split_ids("train", "tiny"), 40)
    for task_id in tasks:
        simulator = wandered(task_id, rng, rng.randrange(2, 12))
        plan = shortest_plan(simulator)
        assert plan is not None, task_id
        if len(plan) <= LONGEST:
            compared += 1
            assert distance(simulator, len(plan)) == len(plan), (task_id, plan)
        for command in plan:
            assert not simulator.won and simulator.step(command) != NOTHING
        assert simulator.won
    assert compared > 5
