"""The parts of benchmarks/gpu_smoke.sh.

python benchmarks/parts/gpu_smoke.py cuda|cpu FOLDER [PART …]
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 420.0  # seconds of a command
VOCABULARY = 151_936
SERVER = "roleagent.agents.policies.vllm.server"


class Failed(Exception):
    """A part failed."""


class Smoke:
    """A machine, and the scratch folder of all parts."""

    def __init__(self, device: str, scratch: Path):
        self.device, self.cuda, self.scratch = device, device == "cuda", scratch
        hidden, layers, heads, mlp, context = (768, 14, 12, 3072, 2048) if self.cuda else (64, 2, 2, 128, 512)
        groups, size = (16, 8) if self.cuda else (2, 2)
        self.mismatch = 0.05 if self.cuda else 1e-3  # nats per token, in bf16 and in fp32
        self.model = scratch / "transformers" / "checkpoints" / "step-500002" / "policy"
        self.options = [
            "env.id=RoleAgent/ALFWorld-v0",
            f"env.kwargs={{size: small, games: 24, max_steps: {15 if self.cuda else 6}, data_dir: generated}}",
            "env.eval_split=train",
            "env.eval_tasks=4",
            f"policy.dtype={'bfloat16' if self.cuda else 'float32'}",
            f"policy.context={context}",
            f"rollout.num_groups={groups}",
            f"rollout.group_size={size}",
            "curriculum.analyst=rule",
            "estimator.rewards={task: 1.0, overlong: -1.0}",  # nobody wins yet, and unlike rewards make an update
            "optim.lr=1e-5",
            "train.iterations=2",
            *([] if self.cuda else ["vllm.extra={kv_cache_memory_bytes: 53687091}"]),
        ]
        self.new = [
            f"policy.hidden_size={hidden}",
            f"policy.layers={layers}",
            f"policy.heads={heads}",
            f"policy.kv_heads={heads}",
            f"policy.mlp_size={mlp}",
            "warmstart.episodes=24",
            "warmstart.rounds=0",
            "warmstart.epochs=1",
            "warmstart.failures=0",
            "warmstart.optimizer=adamw",
            "warmstart.lr=3e-4",
        ]

    def memory(self, process: subprocess.Popen[str]) -> int:
        """MiB: of the GPU, by all processes; on the CPU of this process, at most so far."""
        if self.cuda:
            return self.used()
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return 0
        return next((int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)

    def used(self) -> int:
        """MiB of the GPU in use."""
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])

    def ran(self, *arguments: str, until: Callable[[], bool] = lambda: False) -> tuple[str, int]:
        """What a command of Python printed, and its peak of memory in MiB; killed at once when ``until()``.

        Raises:
            Failed: it ended with an error, or took longer than LIMIT.
        """
        begun, peak, killed, late = time.monotonic(), 0, False, False
        said = self.scratch / "said.txt"
        with said.open("w") as file:
            process = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=file, stderr=file, text=True)
            while process.poll() is None:
                peak = max(peak, self.memory(process))
                killed, late = until(), time.monotonic() - begun > LIMIT
                if killed or late:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                time.sleep(0.1)
        text = said.read_text(errors="replace")
        if process.returncode and not killed:
            reason = f"took longer than {LIMIT:.0f} s" if late else f"ended with {process.returncode}"
            raise Failed(f"{' '.join(arguments[:3])} {reason}: {text[-2000:]}")
        return text, peak

    def trained(self, name: str, *options: str) -> dict[str, Any]:
        """The figures of a run of two iterations."""
        folder = self.scratch / name
        _, peak = self.ran("train.py", *self.options, *options, f"run_dir={folder}")
        return {**self.figures(folder), "peak_mib": peak}

    def figures(self, folder: Path) -> dict[str, Any]:
        """Of the last iteration of a run.

        Raises:
            Failed: learner and sampler differ.
        """
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        rows = [row for row in rows if row["stage"] == "train"]
        last, mismatch = rows[-1], max(row["mismatch"] for row in rows)
        if not mismatch < self.mismatch:
            raise Failed(f"learner and sampler differ by {mismatch:.2g} nats per token")
        return {
            "iterations": len(rows),
            "tokens_per_second": round(last["tokens_per_second"]),
            "update_seconds": round(last["update_seconds"], 2),
            "sync_seconds": round(last["sync_seconds"], 3),
            "mismatch": mismatch,
        }


def tests(smoke: Smoke) -> dict[str, Any]:
    """The unit tests of engine and policies; vLLM has parts of its own."""
    folders = ("tests/learners/engine", "tests/learners/test_loss.py", "tests/agents/policies")
    said, _ = smoke.ran("-m", "pytest", "-q", "-m", "not slow", *folders, "--ignore=tests/agents/policies/test_vllm.py")
    return {"said": said.strip().splitlines()[-1]}


def zero(smoke: Smoke) -> dict[str, Any]:
    """ZeRO 1 to 3, offloading and an adapter in bf16, with a real vocabulary: the same gradient at each stage."""
    found = {}
    for name in ("1", "2", "3", "3 offloaded", "2 adapter"):
        said, _ = smoke.ran(__file__, smoke.device, "learner", *name.split())
        found[name] = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
    norms = [found[name]["norm"] for name in ("1", "2", "3", "3 offloaded")]
    if not max(norms) < 1.02 * min(norms):
        raise Failed(f"the stages have other gradients: {norms}")
    return {"stages": found}


def transformers(smoke: Smoke) -> dict[str, Any]:
    """A run that samples with transformers; later parts begin with its policy."""
    return smoke.trained("transformers", *smoke.new, "rollout.backend=local")


def from_policy(smoke: Smoke) -> list[str]:
    if not smoke.model.exists():
        raise Failed("it begins with the policy of the part `transformers`, which is missing")
    return [f"policy.path={smoke.model}", "warmstart.episodes=0", "rollout.backend=vllm"]


def vllm(smoke: Smoke) -> dict[str, Any]:
    """vLLM in the process: the log-probabilities after each weight sync are the learner's."""
    return smoke.trained("vllm", *from_policy(smoke))


def sleep(smoke: Smoke) -> dict[str, Any]:
    """As `vllm`, but that it stays awake during updates: what sleep saves."""
    return {"awake": smoke.trained("awake", *from_policy(smoke), "vllm.sleep=off")}


def engines(smoke: Smoke) -> dict[str, Any]:
    """As `vllm`, with two engines in processes of their own: memory stays the same over the transfers of weights."""
    folder, used = smoke.scratch / "engines", list[int]()

    def look() -> bool:
        log = folder / "metrics.jsonl"
        rows = log.read_text().count('"stage": "train"') if log.exists() else 0
        if smoke.cuda and rows > len(used):
            used.append(smoke.used())
        return False

    options = [*from_policy(smoke), "vllm.engines=2", "vllm.sleep=off", f"train.iterations={8 if smoke.cuda else 2}"]
    smoke.ran("train.py", *smoke.options, *options, f"run_dir={folder}", until=look)
    if len(used) > 2 and used[-1] > 1.1 * used[1]:
        raise Failed(f"the GPU's memory grows with each transfer: {used} MiB")
    return {**smoke.figures(folder), "used_mib": used}


def adapter(smoke: Smoke) -> dict[str, Any]:
    """As `vllm` with LoRA: only the adapter is sent."""
    return smoke.trained("adapter", *from_policy(smoke), "lora.rank=8")


@contextmanager
def served(smoke: Smoke, options: Sequence[str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", SERVER, str(smoke.model), "--port", port, *smoke.options, *options]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith("serving "):
                ready.set()
        ready.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        ready.wait(LIMIT)
        if not any(line.startswith("serving ") for line in lines):
            raise Failed(f"the server does not start: {''.join(lines)[-2000:]}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def server(smoke: Smoke) -> dict[str, Any]:
    """As `vllm`, with a server on the same device, which receives the weights by broadcast."""
    options = from_policy(smoke)
    with served(smoke, options) as url:
        return smoke.trained("server", *options, f"vllm.url={url}")


def resume(smoke: Smoke) -> dict[str, Any]:
    """A run is killed after its first iteration, and goes on."""
    folder = smoke.scratch / "killed"
    command = ["train.py", *smoke.options, *smoke.new, "rollout.backend=local", f"run_dir={folder}"]
    smoke.ran(*command, "train.iterations=3", until=(folder / "checkpoints" / "step-500001" / "state.json").exists)
    killed = not (folder / "result.json").exists()
    smoke.ran(*command, "--resume", "train.iterations=3")
    found = smoke.figures(folder)
    if not killed or found["iterations"] != 3:
        raise Failed(f"killed: {killed}, iterations: {found['iterations']}")
    return found


PARTS = (tests, zero, transformers, vllm, sleep, engines, adapter, server, resume)


def learner(device: str, stage: str, what: str = "") -> None:
    """Updates a model of real vocabulary at one stage; prints norm, tokens per second and memory as JSON."""
    import numpy as np
    import torch

    from roleagent.agents.policies.hf import own_device
    from roleagent.agents.policies.scratch_model import build_policy, train_tokenizer
    from roleagent.config import load
    from roleagent.config.settings import LoRAConfig, PolicyConfig
    from roleagent.learners.engine.engine import Learner
    from roleagent.learners.engine.lora import adapt
    from roleagent.learners.genenv.training import offloaded
    from roleagent.learners.run.ranks import Ranks
    from roleagent.types import Segment

    cuda = device == "cuda"
    sizes: dict[str, Any] = dict(hidden_size=32, layers=2, heads=2, kv_heads=1, mlp_size=64, context=512)
    if cuda:
        sizes = dict(hidden_size=896, layers=24, heads=14, kv_heads=2, mlp_size=4864, context=4096)
    length, rows = (2048, 16) if cuda else (96, 3)
    with Ranks.join():
        torch.manual_seed(0)
        generator = torch.Generator(own_device()).manual_seed(0)
        tokenizer = train_tokenizer(["go to the kitchen and look"], 400, [])
        policy = build_policy(PolicyConfig(**sizes), tokenizer, generator)
        policy.model.resize_token_embeddings(VOCABULARY)
        policy.model.bfloat16()
        if what == "adapter":
            adapt(policy.model, LoRAConfig(rank=16), generator)
        options = [f"deepspeed.zero_stage={stage}", "policy.dtype=bfloat16", "deepspeed.activation_checkpointing=on"]
        config = load(overrides=[*options, f"optim.micro_batch_tokens={4 * length}", "optim.lr=1e-5"])
        updated = Learner(policy, offloaded(config) if what == "offloaded" else config, 1e-5, computes=False)
        rng = np.random.default_rng(0)
        kinds, zeros = np.arange(length) >= length // 2, np.zeros(length)
        segments = [
            Segment(rng.integers(5, VOCABULARY, length), kinds.astype(np.int8), zeros, zeros) for _ in range(rows)
        ]
        norms, seconds = [], []
        for _ in range(3):
            begun = time.monotonic()
            norms.append(updated.update(segments, {}, lambda tokens: -tokens.logprobs.sum() / (rows * length), 1.0))
            seconds.append(time.monotonic() - begun)
        peak = torch.cuda.max_memory_allocated() // 2**20 if cuda else 0
        size = sum(weight.numel() for weight in policy.model.parameters())
        updated.close()
    speed = round(rows * length / min(seconds))
    print(json.dumps({"norm": norms[0], "tokens_per_second": speed, "peak_mib": peak, "parameters": size}))


def main() -> int:
    """All parts, or the named ones; returns the exit status."""
    device, scratch, *names = sys.argv[1:]
    if scratch == "learner":
        learner(device, *names)
        return 0
    if unknown := set(names) - {part.__name__ for part in PARTS}:
        sys.exit(f"gpu_smoke: no such part: {', '.join(sorted(unknown))}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    smoke, failed, begun = Smoke(device, Path(scratch)), [], time.monotonic()
    for part in PARTS:
        if names and part.__name__ not in names:
            continue
        started = time.monotonic()
        found: dict[str, Any] = {"part": part.__name__, "device": device}
        try:
            found |= {"passed": True, **part(smoke)}
        except Exception as error:  # the other parts still have something to say
            failed.append(part.__name__)
            found |= {"passed": False, "error": str(error) if isinstance(error, Failed) else repr(error)}
        print("RESULT", json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}), flush=True)
    seconds = round(time.monotonic() - begun, 1)
    print(
        "RESULT",
        json.dumps({"part": "all", "device": device, "passed": not failed, "failed": failed, "seconds": seconds}),
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
