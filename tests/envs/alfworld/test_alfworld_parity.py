"""The native simulator and TextWorld in lock-step: observation, admissible commands with their order, ``won``."""

import random
import re

import pytest
from odd_games import odd_variant
from programs import load
from textworld_cached import cached_textworld

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.game_version import OFFICIAL, OLDER, PACKAGE
from roleagent.envs.alfworld.engine.simulator import Simulator
from roleagent.envs.alfworld.engine.textworld import TextWorldEngine
from roleagent.envs.alfworld.generated.generate import generate, split_ids
from roleagent.envs.alfworld.official.games import list_games, read_game, split_folder

walks = load("benchmarks/parts/alfworld_walks")

pytest.importorskip("textworld", reason="needs the extra [alfworld]")
pytest.importorskip("alfworld", reason="needs the extra [alfworld]")


@pytest.fixture(scope="module")
def textworld_engine():
    return TextWorldEngine()


@pytest.fixture
def reference(textworld_engine):
    with cached_textworld():
        yield textworld_engine


def spread(ids, n):
    return [ids[i * len(ids) // n] for i in range(n)]


def official(folders, name, n):
    folder = split_folder(folders[name], "valid_seen")
    return [read_game(folder, task_id) for task_id in spread(list_games(folder), n)]


def lockstep(source, reference, steps):
    """Plays walkthrough and random commands; returns the native simulator's observations."""
    game = Game.from_source(source)
    native, seen = Simulator(game), []
    rng = random.Random(source.task_id)
    reference.load(source)
    plain_step = native.step
    native.step = lambda command: seen.append(plain_step(command)) or seen[-1]
    for commands in (walks.walk(source, native, rng), walks.wander(game, native, rng, steps)):
        _, mismatch = walks.compare(source, native, reference, commands)
        assert mismatch is None, str(mismatch)
    return seen


@pytest.mark.parametrize(("split", "size", "n"), [("train", "standard", 14), ("valid_unseen", "small", 30)])
def test_generated_games(reference, split, size, n):
    for task_id in spread(split_ids(split, size), n):
        source = generate(task_id)
        assert Game.from_source(source).version is PACKAGE
        lockstep(source, reference, 20)


@pytest.mark.parametrize(("name", "version", "n"), [("current", OFFICIAL, 12), ("older", OLDER, 8)])
def test_official_games(reference, official_games, name, version, n):
    for source in official(official_games, name, n):
        assert Game.from_source(source).version == version
        lockstep(source, reference, 30)


def test_odd_games(reference, official_games):
    """Facts that data rarely have: nested and misplaced things, states at the start, crowded locations."""
    rng, seen = random.Random(4), []  # a seed with which all of the below happens
    for source in (*official(official_games, "current", 12), *official(official_games, "older", 4)):
        seen += lockstep(odd_variant(source, rng), reference, 50)
    kinds = {re.sub(r"\b[a-z]+ \d+", "*", text).partition(",")[0] for text in seen}
    assert kinds >= {
        "Nothing happens.",
        "You sliced the * with the *.",
        "You turn on the *.",
        "This is a normal *. In it",
        "This is a hot sliced *.",
        "You are carrying: a *.",
    }
    assert any("Next to it, you see a" in text for text in seen)


def test_malformed_commands(reference, official_games):
    source = official(official_games, "current", 3)[1]
    native = Simulator(Game.from_source(source))
    reference.load(source)
    admissible = native.admissible_commands
    variants = [
        f(c) for c in admissible[:12] for f in (str.upper, str.title, "{}.".format, " {}\n".format, "{} ".format)
    ]
    _, mismatch = walks.compare(source, native, reference, iter([*walks.JUNK, *variants]))
    assert mismatch is None, str(mismatch)


@pytest.mark.parametrize("format", ["current", "older"])
def test_the_textworld_engine_is_that_of_alfworld(textworld_engine, official_games, format):
    """Names and texts are those of alfworld's own wrapper around unmodified TextWorld."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
    from textworld.envs.pddl import PddlEnv

    folder = split_folder(official_games[format], "valid_seen")
    task_id = list_games(folder)[5]
    stock = AlfredInfos(AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True))))
    stock.load(str(folder / task_id / "game.tw-pddl"))
    ours = textworld_engine.load(read_game(folder, task_id))
    state = stock.reset()
    assert ours.reset() == state.feedback
    for _ in range(3):
        assert ours.admissible_commands == state["admissible_commands"]
        command = state["admissible_commands"][-1]
        state, _, done = stock.step(command)
        assert ours.step(command) == state.feedback and ours.won == done
