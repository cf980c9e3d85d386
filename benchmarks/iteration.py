"""How fast is the default training, and how well does it use the processor?

    python benchmarks/iteration.py
    python benchmarks/iteration.py --iterations 4 --groups 16
    python benchmarks/iteration.py --groups 16 --policy runs/RUN/checkpoints/step-500020/policy

A short warm start is followed by iterations of the default configuration. Every stage is given in tokens per second and
as a share of the machine's peak: the floating-point operations per second of the stage's matrix products over those of
one square float32 product. A second run of the same work counts the operations with torch.

The RESULT has ``update_peak_share`` (updates of the warm start), ``generation_peak_share`` (actions of the iterations),
``muon_share`` (of the seconds of a warm-start update), and by stage ``tokens_per_second`` and ``peak_share``.

The default size (120 demonstrations, 1 group of 8 episodes) shows which part takes the time; the default run has more
groups. After so short a warm start every episode is lost, and predictions are too long. ``--policy`` takes the policy
of a trained run into the iterations.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from roleagent.learners.engine import optimizer
from roleagent.learners.sft import imitation
from roleagent.options import user_path
from roleagent.timer import Timer

ROOT = Path(__file__).resolve().parent.parent
STAGES = {"imitation": "warm-start update", "generation": "actions", "prediction": "predictions", "update": "RL update"}


def measure(arguments: Sequence[str], count: bool) -> dict[str, float]:
    """Trains in this process; returns the seconds of each stage (``count``: its floating-point operations) and tokens.

    Raises:
        SystemExit: training failed.
    """
    spent: defaultdict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def booked(name: str) -> Iterator[None]:
        started = time.perf_counter()
        with FlopCounterMode(display=False) if count else contextlib.nullcontext() as mode:
            yield
        spent[name] += mode.get_total_flops() if mode else time.perf_counter() - started

    def wrap(owner: Any, attribute: str, name: str, tokens: Callable[..., int] | None = None) -> None:
        work = getattr(owner, attribute)

        def wrapped(*given: Any, **named: Any) -> Any:
            with booked(name):
                found = work(*given, **named)
            if tokens:
                spent[f"{name}_tokens"] += tokens(*given)
            return found

        setattr(owner, attribute, wrapped)

    wrap(imitation, "imitation_step", "imitation", lambda _, segments: sum(map(len, segments)))
    wrap(optimizer.Muon, "step", "muon")
    if count:
        timed = Timer.__call__

        @contextlib.contextmanager
        def counting(self: Timer, name: str) -> Iterator[None]:
            with timed(self, name), booked(name):
                yield

        Timer.__call__ = counting  # type: ignore[method-assign]
    sys.path.insert(0, str(ROOT))
    import train

    with contextlib.redirect_stdout(sys.stderr):
        if status := train.main(arguments):
            sys.exit(status)
    [folder] = (argument.partition("=")[2] for argument in arguments if argument.startswith("run_dir="))
    rows = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for row in (row for row in rows if row["stage"] == "train"):
        spent["generation_tokens"] += row["action_tokens"]
        spent["prediction_tokens"] += row["prediction_tokens"]
        spent["update_tokens"] += row["tokens"]
        for name in () if count else ("generation", "prediction", "update", "other"):
            spent[name] += row[f"{name}_seconds"]
        spent["iterations"] += 1
        spent["iteration"] += row["seconds"]
    return dict(spent)


def matrix_peak(size: int = 1024, rounds: int = 20) -> float:
    """Floating-point operations per second of one square float32 multiplication."""
    left, right = torch.rand(size, size), torch.rand(size, size)
    best = 0.0
    for _ in range(rounds):
        started = time.perf_counter()
        torch.mm(left, right)
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["--count"]:
        print(json.dumps(measure(arguments[1:], count=True)))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=1, help="groups of an iteration (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=1, help="default: %(default)s")
    parser.add_argument(
        "--policy", type=user_path, metavar="FOLDER", help="a trained policy, in place of the warm start"
    )
    options = parser.parse_args(arguments)
    if options.policy and not (options.policy / "config.json").is_file():
        parser.error(f"--policy: {options.policy} has no config.json; name a folder checkpoints/step-N/policy of a run")
    if options.iterations < 1 or options.groups < 1:
        parser.error("--iterations and --groups must be at least 1")
    start = ["warmstart.episodes=120", "warmstart.rounds=0"]
    if options.policy:
        start = ["warmstart.episodes=0", "warmstart.rounds=0", f"policy.path={options.policy.resolve()}"]
    sizes = [
        f"rollout.num_groups={options.groups}",
        f"train.iterations={options.iterations}",
        "env.eval_tasks=1",
        "rollout.eval_sampled=0",
    ]
    common = ["--config", str(ROOT / "configs" / "default.yaml"), *start, *sizes]
    with tempfile.TemporaryDirectory() as scratch:
        seconds = measure([*common, f"run_dir={scratch}/timed"], count=False)
        command = [sys.executable, __file__, "--count", *common, f"run_dir={scratch}/counted"]
        counted = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if counted.returncode:
            return counted.returncode
        operations = json.loads(counted.stdout.splitlines()[-1])
    peak = matrix_peak()
    known = [name for name in STAGES if seconds.get(name)]
    rates = {name: seconds[f"{name}_tokens"] / seconds[name] for name in known}
    shares = {name: operations[name] / seconds[name] / peak for name in known}
    table = Table("stage", "seconds", "tokens/s", "% of the peak", title="the default training")
    for name in known:
        table.add_row(STAGES[name], f"{seconds[name]:.2f}", f"{rates[name]:.0f}", f"{100 * shares[name]:.0f}")
    Console().print(table)
    imitated = "imitation" in shares
    result = {
        "update_peak_share": round(shares["imitation"], 3) if imitated else "not run: no imitation",
        "generation_peak_share": round(shares["generation"], 3),
        "muon_share": round(seconds["muon"] / seconds["imitation"], 3) if imitated else "not run: no imitation",
        "iteration_seconds": round(seconds["iteration"] / seconds["iterations"], 2),
        "tokens_per_second": {name: round(rate) for name, rate in rates.items()},
        "peak_share": {name: round(share, 3) for name, share in shares.items()},
        "peak_gflops": round(peak / 1e9, 1),
    }
    print("RESULT", json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
