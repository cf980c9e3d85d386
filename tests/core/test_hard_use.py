"""Hard use: random and hostile actions, many of them, long ones, many environments, for a long time.

A few hundred actions in every environment; ``pytest -m slow`` plays 2,000, and ``ROLEAGENT_HARD=100000`` with it as
many as that says.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from hostile import scripts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import roleagent
from roleagent.agents.dual_role import env as dual_role
from roleagent.env_card import make_expert
from roleagent.envs.retrieval.lexical.analysis import analyze
from roleagent.envs.searchqa.scoring import judge
from roleagent.envs.searchqa.text import read_command
from roleagent.envs.textcraft.text import read_command as read_crafting_command
from roleagent.envs.tools.formats import FORMATS
from roleagent.envs.webshop.engine.session import parse as read_shop_command
from roleagent.envs.wrappers import PredictedState, Tags
from roleagent.envs.wrappers.tags import parse
from roleagent.failures.analyst_format import plain, read_reflection, read_selection, write_reflection
from roleagent.failures.modes import taxonomy
from roleagent.similarity import lms
from roleagent.types import Reflection

FEW, MANY = 400, int(os.environ.get("ROLEAGENT_HARD", "2000"))  # actions
LENGTH = 25  # actions of a script
INFO_KEYS = set(re.findall(r"^``(\w+)`` ", roleagent.types.__doc__, re.MULTILINE))
WORDS = ("red mug", "wenda pruitt", "the", "shoes for men", "upper gorve carpenter", "zzz")
GAMES = {
    "toy": ("Toy", {}),
    "alfworld": ("ALFWorld", {"data_dir": "generated"}),
    "alfworld tiny": ("ALFWorld", {"data_dir": "generated", "size": "tiny"}),
    "alfworld official": ("ALFWorld", {"split": "valid_seen", "data_dir": "current"}),
    "alfworld older": ("ALFWorld", {"split": "valid_seen", "data_dir": "older"}),
    "webshop": ("WebShop", {"data_dir": "generated", "show_attributes": True}),
    "webshop html": ("WebShop", {"data_dir": "generated", "observation": "html", "reward": "score"}),
    "webshop rich": ("WebShop", {"data_dir": "generated", "observation": "text_rich"}),
    "searchqa": ("SearchQA", {"data_dir": "generated"}),
    "textcraft": ("TextCraft", {"data_dir": "generated"}),
    "searchqa tfidf": ("SearchQA", {"data_dir": "generated", "retriever": "tfidf"}),
}
few_or_many = pytest.mark.parametrize("actions", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
WRAPPED = [(name, name in ("toy", "alfworld tiny", "webshop rich"), FEW) for name in GAMES]
WRAPPED += [pytest.param(name, wrapped, MANY, marks=pytest.mark.slow) for name in GAMES for wrapped in (False, True)]


def hard(actions):
    """How Hypothesis goes about so many actions: the same few every time, or ever new ones."""
    return settings(
        max_examples=math.ceil(actions / LENGTH),
        database=None,
        derandomize=actions == FEW,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture
def make(request):
    """Makes the environment of a name; official games are unpacked once."""

    def made(name, **options):
        env_id, given = GAMES[name]
        given = {**given, **options}
        if given.get("data_dir") in ("current", "older"):
            given["data_dir"] = request.getfixturevalue("official_games")[given["data_dir"]]
        return gymnasium.make(f"RoleAgent/{env_id}-v0", disable_env_checker=True, **given)

    return made


def known(env, info):
    said = list(info["admissible_actions"])
    if "WebShop" in env.spec.id or "SearchQA" in env.spec.id:
        said += [f"search[{words}]" for words in WORDS]
    return said if "SearchQA" not in env.spec.id else [*said, "answer[Upper Gorve]"]


def sound(env, observation, info, reward=0.0, terminated=False, truncated=False):
    assert type(observation) is str and env.observation_space.contains(observation)
    assert json.loads(json.dumps(observation).encode("utf-8")) == observation.encode("utf-8").decode("utf-8")
    assert type(terminated) is bool and type(truncated) is bool and not (terminated and truncated)
    assert isinstance(reward, float) and math.isfinite(reward)
    assert set(info) >= INFO_KEYS and all(map(math.isfinite, info["rewards"].values()))
    assert type(info["won"]) is bool and type(info["valid_action"]) is bool
    json.dumps({key: value for key, value in info.items() if key != "prediction_scores"}, allow_nan=False)


def tell(action, raw):
    """The action as the environment takes it: as it is, or as a reply with a prediction."""
    if raw or not isinstance(action, str):
        return action
    return f"<think>{action[:50]}</think><action>{action}</action><prediction h=1>{action}</prediction>"


def play(env, twin, script, seed, wrapped):
    """Plays a script in ``env``; in ``twin``, which has all the time, only those actions that were valid."""
    observation, info = env.reset(seed=seed)
    same, twin_info = twin.reset(options={"task_id": info["task_id"]})
    sound(env, observation, info)
    assert observation == same
    expert = make_expert(env, np.random.default_rng(seed))
    expert.reset(info["goal"], observation)
    for move in script:
        command = move.action(known(env, info), expert.act())
        action = tell(command, raw=not wrapped or move.kind in ("tags", "odd", "long"))
        observation, reward, terminated, truncated, info = env.step(action)
        sound(env, observation, info, reward, terminated, truncated)
        assert info["valid_action"] or not (reward or terminated), action
        if info["valid_action"]:
            same, twin_reward, twin_terminated, twin_truncated, twin_info = twin.step(action)
            assert (observation, reward, terminated, False) == (same, twin_reward, twin_terminated, twin_truncated)
            assert twin_info["valid_action"] and info["state"] == twin_info["state"]
        assert info["admissible_actions"] == twin_info["admissible_actions"], action
        assert info["won"] == twin_info["won"] and info["task_id"] == twin_info["task_id"]
        if terminated or truncated:
            observation, info = env.reset()
            _, twin_info = twin.reset(options={"task_id": info["task_id"]})
            expert.reset(info["goal"], observation)
        elif isinstance(command, str):
            expert.observe(command, observation)


@pytest.mark.parametrize(("name", "wrapped", "actions"), WRAPPED)
def test_no_action_breaks_an_environment_or_leaves_a_trace_in_it(name, wrapped, actions, make):
    """Whatever is not valid changes nothing: a twin that never got it goes the same way."""
    env, twin = make(name, max_steps=20), make(name, max_steps=10**6)
    if wrapped:
        env, twin = Tags(PredictedState(env, 2)), Tags(PredictedState(twin, 2))
    played = []

    @hard(actions)
    @given(scripts(LENGTH), st.integers(0, 2**31))
    def hard_use(script, seed):
        play(env, twin, script, seed, wrapped)
        played.extend(script)

    hard_use()
    assert len(played) >= actions


# --- the game of two roles --------------------------------------------------------------------------------------------

WELL = Reflection("navigation_loop", 'it said "look" at step 1', 0, "Look elsewhere.", "kitchen")


def answer(move, asks, info):
    good = {
        "reflection": [write_reflection(WELL), "DOMINANT_TYPE: navigation_loop"],
        "selection": [f"<selected_tasks>\n{n}: again\n</selected_tasks>" for n in (1, 2, 99)],
    }
    return move.action(good.get(asks) or [f"<action>{command}</action>" for command in info["admissible_actions"]])


def answer_all(game, script, seed):
    """Answers with the moves of a script, by turns, until the episode is over."""
    game.reset(seed=seed)
    for turn, side in enumerate(game.agent_iter()):
        observation, reward, terminated, truncated, info = game.last()
        assert game.observation_space(side).contains(observation) and math.isfinite(reward)
        assert json.loads(json.dumps(observation)) == observation and observation["text"].encode() is not None
        assert observation["asks"] == info["asks"] and all(map(math.isfinite, info["rewards"].values()))
        done = terminated or truncated
        game.step(None if done else answer(script[turn % len(script)], info["asks"], info))
    played = game.unwrapped.played
    assert len(played) == 3 and all(record.task.task_id in game.unwrapped.task_split for record in played)
    return turn - 1  # the last calls of both roles are None


@few_or_many
@pytest.mark.parametrize("options", [{}, {"bare_commands": True, "history": 3}], ids=["tags", "bare commands"])
def test_no_reply_breaks_the_game_of_two_roles(options, actions):
    game = dual_role(game="RoleAgent/Toy-v0", game_kwargs={"max_steps": 8}, games=3, **options)
    played = []

    @hard(actions)
    @given(scripts(LENGTH), st.integers(0, 2**31))
    def hard_use(script, seed):
        played.append(answer_all(game, script, seed))
        assert played[-1]

    hard_use()
    assert sum(played) >= actions / 2  # an episode ends when its games do


# --- long texts -------------------------------------------------------------------------------------------------------

UNITS = (
    *(" ", "\n", "a", "a ", "<", ">", "<a", "<action>", "<think>", "</think>", "<prediction h=1>", "[", "]", "{"),
    *("1\n", "1:a\n", "- ", "_", "DOMINANT_TYPE: ", "\n_", "the ", "'", '"', "é", "\ud800", "\u200d", "a.", "\0", "*"),
    *("\U0001f468\u200d", "#\u0301", "1,", "<tool_call>", "</answer>", '{"a":', "\\'", "```\n", "f(x=", "-"),
)
READERS = {
    "tags": (lambda text: parse(text, horizon=3), ("<action>a[{}x</action>", "<think>{}", "<prediction>{}\0")),
    "reflection": (lambda text: read_reflection(text, taxonomy("RoleAgent/ALFWorld-v0"), 50), ("<reflection>{}x",)),
    "selection": (lambda text: read_selection(text, 16), ("<selected_tasks>{}",)),
    "search command": (read_command, ("search[{}x]", "search[a]{}x")),
    "shop command": (read_shop_command, ("search[{}x]", "search[a]{}x")),
    "crafting command": (read_crafting_command, ("craft {} using 1 a", "craft a using 1 {}", "craft a using {}x")),
    "answer": (lambda text: judge(text, ["a house", "The"]), ()),
    "score": (lambda text: lms(text, "You see a mug 1, and a desk 2. " * 10), ()),
    "query": (analyze, ("a{}x",)),
    "plain": (plain, ()),
    **{f"calls in {name}": (form.read, ()) for name, form in FORMATS.items()},
}


def seconds(function, text):
    best = math.inf
    for _ in range(3):
        begun = time.process_time()
        function(text)
        best = min(best, time.process_time() - begun)
    return best


@pytest.mark.parametrize("reader", READERS)
def test_reading_takes_linear_time(reader):
    """Sixteen times the text: sixteen times the time, never its square (256)."""
    (read, frames), slow = READERS[reader], []
    for unit, frame in product(UNITS, ("{}", *frames)):
        short, long = (frame.format((unit * n)[:n]) for n in (1_000, 16_000))
        begun = time.process_time()
        read(long)
        if time.process_time() - begun > 0.02:  # what takes longer may be more than long
            growth = seconds(read, long) / max(seconds(read, short), 1e-5)
            if growth > 80:
                slow.append((unit, frame, growth))
    assert slow == []


# --- for a long time, many at a time ----------------------------------------------------------------------------------

MEGABYTE = 1 << 20
ALL = ["Toy", "WebShop", "ALFWorld", "SearchQA", "TextCraft"]


def briefly_and_long(*few):
    """These environments for a short time, and all of them for a long one where what is slow is run."""
    long = [pytest.param(env_id, True, marks=pytest.mark.slow) for env_id in ALL]
    return pytest.mark.parametrize(("env_id", "long"), [*((env_id, False) for env_id in few), *long])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@briefly_and_long("Toy", "WebShop")
def test_memory_stays_flat_and_environments_share_what_is_large(env_id, long):
    """A process grows no more over as many episodes again; another environment costs a state, not a catalogue."""
    episodes, many = (400, 128) if long else (40, 64)
    program = Path(__file__).parents[1] / "long_use.py"
    command = [sys.executable, program, f"RoleAgent/{env_id}-v0", str(episodes), str(many)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    print(done.stdout, end="")
    reported = json.loads(done.stdout)
    # With a few episodes, games are still being kept for the next time (128 of ALFWorld).
    assert reported["grown"] < (4 if long else 16) * MEGABYTE
    assert reported["each"] < MEGABYTE / 2
