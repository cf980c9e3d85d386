"""Write one HTML file about runs: curves, episodes turn by turn, failures, evaluations. It needs no network.

RUN is the folder of a run in any state: finished, running or stopped. Several runs are compared in one file: those that
differ in nothing but their seed are one curve, with a band. Among several, what is no run is left out. RUN may also be
a record file of evaluate.py: its episodes are those in the file beside it.
The report is the only file that is written.

examples:
  roleagent report runs/toy
  roleagent report runs/role_agent runs/gigpo --out comparison.html --open
  roleagent report runs/*                          # all runs of a folder
  roleagent report runs/toy --episodes 1000        # more episodes, larger file
  roleagent report evaluations/x.jsonl             # an evaluation, written to evaluations/x.html
"""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from roleagent.commands import Parser, out_file, printable, whole
from roleagent.files import write_whole
from roleagent.reports.data.load_evaluation import load_evaluation
from roleagent.reports.data.load_run import EPISODES, load_run
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.data.run_groups import name_apart
from roleagent.reports.data.run_schema import RunData
from roleagent.reports.web.page import render


def main(arguments: Sequence[str]) -> int:
    """The verb ``report``; returns the exit status."""
    parser = Parser("roleagent report", __doc__)
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a record file of evaluate.py"
    )
    parser.add_argument(
        "--out",
        type=out_file,
        metavar="FILE",
        help="output file (default: report.html in the first folder, x.html beside x.jsonl, or report.html beside "
        "several files)",
    )
    parser.add_argument(
        "--episodes",
        type=whole,
        default=EPISODES,
        metavar="N",
        help="approximate episodes per run (default: %(default)s)",
    )
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    options = parser.parse_args(arguments)
    if missing := [place for place in options.runs if not place.exists()]:  # no glob names these
        return _fail(f"{missing[0]} is no run folder: it does not exist")
    runs, problems = _load(options.runs, options.episodes)
    if not runs:
        return _fail(problems[0])
    name_apart(runs)
    first = next(place for place in options.runs if str(place.resolve()) == runs[0]["path"])
    alone = first.is_file() and len(runs) == 1
    beside = first.with_suffix(".html") if alone else (first.parent if first.is_file() else first) / "report.html"
    out = options.out or beside
    try:
        write_whole(out, render(runs))
    except OSError as error:
        return _fail(f"cannot write {out}: {error.strerror or error}; name another file with --out")
    for run in runs:
        shown, recorded = len(run["episodes"]), run["episodes_recorded"]
        episodes = f"{shown:,} episodes" if recorded is None else f"{shown:,} of {recorded:,} episodes"
        done, wanted = run["steps"]
        if run["revisions"]:
            episodes = f"{sum(row.get('trees', 0) for row in run['revisions']['counts']):,} trees"
        iterations = f", {done} of {wanted} iterations" if run["kind"] == "training" else ""
        print(f"{printable(run['name'])}: {run['state']}{iterations}, {episodes}")
        for note in run["notes"]:
            print(printable(f"roleagent report: {run['name']}: {note}"), file=sys.stderr)
    for problem in problems:
        print(printable(f"roleagent report: left out: {problem}"), file=sys.stderr)
    print(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")
    if options.open and not webbrowser.open(out.resolve().as_uri()):
        return _fail("no browser was found here; open the file elsewhere")
    return 0


def _load(places: Sequence[Path], episodes: int) -> tuple[list[RunData], list[str]]:
    """Every run once, and a line for each place that cannot be read as a run."""
    runs: list[RunData] = []
    problems: list[str] = []
    for place in {place.resolve(): place for place in places}.values():
        try:
            runs.append(load_evaluation(place, episodes) if place.is_file() else load_run(place, episodes))
        except RunDataError as error:
            problems.append(str(error))
    return runs, problems


def _fail(what: str) -> int:
    """Prints an error in one line; returns the exit status."""
    print(printable(f"roleagent report: {what}"), file=sys.stderr)
    return 2
