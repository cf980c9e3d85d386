"""The command ``roleagent <verb>``.

Every verb imports its modules when it runs, so ``roleagent --help`` is fast.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from roleagent.commands import choose, complain
from roleagent.program import begin, extra_of, require
from roleagent.slow_notice import waiting


def train(arguments: Sequence[str]) -> int:
    """Train an agent."""
    return _run("train", arguments)


def evaluate(arguments: Sequence[str]) -> int:
    """Evaluate an agent on a task split, or compare two evaluations."""
    return _run("evaluate", arguments)


def _run(program: str, arguments: Sequence[str]) -> int:
    """Runs a program as ``__main__``: it reads its command before it loads torch."""
    before, sys.argv = sys.argv, [f"roleagent {program}", *arguments]
    try:
        runpy.run_module(f"roleagent.programs.{program}", run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def experiment(arguments: Sequence[str]) -> int:
    """Train and compare several arms over seeds, and write a report."""
    from roleagent.experiments.runner import main

    return main(arguments)


def fork(arguments: Sequence[str]) -> int:
    """Continue a checkpoint several times, with one change in each arm, and compare."""
    from roleagent.experiments.forks import main

    return main(arguments)


def doctor(arguments: Sequence[str]) -> int:
    """Check your setup, or say why a run does not learn, and suggest fixes."""
    from roleagent.reports.doctor.doctor import main

    return main(arguments)


def games(arguments: Sequence[str]) -> int:
    """Write generated ALFWorld games in the official format."""
    from roleagent.envs.alfworld.generated.generate import main

    return main(arguments)


def play(arguments: Sequence[str]) -> int:
    """Play an environment in this terminal."""
    from roleagent.reports.play import main

    return main(arguments)


def serve(arguments: Sequence[str]) -> int:
    """Serve an environment over HTTP with the protocol of OpenEnv or AgentGym."""
    from roleagent.envs.adapters.serving import main

    return main(arguments)


def report(arguments: Sequence[str]) -> int:
    """Write an HTML report of runs: curves, episodes, failures."""
    from roleagent.reports.report import main

    return main(arguments)


def watch(arguments: Sequence[str]) -> int:
    """Follow runs in the browser during training."""
    from roleagent.reports.watch import main

    return main(arguments)


def webshop(arguments: Sequence[str]) -> int:
    """Build the files of a large catalogue, write a generated one, or open the shop in a browser."""
    from roleagent.envs.webshop.cli import main

    return main(arguments)


def index(arguments: Sequence[str]) -> int:
    """Build or serve a passage index for search questions."""
    from roleagent.envs.retrieval.cli import main

    return main(arguments)


def searchqa(arguments: Sequence[str]) -> int:
    """Write a generated world of questions and passages in the published format."""
    from roleagent.envs.searchqa.cli import main

    return main(arguments)


def textcraft(arguments: Sequence[str]) -> int:
    """Write generated crafting recipes in Minecraft's file format."""
    from roleagent.envs.textcraft.cli import main

    return main(arguments)


def tools(arguments: Sequence[str]) -> int:
    """Show tools as a model sees them, or call one."""
    from roleagent.envs.tools.cli import main

    return main(arguments)


def failures(arguments: Sequence[str]) -> int:
    """List, show, count or export the failures of a run, or freeze solved ones as a suite."""
    from roleagent.curricula.cli.failures import main

    def library(run: Path) -> str | Path:
        from roleagent.learners.run.folder import library_of

        return library_of(run)

    return main(arguments, library)


def trees(arguments: Sequence[str]) -> int:
    """List or show the search trees of a run."""
    from roleagent.learners.agent_r.search_trees import main

    return main(arguments)


def tasks(arguments: Sequence[str]) -> int:
    """Write and check training tasks, or show those that a run's simulator wrote."""
    from roleagent.reports.tasks_cli import main

    return main(arguments)


def export(arguments: Sequence[str]) -> int:
    """Write the policy of a run as a Hugging Face folder."""
    from roleagent.learners.run.export_cli import main

    return main(arguments)


VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": train,
    "evaluate": evaluate,
    "experiment": experiment,
    "fork": fork,
    "doctor": doctor,
    "games": games,
    "play": play,
    "report": report,
    "watch": watch,
    "serve": serve,
    "webshop": webshop,
    "searchqa": searchqa,
    "textcraft": textcraft,
    "index": index,
    "tools": tools,
    "failures": failures,
    "trees": trees,
    "tasks": tasks,
    "export": export,
}

SPEAKING = {"train", "evaluate", "experiment", "fork", "play", "watch", "serve", "webshop", "index"}
"""Verbs that show their own progress, or wait for a person or for clients."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    if arguments is None:
        begin("roleagent")
    arguments = sys.argv[1:] if arguments is None else arguments
    named = arguments[:1] and arguments[0] in VERBS.keys() - SPEAKING
    try:
        with waiting(f"roleagent {arguments[0]} to finish") if named else nullcontext():
            return choose("roleagent", VERBS, arguments)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if extra := extra_of(missing):
            require(f"roleagent {arguments[0]}", extra, [missing])
        raise
    except Exception as error:
        if type(error).__name__ != "DependencyNotInstalled":  # Gymnasium's: importing it for --help would take long
            raise
        return complain(f"roleagent {arguments[0]}", error)


if __name__ == "__main__":
    sys.exit(main())
