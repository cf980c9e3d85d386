"""Trains several arms over seeds from shared warm starts, evaluates them and writes a report.

    python benchmarks/experiment.py --config benchmarks/plans/alfworld_small.yaml
    python benchmarks/experiment.py --config benchmarks/plans/alfworld_small.yaml --plan
    python benchmarks/experiment.py --config benchmarks/plans/alfworld_small.yaml --seeds 0 --arms GRPO GiGPO
    python benchmarks/experiment.py --config benchmarks/plans/alfworld_small.yaml --report

Every run is one of ``train.py`` in its own folder under ``--out``, on one thread, so that its figures repeat. As many
runs as there are cores run side by side. ``evaluate.py`` then evaluates the policies on the whole split. The program
first estimates the remaining time, from finished runs or from the plan.

The report, ``report.md`` in that folder, uses only the run folders; ``--report`` writes it from the finished runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # train.py's and evaluate.py's too

from parts.experiment_measure import is_finished, measure
from parts.experiment_plan import Job, Plan
from parts.experiment_report import write_report
from parts.training_runs import Run, minutes_of
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from roleagent.config import ConfigError
from roleagent.options import user_path


class Experiment:
    """A plan and its folder.

    Args:
        jobs: runs of it that are wanted.
        side_by_side: most runs at the same time.
    """

    def __init__(self, plan: Plan, out: Path, jobs: Sequence[Job], side_by_side: int):
        self.plan, self.out, self.jobs, self.side_by_side = plan, out, jobs, side_by_side
        self.starts = {plan.start(job, out).folder: job for job in jobs}
        self._folders = {arm: [*by_seed.values()] for arm, by_seed in plan.folders(jobs, out).items()}
        self._stopped = False

    def carry_out(self, console: Console) -> list[str]:
        """Trains and evaluates the remaining runs, warm starts first; returns one line per error."""
        troubles: list[str] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress, ThreadPoolExecutor(self.side_by_side) as pool:

            def finish(name: str, make: Callable[[], Run], bar: TaskID) -> None:
                if self._stopped:
                    return
                began = time.monotonic()
                try:
                    run = make()
                    run.finish()
                    found = [
                        f"{100 * one['success']:.1f} % at {one['temperature']:g}" for one in measure(run, self.plan)
                    ]
                    line = f"{name}: {', '.join(found)} ({(time.monotonic() - began) / 60:.1f} min)"
                except (ConfigError, OSError, ValueError) as error:
                    line = f"{name}: {error}"
                    troubles.append(line)
                progress.console.print(line, soft_wrap=True)
                progress.advance(bar)

            def follow(job: Job, start: Future[None], bar: TaskID) -> None:
                start.result()
                finish(job.name, lambda: self.plan.run(job, self.out), bar)

            try:
                first = progress.add_task("warm starts", total=len(self.starts))
                then = progress.add_task("runs", total=len(self.jobs))
                starts = {  # before all runs, so that hardly one of those has to wait for its own
                    job.start: pool.submit(finish, job.start, partial(self.plan.start, job, self.out), first)
                    for job in self.starts.values()
                }
                for future in [pool.submit(follow, job, starts[job.start], then) for job in self.jobs]:
                    future.result()
            except KeyboardInterrupt:
                self._stopped = True  # threads end with the runs that they wait for, which got it too
                raise
        return troubles

    def left(self) -> dict[str, int]:
        """The number of unfinished runs by arm, including warm starts."""
        counts = {arm: sum(not is_finished(f, self.plan) for f in folders) for arm, folders in self._folders.items()}
        return {arm: count for arm, count in counts.items() if count}

    def estimate(self) -> str:
        """The estimated remaining time and its basis."""
        left = self.left()
        took = {
            arm: [minutes for f in folders if is_finished(f, self.plan) and (minutes := minutes_of(f))]
            for arm, folders in self._folders.items()
        }
        known = {arm: statistics.mean(minutes) for arm, minutes in took.items() if minutes}
        foreign = self.plan.core_minutes
        if not known and not foreign and left:
            return "no estimate yet: the plan has no core_minutes, and no run is finished"
        ratios = [known[arm] / foreign[arm] for arm in known if foreign.get(arm)]
        pace = statistics.mean(ratios) if ratios else 1.0
        usual = statistics.mean(foreign.values()) if foreign else 0.0
        minutes = sum(count * known.get(arm, pace * foreign.get(arm, usual)) for arm, count in left.items())
        source = "by the runs that are finished here" if known else "by what they took where the plan was written"
        return f"about {minutes / 60 / self.side_by_side:.1f} hours with {self.side_by_side} side by side, {source}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=user_path, required=True, metavar="FILE", help="the experiment (YAML)")
    parser.add_argument("--out", type=user_path, metavar="DIR", help="run folders (default: runs/ and the file's name)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], metavar="N", help="only these seeds")
    parser.add_argument("--arms", nargs="+", default=[], metavar="ARM", help="only these arms")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs side by side (default: cores)")
    parser.add_argument("--plan", action="store_true", help="only say what is left to do, and how long it will take")
    parser.add_argument("--report", action="store_true", help="only write the report, of what is finished")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        plan = Plan.read(options.config)
        out = options.out or Path("runs") / options.config.stem
        if unknown := set(options.arms) - set(plan.arms):
            raise ConfigError(f"no arm {', '.join(sorted(unknown))}; there are {', '.join(plan.arms)}")
        if options.jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, not {options.jobs}")
        jobs = plan.jobs(options.seeds, options.arms)
        experiment = Experiment(plan, out, jobs, options.jobs)
        troubles: list[str] = []
        if not options.report:
            left = experiment.left()
            rest = ", ".join(f"{count} x {arm}" for arm, count in left.items()) or "nothing"
            console.print(f"{plan.title}: {len(jobs)} runs in {out}; left: {rest}", soft_wrap=True)
            console.print(experiment.estimate(), soft_wrap=True)
            if options.plan:
                return 0
            plan.check()
            troubles = experiment.carry_out(console)
        result = write_report(plan, out)
        console.print(f"the report is in {out / 'report.md'}")
    except ConfigError as error:
        print(f"experiment.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("experiment.py: stopped; the same command goes on", file=sys.stderr)
        return 130
    for trouble in troubles:
        print(f"experiment.py: {trouble}", file=sys.stderr)
    print("RESULT", json.dumps(result))
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
