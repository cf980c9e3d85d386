"""Trains the arms of an experiment over seeds from shared warm starts, evaluates them, and writes a report.

Every run is a training run in its own folder, on one thread, so that its figures repeat. As many run at a time as
there are cores. Every final policy is then evaluated on the whole split. The same command skips finished runs and
continues interrupted ones. The report is written from the run folders alone.

examples:
    roleagent experiment genenv_toy --plan
    roleagent experiment genenv_toy --seeds 0 --arms uniform GenEnv
    roleagent experiment my_plan.yaml --set train.iterations=10 --out runs/short
    roleagent experiment my_plan.yaml --report
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from roleagent.commands import Parser, add_json, complain, natural, out_folder, print_result, whole
from roleagent.experiments.plan import FORKED_RUN, Job, Plan, find_plan, shipped
from roleagent.experiments.runs import (
    Run,
    begun_at,
    gpus_of_runs,
    interrupt_all,
    iterations_of,
    minutes_of,
    newest_line,
)
from roleagent.learners.run.folder import read_config
from roleagent.options import ConfigError
from roleagent.program import TRAIN, require
from roleagent.slow_notice import watched

if TYPE_CHECKING:
    from rich.progress import Progress

CORES = os.cpu_count() or 1
_NOTICE = 30.0  # seconds between the lines of running runs in logs and pipes


class Experiment:
    """A plan and its folder.

    Args:
        jobs: the wanted runs.
        side_by_side: most runs at the same time.
        processes: of each training run, one per GPU.
    """

    def __init__(self, plan: Plan, out: Path, jobs: Sequence[Job], side_by_side: int, processes: int = 1):
        self.plan, self.out, self.jobs, self.side_by_side = plan, out, jobs, side_by_side
        self._processes = processes
        self.starts = {} if plan.fork and plan.fork.run else {job.start: job for job in jobs}
        self._folders = {arm: [*by_seed.values()] for arm, by_seed in plan.folders(jobs, out).items()}
        self._stopped = False
        self._iterations: dict[Path, int] = {}  # of the configurations of begun runs

    def check_folders(self) -> None:
        """Refuses folders that hold other runs, before any begins.

        Raises:
            ConfigError: one line that names the folder.
        """
        begun = {name: self.plan.start(job, self.out).begun() for name, job in self.starts.items()}
        for job in self.jobs:
            folder = self.plan.folders([job], self.out)[job.arm][job.key]
            if (folder / "config.yaml").exists() and begun.get(job.start, True):
                self.plan.run(job, self.out).begun()

    def run(self) -> list[str]:
        """Trains and evaluates the remaining runs, warm starts first; returns one line per error."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        errors: list[str] = []
        gpus = SimpleQueue[str | None]()
        for own in gpus_of_runs(self.side_by_side, self._processes):
            gpus.put(own)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        progress = Progress(*columns, console=Console(highlight=False, markup=False))
        current = Current(progress)
        with progress, watched(current), ThreadPoolExecutor(self.side_by_side) as pool:

            def finish(name: str, open_run: Callable[[], Run], bar: Any) -> None:
                if self._stopped:
                    return
                began, own = time.monotonic(), gpus.get()
                try:
                    run = open_run()
                    run.gpus = own
                    with current.running(name, run.log):
                        run.finish(self._processes)
                        found = [
                            f"{100 * one['success']:.1f} % at {one['temperature']:g}" for one in measure(run, self.plan)
                        ]
                    line = f"{name}: {', '.join(found)} ({(time.monotonic() - began) / 60:.1f} min)"
                except (ConfigError, OSError, ValueError) as error:
                    line = f"{name}: {error}"
                    errors.append(line)
                finally:
                    gpus.put(own)
                progress.console.print(line, soft_wrap=True)
                progress.console.print(f"left: {self.estimate()}", soft_wrap=True)
                progress.advance(bar)

            def follow(job: Job, start: Future[None] | None, bar: Any) -> None:
                if start is not None:
                    start.result()
                finish(job.name, lambda: self.plan.run(job, self.out), bar)

            try:
                first = progress.add_task(
                    "forked runs" if self.plan.fork else "warm starts",
                    total=len(self.starts),
                    visible=bool(self.starts),
                )
                then = progress.add_task("runs", total=len(self.jobs))
                starts = {  # all of them first, so that hardly a run has to wait for its own
                    name: pool.submit(finish, name, partial(self.plan.start, job, self.out), first)
                    for name, job in self.starts.items()
                }
                for future in [pool.submit(follow, job, starts.get(job.start), then) for job in self.jobs]:
                    future.result()
            except KeyboardInterrupt:
                self._stopped = True  # the running processes got the signal, too; threads end with them
                raise
        return errors

    def left(self) -> dict[str, int]:
        """The number of unfinished runs by arm, including warm starts."""
        counts = {arm: sum(not self.plan.is_finished(f) for f in folders) for arm, folders in self._folders.items()}
        return {arm: count for arm, count in counts.items() if count}

    def estimate(self) -> str:
        """The estimated remaining time and its basis."""
        left = self.left()
        if not left:
            return "nothing is left to do"
        took = {
            arm: [minutes for f in folders if (minutes := self._minutes(f))] for arm, folders in self._folders.items()
        }
        known = {arm: statistics.mean(minutes) for arm, minutes in took.items() if minutes}
        planned = {arm: minutes for arm in self.plan.reported if (minutes := self.plan.minutes_of(arm))}
        if not known and not planned:
            return "no estimate yet: the plan names no minutes, and no run has an iteration yet"
        pace = statistics.mean([known[arm] / planned[arm] for arm in known if arm in planned] or [1.0])
        usual = statistics.mean(planned.values()) if planned else statistics.mean(known.values()) / pace
        if self.plan.fork and self.plan.fork.length and [*known] == [FORKED_RUN]:  # a fork is a part of it
            usual *= self.plan.fork.length / max(self.plan.fork.at)
        each = {arm: known.get(arm, pace * planned.get(arm, usual)) for arm in left}
        open_folders = [(arm, f) for arm in left for f in self._folders[arm] if not self.plan.is_finished(f)]
        minutes = sum(each[arm] * (1 - self._share(folder)) for arm, folder in open_folders)
        on = f", whose minutes are of a run on {self.plan.machine}" if self.plan.machine else ""
        source = "the runs so far" if known else f"the plan{on}"
        minutes /= self.side_by_side
        time_left = f"{minutes:.0f} minutes" if minutes < 60 else f"{minutes / 60:.1f} hours"
        return f"about {time_left} with {self.side_by_side} at a time, by {source}"

    def _minutes(self, folder: Path) -> float:
        """Of a run: what it took, or what it takes by the iterations so far; 0 if nothing is known of it."""
        if self.plan.is_finished(folder):
            return minutes_of(folder)
        rows = iterations_of(folder, own=True)
        seconds = sum(row["seconds"] for row in rows) / max(1, len(rows))
        return seconds * self._planned_iterations(folder) / 60 if rows else 0.0

    def _share(self, folder: Path) -> float:
        """How much of an unfinished run is done."""
        rows = iterations_of(folder, own=True)
        return len(rows) / max(len(rows), self._planned_iterations(folder)) if rows else 0.0

    def _planned_iterations(self, folder: Path) -> int:
        if folder not in self._iterations:
            self._iterations[folder] = read_config(folder).train.last - begun_at(folder)
        return self._iterations[folder]


class Current:
    """What the present runs say: on a terminal beside their bars, elsewhere in a line each, twice a minute.

    Attributes:
        since: when it spoke last, on the monotonic clock.
    """

    def __init__(self, progress: Progress):
        self._progress, self._logs = progress, dict[str, tuple[Any, Path]]()
        self.since = time.monotonic()

    @contextmanager
    def running(self, name: str, log: Path) -> Iterator[None]:
        """While a run writes its log."""
        row = self._progress.add_task(name, total=None)
        self._logs[name] = row, log
        try:
            yield
        finally:
            del self._logs[name]
            self._progress.remove_task(row)

    def glance(self) -> None:
        """As :class:`~roleagent.slow_notice.Speaker`."""
        terminal = self._progress.console.is_terminal
        if time.monotonic() - self.since < (1.0 if terminal else _NOTICE):
            return
        self.since = time.monotonic()
        for name, (row, log) in list(self._logs.items()):
            text = f"{name}: {newest_line(log)}"
            if terminal:
                self._progress.update(row, description=text[:100])
            else:
                self._progress.console.print(text, soft_wrap=True)


def measure(run: Run, plan: Plan) -> list[dict[str, Any]]:
    """Runs the missing evaluations of the plan; returns all results in order.

    Raises:
        ConfigError: an evaluation failed, or the environment has no such measure.
    """
    from roleagent.agents.evaluation.comparison import EvalRecords
    from roleagent.experiments.figures import check_measure

    results = []
    for evaluation in plan.evaluations:
        records, result = evaluation.records(run.folder), evaluation.result(run.folder)
        if not evaluation.is_finished(run.folder):
            options = ["--temperature", f"{evaluation.temperature:g}", "--repeats", str(evaluation.repeats)]
            status = run.evaluate([*options, "--out", str(records)])
            if status:
                raise ConfigError(f"evaluating {run.folder} ended with status {status} (see {run.log})")
        found = EvalRecords.read(records).records
        failed = [record for record in found if not record.sound]
        if failed and not evaluation.in_training:
            error = f"{len(failed)} episodes of {records} failed, the first with: {failed[0].error}"
            raise ConfigError(f"{error}; the same command tries them again, and the report waits for them")
        check_measure(plan.measure, found)
        results.append({"temperature": evaluation.temperature, **json.loads(result.read_text(encoding="utf-8"))})
    return results


def parser() -> Parser:
    """The parser of ``roleagent experiment``."""
    name = "roleagent experiment"
    options = Parser(name, __doc__, usage=f"{name} PLAN [options]", allow_abbrev=False)
    options.add_argument("plan_name", metavar="PLAN", help=f"a YAML file, or a shipped one: {', '.join(shipped())}")
    options.add_argument(
        "--out", type=out_folder, metavar="DIR", help="run folders (default: runs/ and the plan's name)"
    )
    options.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="options for all runs")
    options.add_argument("--seeds", type=whole, nargs="+", default=[], metavar="N", help="only these seeds")
    options.add_argument("--arms", nargs="+", default=[], metavar="ARM", help="only these arms")
    options.add_argument(
        "--jobs",
        type=natural,
        metavar="N",
        help="runs at a time (default: cores; 1 with --processes, or if the plan's runs need GPUs)",
    )
    options.add_argument(
        "--processes", type=natural, default=1, metavar="N", help="of each run, one per GPU (default: 1)"
    )
    options.add_argument("--rehearse", action="store_true", help="all runs with the plan's small policy and world")
    options.add_argument("--plan", action="store_true", help="only show what is left to do, and how long it takes")
    options.add_argument("--report", action="store_true", help="only write the report, from the finished runs")
    add_json(options)
    return options


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(arguments)
    name = "roleagent experiment"
    try:
        path = find_plan(options.plan_name)
        plan = Plan.read(path, options.set, options.rehearse)
        out = options.out or Path("runs") / (path.stem + "_rehearsal" * options.rehearse)
        side_by_side = options.jobs or (1 if options.processes > 1 or plan.machine else CORES)
        experiment = Experiment(plan, out, plan.jobs(options.seeds, options.arms), side_by_side, options.processes)
    except (ConfigError, OSError) as error:
        return complain(name, error)
    only: Literal["", "plan", "report"] = "plan" if options.plan else "report" if options.report else ""
    words = [options.plan_name, *["--rehearse"] * options.rehearse]
    return carry_out(name, experiment, words, options.json, options.set, only)


def carry_out(
    name: str,
    experiment: Experiment,
    words: Sequence[str],
    as_json: bool,
    given: Sequence[str] = (),
    only: Literal["", "plan", "report"] = "",
) -> int:
    """Does what is left of an experiment and writes its report; returns the exit status of the command.

    Args:
        name: of the command.
        words: the arguments that name the experiment, for the report.
        as_json: whether the result is printed on a terminal, too.
        given: the options of ``--set``.
        only: whether to show what is left alone, or to write the report alone.
    """
    plan, out, errors = experiment.plan, experiment.out, list[str]()
    try:
        if only != "report":
            rest = ", ".join(f"{count} x {arm}" for arm, count in experiment.left().items()) or "nothing"
            print(f"{plan.title}: {len(experiment.jobs)} runs in {out}; left: {rest}")
            print(experiment.estimate(), flush=True)
            if only == "plan":
                if missing := plan.missing_data():
                    print(missing)
                return 0
        require(name, "experiments", ["matplotlib", "scipy", *(() if only else TRAIN)])
        if not only:
            plan.check_data()
            plan.check_arms(dict.fromkeys(job.arm for job in experiment.jobs))
            experiment.check_folders()
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that train and evaluate
            before = signal.signal(signal.SIGTERM, interrupt_all)
            try:
                errors = experiment.run()
            finally:
                signal.signal(signal.SIGTERM, before)
        from roleagent.experiments.report import write_report

        result = write_report(plan, out, [name, *words], given)
        print(f"the report is {out / 'report.md'}", file=sys.stderr)
    except (ConfigError, OSError) as error:
        return complain(name, errors[0] if errors else error)
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command continues", file=sys.stderr)
        return 130
    for line in errors:
        print(f"{name}: {line}", file=sys.stderr)
    print_result(result, as_json)
    return 1 if errors else 0


__all__ = ["CORES", "Experiment", "carry_out", "main", "measure", "parser"]
