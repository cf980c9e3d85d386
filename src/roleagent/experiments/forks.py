"""Continues a checkpoint of a run several times: as the run did, and with one change in each arm.

All arms begin with the same weights and play the same tasks with the same random numbers, until their changes tell.
Each arm is a run in a folder of its own, is evaluated as the run, and is compared with the unchanged one, task by task.
The same command skips finished arms and continues interrupted ones.

examples:
    roleagent fork runs/toy --at 40 aiw=off
    roleagent fork runs/toy --at 40 aiw=off wia=off --length 20 --repeats 3
    roleagent fork runs/toy --at 20 --at 40 --arms arms.yaml --jobs 2
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roleagent.commands import Parser, add_json, complain, natural, out_folder, whole
from roleagent.experiments.plan import Plan, read_mapping
from roleagent.experiments.runner import CORES, Experiment, carry_out
from roleagent.learners.run.folder import read_config
from roleagent.options import ConfigError


def parser() -> Parser:
    """The parser of ``roleagent fork``."""
    name = "roleagent fork"
    options = Parser(name, __doc__, usage=f"{name} RUN --at N [key=value …] [options]", allow_abbrev=False)
    options.add_argument("run", type=Path, metavar="RUN", help="the folder of a run of reinforcement")
    options.add_argument("changes", nargs="*", metavar="key=value", help="an arm each: what is otherwise there")
    at = "begin after this iteration; 0: after the warm start; several times, to begin at several checkpoints"
    options.add_argument("--at", type=whole, action="append", required=True, metavar="N", help=at)
    options.add_argument("--arms", type=Path, metavar="FILE", help="more arms, as in the file of an experiment")
    options.add_argument("--length", type=natural, default=0, metavar="N", help="iterations (default: to its end)")
    options.add_argument("--repeats", type=natural, default=1, metavar="N", help="of each arm (default: %(default)s)")
    options.add_argument("--jobs", type=natural, default=CORES, metavar="N", help="arms at a time (default: cores)")
    options.add_argument("--out", type=out_folder, metavar="DIR", help="folder (default: RUN-forks)")
    add_json(options)
    return options


def plan_of(
    run: Path, at: Sequence[int], changes: Sequence[str], arms: Path | None, length: int = 0, repeats: int = 1
) -> Plan:
    """The plan of some forks, which are measured as the run is at its end.

    Raises:
        ConfigError: there is no such run or checkpoint, or an option cannot change.
    """
    rollout = read_config(run).rollout
    evaluation = {"temperature": rollout.eval_temperature, "in_training": True}
    given, own = {change: {"options": [change]} for change in changes}, read_mapping(arms, "the arms") if arms else {}
    if [*own] == ["arms"] and isinstance(own["arms"], dict) and "options" not in own["arms"]:
        own = own["arms"]  # the file of an experiment
    if twice := [name for name in given if name in own]:
        raise ConfigError(f"the arm {twice[0]!r} is on the command line and in {arms}: give one of them another name")
    tree = {
        "title": f"Forks of {run.resolve().name}",
        "arms": given | own,
        "fork": {"run": str(run), "at": [*at], "length": length, "repeats": repeats},
        "evaluations": [evaluation],
    }
    try:
        return Plan.of(tree)
    except ConfigError as error:
        if arms is None:
            raise
        raise ConfigError(f"{arms}: {error}") from error


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_intermixed_args(arguments)
    name, run = "roleagent fork", options.run
    try:
        plan = plan_of(run, options.at, options.changes, options.arms, options.length, options.repeats)
        out = options.out or run.resolve().with_name(f"{run.resolve().name}-forks")
        if out.resolve() == run.resolve():
            raise ConfigError(f"--out={out} is the folder of the run: name another one")
        experiment = Experiment(plan, out, plan.jobs(), options.jobs)
    except (ConfigError, OSError) as error:
        return complain(name, error)
    return carry_out(name, experiment, arguments, options.json)


__all__ = ["main", "parser", "plan_of"]
