"""Kills a run repeatedly and compares the resumed result with an uninterrupted run.

    python benchmarks/kills.py                           (about a minute of one core)
    python benchmarks/kills.py --kills 30 --full
    python benchmarks/kills.py --at train/1/checkpoint/0 --at "train/2/library: commit/1"

A small run of ``train.py`` finishes and records its events with their times. Then the same run is killed (-9) and
resumed repeatedly. Half of the moments are drawn from its time. The other half alternates between rollouts, updates,
checkpoints and library writes, because few places take most of the time. At the end both folders are compared: weights,
optimizer, metrics without times, trajectories, evaluations, library.

The run uses every mechanism with a state: the policy as analyst, predictions, a KL reference, evaluations during
training, fewer checkpoints than iterations. The default kills it twice, which shows that resuming works at all; 30
kills with ``--full`` also hit rare moments. The same command with the same ``--out`` continues after the recorded
kills. It uses two CPU threads: floating-point sums depend on their number, and must not depend on their order. A
process that takes longer than ``--timeout`` seconds is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from roleagent.options import user_path

os.environ["OMP_NUM_THREADS"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.pop("ALFWORLD_DATA", None)

import yaml
from parts.kill_places import Diary, Event, kind_of, read
from parts.run_differences import differences
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
STRATA = ("rollout", "update", "checkpoint", "library")
RUN = {
    "env": {
        "id": "RoleAgent/ALFWorld-v0",
        "eval_split": "train",
        "eval_tasks": 4,
        "kwargs": {"max_steps": 15, "size": "small", "games": 4, "data_dir": "generated"},
    },
    "policy": {
        "hidden_size": 48,
        "layers": 2,
        "heads": 2,
        "kv_heads": 1,
        "mlp_size": 192,
        "context": 640,
        "vocabulary": 400,
    },
    "warmstart": {
        **{"episodes": 40, "epochs": 6, "batch_tokens": 1024, "failures": 0.5},
        **{"rounds": 2, "round_episodes": 16},
    },
    "curriculum": {"reflection_tokens": 160, "selection_tokens": 60, "candidate_tokens": 200},
    "rollout": {"num_groups": 3, "group_size": 3, "action_tokens": 16, "prediction_tokens": 32},
    "loss": {"kl": 1e-3},
    "optim": {"minibatches": 2, "micro_batch_tokens": 2048},
    "train": {"iterations": 3, "checkpoint_every": 2, "evaluate_every": 3},
}


TIMEOUT = 600.0
"""Seconds that a process may take before it counts as hanging."""


def attempt(
    folder: Path,
    options: Sequence[str],
    fatal: Event | None = None,
    delay: float = 0.0,
    timeout: float = TIMEOUT,
) -> int | None:
    """Trains in a child process, from the start or from the last checkpoint.

    Returns:
        None if it was killed, else 0.

    Raises:
        SystemExit: it failed or took longer than ``timeout`` seconds.
    """
    import deepspeed  # noqa: F401 - before the fork, so that children do not import it again

    import train

    diary, output = folder.with_suffix(".diary"), folder.with_suffix(".log")
    resume = ["--resume"] if (folder / "config.yaml").exists() else []
    child = os.fork()
    if not child:
        status = 1
        try:
            for stream, path in ((1, output), (2, output)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
            Diary(diary, fatal, delay).watch()
            status = train.main(["--config", str(folder.parent / "run.yaml"), f"run_dir={folder}", *options, *resume])
        finally:
            sys.stdout.flush()
            os._exit(status)
    deadline = time.monotonic() + timeout
    while not (finished := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            *_, (_, last) = read(diary) or [(0.0, None)]
            sys.exit(f"the run did not end within {timeout:g} s; its last event was {last}")
        time.sleep(0.05)
    ended = os.waitstatus_to_exitcode(finished[1])
    if ended > 0:
        sys.exit(f"the run failed:\n{output.read_text(encoding='utf-8')[-3000:]}")
    return 0 if ended == 0 else None


def moments(timeline: Sequence[tuple[float, Event]], kills: int, rng: random.Random) -> list[tuple[Event, float]]:
    """Draws events of a run, in order, with the delay in seconds after each."""
    gaps = [later - at for (at, _), (later, _) in pairwise(timeline)]
    by_kind = {kind: [i for i in range(len(gaps)) if kind_of(timeline[i][1].place) == kind] for kind in STRATA}
    drawn = []
    for number in range(kills):
        if number % 2:
            [index] = rng.choices(range(len(gaps)), weights=gaps)
        else:
            index = rng.choice(by_kind[STRATA[number // 2 % len(STRATA)]])
        drawn.append((index, rng.uniform(0.0, gaps[index])))
    return [(timeline[index][1], delay) for index, delay in sorted(drawn)]


def kill_and_resume(
    folder: Path, planned: Sequence[tuple[Event, float]], options: Sequence[str], timeout: float = TIMEOUT
) -> list[Event]:
    """Kills a run at every planned moment and lets it finish; returns the last event before each kill.

    A file beside the folder records the kills.
    """
    record = folder.with_suffix(".kills")
    done = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    for number, (fatal, delay) in enumerate(planned[len(done) :], start=len(done) + 1):
        started = time.monotonic()
        if attempt(folder, options, fatal, delay, timeout) is not None:
            break  # the run finished before this moment
        *_, (_, last) = read(folder.with_suffix(".diary"))
        done.append(str(last))
        with record.open("a", encoding="utf-8") as stream:
            stream.write(f"{last}\n")
        print(f"kill {number}: {last} + {1000 * delay:.1f} ms, after {time.monotonic() - started:.1f} s", flush=True)
    attempt(folder, options, timeout=timeout)
    return [Event.parse(line) for line in done]


def show(hit: Sequence[Event]) -> None:
    """Prints the number of kills by place and stage."""
    stages = {"": "before", "warmstart": "warm start", "train": "training"}
    table = Table("place", *stages.values(), title="kills")
    counted = Counter((event.place, event.stage) for event in hit)
    for place in sorted({place for place, _ in counted}):
        table.add_row(place, *(str(counted[place, stage] or "") for stage in stages))
    Console(width=100).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=2, help="number of kills (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument(
        "--at", action="append", default=[], metavar="EVENT", help="stage/step/place/number; repeatable"
    )
    parser.add_argument("--full", action="store_true", help="eight iterations")
    parser.add_argument("--out", type=user_path, help="folder to keep (default: a temporary one)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds per process (default: %(default)g)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of the run")
    options = parser.parse_intermixed_args(arguments)
    out = options.out or Path(tempfile.mkdtemp(prefix="kills-"))
    out.mkdir(parents=True, exist_ok=True)
    (out / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    overrides = [*(["train.iterations=8"] if options.full else []), *options.overrides]

    whole, killed = out / "whole", out / "killed"
    if not (whole / "result.json").exists():
        shutil.rmtree(whole, ignore_errors=True)
        attempt(whole, overrides, timeout=options.timeout)
    timeline = read(whole.with_suffix(".diary"))
    print(f"an uninterrupted run takes {timeline[-1][0]:.1f} s and {len(timeline)} events", flush=True)
    if options.at:
        planned = [(Event.parse(text), 0.0) for text in options.at]
    else:
        planned = moments(timeline, options.kills, random.Random(options.seed))
    hit = kill_and_resume(killed, planned, overrides, options.timeout)
    show(hit)
    found = differences(whole, killed)
    for line in found[:20]:
        print(f"differs: {line}")
    kinds = Counter(kind_of(event.place) for event in hit)
    print("RESULT " + json.dumps({"kills": len(hit), "equal": not found, "differences": len(found), **kinds}))
    if not options.out:
        shutil.rmtree(out)
    return 0 if hit and not found else 1


sys.path.insert(0, str(ROOT))
if __name__ == "__main__":
    sys.exit(main())
