"""The search expert: what it understands, how it recovers, and how often it wins."""

import random
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.expert import SearchExpert
from roleagent.envs.alfworld.goals import parse_goal
from roleagent.envs.alfworld.official.games import list_games, read_game, split_folder

ROOM = "You are in the middle of a room. Looking quickly around you, you see {}.\n\nYour task is to: {}."
KITCHEN = "a cabinet 2, a cabinet 1, a countertop 1, a fridge 1, a microwave 1, and a sinkbasin 1"


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


PIECES = (
    *("You arrive at cabinet 1. ", "The cabinet 1 is closed.", "You close the fridge 1.", "Nothing happens.", "\n☀ "),
    *("On the countertop 9, you see a mug 1, and a", "The fridge 1 is open. In it, you see nothing."),
    *(
        "You pick up the mug 1 from the cabinet 1.",
        "You move the mug 1 to the cabinet 1.",
        "You are carrying: a mug 1.",
    ),
    *("You put the mug 1 in/on the shelf 3.", "You heat the mug 1 using the stove 1."),
    *("You are facing the cabinet 1, and fridge 1. Next to it, you see nothing.", "You are not carrying anything."),
)
COMMANDS = ("", "go to", "go to cabinet 1", "take mug 1 from cabinet 1", "take mug", "move mug 1 to shelf 3", "use x")


@settings(max_examples=150, deadline=None)
@given(
    goal=st.sampled_from(
        [goals.sentence(kind, "mug", "desklamp" if kind == goals.LOOK else "cabinet") for kind in goals.TASK_TYPES]
    )
    | st.text(max_size=30),
    first=st.sampled_from(["", KITCHEN, ROOM.format(KITCHEN, "x")]),
    exchanges=st.lists(
        st.tuples(
            st.none() | st.sampled_from(COMMANDS) | st.text(max_size=20),
            st.lists(st.sampled_from(PIECES), max_size=3).map("".join) | st.text(max_size=40),
        ),
        max_size=12,
    ),
    seed=st.none() | st.integers(0, 3),
)
def test_no_observation_raises(goal, first, exchanges, seed):
    expert = SearchExpert(None if seed is None else np.random.default_rng(seed), curiosity=0.5)
    expert.reset(goal, first)
    for command, observation in exchanges:
        proposal = expert.act()
        assert isinstance(proposal, str) and proposal
        expert.observe(proposal if command is None else command, observation)


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
