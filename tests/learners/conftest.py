"""One whole run of ``train.py`` for all tests that need one.

A model of 60,000 parameters learns four small games by heart: enough to win some episodes and lose others.
"""

import pytest
import yaml
from programs import run

CONFIG = {
    "seed": 2,
    "env": {
        "id": "RoleAgent/ALFWorld-v0",
        "eval_split": "train",
        "eval_tasks": 4,
        "kwargs": {"max_steps": 15, "size": "small", "games": 4, "data_dir": "generated"},
    },
    "policy": {
        "hidden_size": 48,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "mlp_size": 192,
        "context": 640,
        "vocabulary": 400,
    },
    "warmstart": {
        "episodes": 40,
        "epochs": 9,
        "batch_tokens": 1024,
        "noise": 0.25,
        "lr": 1e-2,
        "text_weight": 0.3,
        "failures": 0.5,
    },
    "curriculum": {"epsilon": 0.9, "reflection_tokens": 160, "selection_tokens": 60, "candidate_tokens": 200},
    "rollout": {"num_groups": 3, "group_size": 3, "action_tokens": 16, "prediction_tokens": 32, "temperature": 1.0},
    "loss": {"kl": 1e-3},
    "optim": {"minibatches": 2, "epochs": 1, "lr": 5e-4},
    "train": {"iterations": 3, "keep_checkpoints": 20, "evaluate_every": 2},
}


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="session")
def finished(config, tmp_path_factory):
    """The folder of an undisturbed run, with all its checkpoints, and its output."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    status, out, err = run("train", "--config", config, f"run_dir={folder}")
    assert status == 0, err
    return folder, out
