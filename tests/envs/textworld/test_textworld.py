"""``RoleAgent/TextWorld-v0``: games that the package makes. .ci/textworld installs it."""

import copy
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest
from hostile import HUGE, NOT_TEXT, ODD

import roleagent  # noqa: F401  (registers the environments)
from roleagent.envs.registry import make_env
from roleagent.envs.textworld.env import UNKNOWN, TextWorldEnv
from roleagent.options import ConfigError

ENV_ID = "RoleAgent/TextWorld-v0"


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    """A folder with a cooking game, for training and for tests."""
    pytest.importorskip("textworld")
    folder = tmp_path_factory.mktemp("games")
    tw_make = [sys.executable, Path(sys.executable).with_name("tw-make"), "tw-cooking", "--recipe", "1", "--take", "1"]
    game = folder / "train" / "level_1" / "cooking.z8"
    subprocess.run([*tw_make, "--split", "train", "--seed", "1", "--output", game], check=True, capture_output=True)
    shutil.copytree(folder / "train", folder / "test")
    return folder


def test_a_folder_without_games_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"has no game, a file \.z8 or \.ulx with its \.json: tw-make makes"):
        make_env(ENV_ID, {"games": str(tmp_path)})


def test_a_folder_of_one_split_has_no_games_of_another(tmp_path):
    """They would be the training games."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.z8").touch()
    (tmp_path / "train" / "a.json").touch()
    with pytest.raises(ConfigError, match="valid has no game"):
        make_env(ENV_ID, {"games": str(tmp_path), "split": "valid"})


def test_the_games_own_way_wins(games):
    env = TextWorldEnv(str(games), split="test")
    text, info = env.reset()
    assert text.startswith(info["goal"]) and "$$" not in text and ">" not in text
    assert (info["task_id"], info["task_type"]) == ("level_1/cooking.z8", "level_1")
    total = 0.0
    for command in env.walkthrough():
        assert command in info["admissible_actions"] or command == "inventory"
        text, reward, terminated, _, info = env.step(command)
        total += reward
    assert info["won"] and terminated and total == pytest.approx(1.0) and info["score"] == 1.0
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("look")


def test_copies_go_on_alone(games):
    env = TextWorldEnv(str(games))
    env.reset()
    *most, last = env.walkthrough()
    for command in most:
        env.step(command)
    copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
    assert not env.step("look")[2]
    assert all(one.step(last)[4]["won"] for one in (*copies, env))


def test_odd_commands_cost_a_step_and_score_nothing(games):
    env = TextWorldEnv(str(games), max_steps=10)
    env.reset()
    for command in (*ODD, *NOT_TEXT, "look" * HUGE, "", "save", "Quit", "restore x"):
        text, reward, terminated, truncated, info = env.step(command)
        assert text and reward == 0 and not terminated and not info["valid_action"]
        if truncated:
            env.reset()
    for command in ("\0", "look.save x", "look, then save x", "oops save", "transcripts"):
        assert env.step(command)[0] == UNKNOWN


def test_a_command_is_one_and_counts_if_the_game_did_it(games):
    env = TextWorldEnv(str(games))
    _, info = env.reset()
    text, reward, terminated, _, info = env.step(". ".join(env.walkthrough()))
    assert (text, reward, terminated, info["valid_action"]) == (UNKNOWN, 0.0, False, False)
    assert env.step("i")[4]["valid_action"] and not env.step("go nowhere")[4]["valid_action"]
