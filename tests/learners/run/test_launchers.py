"""The real command under the launchers that clusters use: torchrun and deepspeed, two processes each."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from programs import HANGS, ROOT, TOY_POLICY, cut_short, metrics
from safetensors.torch import load_file

pytestmark = pytest.mark.long

CONFIG = {
    "env": {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "eval_tasks": 2},
    "policy": TOY_POLICY,
    "warmstart": {"episodes": 8, "epochs": 2, "batch_tokens": 1000, "optimizer": "adamw"},
    "rollout": {"num_groups": 2, "group_size": 3, "action_tokens": 16, "prediction_tokens": 8},
    # It wins nothing after so short a warm start: the length of its replies makes the difference.
    "estimator": {"rewards": {"overlong": -1.0}, "overlong_buffer": 1.0},
    "optim": {"minibatches": 1, "schedule": "constant", "lr": 1e-2},
    # Every weight is taken apart, however small.
    "deepspeed": {"zero_stage": 3, "extra": {"zero_optimization": {"stage3_param_persistence_threshold": 0}}},
    "train": {"iterations": 2, "keep_checkpoints": 9},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "toy.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def launch(launcher, *arguments):
    how = {"torchrun": ["--standalone", "--nproc_per_node", "2"], "deepspeed": ["--num_gpus", "2"]}[launcher]
    if launcher == "deepspeed":
        how += ["--master_port", str(20000 + os.getpid() % 10000)]
    beside = Path(sys.executable).parent
    done = subprocess.run(
        [str(beside / launcher), *how, "train.py", *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "DS_ACCELERATOR": "cpu",
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def partitioned(config, tmp_path_factory):
    """A run from scratch at ZeRO stage 3: warm start, reference, an iteration."""
    folder = tmp_path_factory.mktemp("runs") / "partitioned"
    return folder, launch("torchrun", "--config", config, f"run_dir={folder}")


@pytest.fixture(scope="module")
def adapting(config, partitioned, tmp_path_factory):
    """What that run learned, adapted in bfloat16, by the other launcher."""
    folder = tmp_path_factory.mktemp("runs") / "adapting"
    options = [
        *("--config", config, f"policy.path={partitioned[0]}/checkpoints/step-500002/policy"),
        *("warmstart.episodes=0", "policy.dtype=bfloat16", "lora.rank=4"),
    ]
    launch("deepspeed", *options, f"run_dir={folder}")
    return folder, options


def tensors(folder, number, name="policy/model"):
    return load_file(folder / "checkpoints" / f"step-{number}" / f"{name}.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_torchrun_at_stage_3_samples_from_the_weights_that_it_trains(partitioned):
    folder, said = partitioned
    assert said.count("\nreinforcement ") == 1 and (folder / "result.json").exists()
    # Were the partitioned copy's weights not brought back, the sampler's log-probabilities would be others.
    for row in metrics(folder, "train"):
        assert row["tokens"] > 0 and row["grad_norm"] > 0 and row["logprob_gap"] < 1e-4
    one, two = tensors(folder, 500001), tensors(folder, 500002)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) > 1e-3
    assert same(tensors(folder, 500000), load_file(folder / "reference" / "model.safetensors"))


def test_deepspeed_trains_adapters_alone(partitioned, adapting):
    folder, _ = adapting
    base = load_file(folder / "base" / "model.safetensors")
    assert same(base, {k: v.bfloat16() for k, v in tensors(partitioned[0], 500002).items()})
    trained = tensors(folder, 500002)
    assert trained.keys() == base.keys()
    changed = {name for name in base if not torch.equal(base[name], trained[name])}
    assert changed and all(name.split(".")[-2].endswith("_proj") for name in changed)
    kept = (path.stat().st_size for path in (folder / "checkpoints/step-500002/learner").rglob("*model_states*"))
    assert max(kept) < 2 * sum(w.numel() for w in base.values())  # frozen weights are kept once
    start = load_file(folder / "reference" / "adapter_model.safetensors")
    assert not any(weight.count_nonzero() for name, weight in start.items() if "lora_B" in name)


def test_adapters_resumed_by_the_other_launcher_end_bit_for_bit_the_same(adapting, tmp_path):
    whole, options = adapting
    folder = cut_short(shutil.copytree(whole, tmp_path / "cut"), 500002)
    launch("torchrun", *options, f"run_dir={folder}", "--resume")
    assert metrics(folder) == metrics(whole)
    for name in ("adapter/adapter_model", "policy/model"):
        assert same(tensors(folder, 500002, name), tensors(whole, 500002, name))
