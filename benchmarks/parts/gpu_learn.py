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
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.evaluation.comparison import EvalRecords, compare
from roleagent.files import Lock, drop_torn_line

ROOT = Path(__file__).resolve().parents[2]
RATES = ("1e-5", "3e-5", "1e-4")
METHODS = ("role_agent", "gigpo", "grpo")  # the slowest first
SPLITS = ("valid_seen", "valid_train")
SUCCESS = (0.20, 0.65)  # of the start, sampled: reinforcement needs groups with both outcomes
MISMATCH = 0.02  # nats per token between learner and vLLM
BATCH = 64  # episodes of each of the last evaluations, which share the GPU
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
    """A step has no result; the message says why."""


class Learn:
    """The steps, each of which is done once in a folder. One that failed is repeated by the next command, and so are
    those after it.

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
        if lines.exists():
            drop_torn_line(lines)
        self.done: dict[str, Mapping[str, Any]] = {}
        for one in map(json.loads, lines.read_text().splitlines() if lines.exists() else ()):
            before = takewhile(lambda item, name=one["step"]: item[0] != name, self.done.items())
            self.done = {**dict(before), one["step"]: one}
        self.done = dict(takewhile(lambda item: item[1]["passed"], self.done.items()))
        self.common = ["--config", "configs/one_gpu.yaml", *([] if self.cuda else TINY)]
        if self.cuda and (model := os.environ.get("MODEL")):
            self.common.append(f"policy.path={model}")

    @property
    def left(self) -> float:
        """Minutes."""
        return (self._end - time.time()) / 60

    def step(self, name: str, act: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Does a step, unless it is done; writes its result, then its archive.

        Raises:
            Failed: by the step; its result has the reason.
        """
        archive = f"{[*self.done, name].index(name):02d}-{name}"
        if name in self.done:
            if not (self.folder / f"{archive}.tar.xz").exists():  # killed just before
                self.archive(archive)
            return self.done[name]
        begun, failure = time.monotonic(), None
        try:
            found = {"step": name, "passed": True, **act()}
        except Failed as error:
            found, failure = {"step": name, "passed": False, "error": str(error)}, error
        found |= {"seconds": round(time.monotonic() - begun, 1), "minutes_left": round(self.left, 1)}
        table(self.folder)
        with (self.folder / "results.jsonl").open("a") as stream:
            stream.write(json.dumps(found) + "\n")
        self.archive(archive)
        self.done[name] = found
        if failure:
            raise failure
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
        self,
        starts: Mapping[str, Callable[[], subprocess.Popen[bytes]]],
        look: Callable[[], None] = lambda: None,
        again: Callable[[str], bool] = lambda name: False,
    ) -> dict[str, int]:
        """Exit statuses of programs that run side by side: all on a GPU, two at a time on a CPU.

        Args:
            look: is called twice a second.
            again: whether to start a program again that ended with an error.
        """
        waiting, running, status = dict(starts), {}, {}
        while waiting or running:
            while waiting and len(running) < (len(starts) if self.cuda else 2):
                name = next(iter(waiting))
                running[name] = waiting.pop(name)()
            for name in [name for name, process in running.items() if process.poll() is not None]:
                status[name] = running.pop(name).returncode
                if status[name] and again(name):
                    waiting[name] = starts[name]
            look()
            time.sleep(0.5)
        return status

    def last_words(self, name: str, length: int = 300) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace").strip()[-length:]

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
        if "mismatch" not in rows[-1]:
            return {"backend": "local", "reason": "no group had unlike rewards, so no update compared the two"}
        mismatch = rows[-1]["mismatch"]
        backend = "vllm" if mismatch < MISMATCH else "local"
        return {"backend": backend, "mismatch": mismatch, "tokens_per_second": rows[-1].get("tokens_per_second")}

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

    def seeds(self) -> dict[str, Any]:
        """One or two of each method, by the time that is left before the arms begin for the first time."""
        return {"seeds": [0] if self.cuda and self.left < 18 else [0, 1]}

    def arms(self) -> dict[str, Any]:
        """GRPO, GiGPO and Role-Agent from the same start, until the time is over.

        An arm of the first seed that is out of memory starts again at once with smaller micro-batches, which sum up to
        the same. One of the second seed stays as far as it came, and makes room.
        """
        backend = self.done["sampler"]["backend"]
        methods = METHODS if backend == "vllm" or not self.cuda else METHODS[1:]
        every = 10 if self.cuda else 1
        full: list[str] = []
        fixed = [
            *self.begins(),
            f"rollout.backend={backend}",
            f"optim.lr={self.done['screen']['rate']}",
            "rollout.eval_sampled=0",
        ]
        fixed += [f"train.evaluate_every={every}", f"train.checkpoint_every={every}", "train.evaluate_tasks=0"]
        fixed += [f"train.iterations={1000 if self.cuda else 2}"]

        def begin(name: str, method: str, seed: int) -> subprocess.Popen[bytes]:
            own = [] if method == "role_agent" else ["wia=off", "aiw=off"]
            own += [f"train.stop_after={max(30, int(60 * (self.left - RESERVE)))}s"] if self.cuda else []
            own += ["optim.micro_batch_tokens=1024"] if name in full else []
            return self.train(name, *fixed, *own, f"method={method}", f"seed={seed}")

        def again(name: str) -> bool:
            if "out of memory" not in self.last_words(name, 2000).lower():  # torch's message is long
                return False
            full.append(name)
            return name.endswith("-0") and full.count(name) == 1 and self.left > RESERVE

        names = {f"arm-{m}-{s}": (m, s) for s in self.done["seeds"]["seeds"] for m in methods}
        starts = {name: lambda n=name, of=of: begin(n, *of) for name, of in names.items()}
        status = self.together(starts, self.keep, again)
        if all(status.values()):
            raise Failed(f"all arms ended with errors: {self.last_words(next(iter(names)))}")
        return {
            "passed": not any(status.values()),
            "status": status,
            "iterations": {name: len(iterations(self.runs / name)) for name in names},
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
        """The arms on the same games, at the largest iteration of which every method has a policy."""
        self.keep()
        kept = defaultdict(set)
        for path in (self.folder / "kept").glob("arm-*-*"):
            if path.suffix != ".partial":
                name, _, number = path.name.rpartition("-")
                kept[name].add(int(number))
        number = largest_common(kept)
        if not number:
            raise Failed("no arm has kept a policy")
        final = self.folder / "final" / str(number)
        final.mkdir(parents=True, exist_ok=True)
        played = {n: self.folder / "kept" / f"{n}-{number}" for n in sorted(kept) if number in kept[n]}
        config, starts = self.runs / next(iter(played)) / "config.yaml", {}
        played["start"] = Path(self.done["start"]["policy"])
        for name, policy in played.items():
            for split in SPLITS if self.cuda else ("train",):
                command = ["evaluate.py", "--agent", str(policy), "--config", str(config), "--split", split]
                command += ["--no-transcripts", "--batch", str(BATCH), "--set", "wia=off"]
                command += ["--out", str(final / f"{name}-{split}.jsonl")]
                starts[f"last-{name}-{split}"] = lambda n=f"last-{name}-{split}", c=command: self.start(n, *c)
        status = self.together(starts)
        if all(status.values()):
            raise Failed(f"all last evaluations ended with errors: {self.last_words(next(iter(starts)))}")
        return {"passed": not any(status.values()), "iteration": number, "status": status}


def largest_common(reached: Mapping[str, Iterable[int]]) -> int:
    """The largest iteration that an arm of every method has reached; methods that are still at the start do not count.

    >>> largest_common({"arm-grpo-0": [0, 10, 20], "arm-grpo-1": [0, 10], "arm-gigpo-0": [0, 10, 20, 30]})
    20
    >>> largest_common({"arm-grpo-0": [0, 10], "arm-gigpo-0": [0]}), largest_common({"arm-grpo-0": [0]})
    (10, 0)
    """
    methods: dict[str, set[int]] = defaultdict(set)
    for name, numbers in reached.items():
        methods[name.split("-")[1]] |= {*numbers} - {0}
    found = [numbers for numbers in methods.values() if numbers]
    return max(set.intersection(*found), default=0) if found else 0


def iterations(run: Path) -> list[dict[str, Any]]:
    """The logged iterations of a run, without a line that a kill has cut off."""
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [row for row in rows if row["stage"] == "train"]


def evaluations(paths: Mapping[Any, Path]) -> dict[Any, EvalRecords]:
    """Those that can be read and are complete: of one that was cut off, the short episodes are known."""
    found = {}
    for key, path in paths.items():
        with contextlib.suppress(ValueError):
            records = EvalRecords.read(path)
            if len({one.task_id for one in records.records if one.sound}) == records.task_split["tasks"]:
                found[key] = records
    return found


def table(folder: Path) -> str:
    """What every method gained over the start, as far as its arms came; also written to ``table.md``."""
    arms: dict[str, dict[int, EvalRecords]] = {}
    for run in sorted((folder / "runs").glob("arm-*")):
        paths = {int(path.stem.removeprefix("iteration-")): path for path in run.glob("iteration-*.json")}
        arms[run.name] = evaluations({0: run / "before.json", **paths})
    if not any(arms.values()):
        return ""
    number = largest_common(arms)
    lines = ["No arm has an evaluation beyond the start."]
    if number:
        lines = [f"Iteration {number}, the largest that an arm of every method has evaluated:"]
        sides = {name: (found[0], found[number]) for name, found in arms.items() if {0, number} <= {*found}}
        lines += by_method(folder, arms, sides)
    finals = sorted((folder / "final").glob("*"), key=lambda path: int(path.name))
    for split in (*SPLITS, "train") if finals else ():
        last = finals[-1]
        files = {path.name.removesuffix(f"-{split}.jsonl"): path for path in last.glob(f"*-{split}.jsonl")}
        read = evaluations(files)
        if files:
            lines += ["", f"Iteration {last.name} on {split}, played again by the policies that were kept:"]
            start = read.pop("start", None)
            lines += by_method(folder, arms, {name: (start, one) for name, one in read.items()} if start else {})
    text = "\n".join(lines) + "\n"
    (folder / "table.md").write_text(text)
    return text


def by_method(folder: Path, arms: Iterable[str], sides: Mapping[str, tuple[EvalRecords, EvalRecords]]) -> list[str]:
    """The lines of a table: a method each, and the arms that are left out.

    Args:
        folder: of everything.
        arms: the names of all.
        sides: before and after, by the names of the arms that have both.
    """
    lines = [
        "",
        "| method | seeds | games | start | success | gain, 95 % interval | over GRPO | s per iteration |",
        "|---|---|---|---|---|---|---|---|",
    ]
    methods: dict[str, list[str]] = defaultdict(list)
    for name in sides:
        methods[name.split("-")[1]].append(name)
    rng = np.random.default_rng(0)
    grpo = [sides[name][1] for name in methods.get("grpo", ())]
    for method, names in sorted(methods.items()):
        before, after = zip(*(sides[name] for name in names), strict=True)
        gain = compare(after, before, rng)["success"]
        seconds = [one["seconds"] for name in names for one in iterations(folder / "runs" / name)]
        cells = [
            method,
            len(names),
            gain["tasks"],
            f"{gain['second']:.1%}",
            f"{gain['first']:.1%}",
            points(gain),
            points(compare(after, grpo, rng)["success"]) if grpo and method != "grpo" else "–",
            f"{statistics.mean(seconds or [0.0]):.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    done = {name: len(iterations(folder / "runs" / name)) for name in sorted(arms) if name not in sides}
    if done:
        absent = ", ".join(f"{name} ({count} iterations)" for name, count in done.items())
        lines += ["", f"Left out, without an evaluation of it or of the start: {absent}."]
    return lines


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
    try:
        learn = Learn(device, folder)
        steps = {
            "start": learn.warm_start,
            "sampler": learn.sampler,
            "screen": learn.screen,
            "seeds": learn.seeds,
            "arms": learn.arms,
            "last": learn.last,
        }
        passed = all([learn.step(name, act)["passed"] for name, act in steps.items()])
        learn.step("all", lambda: {"passed": passed, "table": table(folder)})
    except Failed as error:
        print(error)
        return 1
    finally:
        lock.release()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
