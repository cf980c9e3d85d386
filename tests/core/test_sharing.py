"""Copies of environments in mid-episode: they play on as the first one would, and share what never changes."""

import copy
import functools
import json
import multiprocessing
import pickle

import gymnasium
import numpy as np
import pytest

from roleagent.envs.webshop.cli import main as webshop
from roleagent.sharing import DataChanged

ENVS = {
    "RoleAgent/Toy-v0": {"shares": {"cool": 0.5}},
    "RoleAgent/ALFWorld-v0": {"size": "tiny"},
    "RoleAgent/WebShop-v0": {"num_products": 90, "observation": "text_rich", "show_attributes": True},
    "RoleAgent/SearchQA-v0": {},
    "RoleAgent/TextCraft-v0": {},
}
LARGEST = 100_000  # bytes of a pickle; the data of a shop or an archive have millions


def command(info, number):
    free = [f"search[{info['goal'][: 10 + number]}]", *(["answer[nobody]"] if number % 4 == 3 else [])]
    possible = info["admissible_actions"] or free
    return possible[(7 * number + 3) % len(possible)]


def play(env, info, steps):
    """What the environment says to ``steps`` commands, which follow from what it says; further episodes included."""
    said = []
    for number in range(steps):
        *answer, info = env.step(command(info, number))
        said.append((*answer, info))
        if answer[2] or answer[3]:
            observation, info = env.reset()
            said.append((observation, info))
    return said


def begun(env_id, **arguments):
    """An environment in its second episode, three steps in, and its last ``info``."""
    env = gymnasium.make(env_id, **arguments)
    env.reset(seed=11)
    _, info = env.reset()
    said = play(env, info, 3)
    return env, said[-1][-1]


def play_a_pickle(pickled, info, steps):
    """In a process of its own."""
    return play(pickle.loads(pickled), info, steps)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda env: pickle.loads(pickle.dumps(env))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("env_id", ENVS)
def test_a_copy_plays_on_as_the_first_one_would(env_id, how):
    env, info = begun(env_id, **ENVS[env_id])
    before = len(pickle.dumps(env))
    other = COPIES[how](env)
    third = COPIES[how](other)
    expected = play(env, info, 25)
    assert play(other, info, 25) == expected  # although the first one has played on in between
    assert play(third, info, 25) == expected
    assert other.unwrapped.task_split == env.unwrapped.task_split and other.spec == env.spec
    assert before < LARGEST


def test_a_pickle_is_loaded_in_another_process():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for env_id, arguments in ENVS.items():
            env, info = begun(env_id, **arguments)
            there = pool.apply(play_a_pickle, (pickle.dumps(env), info, 12))
            assert there == play(env, info, 12)


SOME = ("Toy", "ALFWorld", "WebShop", "SearchQA", "TextCraft")


@pytest.mark.parametrize("env_id", [f"RoleAgent/{name}-v0" for name in SOME])
def test_a_restored_episode_goes_on_as_it_did(env_id):
    """A snapshot at every step of episodes to their end: two futures of each, and the first again; replay agrees."""
    env, twin = (gymnasium.make(env_id, max_steps=9, **ENVS[env_id]).unwrapped for _ in range(2))
    never = env.snapshot()
    rng = np.random.default_rng(0)
    for seed in range(6):
        _, info = env.reset(seed=seed)
        task_id, commands, states, outcomes = info["task_id"], [], [env.snapshot()], []
        while len(outcomes) == 0 or not (outcomes[-1][2] or outcomes[-1][3]):
            works = [*info["admissible_actions"], "look", command(info, len(commands))]
            commands.append("no command" if rng.random() < 0.2 else works[rng.integers(len(works))])
            outcomes.append(env.step(commands[-1]))
            info = outcomes[-1][-1]
            states.append(env.snapshot())
        for place in rng.permutation(len(commands)):
            for player in (env, twin):  # the twin gets the snapshots of the other
                player.restore(states[place])
                assert player.step("search[another way]")[-1]["task_id"] == task_id
                player.restore(states[place])
                assert [player.step(one) for one in commands[place:]] == outcomes[place:]
                with pytest.raises(gymnasium.error.ResetNeeded):
                    player.step("look")
        twin.reset(options={"task_id": task_id})
        assert [twin.step(one) for one in commands] == outcomes
    env.restore(never)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")


@pytest.fixture
def files(tmp_path):
    """A folder with a small catalogue in the official form."""
    assert webshop(["generate", "--out", str(tmp_path / "shop"), "--products", "60"]) == 0
    return tmp_path / "shop"


def test_a_pickle_finds_its_files_and_detects_changes(files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = gymnasium.make("RoleAgent/WebShop-v0", data_dir="shop", nouns="heuristic")
    env.reset(seed=1)
    pickled = pickle.dumps(env)
    monkeypatch.chdir("/")
    monkeypatch.setenv("WEBSHOP_DATA", "/nowhere")
    assert pickle.loads(pickled).step("search[table]") == env.step("search[table]")
    items = json.loads((file := next(files.glob("items_shuffle*.json"))).read_text())
    file.write_text(json.dumps(items[1:]))
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(DataChanged, match="bring the same") as no:
        pool.apply(play_a_pickle, (pickled, {}, 0))
    assert "\n" not in str(no.value) and str(files) in str(no.value)


def test_textworld_is_copied_by_its_commands():
    pytest.importorskip("textworld", reason="needs the extra [alfworld]")
    from textworld_cached import cached_textworld

    with cached_textworld():
        env, info = begun("RoleAgent/ALFWorld-v0", size="tiny", engine="textworld")
        copies = [make(env) for make in COPIES.values()]
        follow = functools.partial(play, info=info, steps=4)
        assert all(other.unwrapped._engine is other.unwrapped._textworld for other in copies)
        assert [follow(other) for other in copies] == [follow(env)] * 2
        with pytest.raises(NotImplementedError, match="replay the commands"):
            env.unwrapped.snapshot()
