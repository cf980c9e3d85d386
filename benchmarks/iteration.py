"""How long does an iteration of the default training take, and how well does it use the processor?

    python benchmarks/iteration.py
    python benchmarks/iteration.py --iterations 8 --groups 16
    python benchmarks/iteration.py --before ''
    python benchmarks/iteration.py --groups 8 --policy runs/RUN/checkpoints/step-80/policy

A short warm start is followed by iterations of the default configuration. ``seconds`` and ``parts`` are means over the
iterations without the first. ``peak_share`` is a ratio within this run: the floating-point operations per second of a
part's matrix multiplications over those of one square multiplication. A separate iteration counts the operations with
torch. The default size (2 groups of 8 episodes) shows which part takes the time; the default run has 16 groups.
After so short a warm start every episode is lost, and predictions are too long. ``--policy`` takes the policy of a
trained run.

``ratio_before`` compares with an earlier commit of this repository's history: the seconds of an iteration today over
those of that commit, at equal work and from the same weights. Today's program then runs with the earlier rules (no
imitated states, predictions with the action's advantage). ``default_before`` compares an iteration of today's default
instead: its predictions look two steps ahead, and one of them per episode is trained. Where no group has both wins and
losses, neither program of ``ratio_before`` has anything to update, and ``equal_parts`` shows it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from roleagent.timer import PARTS

ROOT = Path(__file__).resolve().parent.parent

START = (
    *("warmstart.episodes=200", "warmstart.rounds=0", "warmstart.minutes=0", "train.iterations=1"),
    *("rollout.num_groups=1", "rollout.group_size=2", "env.eval_tasks=1"),
)
BEFORE = "cfad571"
"""The commit before predictions became detached by default."""

# Equal work on both sides: the options of today's program, and the same by the earlier names.
EQUAL = (
    *("prompt.horizon=1", "rollout.prediction_tokens=32"),
    *("prompt.predictions=detached", "loss.prediction_credit=advantage", "estimator.rewards.invalid_action=0"),
    *("estimator.state_of_failure=text", "curriculum.learnability=off", "curriculum.candidates_from=newest"),
    *("optim.minibatches=2", "optim.epochs=2", "curriculum.analyst=rule"),
)
EARLIER = ("prompt.predictions=aside", "optim.updates=2", "optim.epochs=2", "curriculum.analyst=rule")
ITERATIONS = ("warmstart.episodes=0", "policy.context=1024", "env.eval_tasks=1", "train.minutes=0")


def train(
    folder: Path, options: Sequence[str], program: Sequence[str] = ("train.py",), tree: Path = ROOT, path: str = ""
) -> str:
    """Runs the ``train.py`` of a tree with its default configuration and returns the last line of the output.

    Raises:
        SystemExit: it failed.
    """
    config = tree / "configs" / "default.yaml"
    command = [sys.executable, *program, "--config", str(config), f"run_dir={folder}", *options]
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"iteration.py: {' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout.splitlines()[-1]


def extract(commit: str, folder: Path) -> str:
    """Extracts a commit into a folder and returns the import path of its packages.

    Raises:
        SystemExit: the history does not have the commit.
    """
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if packed.returncode:
        sys.exit(f"iteration.py: the history has no commit {commit}; fetch more of it, or skip this with --before ''")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder)  # of our own repository
    package = folder / "packages" / "roleagent"
    package.mkdir(parents=True)
    for source in (folder / "src" / "roleagent").iterdir():
        (package / source.name).symlink_to(source)
    for name in ("envs", "agents", "curricula", "learners", "reports"):
        if not (package / name).exists():
            (package / name).symlink_to(folder / name)
    return str(package.parent)


def seconds_of(folder: Path) -> dict[str, float]:
    """Mean seconds of an iteration and of its parts, without the first iteration."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["stage"] == "train"][1:]
    names = {"seconds": "seconds"} | {part: f"{part}_seconds" for part in (*PARTS, "other")}
    return {name: statistics.fmean(row.get(key, 0.0) for row in rows) for name, key in names.items()}


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    """The parts of an iteration, for the result."""
    return {part: round(seconds[part], 2) for part in (*PARTS, "other")}


def matrix_peak(size: int = 1024, rounds: int = 20) -> float:
    """Floating-point operations per second of one square float32 multiplication."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    best = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        torch.mm(left, right)
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best


def count_operations(arguments: Sequence[str]) -> None:
    """Trains in this process and prints the floating-point operations of each part."""
    counted: Counter[str] = Counter()
    stopwatch = importlib.import_module("roleagent.timer").Timer
    timed = stopwatch.__call__

    @contextlib.contextmanager
    def counting(self: object, name: str) -> Iterator[None]:
        with timed(self, name), FlopCounterMode(display=False) as mode:
            yield
        counted[name] += mode.get_total_flops()

    stopwatch.__call__ = counting
    sys.path.insert(0, str(ROOT))
    with contextlib.redirect_stdout(sys.stderr):
        status = importlib.import_module("train").main(list(arguments))
    if status:
        sys.exit(status)
    print(json.dumps(counted))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--count"]:
        count_operations(arguments[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--groups", type=int, default=2, help="groups of 8 episodes per iteration (default: %(default)s)"
    )
    parser.add_argument("--iterations", type=int, default=2, help="iterations, at least 2 (default: %(default)s)")
    parser.add_argument(
        "--before",
        default=BEFORE,
        metavar="COMMIT",
        help="compare with this commit; '' skips it (default: %(default)s)",
    )
    parser.add_argument("--policy", type=Path, metavar="FOLDER", help="a trained policy, in place of the warm start")
    options = parser.parse_args(arguments)
    if options.policy and not (options.policy / "config.json").is_file():
        parser.error(f"--policy: {options.policy} has no config.json; name a folder checkpoints/step-N/policy of a run")
    if options.iterations < 2:
        parser.error("--iterations must be at least 2, because the first one is not counted")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        policy = options.policy and options.policy.resolve()
        if policy is None:
            train(scratch / "start", START)
            [policy] = (scratch / "start" / "checkpoints").glob("step-*1/policy")
        common, groups = (*ITERATIONS, f"policy.path={policy}"), f"rollout.num_groups={options.groups}"
        timed = (*common, f"train.iterations={options.iterations}")
        train(scratch / "timed", (*timed, groups))
        seconds = seconds_of(scratch / "timed")
        once = (*common, groups, "train.iterations=1")
        counted = json.loads(train(scratch / "counted", once, (str(Path(__file__).resolve()), "--count")))
        compared: dict[str, object] = {"ratio_before": None}
        if options.before:
            path = extract(options.before, scratch / "tree")
            earlier = (*timed, *EARLIER, groups.replace("num_groups", "tasks"))
            train(scratch / "before", earlier, tree=scratch / "tree", path=path)
            train(scratch / "equal", (*timed, *EQUAL, groups))
            equal, before = (seconds_of(scratch / name) for name in ("equal", "before"))
            compared = {
                "ratio_before": round(equal["seconds"] / before["seconds"], 3),
                "default_before": round(seconds["seconds"] / before["seconds"], 3),
                "equal_parts": rounded(equal),
                "before_parts": rounded(before),
            }
    peak = matrix_peak()
    shares = {part: counted[part] / seconds[part] / peak for part in PARTS if counted.get(part) and seconds[part]}
    table = Table("part", "seconds", "% of the peak", title="an iteration of the default training")
    for part in ("seconds", *PARTS, "other"):
        share = f"{100 * shares[part]:.0f}" if part in shares else ""
        table.add_row("all" if part == "seconds" else part, f"{seconds[part]:.2f}", share)
    Console().print(table)
    result = {
        **compared,
        "seconds": round(seconds["seconds"], 2),
        "parts": rounded(seconds),
        "peak_share": {part: round(share, 3) for part, share in shares.items()},
        "peak_gflops": round(peak / 1e9, 1),
    }
    print("RESULT", json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
