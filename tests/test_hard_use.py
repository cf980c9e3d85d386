"""Hard use: random and hostile actions, many of them, long ones, many environments, for a long time.

``ROLEAGENT_HARD=100000`` plays so many actions in every environment; a few hundred unless told.
"""

import json
import math
import os
import re
import time
from itertools import count

import gymnasium
import numpy as np
import pytest
from hostile import HUGE, LONG, Move, scripts, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import roleagent
from roleagent.envs.dual_role import env as dual_role
from roleagent.envs.wrappers import PredictedState, Tags
from roleagent.envs.wrappers.tags import parse
from roleagent.reflections import read_reflection, read_selection
from roleagent.types import Reflection

ACTIONS = int(os.environ.get("ROLEAGENT_HARD", "400"))
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
    "searchqa tfidf": ("SearchQA", {"data_dir": "generated", "retriever": "tfidf"}),
}
hard = settings(
    max_examples=math.ceil(ACTIONS / LENGTH),
    database=None,
    derandomize=ACTIONS < 1000,
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
    """Commands that work now."""
    said = list(info["admissible_actions"])
    if env.spec.id != "RoleAgent/Toy-v0" and "ALFWorld" not in env.spec.id:
        said += [f"search[{words}]" for words in WORDS]
    return said if "SearchQA" not in env.spec.id else [*said, "answer[Upper Gorve]"]


def sound(env, observation, info, reward=0.0, terminated=False, truncated=False):
    """What holds of everything an environment returns."""
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
    expert = env.unwrapped.expert(np.random.default_rng(seed))
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


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped"])
@pytest.mark.parametrize("name", GAMES)
def test_no_action_breaks_an_environment_or_leaves_a_trace_in_it(name, wrapped, make):
    """Whatever is not valid changes nothing: a twin that never got it goes the same way."""
    env, twin = make(name, max_steps=20), make(name, max_steps=10**6)
    if wrapped:
        env, twin = Tags(PredictedState(env, 2)), Tags(PredictedState(twin, 2))
    played, begun = count(), time.perf_counter()

    @hard
    @given(scripts(LENGTH), st.integers(0, 2**31))
    def hard_use(script, seed):
        play(env, twin, script, seed, wrapped)
        for _ in script:
            next(played)

    hard_use()
    done = next(played)
    print(f"{name}, {'wrapped' if wrapped else 'bare'}: {done} actions in {time.perf_counter() - begun:.0f} s")
    assert done >= ACTIONS
