"""The environment of docs/add_environment.md, installed as a package, trains for an iteration in both roles."""

import json
import os
import re
import subprocess
import sys

import pytest
from programs import ROOT

PAGE = ROOT / "docs" / "add_environment.md"
SMALL = (
    *("--config", str(ROOT / "configs" / "toy.yaml"), "policy.vocabulary=512"),
    *("env.id=Countdown-v0", "env.eval_split=valid", "curriculum.analyst=model", "train.iterations=1"),
    *("policy.hidden_size=32", "policy.mlp_size=64", "policy.layers=1", "policy.heads=2", "policy.kv_heads=2"),
    *("policy.context=640", "warmstart.episodes=12", "warmstart.epochs=1", "warmstart.rounds=0", "env.eval_tasks=2"),
    *("rollout.num_groups=2", "rollout.group_size=2", "curriculum.reflection_tokens=64"),
    *("curriculum.selection_tokens=32", "curriculum.candidate_tokens=128", "run_dir=run"),
)


def files_of_the_page():
    return dict(
        re.findall(r"^```\w+\n# (\S+\.(?:py|toml))\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )


@pytest.fixture
def installed(tmp_path):
    """A folder with the package as pip installs it, for PYTHONPATH."""
    source, target = tmp_path / "source", tmp_path / "target"
    for name, text in files_of_the_page().items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, "utf-8")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index")
    subprocess.run([*pip, "--no-build-isolation", "--target", str(target), str(source)], check=True, timeout=300)
    return target


def run(installed, *command):
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


CHECK = """
import gymnasium, numpy, roleagent
from roleagent.env_card import make_expert, card_of
from roleagent.envs.failures import play_failures, scripted_modes
from roleagent.failures.modes import diagnose, taxonomy
env = gymnasium.make("Countdown-v0", disable_env_checker=True)
assert scripted_modes(env) == taxonomy("Countdown-v0") and len(scripted_modes(env)) == 3
for mode in scripted_modes(env):
    made = play_failures(env, mode, 4, numpy.random.default_rng(0))
    assert len(made) == 4
    for failure in made:
        found, finding = diagnose(failure.trajectory)
        assert found == mode and finding.step == failure.step, (mode, found, finding, failure.step)
"""


def test_an_installed_package_brings_both_roles(installed):
    run(installed, sys.executable, "-c", CHECK)


@pytest.mark.slow
def test_train_py_trains_on_an_installed_package(installed):
    run(installed, sys.executable, str(ROOT / "train.py"), *SMALL)
    [*_, last] = map(json.loads, (installed / "run" / "metrics.jsonl").read_text("utf-8").splitlines())
    assert (last["stage"], last["step"]) == ("train", 1)
    assert last["curriculum_failures"] > 0 and last["curriculum_selections"] > 0
