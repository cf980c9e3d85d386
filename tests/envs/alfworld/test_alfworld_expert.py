"""The search expert: what it understands, how it recovers, and how often it wins."""

import random
import re
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roleagent.envs.alfworld import goals
from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.expert import SearchExpert
from roleagent.envs.alfworld.generated.generate import generate, split_ids
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


@pytest.mark.parametrize(
    ("goal", "exchanges"),
    [
        (
            "cool some apple and put it in microwave",  # a receptacle at the same spot is examined, not gone to
            [
                ("go to countertop 1", "You arrive at countertop 1. On the countertop 1, you see an apple 1."),
                ("take apple 1 from countertop 1", "You pick up the apple 1 from the countertop 1."),
                ("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."),
                ("cool apple 1 with fridge 1", "You cool the apple 1 using the fridge 1."),
                ("go to microwave 1", "Nothing happens."),
                ("examine microwave 1", "The microwave 1 is closed."),
                ("open microwave 1", "You open the microwave 1. The microwave 1 is open. In it, you see nothing."),
                ("move apple 1 to microwave 1", "You move the apple 1 to the microwave 1."),
            ],
        ),
        (
            "put two bread in fridge",  # the wording of the older format is kept
            [
                ("go to countertop 1", "You arrive at loc 7. On the countertop 1, you see a bread 2, and a bread 1."),
                ("take bread 2 from countertop 1", "You pick up the bread 2 from the countertop 1."),
                ("go to fridge 1", "You arrive at loc 3. The fridge 1 is open. In it, you see nothing."),
                ("move bread 2 to fridge 1", "Nothing happens."),
                ("put bread 2 in/on fridge 1", "You put the bread 2 in/on the fridge 1."),
                ("go to countertop 1", "You arrive at loc 7. On the countertop 1, you see a bread 1."),
                ("take bread 1 from countertop 1", "You pick up the bread 1 from the countertop 1."),
                ("go to fridge 1", "You arrive at loc 3. The fridge 1 is open. In it, you see a bread 2."),
                ("put bread 1 in/on fridge 1", "You put the bread 1 in/on the fridge 1."),
            ],
        ),
    ],
)
def test_what_it_says(goal, exchanges):
    expert = SearchExpert()
    expert.reset(goal, ROOM.format(KITCHEN, goal))
    for command, observation in exchanges:
        assert expert.act() == command
        expert.observe(command, observation)


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


@pytest.mark.parametrize(("size", "noise", "most_steps"), [("standard", 0.2, 15), ("small", 0, 9), ("tiny", 0, 7.5)])
def test_it_wins_generated_games(size, noise, most_steps):
    sources = [generate(task_id) for split in ("valid_seen", "valid_unseen") for task_id in split_ids(split, size)[::2]]
    won, steps = results(sources, noise)
    assert won >= 0.97 and steps <= most_steps
    assert results(sources[:20], noise) == results(sources[:20], noise)
    plans = [play(open_engine(sources[0]), sources[0].goal, SearchExpert()) for _ in range(2)]
    assert plans[0] == plans[1]
    rngs = (np.random.default_rng(seed) for seed in range(20))
    assert len({play(open_engine(sources[0]), sources[0].goal, SearchExpert(rng, curiosity=0.5)) for rng in rngs}) > 1


def official_sources(folder):
    folder = split_folder(folder, "valid_seen")
    return [read_game(folder, task_id) for task_id in list_games(folder)]


def test_goal_conditions_ask_for_what_the_official_ones_ask(official_games):
    def atoms(text):
        return sorted(" ".join(atom.split()) for atom in re.findall(r"\((?!\?)[^()]+\)", text))

    compared = set()
    for source in official_sources(official_games["current"]):
        obj, _, place = source.task_id.partition("/")[0].split("-")[1:4]
        ours = goals.pddl_condition(source.task_type, obj, place)
        assert atoms(ours) == atoms(source.problem.partition("(:goal")[2])
        compared.add(source.task_type)
    assert compared == set(goals.TASK_TYPES)


@pytest.mark.parametrize(("name", "noise"), [("current", 0), ("current", 0.2), ("older", 0.2)])
def test_it_wins_official_games(official_games, name, noise):
    sources = official_sources(official_games[name])
    assert len(sources) == 140 and all(parse_goal(source.goal) for source in sources)
    won, steps = results(sources, noise)
    assert won >= 0.97 and steps <= 14
