"""``RoleAgent/ALFWorld-v0``: where its games come from, and what its environments share."""

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from roleagent.envs.alfworld.generated.generate import split_ids
from roleagent.envs.alfworld.official.games import SPLITS


@pytest.fixture(autouse=True)
def no_official_games(monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


def make(**options):
    return gymnasium.make("RoleAgent/ALFWorld-v0", **options)


def test_splits_are_those_of_the_generator():
    for split in SPLITS:
        tasks = make(split=split).unwrapped.task_split
        assert tasks.task_ids == split_ids(split, "standard") and tasks.split == split
    assert make(games=7).unwrapped.task_split.task_ids == split_ids("train", "standard")[:7]


def test_official_games_come_from_the_environment_variable(official_games, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(official_games["current"]))
    env = make(split="valid_seen")
    assert len(env.unwrapped.task_split) == 140
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
    generated = make(split="valid_seen", data_dir="generated")
    assert generated.unwrapped.task_split.task_ids == split_ids("valid_seen", "standard")


def test_importing_alfworld_does_not_change_where_games_come_from(tmp_path, monkeypatch):
    """It points the variable at an empty cache folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".cache" / "alfworld"
    monkeypatch.setenv("ALFWORLD_DATA", str(cache))
    assert make().unwrapped.task_split.task_ids == split_ids("train", "standard")
    cache.mkdir(parents=True)
    assert make().unwrapped.task_split.task_ids == split_ids("train", "standard")
    (cache / "json_2.1.1").mkdir()
    with pytest.raises(FileNotFoundError, match="no ALFWorld games"):  # begun, and not complete
        make()


def test_both_engines_play_the_same_episode():
    pytest.importorskip("textworld", reason="needs the extra [alfworld]")
    pytest.importorskip("alfworld", reason="needs the extra [alfworld]")
    native, reference = make(size="small"), make(size="small", engine="textworld")
    (text, info), expected = native.reset(seed=2), reference.reset(seed=2)
    assert (text, info) == expected
    for step in range(4):
        command = info["admissible_actions"][(7 * step + 2) % len(info["admissible_actions"])]
        *returned, info = native.step(command)
        assert (*returned, info) == reference.step(command)
