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
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from roleagent.commands import Parser, add_json, complain, natural, out_folder, print_result, whole
from roleagent.experiments.plan import Job, Plan, find_plan, shipped
from roleagent.experiments.runs import Run, minutes_of
from roleagent.options import ConfigError
from roleagent.program import TRAIN, require


class Experiment:
    """A plan and its folder.

    Args:
        jobs: the wanted runs.
        side_by_side: most runs at the same time.
    """

    def __init__(self, plan: Plan, out: Path, jobs: Sequence[Job], side_by_side: int):
        self.plan, self.out, self.jobs, self.side_by_side = plan, out, jobs, side_by_side
        self.starts = {job.start: job for job in jobs}
        self._folders = {arm: [*by_seed.values()] for arm, by_seed in plan.folders(jobs, out).items()}
        self._stopped = False

    def run(self) -> list[str]:
        """Trains and evaluates the remaining runs, warm starts first; returns one line per error."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        errors: list[str] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console()) as progress, ThreadPoolExecutor(self.side_by_side) as pool:

            def finish(name: str, open_run: Callable[[], Run], bar: Any) -> None:
                if self._stopped:
                    return
                began = time.monotonic()
                try:
                    run = open_run()
                    run.finish()
                    found = [
                        f"{100 * one['success']:.1f} % at {one['temperature']:g}" for one in measure(run, self.plan)
                    ]
                    line = f"{name}: {', '.join(found)} ({(time.monotonic() - began) / 60:.1f} min)"
                except (ConfigError, OSError, ValueError) as error:
                    line = f"{name}: {error}"
                    errors.append(line)
                progress.console.print(line, soft_wrap=True)
                progress.advance(bar)

            def follow(job: Job, start: Future[None], bar: Any) -> None:
                start.result()
                finish(job.name, lambda: self.plan.run(job, self.out), bar)

            try:
                first = progress.add_task("warm starts", total=len(self.starts))
                then = progress.add_task("runs", total=len(self.jobs))
                starts = {  # all of them first, so that hardly a run has to wait for its own
                    name: pool.submit(finish, name, partial(self.plan.start, job, self.out), first)
                    for name, job in self.starts.items()
                }
                for future in [pool.submit(follow, job, starts[job.start], then) for job in self.jobs]:
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
            arm: [minutes for f in folders if self.plan.is_finished(f) and (minutes := minutes_of(f))]
            for arm, folders in self._folders.items()
        }
        known = {arm: statistics.mean(minutes) for arm, minutes in took.items() if minutes}
        planned = {arm: minutes for arm in self.plan.reported if (minutes := self.plan.minutes_of(arm))}
        if not known and not planned:
            return "no estimate yet: the plan names no minutes, and no run is finished"
        pace = statistics.mean([known[arm] / planned[arm] for arm in known if arm in planned] or [1.0])
        usual = statistics.mean(planned.values()) if planned else statistics.mean(known.values()) / pace
        minutes = sum(count * known.get(arm, pace * planned.get(arm, usual)) for arm, count in left.items())
        source = "the finished runs" if known else "the plan"
        return f"about {minutes / 60 / self.side_by_side:.1f} hours with {self.side_by_side} at a time, by {source}"


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
            command = [sys.executable, "-m", "roleagent", "evaluate", "--agent", str(run.folder), "--out", str(records)]
            command += ["--temperature", f"{evaluation.temperature:g}", "--repeats", str(evaluation.repeats)]
            status = run.carry_out(command)
            if status:
                raise ConfigError(f"evaluating {run.folder} ended with status {status} (see {run.log})")
        check_measure(plan.measure, EvalRecords.read(records).records)
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
    cores = os.cpu_count() or 1
    options.add_argument("--jobs", type=natural, default=cores, metavar="N", help="runs at a time (default: cores)")
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
        plan = Plan.read(path, options.set)
        out = options.out or Path("runs") / path.stem
        experiment = Experiment(plan, out, plan.jobs(options.seeds, options.arms), options.jobs)
        if not options.report:
            rest = ", ".join(f"{count} x {arm}" for arm, count in experiment.left().items()) or "nothing"
            print(f"{plan.title}: {len(experiment.jobs)} runs in {out}; left: {rest}")
            print(experiment.estimate(), flush=True)
            if options.plan:
                return 0
        require(name, "experiments", ["matplotlib", "scipy", *(() if options.report else TRAIN)])
        errors: list[str] = []
        if not options.report:
            plan.check_data()
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that train and evaluate
            errors = experiment.run()
        from roleagent.experiments.report import write_report

        result = write_report(plan, out, options.plan_name)
        print(f"the report is {out / 'report.md'}", file=sys.stderr)
    except (ConfigError, OSError) as error:
        return complain(name, error)
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command continues", file=sys.stderr)
        return 130
    for line in errors:
        print(f"{name}: {line}", file=sys.stderr)
    print_result(result, options.json)
    return 1 if errors else 0


__all__ = ["Experiment", "main", "measure", "parser"]
