"""The quickstart benchmark on the toy kitchen: its figures, its controls, and a second call that trains nothing."""

import json

import pytest
import yaml
from programs import result_of, run

CONFIG = {
    "env": {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "eval_tasks": 6},
    "policy": {"hidden_size": 48, "layers": 2, "heads": 2, "kv_heads": 1, "mlp_size": 96, "context": 512},
    "warmstart": {"episodes": 20, "epochs": 3},
    "rollout": {"num_groups": 2, "group_size": 3, "action_tokens": 12, "prediction_tokens": 24},
    "train": {"iterations": 2},
}


@pytest.mark.long
def test_a_seed_with_its_controls(tmp_path):
    file, out = tmp_path / "tiny.yaml", tmp_path / "out"
    file.write_text(yaml.safe_dump(CONFIG))

    def quickstart(*more):
        return run("benchmarks/quickstart", "--seeds", 1, "--config", file, "--out", out, *more)

    status, shown, errors = quickstart("--controls")
    assert status == 0, errors
    assert shown.count("roleagent train") == 3  # the run, and two controls
    result = result_of(shown)
    names = ["before", "after", "gain", "invalid_share", "minutes", "peak_mb", "shuffled_gain", "sft_gain"]
    assert result["worst_seed"] == result["after"][0] and {len(result[name]) for name in names} == {1}
    (before,), (after,), (gain,) = result["before"], result["after"], result["gain"]
    assert 0 <= before <= 1 and gain == pytest.approx(after - before, abs=2e-4)
    assert result["minutes"][0] > 0 and result["peak_mb"][0] > 100
    for name in ("shuffled", "sft"):  # they begin with the same policy, whose measurement they take over
        folder = out / f"seed0-{name}"
        assert (folder / "before.json").read_text() == (out / "seed0" / "before.json").read_text()
        own = json.loads((folder / "result.json").read_text())
        assert own["before"] == pytest.approx(before, abs=1e-4)
        assert result[f"{name}_gain"] == [pytest.approx(own["gain"], abs=1e-4)]
        assert bool(own["counters"]) == (name == "shuffled")  # no episode is played where imitation goes on
    assert len(list((out / "seed0" / "checkpoints").iterdir())) == 2  # the start and the end

    status, again, _ = quickstart("--controls")
    assert status == 0 and "train.py" not in again and result_of(again) == result

    status, _, errors = quickstart("optim.lr=1e-5")
    assert status == 2 and errors.startswith("quickstart.py: ") and "other options" in errors and "--out" in errors
