"""Generated ALFWorld games: splits, problems, walkthroughs, files."""

import hashlib
import json

import pytest
from gymnasium.error import DependencyNotInstalled

from roleagent.envs.alfworld.engine import textworld as textworld_module
from roleagent.envs.alfworld.engine.textworld import package_texts
from roleagent.envs.alfworld.generated.generate import generate, main, scene_of, split_ids, write_game
from roleagent.envs.alfworld.generated.layout import SIZES
from roleagent.envs.alfworld.generated.tasks import SPLITS, TaskName
from roleagent.tasks.split import TaskSplit, assert_disjoint

# --- splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_splits_share_no_scene(size):
    task_splits = [TaskSplit("RoleAgent/ALFWorld-v0", split, split_ids(split, size)) for split in SPLITS]
    assert_disjoint(task_splits, key=scene_of)
    assert_disjoint(task_splits)


# --- games ------------------------------------------------------------------------------------------------------------


DIGESTS = {"standard": "e842917bd8734a3a", "small": "138f6cd49b094d89", "tiny": "0c99d57ebe337095"}


@pytest.mark.parametrize("size", SIZES)
def test_an_id_determines_its_game_in_every_process(size):
    """Splits, reports and trained policies rest on these games: a change of them is a change of the environment."""
    ids = [task_id for split in SPLITS for task_id in split_ids(split, size)]
    games = [generate(task_id) for task_id in ids[::100]]
    made = [(game.task_id, game.task_type, game.problem, game.goal, game.walkthrough) for game in games]
    assert hashlib.sha256(repr((ids, made)).encode()).hexdigest()[:16] == DIGESTS[size]


@pytest.mark.parametrize(
    ("task_id", "message"),
    [
        ("pick_heat_then_place_in_recep-Mug-None-Cabinet-12/trial_T2019", "names no generated game"),
        ("pick_heat_then_place_in_recep-Mug-None-Cabinet-150/gen_small_000001", "no room has the scene number 150"),
        ("pick_heat_then_place_in_recep-Mug-None-Bed-12/gen_small_000001", "scene 12 holds no such task"),
        ("look_at_obj_in_light-Mug-None-DeskLamp-12/gen_small_000001", "scene 12 holds no such task"),
    ],
)
def test_impossible_ids_end_in_a_clear_line(task_id, message):
    with pytest.raises(ValueError, match=message):
        generate(task_id)


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_written_in_the_official_form(tmp_path, monkeypatch, capsys):
    source = generate(split_ids("valid_seen", "small")[0])
    with monkeypatch.context() as patch:
        package_texts.cache_clear()
        patch.setattr(textworld_module, "find_spec", lambda name: None)
        with pytest.raises(DependencyNotInstalled, match=r"pip install 'roleagent\[alfworld\]'"):
            write_game(source, tmp_path)
        assert not list(tmp_path.iterdir())
    pytest.importorskip("alfworld", reason="needs the extra [alfworld]")
    path = write_game(source, tmp_path)
    assert path == tmp_path / source.task_id / "game.tw-pddl"
    game = json.loads(path.read_text())
    assert set(game) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
    assert game["solvable"] is True and tuple(game["walkthrough"]) == source.walkthrough
    assert f'"Your task is to: {source.goal}."' in game["grammar"] and "UNKNOWN" not in game["grammar"]
    trajectory = json.loads((path.parent / "traj_data.json").read_text())
    assert trajectory["task_type"] == source.task_type
    assert trajectory["pddl_params"]["object_target"] == TaskName.parse(source.task_id).obj
    (tmp_path / "train").write_text("a file in the way")
    assert main(["--size", "small", "--games", "1", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("roleagent games: ")
