"""The figures of the two roles: by hand from a log, and of a run of seconds."""

import gzip
import json

import pytest
import yaml
from programs import load, result_of, run

CONFIG = {
    "env": {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "kwargs": {}},
    "policy": {"hidden_size": 48, "layers": 2, "heads": 2, "kv_heads": 1, "mlp_size": 96, "context": 512},
}
SMALL = "env.eval_tasks=4 warmstart.episodes=20 warmstart.round_episodes=4 train.iterations=4"
SMALL += " rollout.num_groups=3 rollout.group_size=2"


def logged(folder, rows):
    folder.mkdir()
    lines = [{"stage": "warmstart", "step": 1}, *({"stage": "train", **row} for row in rows)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_agreement_with_gigpo_by_hand(tmp_path):
    """Group 0 has one win of two, group 1 two wins of which one was predicted: GiGPO learns nothing from group 1."""
    logged(tmp_path / "run", [{"success": 0.75}])
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "run" / "trajectories").mkdir()
    rows = [  # group, return_task, return_predictive, advantage_outcome, advantage
        (0, 1.0, 0.0, 1.0, 2.0),
        (0, 0.0, 0.0, -1.0, -2.0),
        (1, 1.0, 1.0, 0.0, 1.0),
        (1, 1.0, 0.0, 0.0, -1.0),
    ]
    with gzip.open(tmp_path / "run" / "trajectories" / "iteration-000001.jsonl.gz", "wt") as file:
        for group, task, predicted, outcome, advantage in rows:
            turn = {"return_task": task, "return_predictive": predicted, "return_modulated": task * (1 + predicted)}
            turn |= {"state_group": 0, "advantage_outcome": outcome, "advantage": advantage}
            file.write(json.dumps({"group": group, "replaced": False, "turns": [turn]}) + "\n")
    found = load("benchmarks/roles").measure(tmp_path / "run")["advantage_agreement"]
    assert found == pytest.approx(8 / (10 * 8) ** 0.5, abs=1e-4)  # of (2, -2, 1, -1) with (2, -2, 0, 0)


@pytest.mark.long
def test_a_run_of_seconds(tmp_path):
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(CONFIG))
    status, shown, errors = run("benchmarks/roles", "--config", file, "--out", out, *SMALL.split())
    assert status == 0, errors
    result = result_of(shown)
    assert result["self_retrievals"] == 0 and result["same_iteration_share"] <= 0.25
    assert 0 <= result["curriculum_zero_variance"] <= 1 and 0 <= result["uniform_zero_variance"] <= 1
    status, again, errors = run("benchmarks/roles", "--run", out / "run")
    assert status == 0 and "train.py" not in again and result_of(again) == result, errors
