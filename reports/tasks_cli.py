"""``roleagent tasks <verb>``: writes and checks tasks for training (GenEnv), and shows those of a run."""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roleagent.commands import Parser, complain, natural, pairs, printable, whole
from roleagent.options import ConfigError, user_path

if TYPE_CHECKING:
    from numpy.random import Generator

    from roleagent.config import Config
    from roleagent.tasks.grammar import TaskGrammar
    from roleagent.tasks.simulator import Simulator, Situation

EXAMPLES = """\
examples:
  the fields of a task and their values; ten tasks as the training split has them
      roleagent tasks propose Toy
      roleagent tasks propose ALFWorld --env-arg size=tiny --count 3
  ten tasks as the simulator of a run writes them now
      roleagent tasks propose runs/toy
  may this task be played, and what wins it?
      roleagent tasks check Toy "kind=heat item=egg place=counter containers=5 closed=2"
      roleagent tasks propose Toy | roleagent tasks check Toy -
  what a run's simulator wrote, and how it was played; what was refused, and why
      roleagent tasks show runs/toy
      roleagent tasks show runs/toy --refused --iteration 3

ENV_OR_RUN is an environment, e.g. Toy, or the folder of a run."""
VERBS = {
    "propose": "Write new tasks, and check each.",
    "check": "Check tasks: the id and a plan that wins, or why a task is refused.",
    "show": "Show the tasks of a run: what was written, why it was refused, how it was played.",
}
_WIDTH = 160  # characters of a line that a model wrote
_COMMENT = re.compile(r"(?:^|\s)#(?:\s|$)")


def main(arguments: Sequence[str]) -> int:
    """The group of verbs; returns the exit status: 1 if a task that was to be checked is refused."""
    options = _parser().parse_args(arguments)
    from roleagent.reports.data.load_trajectories import RunDataError

    refused = 0
    try:
        for line, accepted in {"propose": _propose, "check": _check, "show": _show}[options.verb](options):
            print(line)
            refused += not accepted
    except (ConfigError, RunDataError, ValueError, OSError, RuntimeError) as error:
        return complain("roleagent tasks", error)
    return int(options.verb == "check" and refused > 0)


def _parser() -> argparse.ArgumentParser:
    about = "Write and check training tasks (GenEnv), or show those of a run."
    parser = Parser("roleagent tasks", about, epilog=EXAMPLES, allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    own = {}
    for verb, summary in VERBS.items():
        own[verb] = verbs.add_parser(verb, help=summary, description=summary, epilog=EXAMPLES)
        if verb == "show":
            continue
        own[verb].add_argument("source", metavar="ENV_OR_RUN", help="an environment, or a run folder")
        own[verb].add_argument(
            "--env-arg", action="append", default=[], metavar="KEY=VALUE", help="argument of the environment"
        )
        own[verb].add_argument("--seed", type=whole, default=0, help="of what no field decides (default: %(default)s)")
    own["propose"].add_argument("--count", type=natural, default=10, metavar="N", help="default: %(default)s")
    own["check"].add_argument(
        "tasks", nargs="+", metavar="TASK", help="field=value field=value …, or an id; - reads lines"
    )
    own["show"].add_argument("run", type=Path, metavar="RUN", help="a run folder")
    own["show"].add_argument("--iteration", type=natural, metavar="N", help="what was written in this iteration alone")
    own["show"].add_argument("--refused", action="store_true", help="refused proposals, in place of accepted tasks")
    own["show"].add_argument("--task", default="", metavar="TEXT", help="only lines and ids that contain this")
    own["show"].add_argument("--limit", type=natural, default=50, metavar="N", help="the newest (default: %(default)s)")
    return parser


# --- writing and checking ---------------------------------------------------------------------------------------------


def _open(options: argparse.Namespace) -> tuple[TaskGrammar, Simulator, Situation]:
    """The grammar and the simulator of an environment or of a run, and what the simulator reads."""
    from roleagent.curricula.simulators import BaseSimulator
    from roleagent.env_card import card_of
    from roleagent.envs.registry import environment_id, make_env
    from roleagent.tasks.grammar import grammar_of
    from roleagent.tasks.simulator import Situation

    run = user_path(options.source)
    if (run / "config.yaml").exists():
        if options.env_arg:
            raise ConfigError("--env-arg is for an environment: a run has its own arguments")
        return _open_run(run, writes=options.verb == "propose")
    if run.is_dir():
        raise ConfigError(f"{run} is no run folder: it has no config.yaml")
    env_id = environment_id(options.source)
    if ":" not in env_id and not card_of(env_id).task_grammar:
        raise ConfigError(f"the environment {env_id} has no task grammar (docs/add_task_grammar.md)")
    grammar = grammar_of(make_env(env_id, {**pairs(options.env_arg), "generated_tasks": True}))
    return grammar, BaseSimulator(grammar), Situation({})


def _open_run(run: Path, writes: bool) -> tuple[TaskGrammar, Simulator, Situation]:
    from roleagent.agents.builders import make_base, open_simulator
    from roleagent.curricula.simulators import BaseSimulator
    from roleagent.learners.run.folder import read_config
    from roleagent.random_streams import random_stream
    from roleagent.reports.data.load_run import newest_checkpoint
    from roleagent.tasks.grammar import grammar_of
    from roleagent.tasks.simulator import Situation

    config = read_config(run)
    if "" not in config.environments:
        raise ConfigError(f"{run} has several environments, each with tasks of its own: name one in place of the run")
    writes = writes and config.genenv  # a run without GenEnv has no simulator
    config = replace(config, genenv=True)
    env: Any = make_base(config, config.env.train_split)
    grammar = grammar_of(env, plan_share=config.simulator.plan_share)
    if not writes:
        return grammar, BaseSimulator(grammar), Situation({})
    state = newest_checkpoint(run).get("sampler") or {}
    situation = _situation(state, config, grammar)
    if config.simulator_is_model:
        return grammar, _saved_model(run, config, grammar), situation
    stream = random_stream(config.seed, "task writer")  # the run's own: a static list is drawn again
    simulator = open_simulator(config, grammar, stream)
    if state.get("simulator"):
        simulator.load_state_dict(state["simulator"])
    return grammar, simulator, situation


def _saved_model(run: Path, config: Config, grammar: TaskGrammar) -> Simulator:
    """The simulator of ``simulator.kind=model`` with the weights of the newest checkpoint."""
    import torch

    from roleagent.agents.policies.hf import own_device
    from roleagent.agents.task_simulator import ModelSimulator
    from roleagent.learners.run.checkpoints import Checkpoints

    name = "policy" if config.shares_simulator else "simulator"
    found = Checkpoints(run / "checkpoints").latest()
    if found is None or not (found / name).is_dir():
        raise ConfigError(f"{run} has no checkpoint with the weights of its simulator: train it for an iteration")
    Checkpoints.check(found, f"{name}/")
    policy = Checkpoints.policy(found, torch.Generator(own_device()), config.policy, name)
    return ModelSimulator(policy, grammar, config.prompt.thinks)


def _situation(state: Mapping[str, Any], config: Config, grammar: TaskGrammar) -> Situation:
    """The success and the newest task in the band that the run's sampler knows."""
    from roleagent.tasks.simulator import Situation

    success: dict[str, tuple[int, int]] = {}
    for counted in state.get("success", ()):
        for name, (won, played) in counted.items():
            before = success.get(name, (0, 0))
            success[name] = (before[0] + won, before[1] + played)
    situation = Situation(dict(sorted(success.items())), target=config.simulator.alpha)
    seed = next((one for one in reversed(state.get("records", ())) if one["weight"]), None)
    if seed is None:
        return situation
    spec = grammar.spec(seed["task_id"])
    return replace(situation, seed_task=spec, seed_success=(seed["successes"], seed["attempts"]))


def _propose(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    from numpy.random import default_rng

    grammar, simulator, situation = _open(options)
    for name, values in grammar.fields.items():
        print(f"{name}: {' '.join(values) or grammar.form().example}", file=sys.stderr)
    rng, reasons = default_rng(options.seed), Counter[str]()
    [lines] = simulator.propose([situation], options.count, rng)
    for line in lines:
        _, reason = _checked(grammar, line, rng)
        reasons[reason] += 1
        text = printable(line)
        yield f"{text[:_WIDTH]}  # refused: {reason}" if reason else text, not reason
    print(_summary(len(lines), reasons), file=sys.stderr)


def _check(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    from numpy.random import default_rng

    grammar, _, _ = _open(options)
    rng, listed = default_rng(options.seed), frozenset(grammar.env.task_split.task_ids)
    lines = (line for given in options.tasks for line in (sys.stdin if given == "-" else (given,)))
    form = grammar.form().example
    task = ""
    for task in filter(None, (_COMMENT.split(line)[0].strip() for line in lines)):
        if task in listed:
            yield f"{printable(task)}: a listed task of the training split", True
            continue
        text, reason = _checked(grammar, task, rng)
        hint = f"; a task is written as {form}" if reason == "syntax" else ""
        yield f"refused ({reason}): {printable(task)[:_WIDTH]}{hint}" if reason else text, not reason
    if not task:
        raise ConfigError("no task given")


def _checked(grammar: TaskGrammar, task: str, rng: Generator) -> tuple[str, str]:
    """A description of an accepted task, or why it is refused. ``task`` is a line, or an id of a generated task."""
    from roleagent.tasks.grammar import Refused

    try:
        is_line = "=" in task or task.startswith("{")
        spec = grammar.complete(grammar.read(task)[0], rng) if is_line else grammar.spec(task)
    except Refused as refused:
        return "", refused.reason
    except ValueError:
        return "", "syntax"
    found = grammar.check(spec)
    plan = "; ".join(map(printable, found.plan))
    return f"{grammar.task_id(spec)}: {grammar.write(spec)}\n  plan of {len(found.plan)}: {plan}", found.reason


def _summary(proposed: int, reasons: Counter[str]) -> str:
    """How many proposals were accepted, and why the others were not; ``""`` is no reason.

    >>> _summary(5, Counter({"": 3, "duplicate": 2}))
    '5 proposed: 3 accepted, 2 refused (duplicate 2)'
    """
    refused = proposed - reasons[""]
    named = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common() if reason)
    return f"{proposed} proposed: {reasons['']} accepted" + (f", {refused} refused ({named})" if refused else "")


# --- showing a run ----------------------------------------------------------------------------------------------------


def _show(options: argparse.Namespace) -> Iterator[tuple[str, bool]]:
    from roleagent.reports.data.load_tasks import load_tasks

    if not (options.run / "config.yaml").exists():
        raise ConfigError(f"{options.run} is no run folder: it has no config.yaml")
    log = load_tasks(options.run)
    if not log.tasks and not log.refused:
        raise ConfigError(f"{options.run} has no written tasks: they come with genenv=on")
    here = options.iteration
    accepted = [
        task
        for task in log.tasks.values()
        if here in (None, task.iteration) and options.task in f"{task.line} {task.task_id}"
    ]
    refused = [one for one in log.refused if here in (None, one.iteration) and options.task in one.line]
    if options.refused:
        yield "iteration  reason        proposal", True
        for one in refused[-options.limit :]:
            line = printable(one.line)[:_WIDTH] or "(nothing)"
            yield f"{one.iteration:<11}{one.reason:<14}{line}{' (one field changed)' if one.varied else ''}", True
    else:
        yield "written  plan  task, and successes of attempts by iteration (r: played again)", True
        for task in accepted[-options.limit :]:
            played = ", ".join(
                f"{play.iteration}{'r' * (play.kind == 'replayed')}: {play.successes}/{play.attempts}"
                for play in task.plays
            )
            mark = " (one field changed)" if task.varied else ""
            yield f"{task.iteration:<9}{task.plan:<6}{printable(task.line)[:_WIDTH]}{mark}", True
            yield f"{'':15}{printable(task.task_id)}  {played or 'not played'}", True
    reasons = Counter(one.reason for one in refused) + Counter({"": len(accepted)})
    again = sum(any(play.kind == "replayed" for play in task.plays) for task in accepted)
    yield f"{_summary(len(accepted) + len(refused), reasons)}; {again} tasks played again", True


__all__ = ["main"]
