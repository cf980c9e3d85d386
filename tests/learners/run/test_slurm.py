"""Jobs of SLURM: what the batch files run, and how a task of srun knows its place."""

import os
import subprocess

import pytest
from programs import ROOT

from roleagent import program

JOB = {"SLURM_JOB_NODELIST": "n1,n2,n3", "SLURM_JOB_ID": "41234", "SLURM_CPUS_PER_TASK": "6", "SLURM_GPUS_ON_NODE": "4"}


def printed(name, *arguments, **variables):
    done = subprocess.run(
        ["bash", f"launch/{name}.sbatch", *arguments],
        cwd=ROOT,
        env={**os.environ, **JOB, "DRY_RUN": "1", **variables},
        capture_output=True,
        text=True,
    )
    return done.returncode, sorted(done.stdout.splitlines()), done.stderr


@pytest.mark.parametrize("name", ["one_node", "many_nodes"])
def test_a_process_per_gpu(name):
    status, [line], _ = printed(name, "--config", "my.yaml", "seed=3")
    assert status == 0
    assert line == (
        "MASTER_ADDR=n1 MASTER_PORT=21234 OMP_NUM_THREADS=6 srun --kill-on-bad-exit=1 --gpus-per-task=1 "
        "python train.py --config my.yaml seed=3"
    )


def test_one_node_samples_and_the_others_train():
    status, lines, _ = printed("server_and_trainer", "seed=3", MODEL="Qwen/Qwen2.5-7B-Instruct")
    assert status == 0
    [trainer] = [line for line in lines if "train.py" in line]
    [server] = [line for line in lines if "vllm.server" in line]
    assert "--nodelist=n1 " in server and "--host n1 --port 8000" in server and "tensor_parallel_size:" in server
    assert "--nodes=2 --ntasks-per-node=4" in trainer and r"vllm.url=\[http://n1:8000\]" in trainer
    assert all("MASTER_ADDR=n2" in line and "policy.path=Qwen/Qwen2.5-7B-Instruct" in line for line in lines)
    status, lines, _ = printed("server_and_trainer", MODEL="m", SERVERS="2")
    assert status == 0 and sum("vllm.server" in line for line in lines) == 2
    [trainer] = [line for line in lines if "train.py" in line]
    assert r"--nodelist=n3 " in trainer and r"vllm.url=\[http://n1:8000\,http://n2:8000\]" in trainer


def test_a_job_without_a_second_node_or_a_model_is_told_so():
    status, _, said = printed("server_and_trainer", MODEL="m", SLURM_JOB_NODELIST="n1")
    assert status == 2 and "--nodes=2" in said
    status, _, said = printed("server_and_trainer")
    assert status and "MODEL" in said


def test_a_task_of_srun_knows_its_place(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_PROCID", "5")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    program._read_srun()
    assert "RANK" not in os.environ  # the batch script itself
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")
    program._read_srun()
    place = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}
    assert place == dict(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", MASTER_ADDR="10.0.0.1", MASTER_PORT="29500")
