"""Jobs of SLURM: what the batch files run, and how a task of srun knows its place."""

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys

import pytest
from programs import ROOT

from roleagent import program
from roleagent.config import load

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
        "MASTER_ADDR=n1 MASTER_PORT=21234 OMP_NUM_THREADS=6 srun --kill-on-bad-exit=1 --gpu-bind=none "
        "python train.py --config my.yaml seed=3"
    )


def test_one_node_samples_and_the_others_train():
    given = "--config", "my.yaml", "--resume", "seed=3"
    status, lines, _ = printed("server_and_trainer", *given, MODEL="Qwen/Qwen2.5-7B-Instruct")
    assert status == 0
    [trainer] = [line for line in lines if "train.py" in line]
    [server] = [line for line in lines if "vllm.server" in line]
    assert "--ntasks=4 --ntasks-per-node=4 --nodelist=n1 --gpus-per-task=1 " in server
    assert "--host n1 --config my.yaml seed=3 policy.path=" in server
    urls = r"\,".join(f"http://n1:{port}" for port in range(8000, 8004))
    assert "--nodes=2 --ntasks-per-node=4" in trainer and rf"vllm.url=\[{urls}\]" in trainer
    assert "train.py --config my.yaml --resume seed=3 policy.path=" in trainer
    assert all("MASTER_ADDR=n2" in line and "policy.path=Qwen/Qwen2.5-7B-Instruct" in line for line in lines)
    status, lines, _ = printed("server_and_trainer", MODEL="m", SERVERS="2", TENSOR_PARALLEL="4")
    assert status == 0 and sum("vllm.server" in line for line in lines) == 2
    assert all(" vllm.extra.tensor_parallel_size=4" in line for line in lines if "vllm.server" in line)
    [trainer] = [line for line in lines if "train.py" in line]
    assert r"--nodelist=n3 " in trainer and r"vllm.url=\[http://n1:8000\,http://n2:8000\]" in trainer


@pytest.mark.parametrize("given", [["--resume", "{}"], ["--resume={}"]])
def test_the_servers_of_a_resumed_run_have_its_options_and_keep_those_of_vllm(tmp_path, given):
    (tmp_path / "config.yaml").write_text("policy: {context: 4096}\nvllm: {extra: {dtype: bfloat16}}\n")
    words = [word.format(tmp_path) for word in given]
    _, lines, _ = printed("server_and_trainer", "seed=3", *words, MODEL="m", TENSOR_PARALLEL="2")
    [server] = [line for line in lines if "vllm.server" in line]
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_intermixed_args(shlex.split(server.partition("--host n1")[2]))
    config = load(options.config, options.overrides)
    assert config.policy.context == 4096 and config.seed == 3
    assert config.vllm.extra == {"dtype": "bfloat16", "tensor_parallel_size": 2}


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_the_trainer_begins_when_all_servers_answer(tmp_path):
    """With a fake ``srun``: servers that need a second, on ports counted by ``SLURM_LOCALID``; and one that dies."""
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf '127.0.0.1\\n127.0.0.2\\n'\n")
    (tmp_path / "python").write_text(
        f"""#!/bin/sh
case "$*" in
*train.py*) echo "trained $*" >>{log} ;;
*seed=3*) exit 3 ;;
*) sleep 1; echo served >>{log}; cd {tmp_path} && touch health && exec {sys.executable} -m http.server {port} ;;
esac
"""
    )
    (tmp_path / "srun").write_text(
        '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexport SLURM_LOCALID=0\nexec "$@"\n'
    )
    for name in ("scontrol", "python", "srun"):
        (tmp_path / name).chmod(0o755)
    variables = {"MODEL": "m", "SLURM_GPUS_ON_NODE": "1", "VLLM_PORT": str(port), "SLURM_JOB_NODELIST": "two"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def submitted(*arguments):
        command = ["bash", "launch/server_and_trainer.sbatch", *arguments]
        environment = {**os.environ, **variables, "PATH": path}
        return subprocess.run(
            command, cwd=ROOT, env=environment, timeout=60, capture_output=True, start_new_session=True
        )

    assert submitted("seed=3").returncode != 0 and not log.exists()
    assert submitted().returncode == 0
    served, trained = log.read_text().splitlines()
    assert served == "served" and f"vllm.url=[http://127.0.0.1:{port}]" in trained


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
