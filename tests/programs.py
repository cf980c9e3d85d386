"""The programs at the top of the project, for tests: loaded as modules, or run as processes of their own."""

import contextlib
import gzip
import importlib.util
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HANGS = 3600.0
"""Seconds after which a program hangs, however busy the machine is."""
# Sizes of a policy that plays the toy kitchen badly, and is made in a moment.
TOY_POLICY = {"hidden_size": 32, "layers": 2, "heads": 2, "kv_heads": 1, "mlp_size": 64, "context": 640}
TOY_POLICY["vocabulary"] = 400

TOY_RUN = {
    "env": {"id": "RoleAgent/Toy-v0", "eval_split": "valid", "eval_tasks": 5},
    "policy": TOY_POLICY,
    # Three groups and five tasks of the split: neither can be halved.
    "warmstart": {"episodes": 12, "epochs": 9, "batch_tokens": 1000, "optimizer": "adamw", "lr": 3e-3},
    "rollout": {"num_groups": 3, "group_size": 2, "action_tokens": 16, "prediction_tokens": 8},
    "optim": {"minibatches": 2},
    "train": {"iterations": 2, "keep_checkpoints": 20},
}

# What makes a run small and its world a toy; whatever else a configuration says stays as it is.
SMALL = {
    "env": {"id": "RoleAgent/Toy-v0", "train_split": "train", "eval_split": "valid", "eval_tasks": 2},
    "policy": {"path": "", "hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "mlp_size": 32, "context": 2048}
    | {"dtype": "float32", "vocabulary": 600},
    "warmstart": {"episodes": 6, "epochs": 1.0, "rounds": 1, "round_episodes": 2, "failures": 2.0}
    | {"optimizer": "adamw"},
    "rollout": {"num_groups": 2, "group_size": 2, "eval_batch": 2, "action_tokens": 12, "prediction_tokens": 24}
    | {"backend": "local"},
    "curriculum": {"reflection_tokens": 200, "selection_tokens": 80},
    "simulator": {"kind": "table"},
    "train": {"iterations": 1, "evaluate_every": 0},
}


def overrides(tree, prefix=""):
    """A tree as key=value arguments."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from overrides(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={json.dumps(value)}"


def status(main, arguments):
    """What a command ends with, however it ends."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def load(name):
    """``train``, ``evaluate`` or ``benchmarks/…`` as a module that finds what lies beside it."""
    path = ROOT / f"{name}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    beside = str(ROOT / "benchmarks" if name.startswith("benchmarks/") else path.parent)
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(beside)
    return module


def default_signals():
    """For ``preexec_fn``: a child that a test interrupts or ends by a signal must not inherit that it is ignored.

    In the background of a script SIGINT is ignored, and under some supervisors SIGTERM.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def start(name, *arguments, variables=None, **options):
    """Starts the real command, on one thread (sums of floats are then the same every time) and generated games.

    ``variables`` are added to its environment.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}  # set by runs in here
    environment = {**inherited, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(variables or {})}
    environment.pop("ALFWORLD_DATA", None)
    return subprocess.Popen(
        [sys.executable, str(ROOT / f"{name}.py"), *map(str, arguments)],
        cwd=options.pop("cwd", ROOT),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def cut_short(folder, *steps):
    """Leaves a finished run as if it had been killed before it wrote these checkpoints."""
    for step in steps:
        shutil.rmtree(folder / "checkpoints" / f"step-{step}")
    for name in ("after.json", "result.json"):
        (folder / name).unlink()
    return folder


def episodes_of(folder, iteration):
    """What a run wrote down of an iteration, an episode each."""
    packed = (folder / "trajectories" / f"iteration-{iteration:06d}.jsonl.gz").read_bytes()
    return [json.loads(line) for line in gzip.decompress(packed).splitlines()]


def adds_up(card, gamma, alpha=1.0):
    """Every equation of an episode: its rewards in its returns, and those in its advantages."""
    near = partial(pytest.approx, abs=1e-3)
    task = others = 0.0
    for turn in reversed(card["turns"]):
        own = turn["reward"].get("task", 0.0)
        task, others = own + gamma * task, sum(turn["reward"].values()) - own + gamma * others
        assert turn["return_task"] == near(task) and turn["return_others"] == near(others)
        total = turn["return_task"] * (1 + (turn["return_predictive"] or 0.0)) + turn["return_others"]
        assert turn["return_modulated"] in (None, near(total))
        if turn["advantage_state"] is not None:
            assert turn["advantage_estimate"] == near(turn["advantage_state"] + alpha * turn["advantage_outcome"])
        elif turn["advantage_outcome"] is not None:
            assert turn["advantage_estimate"] == near(turn["advantage_outcome"])
        mean, deviation = card["whitening"] or (0.0, 1.0)
        assert turn["advantage"] == pytest.approx((turn["advantage_estimate"] - mean) / (deviation + 1e-6), abs=5e-3)
    assert card["reward"] == near(sum(turn["rewards"].get("task", 0.0) for turn in card["turns"]))


def metrics(folder, stage=None):
    """The rows of a run's log, of one stage or all, without what depends on the machine's speed."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if stage in (None, row["stage"])]
    timed = re.compile(r"seconds$|per_second$|^tool_seconds/")
    return [{name: value for name, value in row.items() if not timed.search(name)} for row in rows]


def result_of(stdout):
    """What a benchmark reports in its last line."""
    name, _, text = stdout.splitlines()[-1].partition(" ")
    assert name == "RESULT"
    return json.loads(text)


def run(name, *arguments, **options):
    """Runs the real command to its end; returns (exit status, stdout, stderr)."""
    process = start(name, *arguments, **options)
    out, err = process.communicate(timeout=HANGS)
    return process.returncode, out, err


def start_both(*arguments):
    """Two processes of one run, as any launcher starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [start("train", *arguments, variables={**common, "RANK": rank, "LOCAL_RANK": rank}) for rank in ("0", "1")]


def run_both(*arguments):
    """Runs them to their end; (status, stdout, stderr) of each."""
    processes = start_both(*arguments)
    spoken = [process.communicate(timeout=HANGS) for process in processes]
    return [(process.returncode, *said) for process, said in zip(processes, spoken, strict=True)]


@contextlib.contextmanager
def at_terminal(*arguments):
    """``roleagent …`` at a terminal of 80 columns.

    Gives the process, a function that types bytes, and one that reads until some words are shown.
    """
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "roleagent.cli", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40", "INPUTRC": os.devnull}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)

    def read_until(words):
        shown, deadline = "", time.monotonic() + 60
        while words not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 0.2)[0]:
                shown += os.read(ours, 65536).decode(errors="replace")
        return shown

    try:
        yield process, lambda typed: os.write(ours, typed), read_until
    finally:
        process.kill()
        process.wait()
        os.close(ours)
