"""Training runs as processes of their own: each in its own folder, resumable, with its cost."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import cycle, islice
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import yaml

from roleagent.config import Config, ConfigError, load, to_dict
from roleagent.files import make_whole, write_whole
from roleagent.learners.run.folder import AFTER_WARM_START, is_same, read_config

KEPT = ("train.keep_checkpoints=1", "train.keep_warmstart=on")  # the controls begin where the warm start ended
_LOADED = (  # most of what an evaluation of a run imports
    *("roleagent.agents.evaluation.play", "roleagent.agents.policies.hf", "roleagent.learners.run.checkpoints"),
    "roleagent.reports.eval_display",
)
_RUNNING: set[int] = set()  # processes that train or evaluate
_STARTS = threading.Lock()  # multiprocessing asks for the state of all processes when one starts or is joined
MEMORY_UNIT = 2**20 if sys.platform == "darwin" else 2**10  # of ru_maxrss, per MiB


class Run:
    """One training run: not started, interrupted or finished.

    Args:
        folder: its run folder.
        file: its configuration file.
        overrides: its options, ``key=value``.
        quiet: whether its output goes into a file beside its folder.

    Attributes:
        gpus: ``CUDA_VISIBLE_DEVICES`` of its processes; None: as here.
    """

    def __init__(self, folder: Path, file: str | Path, overrides: Sequence[str], quiet: bool = False):
        self.folder, self.file, self.quiet = folder, file, quiet
        self.gpus: str | None = None
        self.log = folder.with_name(f"{folder.name}.log")
        self.overrides = tuple(overrides)
        self._options = (*KEPT, *overrides, f"run_dir={folder}")
        self.config: Config = load(file, self._options)

    def begun(self) -> bool:
        """Whether the folder holds this run, begun or finished.

        Raises:
            ConfigError: it holds a run with other options.
        """
        if not (self.folder / "config.yaml").exists():
            return False
        if not is_same(read_config(self.folder), self.config):
            raise ConfigError(f"{self.folder} was trained with other options: name another folder with --out")
        return True

    def finish(self, processes: int = 1) -> dict[str, Any]:
        """Trains what is left and returns the run's result with ``minutes`` and ``peak_mb``.

        Args:
            processes: of the run, one per GPU.

        Raises:
            ConfigError: the folder holds a run with other options, or training failed.
        """
        begun = self.begun()
        if result_of(self.folder) is None:
            flags = ["--resume"] if begun else []
            how = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
            launcher = how if processes > 1 else []
            train = ["-m", "roleagent", "train", "--config", str(self.file), *flags, *self._options]
            command = [sys.executable, *launcher, *train]
            status = self.carry_out(command)
            if status:
                said = f": {newest_line(self.log)} (see {self.log})" if self.quiet else ""
                raise ConfigError(
                    f"training into {self.folder} ended with status {status}{said}; the same command continues it"
                )
        result = result_of(self.folder)
        if result is None:
            raise ConfigError(f"training into {self.folder} was stopped early; the same command continues from there")
        return {
            **result,
            "minutes": minutes_of(self.folder),
            # Costs are missing if a run outlived the program that started it.
            "peak_mb": max((cost["peak_mb"] for cost in costs_of(self.folder)), default=math.nan),
        }

    def carry_out(self, command: Sequence[str]) -> int:
        """Runs a program on the run folder and records its cost; returns the exit status."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        started, visible = time.monotonic(), {} if self.gpus is None else {"CUDA_VISIBLE_DEVICES": self.gpus}
        with self.log.open("a") if self.quiet else contextlib.nullcontext() as stream:
            print("$", " ".join(command), file=stream, flush=True)
            process = subprocess.Popen(command, stdout=stream, stderr=stream, env=os.environ | visible)
            _RUNNING.add(process.pid)
            while True:
                try:
                    _, status, usage = os.wait4(process.pid, 0)
                    break
                except KeyboardInterrupt:  # the program got it too, and ends in its own time
                    continue
            _RUNNING.discard(process.pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        _add_cost(_costs_file(self.folder), time.monotonic() - started, usage.ru_maxrss)
        return process.returncode

    def evaluate(self, arguments: Sequence[str]) -> int:
        """Runs ``roleagent evaluate`` in a process of its own, and records its cost; returns the exit status.

        The process is forked from one that has loaded PyTorch: loading it takes longer than a small evaluation.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(_LOADED))
        arguments = [*arguments, "--agent", str(self.folder)]
        log = self.log if self.quiet else None
        process = context.Process(
            target=_evaluate, args=(arguments, log, _costs_file(self.folder), time.time(), self.gpus)
        )
        with _STARTS:
            process.start()
        assert process.pid is not None
        _RUNNING.add(process.pid)
        wait([process.sentinel])
        with _STARTS:
            process.join()
        _RUNNING.discard(process.pid)
        assert process.exitcode is not None
        return process.exitcode

    def start(self) -> Path | None:
        """The checkpoint after the warm start."""
        path = self.folder / "checkpoints" / f"step-{AFTER_WARM_START}"
        return path if path.exists() else None

    def control(self, name: str, *options: str) -> Run:
        """A run with other options that starts from this one's warm start."""
        folder = self.folder.with_name(f"{self.folder.name}-{name}")
        run = Run(folder, self.file, [*self.overrides, *options], self.quiet)
        start = self.start()
        if start is not None and not (folder / "config.yaml").exists():
            copy = folder / "checkpoints" / start.name
            shutil.rmtree(copy, ignore_errors=True)  # of a kill before its configuration was written
            try:
                make_whole(copy, lambda partial: shutil.copytree(start, partial))
            except shutil.Error as error:  # one entry per file, with its reason at the end
                raise ConfigError(f"cannot copy {start}: {error.args[0][0][-1]}") from error
            if (known := self._measured_like(run, start.name)) is not None:
                shutil.copy(known, folder)
            write_whole(folder / "config.yaml", yaml.safe_dump(to_dict(run.config), sort_keys=False))
        return run

    def _measured_like(self, control: Run, start: str) -> Path | None:
        """An existing evaluation of the same weights under the same conditions as a control, if there is one."""
        from roleagent.agents.evaluation.targets import weights_digest  # here: a plan is shown without the extras

        weights = weights_digest(self.folder / "checkpoints" / start / "policy")
        others = (file.parent for file in self.folder.parent.glob("*/config.yaml"))
        controls = sorted(folder for folder in others if folder.name.startswith(f"{self.folder.name}-"))
        for folder in (self.folder, *controls):
            known, policy = folder / "before.json", folder / "checkpoints" / start / "policy"
            if (
                known.exists()
                and policy.is_dir()
                and _plays_by(read_config(folder)) == _plays_by(control.config)
                and weights_digest(policy) == weights
            ):
                return known
        return None


def newest_line(log: Path) -> str:
    """The last line of a run's log with a text; empty if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4096))
        lines = stream.read().decode(errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def interrupt_all(*_: object) -> None:
    """A handler of SIGTERM that ends the running processes, too, as Ctrl-C in a terminal does.

    Raises:
        KeyboardInterrupt: always.
    """
    for pid in [*_RUNNING]:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGTERM)
    raise KeyboardInterrupt


def _plays_by(config: Config) -> tuple[Any, ...]:
    """Everything an evaluation depends on, except the weights."""
    predicts = config.wia and config.rollout.eval_predictions
    return config.seed, config.env, config.policy, config.prompt, config.rollout, predicts


def _evaluate(arguments: Sequence[str], log: Path | None, costs: Path, began: float, gpus: str | None) -> None:
    """The forked process; ``began`` by the clock of the system."""
    if gpus is not None:  # before anything asks for a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    with log.open("a") if log else contextlib.nullcontext() as stream:
        if stream is not None:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
    sys.argv = ["roleagent evaluate", *arguments]
    print("$", *sys.argv, flush=True)
    try:
        runpy.run_module("roleagent.programs.evaluate", run_name="__main__")  # as the command does
    finally:
        _add_cost(costs, time.time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def gpus_of_runs(runs: int, processes: int) -> list[str | None]:
    """``CUDA_VISIBLE_DEVICES`` of each of several runs at a time: one GPU per process; None where there is none.

    Runs of one process share GPUs if they are more.

    Raises:
        ConfigError: they are too few for runs of several processes.
    """
    import torch  # here: a plan is shown without the extras

    count = torch.cuda.device_count()
    if not count:
        return [None] * runs
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",")[:count] if visible else [*map(str, range(count))]
    own = [",".join(names[first : first + processes]) for first in range(0, count - processes + 1, processes)]
    if processes > 1 and len(own) < runs:
        raise ConfigError(
            f"{runs} runs at a time, of {processes} processes each, need {runs * processes} GPUs, and there are "
            f"{count}: set --jobs or --processes"
        )
    return [*islice(cycle(own), runs)]


def iterations_of(folder: Path, own: bool = False) -> list[dict[str, Any]]:
    """The logged iterations of a run, in order; empty without a log. A line that is being written is left out.

    Args:
        own: whether to leave out what a fork has from the run that was forked.
    """
    file, after = folder / "metrics.jsonl", begun_at(folder) if own else 0
    lines = file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if file.exists() else []
    return [row for row in map(json.loads, lines) if row["stage"] == "train" and row["step"] > after]


def begun_at(folder: Path) -> int:
    """The iteration at which a fork begins; 0 for other runs."""
    file = folder / "fork.json"
    return int(json.loads(file.read_text(encoding="utf-8"))["at"]) if file.exists() else 0


def costs_of(folder: Path) -> list[dict[str, float]]:
    """``minutes`` and ``peak_mb`` of every process of a run."""
    return _read_costs(_costs_file(folder))


def result_of(folder: Path) -> dict[str, Any] | None:
    """The result of the run in a folder; None if it has not ended, or was stopped before its last iteration."""
    path = folder / "result.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"stopped": {}}
    return None if "stopped" in result else result


def minutes_of(folder: Path) -> float:
    """Wall-clock minutes of a run, over all its processes."""
    return sum(cost["minutes"] for cost in costs_of(folder))


def _read_costs(file: Path) -> list[dict[str, float]]:
    return json.loads(file.read_text()) if file.exists() else []


def _add_cost(file: Path, seconds: float, peak: float) -> None:
    """Adds that of a process; ``peak`` as ``getrusage`` counts it."""
    cost = {"minutes": seconds / 60, "peak_mb": peak / MEMORY_UNIT}
    write_whole(file, json.dumps([*_read_costs(file), cost]))


def _costs_file(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.costs.json")


__all__ = ["Run", "begun_at", "costs_of", "interrupt_all", "iterations_of", "minutes_of", "newest_line", "result_of"]
