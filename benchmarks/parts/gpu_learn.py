"""The steps of benchmarks/gpu_learn.sh.

python benchmarks/parts/gpu_learn.py cuda|cpu FOLDER
python benchmarks/parts/gpu_learn.py table FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.evaluation.comparison import EvalRecords, compare
from roleagent.files import Lock

ROOT = Path(__file__).resolve().parents[2]
RATES = ("1e-5", "3e-5", "1e-4")
METHODS = ("role_agent", "gigpo", "grpo")  # the slowest first
SPLITS = ("valid_seen", "valid_train")
SUCCESS = (0.20, 0.65)  # of the start, sampled: reinforcement needs groups with both outcomes
MISMATCH = 0.02  # nats per token between learner and vLLM
RESERVE = 3.0  # minutes for the last evaluations and the table
TAIL = 20_000  # bytes of a log that are kept
KEPT = ("metrics.jsonl", "config.yaml", "results.jsonl", "table.md")

TINY = (
    *("policy.path=", "policy.hidden_size=48", "policy.layers=2", "policy.heads=2", "policy.kv_heads=1"),
    *("policy.mlp_size=192", "policy.context=640", "policy.vocabulary=400", "policy.dtype=float32"),
    "env.kwargs={max_steps: 15, size: small, games: 4, data_dir: generated}",
    *(
        "env.eval_split=train",
        "env.eval_tasks=4",
        "warmstart.optimizer=muon",
        "warmstart.episodes=40",
        "warmstart.epochs=9",
        "warmstart.batch_tokens=1024",
    ),
    *("warmstart.lr=1e-2", "warmstart.rounds=0", "rollout.num_groups=3", "rollout.group_size=3"),
    *("rollout.backend=local", "deepspeed.extra={}", "optim.minibatches=1"),
)
"""On a CPU: a policy from scratch that learns four generated games by heart."""


class Failed(Exception):
    """A step failed; the message says why."""


class Learn:
    """The steps, each of which is done once in a folder.

    Args:
        device: ``cuda`` or ``cpu``.
        folder: of everything.
    """

    def __init__(self, device: str, folder: Path):
        self.cuda, self.folder, self.runs = device == "cuda", folder, folder / "runs"
        self.runs.mkdir(exist_ok=True)
        begun = folder / "begun"
        if not begun.exists():
            begun.write_text(str(time.time()))
        self._end = float(begun.read_text()) + 60 * float(os.environ.get("MINUTES", "28"))
        lines = folder / "results.jsonl"
        found = map(json.loads, lines.read_text().splitlines()) if lines.exists() else ()
        self.done = {one["step"]: one for one in found}
        self.common = ["--config", "configs/one_gpu.yaml", *([] if self.cuda else TINY)]
        if self.cuda and (model := os.environ.get("MODEL")):
            self.common.append(f"policy.path={model}")

    @property
    def left(self) -> float:
        """Minutes."""
        return (self._end - time.time()) / 60

    def step(self, name: str, act: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Does a step, unless it is done; writes its result, then its archive."""
        if name in self.done:
            return self.done[name]
        begun = time.monotonic()
        found = {
            "step": name,
            **act(),
            "seconds": round(time.monotonic() - begun, 1),
            "minutes_left": round(self.left, 1),
        }
        table(self.folder)
        with (self.folder / "results.jsonl").open("a") as stream:
            stream.write(json.dumps(found) + "\n")
        self.archive(f"{len(self.done):02d}-{name}")
        self.done[name] = found
        return found

    def archive(self, name: str) -> None:
        """Everything small: metrics, evaluations, results and the ends of logs."""
        part = self.folder / ".archive"
        with tarfile.open(part, "w:xz") as archive:
            for path in sorted(self.folder.rglob("*")):
                inner = path.relative_to(self.folder)
                if path.suffix == ".log":
                    data = path.read_bytes()[-TAIL:]
                    entry = tarfile.TarInfo(str(inner))
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
                elif (path.name in KEPT or path.suffix in (".json", ".jsonl")) and not {"checkpoints", "kept"} & {
                    *inner.parts
                }:
                    archive.add(path, str(inner))
        part.rename(self.folder / f"{name}.tar.xz")

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Starts a program that ends with this one."""
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", sys.executable, *command], cwd=ROOT, stdout=log, stderr=log
            )

    def train(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Starts or continues a run."""
        resume = ["--resume"] if (self.runs / name / "config.yaml").exists() else []
        return self.start(name, "train.py", *self.common, *options, f"run_dir={self.runs / name}", *resume)

    def together(
        self, starts: Mapping[str, Callable[[], subprocess.Popen[bytes]]], look: Callable[[], None] = lambda: None
    ) -> dict[str, int]:
        """Exit statuses of programs that run side by side: all on a GPU, two at a time on a CPU."""
        waiting, running, status = dict(starts), {}, {}
        while waiting or running:
            while waiting and len(running) < (len(starts) if self.cuda else 2):
                name = next(iter(waiting))
                running[name] = waiting.pop(name)()
            for name in [name for name, process in running.items() if process.poll() is not None]:
                status[name] = running.pop(name).returncode
            look()
            time.sleep(0.5)
        return status

    def last_words(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace").strip()[-300:]

    # The steps.

    def warm_start(self) -> dict[str, Any]:
        """The policy that all arms begin with; a weaker or a smaller warm start if its success is out of range."""
        name, options = "start", []
        for _ in range(2):
            fixed = ["train.iterations=0", "rollout.backend=local", "rollout.eval_sampled=1.0", *options]
            if self.together({name: lambda n=name, o=fixed: self.train(n, *o)})[name]:
                raise Failed(f"the warm start ended with an error: {self.last_words(name)}")
            run = self.runs / name
            sampled, greedy = (
                json.loads((run / f"before{kind}.json").read_text())["success"] for kind in ("-sampled", "")
            )
            policy = max((run / "checkpoints").glob("step-*")) / "policy"
            found = {"run": name, "greedy": greedy, "sampled": sampled, "policy": str(policy)}
            if SUCCESS[0] <= sampled <= SUCCESS[1]:
                break
            more = sampled < SUCCESS[0]
            name, episodes = f"start-{'more' if more else 'less'}", 500 if self.cuda else 20
            options = [
                f"warmstart.episodes={episodes}",
                *([f"policy.path={policy}", "warmstart.rounds=1"] if more else []),
            ]
        return found

    def sampler(self) -> dict[str, Any]:
        """Whether vLLM samples as the learner scores; otherwise the local sampler plays."""
        asked = [sys.executable, "-c", "import vllm"]
        if not self.cuda or subprocess.run(asked, stderr=subprocess.DEVNULL).returncode:
            return {"backend": "local", "reason": "vLLM is not there"}
        options = [*self.begins(), "method=grpo", "wia=off", "aiw=off", "train.iterations=1", "rollout.backend=vllm"]
        failed = self.together({"sampler": lambda: self.train("sampler", *options, "rollout.eval_sampled=0")})[
            "sampler"
        ]
        rows = iterations(self.runs / "sampler")
        if failed or not rows:
            return {"backend": "local", "reason": self.last_words("sampler")}
        mismatch = rows[-1]["mismatch"]
        backend = "vllm" if mismatch < MISMATCH else "local"
        return {"backend": backend, "mismatch": mismatch, "tokens_per_second": rows[-1]["tokens_per_second"]}

    def begins(self) -> list[str]:
        """The options of all runs that begin with the warm start."""
        shared = [
            "optim.micro_batch_tokens=4096",
            "vllm.memory=0.11",
            "vllm.extra={kv_cache_memory_bytes: 2147483648, max_num_seqs: 512}",
        ]
        policy = self.done["start"]["policy"]
        return [
            f"policy.path={policy}",
            "warmstart.episodes=0",
            "optim.schedule=constant",
            *(shared if self.cuda else []),
        ]

    def screen(self) -> dict[str, Any]:
        """The rate at which GRPO learns most in six iterations, among those without an alarm."""
        fixed = [
            *self.begins(),
            "method=grpo",
            "wia=off",
            "aiw=off",
            f"rollout.backend={self.done['sampler']['backend']}",
        ]
        fixed += [
            f"train.iterations={6 if self.cuda else 2}",
            "rollout.eval_sampled=0",
            "train.evaluate_every=0",
            "env.eval_tasks=4",
        ]
        self.together(
            {f"rate-{rate}": lambda r=rate: self.train(f"rate-{r}", *fixed, f"optim.lr={r}") for rate in RATES}
        )
        success, alarmed = {}, []
        for rate in RATES:
            if rows := iterations(self.runs / f"rate-{rate}"):
                success[rate] = statistics.mean(row["success"] for row in rows[-3:])
                alarmed += [rate] if any(row.get("alarms") for row in rows) else []
        if not success:
            raise Failed(f"no run of the screen has an iteration: {self.last_words(f'rate-{RATES[0]}')}")
        sound = [rate for rate in success if rate not in alarmed] or [RATES[0]]
        return {"rate": max(sound, key=lambda rate: success.get(rate, 0.0)), "success": success, "alarms": alarmed}

    def arms(self) -> dict[str, Any]:
        """GRPO, GiGPO and Role-Agent from the same start, until the time is over."""
        backend = self.done["sampler"]["backend"]
        short = self.cuda and self.left < 18
        methods = METHODS if backend == "vllm" or not self.cuda else METHODS[1:]
        seeds = [0] if short else [0, 1]
        every = 10 if self.cuda else 1
        limit = [f"train.stop_after={max(30, int(60 * (self.left - RESERVE)))}s"] if self.cuda else []
        fixed = [
            *self.begins(),
            f"rollout.backend={backend}",
            f"optim.lr={self.done['screen']['rate']}",
            "rollout.eval_sampled=0",
        ]
        fixed += [f"train.evaluate_every={every}", f"train.checkpoint_every={every}", "train.evaluate_tasks=0"]
        fixed += [f"train.iterations={(20 if short else 1000) if self.cuda else 2}", *limit]

        def begin(method: str, seed: int) -> subprocess.Popen[bytes]:
            other = [] if method == "role_agent" else ["wia=off", "aiw=off"]
            return self.train(f"arm-{method}-{seed}", *fixed, f"method={method}", *other, f"seed={seed}")

        wanted = {f"arm-{m}-{s}": lambda m=m, s=s: begin(m, s) for s in seeds for m in methods}
        status = self.together(wanted, self.keep)
        full = [name for name, code in status.items() if code and "out of memory" in self.last_words(name).lower()]
        if full:  # those of the second seed made room by their end, and stay as far as they came
            again = {name: begin for name, begin in wanted.items() if name in full and name.endswith("-0")}
            status |= self.together(again, self.keep)
        return {
            "status": status,
            "iterations": {name: len(iterations(self.runs / name)) for name in wanted},
            "out_of_memory": full,
        }

    def keep(self) -> None:
        """Keeps the policies that the last evaluation may ask for: their files have a second name, and take no room."""
        every = 10 if self.cuda else 1
        for path in self.runs.glob("arm-*/checkpoints/step-5?????"):
            number = int(path.name.removeprefix("step-")) - 500_000
            kept = self.folder / "kept" / f"{path.parents[1].name}-{number}"
            if number and number % every == 0 and not kept.exists():
                with contextlib.suppress(OSError):  # the run has just replaced it
                    partial = kept.with_suffix(".partial")
                    shutil.rmtree(partial, ignore_errors=True)
                    shutil.copytree(path / "policy", partial, copy_function=os.link)
                    partial.rename(kept)

    def last(self) -> dict[str, Any]:
        """All arms on the same games at the largest iteration that all have."""
        self.keep()
        names = [path.name for path in self.runs.glob("arm-*")]
        numbers = [
            {int(path.name.rsplit("-", 1)[1]) for path in (self.folder / "kept").glob(f"{name}-*")} for name in names
        ]
        common = set.intersection(*numbers) if numbers else set()
        if not common:
            return {"iteration": 0}
        number, starts = max(common), {}
        final = self.folder / "final"
        final.mkdir(exist_ok=True)
        played = {name: self.folder / "kept" / f"{name}-{number}" for name in sorted(names)}
        played["start"] = Path(self.done["start"]["policy"])
        for name, policy in played.items():
            for split in SPLITS if self.cuda else ("train",):
                config = self.runs / (name if name != "start" else names[0]) / "config.yaml"
                command = [
                    "evaluate.py",
                    "--agent",
                    str(policy),
                    "--config",
                    str(config),
                    "--split",
                    split,
                    "--no-transcripts",
                ]
                command += ["--out", str(final / f"{name}-{split}.jsonl"), "--set", "wia=off"]
                starts[f"last-{name}-{split}"] = lambda n=f"last-{name}-{split}", c=command: self.start(n, *c)
        return {"iteration": number, "status": self.together(starts)}


def iterations(run: Path) -> list[dict[str, Any]]:
    """The logged iterations of a run."""
    log = run / "metrics.jsonl"
    rows = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return [row for row in rows if row["stage"] == "train"]


def evaluations(run: Path) -> dict[int, EvalRecords]:
    """The evaluations of an arm by iteration."""
    found = {int(path.stem.removeprefix("iteration-")): path for path in run.glob("iteration-*.json")}
    if (run / "before.json").exists():
        found[0] = run / "before.json"
    return {number: EvalRecords.read(path) for number, path in found.items()}


def table(folder: Path) -> str:
    """What every method gained over the start, as far as its arms came; also written to ``table.md``."""
    arms: dict[str, dict[str, dict[int, EvalRecords]]] = {}
    for run in sorted((folder / "runs").glob("arm-*")):
        _, method, seed = run.name.split("-")
        if found := evaluations(run):
            arms.setdefault(method, {})[seed] = found
    if not arms:
        return ""
    reached = [max(found) for seeds in arms.values() for found in seeds.values()]
    common = set.intersection(*(set(found) for seeds in arms.values() for found in seeds.values()))
    number = max(common)
    lines = [
        f"Iteration {number}, the largest that all arms have evaluated ({min(reached)} to {max(reached)} reached):",
        "",
        "| method | seeds | games | start | success | gain, 95 % interval | over GRPO | s per iteration |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rng = np.random.default_rng(0)

    def row(
        name: str, seeds: int, sides: Sequence[Sequence[EvalRecords]], grpo: Sequence[EvalRecords], seconds: float
    ) -> str:
        gain = compare(sides[1], sides[0], rng)["success"]
        over = points(compare(sides[1], grpo, rng)["success"]) if grpo and name != "grpo" else "–"
        cells = [
            name,
            seeds,
            gain["tasks"],
            f"{gain['second']:.1%}",
            f"{gain['first']:.1%}",
            points(gain),
            over,
            f"{seconds:.1f}",
        ]
        return f"| {' | '.join(map(str, cells))} |"

    def seconds_of(method: str, seeds: Sequence[str]) -> float:
        rows = [one for seed in seeds for one in iterations(folder / "runs" / f"arm-{method}-{seed}")]
        return statistics.mean(one["seconds"] for one in rows) if rows else 0.0

    grpo = [found[number] for found in arms.get("grpo", {}).values()]
    for method, seeds in arms.items():
        sides = [found[0] for found in seeds.values()], [found[number] for found in seeds.values()]
        lines.append(row(method, len(seeds), sides, grpo, seconds_of(method, [*seeds])))
    for split in (*SPLITS, "train"):
        last = {path.name.removesuffix(f"-{split}.jsonl"): path for path in (folder / "final").glob(f"*-{split}.jsonl")}
        with contextlib.suppress(ValueError):  # an evaluation that was cut off
            read = {name: EvalRecords.read(path) for name, path in last.items()}
            start = read.pop("start", None)
            if start is None:
                continue
            lines += ["", f"On {split}, played again by the policies that were kept:", "", *lines[2:4]]
            chosen = {
                method: [read[f"arm-{method}-{seed}"] for seed in seeds if f"arm-{method}-{seed}" in read]
                for method, seeds in arms.items()
            }
            for method, sides in chosen.items():
                if sides:
                    lines.append(
                        row(
                            method,
                            len(sides),
                            ([start] * len(sides), sides),
                            chosen.get("grpo", []),
                            seconds_of(method, [*arms[method]]),
                        )
                    )
    text = "\n".join(lines) + "\n"
    (folder / "table.md").write_text(text)
    return text


def points(found: Mapping[str, Any]) -> str:
    """A difference of success with its interval, in points.

    >>> points({"difference": 0.1, "interval": [0.02, 0.18]})
    '+10.0 (+2 to +18)'
    """
    low, high = found["interval"]
    return f"{100 * found['difference']:+.1f} ({100 * low:+.0f} to {100 * high:+.0f})"


def main() -> int:
    """The command line; returns the exit status."""
    device, folder = sys.argv[1], Path(sys.argv[2])
    if device == "table":
        print(table(folder) or "no arm has an evaluation yet", end="")
        return 0
    try:
        lock = Lock(folder)
    except BlockingIOError:  # the steps are under way
        return 0
    learn = Learn(device, folder)
    try:
        learn.step("start", learn.warm_start)
        learn.step("sampler", learn.sampler)
        learn.step("screen", learn.screen)
        learn.step("arms", learn.arms)
        learn.step("last", learn.last)
        learn.step("all", lambda: {"passed": True, "table": table(folder)})
    except Failed as error:
        reason = str(error)
        learn.step("all", lambda: {"passed": False, "error": reason})
        return 1
    finally:
        lock.release()
    return 0


if __name__ == "__main__":
    sys.exit(main())
