"""The search expert: what it understands, how it recovers, and how often it wins."""

import random
import statistics

import numpy as np
import pytest

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.expert import SearchExpert
from roleagent.envs.alfworld.goals import parse_goal
from roleagent.envs.alfworld.official.games import list_games, read_game, split_folder


def open_engine(source):
    return Simulator(Game.from_source(source))


def play(engine, goal, expert, noise=0.0, seed=0, limit=50):
    """One episode; a share ``noise`` of the commands is replaced by random admissible ones. Steps, and whether won."""
    chance = random.Random(seed)
    expert.reset(goal, engine.reset())
    for step in range(1, limit + 1):
        command = expert.act()
        if chance.random() < noise:
            command = chance.choice(engine.admissible_commands)
        expert.observe(command, engine.step(command))
        if engine.won:
            return step, True
    return limit, False


def results(sources, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    played = [play(open_engine(one), one.goal, SearchExpert(rng), noise, seed=i) for i, one in enumerate(sources)]
    return statistics.mean(won for _, won in played), statistics.mean(steps for steps, _ in played)


# --- how often it wins ------------------------------------------------------------------------------------------------


def official_sources(folder):
    folder = split_folder(folder, "valid_seen")
    return [read_game(folder, task_id) for task_id in list_games(folder)]


@pytest.mark.parametrize(("name", "noise"), [("current", 0), ("current", 0.2), ("older", 0.2)])
def test_it_wins_official_games(official_games, name, noise):
    sources = official_sources(official_games[name])
    assert len(sources) == 140 and all(parse_goal(source.goal) for source in sources)
    won, steps = results(sources, noise)
    assert won >= 0.97 and steps <= 14
