"""How long is an iteration of the default training, beside that of an earlier commit, and how well is the time used?

    python benchmarks/iteration.py
    python benchmarks/iteration.py --iterations 8 --before HEAD~20

Both programs train the same weights on the same games and do the same work: detached predictions that carry their
turn's advantage, the rule analyst, two passes of two updates. By default the present program also imitates the states
that came; ``default_seconds`` is an iteration of that kind. The earlier program is taken out of this repository's
history and put into a temporary folder. The two take turns; each pair of runs gives one ratio.

``ratio_before`` is the present program's seconds per iteration over the earlier one's, the median over the pairs.
``seconds`` and ``before_seconds`` are means over the iterations behind the first, which warms up. The parts and
``peak_share`` are those of the default iteration. ``peak_share`` is what a part's matrix multiplications come to per
second, as a share of one square multiplication on this machine. A run of its own counts the operations, with torch.
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

ROOT = Path(__file__).resolve().parent.parent
BEFORE = "cfad571"
"""The commit before predictions became detached by default."""

START = (
    *("warmstart.episodes=600", "warmstart.rounds=0", "warmstart.minutes=0", "train.iterations=1"),
    *("rollout.num_groups=1", "rollout.group_size=2", "env.eval_tasks=1"),
)
PLAYED = (
    *("warmstart.episodes=0", "policy.context=768", "curriculum.analyst=rule", "rollout.group_size=8"),
    *("optim.epochs=2", "env.eval_tasks=1", "train.minutes=0", "train.checkpoint_every=1000"),
)
NOW = ("rollout.num_groups={}", "optim.minibatches=2", "prompt.predictions=detached")
SAME = (
    *("loss.prediction_credit=advantage", "estimator.rewards.invalid_action=0", "estimator.state_of_failure=text"),
    *("curriculum.learnability=off", "curriculum.candidates_from=newest"),
)
EARLIER = ("rollout.tasks={}", "optim.updates=2", "prompt.predictions=aside")  # as NOW, by the earlier names
PARTS = ("generation", "prediction", "environment", "scoring", "grouping", "analysis", "update", "other")


def train(tree: Path, folder: Path, options: Sequence[str], path: str = "") -> None:
    """Runs the ``train.py`` of a tree.

    Raises:
        SystemExit: it failed; the end of its output is shown.
    """
    file = tree / "configs" / "default.yaml"
    command = [sys.executable, str(tree / "train.py"), "--config", str(file), f"run_dir={folder}", *options]
    environment = os.environ | ({"PYTHONPATH": path} if path else {})
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"iteration.py: {' '.join(command)} failed:\n{(done.stdout + done.stderr)[-2000:]}")


def seconds_of(folder: Path) -> dict[str, float]:
    """Mean seconds of an iteration and of its parts, the first iteration left out."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["stage"] == "train"][1:]
    names = {"seconds": "seconds"} | {part: f"{part}_seconds" for part in PARTS}
    return {name: statistics.fmean(row.get(key, 0.0) for row in rows) for name, key in names.items()}


def take_out(commit: str, folder: Path) -> str:
    """Puts a commit into a folder, and its packages where Python finds them as ``roleagent``; that place.

    Raises:
        SystemExit: the history does not have the commit.
    """
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True)
    if packed.returncode:
        sys.exit(f"iteration.py: the history has no commit {commit}: name one with --before, or fetch more of it")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder)  # of our own repository
    package = folder / "packages" / "roleagent"
    package.mkdir(parents=True)
    for source in (folder / "src" / "roleagent").iterdir():
        (package / source.name).symlink_to(source)
    for room in ("envs", "agents", "curricula", "learners", "reports"):
        if not (package / room).exists():
            (package / room).symlink_to(folder / room)
    return str(package.parent)


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
    """Trains in this process, and prints the floating-point operations of an iteration's parts."""
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


def operations(folder: Path, options: Sequence[str]) -> dict[str, float]:
    """Floating-point operations of each part of one iteration."""
    file = ROOT / "configs" / "default.yaml"
    command = [sys.executable, __file__, "--count", "--config", str(file), f"run_dir={folder}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"iteration.py: counting failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(before: dict[str, float], now: dict[str, float], default: dict[str, float], shares: dict[str, float]) -> None:
    """A table for people."""
    table = Table("part", "before, s", "now, s", "default, s", "default, % of the peak", title="an iteration")
    for name in ("seconds", *PARTS):
        share = f"{100 * shares[name]:.0f}" if name in shares else ""
        row = (f"{side[name]:.2f}" for side in (before, now, default))
        table.add_row("all" if name == "seconds" else name, *row, share)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--count"]:
        count_operations(arguments[1:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT", help="default: %(default)s")
    parser.add_argument("--groups", type=int, default=8, help="of 8 episodes, in an iteration (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=2, help="of each run, at least 2 (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=1, help="runs of each program (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.iterations < 2 or options.pairs < 1:
        parser.error("a run needs at least 2 iterations, and there must be at least 1 pair")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        path = take_out(options.before, scratch / "before")
        train(ROOT, scratch / "start", START)
        [policy] = (scratch / "start" / "checkpoints").glob("step-*1/policy")
        played = (*PLAYED, f"policy.path={policy}", f"train.iterations={options.iterations}")
        now_options, earlier = ([option.format(options.groups) for option in chosen] for chosen in (NOW, EARLIER))
        pairs = []
        for number in range(options.pairs):
            train(scratch / "before", scratch / f"before{number}", (*played, *earlier), path)
            train(ROOT, scratch / f"now{number}", (*played, *now_options, *SAME))
            pairs.append((seconds_of(scratch / f"now{number}"), seconds_of(scratch / f"before{number}")))
        train(ROOT, scratch / "default", (*played, *now_options))
        default = seconds_of(scratch / "default")
        counted = operations(
            scratch / "counted", (*PLAYED, *now_options, f"policy.path={policy}", "train.iterations=1")
        )
    now, before = (
        {name: statistics.fmean(pair[side][name] for pair in pairs) for name in pairs[0][0]} for side in (0, 1)
    )
    peak = matrix_peak()
    shares = {name: counted[name] / default[name] / peak for name in PARTS if counted.get(name) and default[name]}
    show(before, now, default, shares)
    result = {
        "ratio_before": round(statistics.median(one["seconds"] / other["seconds"] for one, other in pairs), 3),
        "seconds": round(now["seconds"], 2),
        "before_seconds": round(before["seconds"], 2),
        "default_seconds": round(default["seconds"], 2),
        "parts": {name: round(default[name], 2) for name in PARTS},
        "peak_share": {name: round(share, 3) for name, share in shares.items()},
        "peak_gflops": round(peak / 1e9, 1),
        "pairs": options.pairs,
    }
    print("RESULT", json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
