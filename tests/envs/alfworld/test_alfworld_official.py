"""Official games on disk: what is found, what is left out, and what broken data says."""

import json
from collections import Counter

import gymnasium
import pytest

from roleagent.envs.alfworld.engine.game import Game
from roleagent.envs.alfworld.engine.game_version import OFFICIAL, OLDER
from roleagent.envs.alfworld.env import ALFWorldEnv
from roleagent.envs.alfworld.generated.generate import generate, split_ids
from roleagent.envs.alfworld.official.games import list_games, read_game, split_folder
from roleagent.tasks.split import first_tasks

GRAMMAR = '"rhs": "Your task is to: put a mug in desk."'


def write(folder, task_id, **changes):
    """A game file with made-up rules; a key that is None is left out."""
    data = {
        "pddl_domain": "(define (domain alfred))",
        "grammar": GRAMMAR,
        "pddl_problem": generate(split_ids("train", "small")[0]).problem,
        "solvable": True,
        "walkthrough": ["look"],
    }
    data = {key: value for key, value in (data | changes).items() if value is not None}
    path = folder / task_id / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(data))
    return path


@pytest.fixture
def train(tmp_path):
    folder = tmp_path / "json_2.1.1" / "train"
    for task_id in ("pick-Mug-2/trial_b", "pick-Mug-2/trial_a", "pick-Mug-10/trial_c"):
        write(folder, task_id)
    return folder


FOUND = ("pick-Mug-10/trial_c", "pick-Mug-2/trial_a", "pick-Mug-2/trial_b")


def test_games_are_found_and_sorted(tmp_path, train, monkeypatch):
    for root in (tmp_path, tmp_path / "json_2.1.1", train):
        assert split_folder(root, "train") == train
        assert ALFWorldEnv(data_dir=root).task_split.task_ids == FOUND
    assert ALFWorldEnv(data_dir=tmp_path, games=2).task_split.task_ids == FOUND[:2]
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    assert ALFWorldEnv().task_split.task_ids == FOUND
    assert ALFWorldEnv(data_dir="generated").task_split.task_ids == split_ids("train", "standard")


def test_importing_alfworld_does_not_change_where_games_come_from(tmp_path, monkeypatch):
    """It points the variable at an empty cache folder of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".cache" / "alfworld"
    monkeypatch.setenv("ALFWORLD_DATA", str(cache))
    assert ALFWorldEnv().task_split.task_ids == split_ids("train", "standard")
    cache.mkdir(parents=True)
    assert ALFWorldEnv().task_split.task_ids == split_ids("train", "standard")
    (cache / "json_2.1.1").mkdir()
    with pytest.raises(FileNotFoundError, match="no ALFWorld games"):  # begun, and not complete
        ALFWorldEnv()


def test_games_that_are_left_out(train):
    write(train, "pick_and_place_with_movable_recep-Mug-3/trial_d")
    write(train, "pick-AppleSliced-3/trial_d")
    write(train, "pick-Mug-3/unsolvable", solvable=False)
    write(train, "pick-Mug-3/unknown", solvable=None)
    (train / "pick-Mug-3" / "no_game").mkdir()
    (train / "notes.txt").write_text("not a game")
    path = write(train, "pick-Mug-4/trial_e", walkthrough=["look"] * 3000)  # ``solvable`` stands at the end
    assert path.read_text().index('"solvable"') < len(path.read_text()) - 8000
    first = {"solvable": False} | {k: v for k, v in json.loads(path.read_text()).items() if k != "solvable"}
    write(train, "pick-Mug-5/trial_f").write_text(json.dumps(first))
    assert list_games(train) == (*FOUND, "pick-Mug-4/trial_e")


def test_no_folder_and_no_games(tmp_path):
    for message in (r"no ALFWorld games of the split .*ALFWORLD_DATA", r"no solvable game\.tw-pddl.*alfworld-download"):
        with pytest.raises(FileNotFoundError, match=message):
            ALFWorldEnv(split="valid_unseen", data_dir=tmp_path)
        write(tmp_path / "valid_unseen", f"pick-Mug-3/{len(message)}", solvable=False)


def test_truncated_files_and_missing_keys(tmp_path, train):
    write(train, "pick-Mug-9/trial_x")
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        write(train, f"pick-Mug-9/trial_{key}", **{key: None})
        with pytest.raises(ValueError, match=rf"trial_{key}/game\.tw-pddl: the game file lacks the key '{key}'"):
            read_game(train, f"pick-Mug-9/trial_{key}")
    path = train / "pick-Mug-2" / "trial_a" / "game.tw-pddl"
    for length in (path.stat().st_size // 2, path.stat().st_size - 1):
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(ValueError, match=r"trial_a/game\.tw-pddl: not a complete JSON file.*unpack") as error:
            ALFWorldEnv(data_dir=tmp_path)
        assert "\n" not in str(error.value)


def test_unknown_rules_need_textworld(tmp_path, train, monkeypatch):
    env = ALFWorldEnv(data_dir=tmp_path)
    for module in ("textworld", "textworld.envs.pddl.pddl", "alfworld.agents.utils.misc"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(gymnasium.error.DependencyNotInstalled, match=r"unknown PDDL domain.*'roleagent\[alfworld\]'"):
        env.reset()


def test_textworld_plays_rules_that_the_simulator_does_not_know(tmp_path, official_games):
    pytest.importorskip("textworld", reason="needs the extra [alfworld]")
    folder = split_folder(official_games["older"], "valid_seen")
    source = read_game(folder, list_games(folder)[0])
    grammar = source.grammar.replace("You arrive at", "You have come to")
    rules = {"pddl_domain": source.domain, "grammar": grammar, "pddl_problem": source.problem, "walkthrough": None}
    write(tmp_path / "train", "pick-Mug-1/trial", **rules)
    env = ALFWorldEnv(data_dir=tmp_path)
    with pytest.warns(UserWarning, match="unknown PDDL domain or text grammar.*TextWorld plays it"):
        text, info = env.reset()
    assert info["task_id"] == "pick-Mug-1/trial" and source.goal in text and info["goal"] == source.goal
    command = next(c for c in info["admissible_actions"] if c.startswith("go to"))
    assert env.step(command)[0].startswith("You have come to loc ")
    assert env.walkthrough() == ()


@pytest.mark.parametrize(("name", "version", "planned"), [("current", OFFICIAL, False), ("older", OLDER, True)])
def test_both_formats(official_games, name, version, planned):
    folder = split_folder(official_games[name], "valid_seen")
    assert len(list_games(folder)) == 140 and folder.parent.name == "json_2.1.1"
    env = ALFWorldEnv(split="valid_seen", data_dir=official_games[name])
    assert env.data_info == {"source": "official", "version": {OFFICIAL: "2.1.3", OLDER: "2.1.1"}[version]}
    panel = Counter(map(env.task_type, first_tasks(env, 128).task_ids))  # of configs/published/alfworld.yaml
    assert len(panel) == 6 and panel["pick_two_obj_and_place"] == 22
    for task_id in env.task_split.task_ids:
        text, info = env.reset(options={"task_id": task_id})
        source = read_game(folder, task_id)
        assert Game.from_source(source).version == version and bool(source.walkthrough) is not planned
        assert text.endswith(f"Your task is to: {info['goal']}.") and task_id.startswith(info["task_type"])
        for command in env.walkthrough():
            assert not info["won"]
            _, reward, won, _, info = env.step(command)
        assert won and reward == 1.0
