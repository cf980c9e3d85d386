"""The steps of benchmarks/gpu_learn.sh.

python benchmarks/parts/gpu_learn.py cuda|cpu FOLDER
python benchmarks/parts/gpu_learn.py table FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from roleagent.agents.evaluation.comparison import EvalRecords, by_task, compare
from roleagent.agents.evaluation.statistics import rate as rate_of
from roleagent.agents.evaluation.statistics import signed
from roleagent.files import Lock, drop_torn_line, write_whole
from roleagent.timer import ROLLOUT

ROOT = Path(__file__).resolve().parents[2]
RATES = ("1e-5", "3e-5", "1e-4")
METHODS = ("role_agent", "gigpo", "grpo")  # the slowest first
SPLITS = ("valid_seen", "valid_train")
SUCCESS = (0.20, 0.65)  # of the start, sampled: reinforcement needs groups with both outcomes
ARRIVAL = float(os.environ.get("ARRIVAL", "5"))  # minutes after the first command until which vLLM may still arrive
MISMATCH = 0.02  # nats per token between learner and vLLM
ENGINES = (2, 0)  # vLLM's in an arm: two in processes of their own, or the one within its process, seen on a GPU before
BATCH = 64  # episodes of each of the last evaluations, which share the GPU
HANGS = 4.0  # minutes for vLLM's first run, and for the screen: either needs two
RESERVE = 3.5  # minutes for the last evaluations, the table and the archive
TAIL = 20_000  # bytes of a log that are kept
GPU_USE = "gpu-use.log"  # percent, one sample a line

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
        self._under_way, self._seen = "", set[Path]()
        begun = folder / "begun"
        if not begun.exists():
            begun.write_text(str(time.time()))
        self._begun = float(begun.read_text())
        self._end = self._begun + 60 * float(os.environ.get("MINUTES", "30"))
        lines = folder / "results.jsonl"
        if lines.exists():
            drop_torn_line(lines)
        self.done: dict[str, Mapping[str, Any]] = {}
        for one in map(json.loads, lines.read_text().splitlines() if lines.exists() else ()):
            before = takewhile(lambda item, name=one["step"]: item[0] != name, self.done.items())
            self.done = {**dict(before), one["step"]: one}
        self.done = dict(takewhile(lambda item: item[1]["passed"], self.done.items()))
        if self.cuda and self.done.get("sampler", {}).get("backend") == "local" and not self.trained():
            self.done = dict(takewhile(lambda item: item[0] != "sampler", self.done.items()))  # vLLM may be there now
            for run in self.runs.glob("rate-*"):
                shutil.rmtree(run)
        # With its optimizer a checkpoint takes 2.2 GB, and a dozen runs share a disk.
        self.common = ["--config", "configs/one_gpu.yaml", "train.keep_checkpoints=1", "train.keep_warmstart=off"]
        self.common += [] if self.cuda else TINY
        if self.cuda and (model := os.environ.get("MODEL")):
            self.common.append(f"policy.path={model}")
            os.environ.setdefault("HF_HUB_OFFLINE", "1")

    @property
    def left(self) -> float:
        """Minutes."""
        return (self._end - time.time()) / 60

    def trained(self) -> bool:
        """Whether a run of the screen or an arm has an iteration."""
        return any(iterations(run) for kind in ("rate-*", "arm-*") for run in self.runs.glob(kind))

    def step(self, name: str, act: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Does a step, unless it is done; writes its result, then its archive.

        Raises:
            Failed: by the step; its result has the reason.
        """
        self._under_way = f"{[*self.done, name].index(name):02d}-{name}"
        if name in self.done:
            archive = self.folder / f"{self._under_way}.tar.xz"
            if not archive.exists() or name == [*self.done][-1]:  # killed just before, it lacks the result
                self.publish()
            return self.done[name]
        begun, failure = time.monotonic(), None
        try:
            found = {"step": name, "passed": True, **act()}
        except Failed as error:
            found, failure = {"step": name, "passed": False, "error": str(error)}, error
        found |= {"seconds": round(time.monotonic() - begun, 1), "minutes_left": round(self.left, 1)}
        with (self.folder / "results.jsonl").open("a") as stream:
            stream.write(json.dumps(found) + "\n")
        self.publish()
        self.done[name] = found
        if failure:
            raise failure
        return found

    def publish(self) -> None:
        """Writes the table, and the archive of the step that is under way."""
        table(self.folder)
        part = self.folder / ".archive"
        with tarfile.open(part, "w:xz") as archive:
            for path in self.small_files():
                with contextlib.suppress(FileNotFoundError):  # a run has just replaced it
                    data = path.read_bytes()[-TAIL if path.suffix == ".log" else 0 :]
                    entry = tarfile.TarInfo(str(path.relative_to(self.folder)))
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
        part.rename(self.folder / f"{self._under_way}.tar.xz")

    def small_files(self) -> Iterable[Path]:
        """Metrics, evaluations, results and logs: not what a policy weighs."""
        for folder, inner, names in os.walk(self.folder):  # unlike rglob, it passes over what is removed meanwhile
            inner[:] = sorted({*inner} - {"checkpoints", "kept"})
            for path in (Path(folder, name) for name in sorted(names)):
                if path.suffix in (".log", ".json", ".jsonl") or path.name in ("config.yaml", "table.md"):
                    yield path

    def look(self) -> None:
        """Publishes what has come since the last look, while runs are under way."""
        self.keep()
        evaluated = ("runs/*/before*.json", "runs/*/iteration-*.json", "final/*/*.json")
        found = {path for pattern in evaluated for path in self.folder.glob(pattern)}
        if found - self._seen:
            self._seen = found
            self.publish()

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
        again: Callable[[str], bool] = lambda name: False,
        minutes: float = math.inf,
    ) -> dict[str, int]:
        """Exit statuses of programs that run side by side: all on a GPU, two at a time on a CPU.

        Args:
            again: whether to start a program again that ended with an error.
            minutes: on a GPU, after which those that still run are killed: an engine may hang.
        """
        waiting, running, status = dict(starts), {}, {}
        end = time.monotonic() + 60 * minutes
        while waiting or running:
            if self.cuda and time.monotonic() > end:
                waiting.clear()
                for process in running.values():
                    process.kill()
            while waiting and len(running) < (len(starts) if self.cuda else 2):
                name = next(iter(waiting))
                running[name] = waiting.pop(name)()
            for name in [name for name, process in running.items() if process.poll() is not None]:
                status[name] = running.pop(name).returncode
                if status[name] and again(name):
                    waiting[name] = starts[name]
            self.look()
            time.sleep(0.5)
        return status

    def last_words(self, name: str, length: int = 300) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace").strip()[-length:]

    # The steps.

    def warm_start(self) -> dict[str, Any]:
        """The policy that all arms begin with. If its success is out of range, a second one with a weaker or a longer
        warm start; the one nearer to the range is taken, and the result and the table say where it lies."""
        name, options, tried = "start", [], list[dict[str, Any]]()
        for _ in range(2):
            fixed = ["train.iterations=0", "rollout.backend=local", "rollout.eval_sampled=1.0", *options]
            begin = {name: lambda n=name, o=fixed: self.train(n, *o)}
            if self.together(begin, minutes=max(2.0, self.left - RESERVE))[name]:
                if tried:
                    break
                raise Failed(f"the warm start ended with an error: {self.last_words(name)}")
            run = self.runs / name
            sampled, greedy = (
                json.loads((run / f"before{kind}.json").read_text())["success"] for kind in ("-sampled", "")
            )
            policy = max((run / "checkpoints").glob("step-*")) / "policy"
            tried.append({"run": name, "greedy": greedy, "sampled": sampled, "policy": str(policy)})
            if not outside(sampled):
                break
            more = sampled < SUCCESS[0]
            name, episodes = f"start-{'more' if more else 'less'}", (500 if more else 200) if self.cuda else 20
            options = [f"warmstart.episodes={episodes}"]
            if more:
                options += [f"policy.path={policy}", "warmstart.rounds=1", "warmstart.round_episodes=256"]
        found = min(tried, key=lambda one: outside(one["sampled"]))
        if outside(found["sampled"]):
            low, high = SUCCESS
            won = f"the start wins {found['sampled']:.1%} at temperature 1, and not {low:.0%} to {high:.0%}"
            found["out_of_range"] = f"{won}: below, few groups have both outcomes; above, little can be gained"
        return found

    def sampler(self) -> dict[str, Any]:
        """Whether vLLM samples as the learner scores; otherwise the local sampler plays."""
        if not self.cuda:
            return {"backend": "local"}
        while reason := self.without_vllm():
            if time.time() > self._begun + 60 * ARRIVAL:
                return {"backend": "local", "reason": reason}
            time.sleep(5)
        for engines in ENGINES:
            options = [*self.begins(engines), "method=grpo", "wia=off", "aiw=off", "train.iterations=1"]
            options += ["rollout.backend=vllm", "rollout.eval_sampled=0"]
            failed = self.together({"sampler": lambda o=options: self.train("sampler", *o)}, minutes=HANGS)["sampler"]
            rows = iterations(self.runs / "sampler")
            if rows and not failed:
                break
        else:
            return {"backend": "local", "reason": self.last_words("sampler", 1000)}
        if "mismatch" not in rows[-1]:
            return {"backend": "local", "reason": "no group had unlike rewards, so no update compared the two"}
        found = {"mismatch": rows[-1]["mismatch"], "tokens_per_second": rows[-1].get("tokens_per_second")}
        if rows[-1]["mismatch"] >= MISMATCH:
            return {"backend": "local", "reason": f"vLLM and the learner differ by {MISMATCH} nats or more", **found}
        return {"backend": "vllm", "engines": engines, **found}

    def without_vllm(self) -> str:
        """Why vLLM cannot be imported; empty if it can. What Python said is in ``vllm.log``."""
        with (self.folder / "vllm.log").open("wb") as log:
            asked = subprocess.run([sys.executable, "-c", "from vllm import LLM"], stdout=log, stderr=log)
        if not asked.returncode:
            return ""
        if "No module named 'vllm'" in self.last_words("vllm"):
            return "vLLM is not there"
        return f"vLLM is broken, import ended with status {asked.returncode}: {self.last_words('vllm', 1000)}"

    def begins(self, engines: int | None = None) -> list[str]:
        """The options of all runs that begin with the warm start.

        Args:
            engines: ``vllm.engines``; by default those of the step ``sampler``.
        """
        if engines is None:
            engines = int(self.done["sampler"].get("engines", 0))
        policy = self.done["start"]["policy"]
        return [
            f"policy.path={policy}",
            "warmstart.episodes=0",
            "optim.schedule=constant",
            *(side_by_side(engines) if self.cuda else []),
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
            {f"rate-{rate}": lambda r=rate: self.train(f"rate-{r}", *fixed, f"optim.lr={r}") for rate in RATES},
            minutes=HANGS,
        )
        success, alarmed = {}, []
        for run in self.runs.glob("rate-*/checkpoints"):
            shutil.rmtree(run)
        for rate in RATES:
            if rows := iterations(self.runs / f"rate-{rate}"):
                success[rate] = statistics.mean(row["success"] for row in rows[-3:])
                alarmed += [rate] if any(row.get("alarms") for row in rows) else []
        if not success:
            raise Failed(f"no run of the screen has an iteration: {self.last_words(f'rate-{RATES[0]}')}")
        sound = [rate for rate in success if rate not in alarmed] or [RATES[0]]
        return {"rate": max(sound, key=lambda rate: success.get(rate, 0.0)), "success": success, "alarms": alarmed}

    def seeds(self) -> dict[str, Any]:
        """Two seeds of each method until the time is over, or one and 20 iterations if less than 18 minutes are left
        before the arms begin for the first time."""
        if not self.cuda:
            return {"seeds": [0, 1], "iterations": 2}
        return {"seeds": [0], "iterations": 20} if self.left < 18 else {"seeds": [0, 1], "iterations": 1000}

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
        fixed += [f"train.iterations={self.done['seeds']['iterations']}"]

        def begin(name: str, method: str, seed: int) -> subprocess.Popen[bytes]:
            own = [] if method == "role_agent" else ["wia=off", "aiw=off"]
            # Its clock starts when it has loaded, and it ends with an iteration, a checkpoint and an evaluation.
            own += [f"train.stop_after={max(30, int(60 * (self.left - RESERVE - 1)))}s"] if self.cuda else []
            own += ["optim.micro_batch_tokens=1024"] if name in full else []
            return self.train(name, *fixed, *own, f"method={method}", f"seed={seed}")

        def again(name: str) -> bool:
            said = self.last_words(name, 2000).lower()  # torch's message is long
            if "out of memory" not in said and "free memory on device" not in said:  # that of vLLM's start
                return False
            full.append(name)
            return name.endswith("-0") and full.count(name) == 1 and self.left > RESERVE

        names = {f"arm-{m}-{s}": (m, s) for s in self.done["seeds"]["seeds"] for m in methods}
        starts = {name: lambda n=name, of=of: begin(n, *of) for name, of in names.items()}
        with self.gpu_use():
            # Each is to stop by itself, two minutes earlier.
            status = self.together(starts, again, minutes=max(2.0, self.left - RESERVE + 1))
        if all(status.values()):
            raise Failed(f"all arms ended with errors: {self.last_words(next(iter(names)))}")
        return {
            "passed": not any(status.values()),
            "status": status,
            "iterations": {name: len(iterations(self.runs / name)) for name in names},
            "out_of_memory": full,
        }

    @contextlib.contextmanager
    def gpu_use(self) -> Iterator[None]:
        """Samples the share of time in which the GPU computes, every ten seconds."""
        if not self.cuda:
            yield
            return
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0] or "0"
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--id={card}"]
        query.append("--loop=10")
        with (self.folder / GPU_USE).open("ab") as log:
            sampling = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *query], stdout=log)
        try:
            yield
        finally:
            sampling.kill()
            sampling.wait()

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
        seeds = paired_seeds(self.kept())
        wanted = self.done.get("seeds", {}).get("seeds", ())
        if seeds and len(seeds[number := most_seeds(seeds)]) == len(wanted):
            for name, numbers in self.kept().items():
                for old in (one for one in numbers if one < number):  # a later one has as many seeds
                    shutil.rmtree(self.folder / "kept" / f"{name}-{old}")

    def kept(self) -> dict[str, set[int]]:
        """The iterations of which a policy is kept, by arm."""
        found: dict[str, set[int]] = defaultdict(set)
        for path in (self.folder / "kept").glob("arm-*-*"):
            if path.suffix != ".partial":
                name, _, number = path.name.rpartition("-")
                found[name].add(int(number))
        return found

    def last(self) -> dict[str, Any]:
        """The arms on the same games, at the iteration that the table takes; by the sampler of the arms."""
        self.keep()
        kept = self.kept()
        seeds = paired_seeds(kept)
        if not seeds:
            raise Failed("at no iteration has every method kept a policy of the same seed")
        number = most_seeds(seeds)
        final = self.folder / "final" / str(number)
        final.mkdir(parents=True, exist_ok=True)
        played = {n: self.folder / "kept" / f"{n}-{number}" for n in sorted(kept) if n.split("-")[2] in seeds[number]}
        config, starts = self.runs / next(iter(played)) / "config.yaml", {}
        played["start"] = Path(self.done["start"]["policy"])
        backend = self.done["sampler"]["backend"]
        # One engine within each process: twice as many processes as in the arms share the GPU.
        options = ["wia=off", f"rollout.backend={backend}", *(["vllm.engines=0"] if backend == "vllm" else [])]
        for name, policy in played.items():
            for split in SPLITS if self.cuda else ("train",):
                command = ["evaluate.py", "--agent", str(policy), "--config", str(config), "--split", split]
                command += ["--no-transcripts", "--batch", str(BATCH)]
                command += [part for option in options for part in ("--set", option)]
                command += ["--out", str(final / f"{name}-{split}.jsonl")]
                starts[f"last-{name}-{split}"] = lambda n=f"last-{name}-{split}", c=command: self.start(n, *c)
        status = self.together(starts, minutes=max(2.0, self.left))
        if all(status.values()):
            raise Failed(f"all last evaluations ended with errors: {self.last_words(next(iter(starts)))}")
        return {"passed": not any(status.values()), "iteration": number, "seeds": seeds[number], "status": status}


def side_by_side(engines: int) -> list[str]:
    """What differs from ``configs/one_gpu.yaml`` where six runs share a GPU of 80 GB and 16 cores.

    256 episodes of the start, of 15 turns, have 229,000 tokens at their end, of 23 KB. Half of them fit the cache, of
    2.5 GiB, however many engines share it; late turns read some of their texts again. Computed by the rates of
    docs/vllm.md, as if a run had the card for itself: two engines play an iteration in 2.4 s instead of 5.6. It then
    takes 4.5 s, in which a run's three processes compute for 7.2 s: six runs need 10 of 16 cores, and 13 GiB each. Four
    engines save 0.7 s more and do not fit. Not one step ahead: the other runs fill a run's gaps, and Role-Agent would
    have to predict in every turn.
    """
    cache = 5 * 2**29 // max(1, engines)
    return [
        "optim.micro_batch_tokens=2048",
        "vllm.memory=0.11",
        f"vllm.engines={engines}",
        f"vllm.extra={{kv_cache_memory_bytes: {cache}, max_num_seqs: {256 // max(1, engines)}}}",
    ]


def outside(success: float) -> float:
    """How far a success lies outside of the range in which reinforcement finds groups with both outcomes.

    >>> outside(0.2), outside(0.5), round(outside(0.02), 2), round(outside(0.9), 2)
    (0.0, 0.0, 0.18, 0.25)
    """
    return max(SUCCESS[0] - success, success - SUCCESS[1], 0.0)


def paired_seeds(reached: Mapping[str, Iterable[int]]) -> dict[int, list[str]]:
    """The seeds of which every method has reached an iteration, by iteration. Methods that are still at the start do
    not count.

    >>> paired_seeds({"arm-grpo-0": [0, 10, 20], "arm-grpo-1": [0, 10], "arm-gigpo-0": [0, 10, 20, 30]})
    {10: ['0'], 20: ['0']}
    >>> paired_seeds({"arm-grpo-0": [0, 10], "arm-gigpo-0": [0]})
    {10: ['0']}
    >>> paired_seeds({"arm-grpo-0": [10], "arm-gigpo-1": [10]})
    {}
    """
    arms = {tuple(name.split("-")[1:]): {*numbers} - {0} for name, numbers in reached.items()}
    methods = {method for (method, _), numbers in arms.items() if numbers}
    found = {
        number: [s for s in sorted({s for _, s in arms}) if all(number in arms.get((m, s), ()) for m in methods)]
        for number in sorted(set().union(*arms.values()))
    }
    return {number: seeds for number, seeds in found.items() if seeds}


def most_seeds(seeds: Mapping[int, list[str]]) -> int:
    """The iteration with the most seeds, and among these the largest.

    >>> most_seeds({10: ["0", "1"], 20: ["0", "1"], 30: ["0"]})
    20
    """
    return max(seeds, key=lambda number: (len(seeds[number]), number))


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
    lines = start_lines(folder)
    seeds = paired_seeds({name: found for name, found in arms.items() if 0 in found})
    if not seeds:
        lines += ["At no iteration beyond the start has every method an evaluation of the same seed.", ""]
    for number in dict.fromkeys((most_seeds(seeds), max(seeds)) if seeds else ()):
        sides = {n: (found[0], found[number]) for n, found in arms.items() if {0, number} <= {*found}}
        lines += [f"Iteration {number}, the same seeds and games of every method ({named(seeds[number])}):"]
        lines += [*by_method(arms, sides, seeds[number]), ""]
    lines += by_arm(folder, arms)
    finals = sorted((folder / "final").glob("*"), key=lambda path: int(path.name))
    for split in (*SPLITS, "train") if finals else ():
        last = finals[-1]
        files = {path.name.removesuffix(f"-{split}.jsonl"): path for path in last.glob(f"*-{split}.jsonl")}
        read = evaluations(files)
        start = read.pop("start", None)
        sides = {name: (start, one) for name, one in read.items()} if start else {}
        if found := paired_seeds(dict.fromkeys(sides, (int(last.name),))).get(int(last.name)):
            lines += ["", f"Iteration {last.name} on {split}, the kept policies once more ({named(found)}):"]
            lines += by_method(arms, sides, found)
    text = "\n".join(lines) + "\n"
    write_whole(folder / "table.md", text)
    return text


def start_lines(folder: Path) -> list[str]:
    """A warning where the start is out of range."""
    results = folder / "results.jsonl"
    rows = map(json.loads, results.read_text().splitlines() if results.exists() else ())
    start = [row for row in rows if row["step"] == "start"][-1:]
    return [line for row in start if "out_of_range" in row for line in [*wrapped(f"NOTE: {row['out_of_range']}."), ""]]


def by_method(arms: Iterable[str], sides: Mapping[str, tuple[EvalRecords, EvalRecords]], seeds: list[str]) -> list[str]:
    """The lines of a table: a method each, and what is left out.

    Args:
        arms: the names of all.
        sides: before and after, by the names of the arms that have both.
        seeds: those that every method in the table has.
    """
    methods: dict[str, list[str]] = defaultdict(list)
    for name in sides:
        if name.split("-")[2] in seeds:
            methods[name.split("-")[1]].append(name)
    lines = [
        "",
        "| method | start | success, 95 % | gain, 95 % | won/lost | over GRPO |",
        "|---|---|---|---|---|---|",
    ]
    rng = np.random.default_rng(0)
    grpo = [sides[name][1] for name in methods.get("grpo", ())]
    for method, names in sorted(methods.items()):
        before, after = zip(*(sides[name] for name in names), strict=True)
        gain = compare(after, before, rng)["success"]
        cells = [
            method,
            f"{100 * gain['second']:.1f}",
            percent(after),
            points(gain),
            won_and_lost(before, after),
            points(compare(after, grpo, rng)["success"]) if grpo and method != "grpo" else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    absent = sorted({name.split("-")[1] for name in arms} - {*methods})
    if absent:
        lines += ["", *wrapped(f"Left out, without an evaluation beyond the start: {', '.join(absent)}.")]
    others = [name for name in sorted(arms) if name.split("-")[1] in methods and name.split("-")[2] not in seeds]
    if others:
        lines += ["", *wrapped(f"Not every method has their seeds, so they are left out: {', '.join(others)}.")]
    return lines


def by_arm(folder: Path, arms: Mapping[str, Mapping[int, EvalRecords]]) -> list[str]:
    """The lines of a table: each arm's latest evaluation, and seconds per iteration; of these also the GPU's use."""
    lines = [
        "Each arm's latest evaluation, and seconds per iteration:",
        "",
        "| arm | iteration | success, 95 % | won/lost | seconds | play | update | rest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in arms.items():
        rows = iterations(folder / "runs" / name)
        whole, play, update = (
            statistics.mean([sum(row.get(part, 0.0) for part in parts) for row in rows] or [0.0])
            for parts in (["seconds"], [f"{part}_seconds" for part in ROLLOUT], ["update_seconds"])
        )
        number = max(found, default=None)
        cells = [
            name.removeprefix("arm-"),
            "–" if number is None else f"{number}",
            "–" if number is None else percent([found[number]]),
            won_and_lost([found[0]], [found[number]]) if number and 0 in found else "–",
            *(f"{seconds:.1f}" for seconds in (whole, play, update, whole - play - update)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    use = folder / GPU_USE
    samples = [int(line) for line in use.read_text().splitlines() if line.strip().isdigit()] if use.exists() else []
    if samples:
        lines += ["", f"GPU use while the arms ran: {statistics.mean(samples):.0f} % ({len(samples)} samples)."]
    return lines


def percent(after: Iterable[EvalRecords]) -> str:
    """Success with its interval over tasks, in percent."""
    records = [record for one in after for record in one.records if record.sound]
    found = rate_of([record.won for record in records], [record.task_id for record in records])
    return f"{100 * found.value:.1f} [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def won_and_lost(before: Iterable[EvalRecords], after: Iterable[EvalRecords]) -> str:
    """The tasks that are won after and were lost before, and the reverse, each seed by itself."""
    changes = [
        int(now[task][-1].won) - int(one[task][-1].won)
        for one, now in ((by_task([one]), by_task([now])) for one, now in zip(before, after, strict=True))
        for task in now
        if task in one
    ]
    return f"{changes.count(1)}/{changes.count(-1)}"


def points(found: Mapping[str, Any]) -> str:
    """A difference of success with its interval, in points.

    >>> points({"difference": 0.1, "interval": [0.02, 0.18]})
    '+10.0 [+2, +18]'
    """
    low, high = found["interval"]
    return f"{100 * found['difference']:+.1f} [{signed(100 * low, 0)}, {signed(100 * high, 0)}]"


def named(seeds: list[str]) -> str:
    """Seeds by number.

    >>> named(["0"]), named(["0", "1"])
    ('seed 0', 'seeds 0, 1')
    """
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"


def wrapped(text: str) -> list[str]:
    """Lines of 80 columns."""
    return textwrap.wrap(text, 80)


def main() -> int:
    """The command line; returns the exit status."""
    device, folder = sys.argv[1], Path(sys.argv[2])
    if device == "table":
        print(table(folder) or "no arm has an evaluation yet\n", end="")
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
