"""``roleagent doctor``: checks this setup, or says why runs do not learn, and suggests fixes."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NoAnswer  # the built-in one from Python 3.11 on
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from textwrap import TextWrapper
from threading import Thread

from rich.console import Console
from rich.markup import escape

from roleagent.commands import Parser, complain
from roleagent.env_card import EnvCard, registered
from roleagent.reports.data.load_trajectories import RunDataError
from roleagent.reports.doctor import installed, machine
from roleagent.reports.doctor.findings import Check, Finding, asked, found_by

SIGNS = {
    "good": ("ok", "green"),
    "absent": ("-", "dim"),
    "note": ("note", "yellow"),
    "problem": ("PROBLEM", "bold red"),
}
HEADINGS = {"extras": "extras, each by pip install 'roleagent[NAME]'"}
SECONDS, SECONDS_FULL = 75.0, 180.0
"""Time limit of all checks together, and with ``--full``."""
_HEAVY = "imports"  # the section that starts after the others
_EPISODE = """
import json, sys, time
import gymnasium, roleagent
began, missing = time.perf_counter(), None
for split in sys.argv[2:]:
    try:
        env = gymnasium.make(sys.argv[1], split=split, disable_env_checker=True)
        break
    except (FileNotFoundError, ValueError) as error:
        missing = missing or error
else:
    raise missing
task_id = env.unwrapped.task_split.task_ids[0]
_, info = env.reset(options={"task_id": task_id})
steps, over = 0, False
for command in env.unwrapped.walkthrough():
    _, _, terminated, truncated, info = env.step(command)
    steps, over = steps + 1, terminated or truncated
    if over:
        break
print(json.dumps({"won": bool(info["won"]), "steps": steps, "task": task_id, "tasks": len(env.unwrapped.task_split),
                  "seconds": time.perf_counter() - began, "split": split, "missing": str(missing or "")}))
"""


def episode(card: EnvCard, seconds: float) -> Finding:
    """Makes an environment and plays its first task with the oracle, in a separate process.

    If the data have no training tasks, another split is played.
    """
    name = _name_of(card)
    try:
        found = asked(_EPISODE, seconds, card.env_id, *card.splits)
    except TimeoutError as error:
        advice = "large data take long to load the first time: roleagent play shows what it waits for"
        return Finding(name, "note", str(error), advice)
    except RuntimeError as error:
        if "pip install 'roleagent[" in str(error):  # it needs an extra
            reason, _, advice = str(error).partition(": pip")
            return Finding(name, "note", reason, f"to play it: pip{advice}")
        return Finding(name, "problem", str(error), "fix the named cause, or unset the data variable")
    if found["steps"] and not found["won"]:
        return Finding(
            name, "problem", f"{found['task']} is not won by its solution", "the data are of another version"
        )
    played = f"won in {found['steps']} steps" if found["steps"] else "starts; it has no known solution"
    summary = f"{found['tasks']:,} tasks; the first {played} ({found['seconds']:.1f} s)"
    if found["missing"]:
        return Finding(
            name, "note", f"{found['split']}: {summary}", f"sufficient for evaluation; for training: {found['missing']}"
        )
    return Finding(name, "good", summary)


def data_status(card: EnvCard) -> Iterator[Finding]:
    """The data that an environment would play."""
    yield from (Finding(*status) for status in card.load("data_status")())


def _name_of(card: EnvCard) -> str:
    return card.env_id.rpartition("/")[2]


def checks(quick: bool, full: bool, end: float) -> dict[str, list[tuple[str, Check]]]:
    """All checks, by section.

    Args:
        quick: leave out imports, GPUs and episodes.
        full: import extras as well.
        end: the time limit, by ``time.monotonic``.
    """

    def left() -> float:
        return max(0.1, end - time.monotonic())

    found: dict[str, list[tuple[str, Check]]] = {
        "packages": [("python", installed.python), ("packages", installed.packages), ("command", installed.command)],
        "machine": [
            ("processor", machine.processor),
            ("cores", machine.cores),
            ("memory", machine.memory),
            ("disk", machine.disk),
            ("model cache", machine.models),
            ("variables", machine.variables_that_hurt),
            ("java", lambda: machine.java(seconds=left())),
        ],
        "data": [(_name_of(card), partial(data_status, card)) for card in registered() if card.data_status],
        "extras": [("extras", installed.extras)],
    }
    if not quick:
        tried = [card for card in registered() if not card.needs]
        found["first games"] = [(_name_of(card), lambda card=card: episode(card, left())) for card in tried]
    if not quick and installed.has_trainer():
        found[_HEAVY] = [
            ("gpu", lambda: machine.gpus(left())),
            ("import", lambda: installed.imports("transformers, deepspeed", left())),
        ]
    if full:
        found.setdefault(_HEAVY, [])
        found[_HEAVY] += [
            (extra, lambda extra=extra, module=module: installed.imports(module, left(), extra))
            for extra, module in installed.MODULES.items()
            if find_spec(module) is not None
        ]
    return found


def findings(listed: dict[str, list[tuple[str, Check]]], end: float) -> Iterator[tuple[str, list[Finding]]]:
    """Section and findings of each check, in order. Checks run in parallel; the heavy ones start after the others.

    Args:
        listed: from :func:`checks`.
        end: the time limit, by ``time.monotonic``; later answers are not waited for.
    """
    looks = [(section, name, check, Future()) for section, checked in listed.items() for name, check in checked]

    def start(heavy: bool) -> list[Future[list[Finding]]]:
        chosen = [look for look in looks if (look[0] == _HEAVY) == heavy]
        for _, name, check, future in chosen:
            look = lambda name=name, check=check, future=future: future.set_result(list(found_by(name, check)))  # noqa: E731
            Thread(target=look, daemon=True).start()  # a daemon: a check that hangs must not keep the process alive
        return [future for *_, future in chosen]

    light = start(heavy=False)

    def follow() -> None:
        wait(light, timeout=(end - time.monotonic()) / 3)
        start(heavy=True)

    Thread(target=follow, daemon=True).start()
    for section, name, _, future in looks:
        try:
            # A second more than the check's own limit, as its own message is better.
            yield section, future.result(max(0.0, end + 1 - time.monotonic()))
        except NoAnswer:
            advice = "the machine is busy, or a disk does not respond: try again later"
            yield section, [Finding(name, "note", "no answer in time", advice)]


def show(console: Console, found: Sequence[Finding]) -> None:
    """Prints findings: one line each, and one for the advice, wrapped to the console."""
    width = max(40, min(console.width, 120))
    wrapper = TextWrapper(width=width - 1, subsequent_indent=" " * 28, break_long_words=False, break_on_hyphens=False)
    for finding in found:
        sign, style = SIGNS[finding.grade]
        lines = wrapper.wrap(f"  {sign:<8} {finding.name:<16} {finding.text}")
        first = escape(lines[0]).replace(sign, f"[{style}]{sign}[/]", 1)
        console.print("\n".join([first, *map(escape, lines[1:])]), highlight=False, soft_wrap=True)
        if finding.advice and finding.grade != "absent":  # the heading has it
            advice = TextWrapper(width=width - 1, initial_indent=" " * 28 + "→ ", subsequent_indent=" " * 30)
            advice.break_long_words = advice.break_on_hyphens = False
            console.print(escape(advice.fill(finding.advice)), highlight=False, soft_wrap=True)


def judge(runs: Sequence[Path], as_json: bool) -> int:
    """Prints why runs do not learn; returns the exit status."""
    from roleagent.config import ConfigError  # pydantic: help does without
    from roleagent.reports.doctor.training import diagnose

    if strangers := [run for run in runs if not (run / "config.yaml").exists()]:
        error = f"{strangers[0]} is no run folder, it has no config.yaml: name the run folder that train.py printed"
        return complain("roleagent doctor", error)
    try:
        found = {run: diagnose(run) for run in dict.fromkeys(runs)}
    except (ConfigError, RunDataError) as error:
        return complain("roleagent doctor", error)
    problems = {run: sum(finding.grade == "problem" for finding in of_run) for run, of_run in found.items()}
    if as_json:
        listed = [{"section": str(run), **finding.as_dict()} for run, of_run in found.items() for finding in of_run]
        print(json.dumps({"works": not any(problems.values()), "findings": listed}, indent=2))
        return int(any(problems.values()))
    console = Console(soft_wrap=True, highlight=False)
    for run, of_run in found.items():
        console.print(f"\n{escape(str(run))}", style="bold")
        show(console, of_run)
    sick = sum(bool(number) for number in problems.values())
    where = f" in {sick} of {len(found)} runs" if len(found) > 1 else ""
    advice = "Change one option at a time, the first one first: docs/not_learning.md"
    console.print(f"\nProblems{where}. {advice}" if sick else "\nNo problem found.", style="bold")
    return int(bool(sick))


def main(arguments: Sequence[str]) -> int:
    """The verb ``doctor``; returns the exit status: 0 without problems, 1 with some, 2 if a RUN is no run."""
    parser = Parser(
        "roleagent doctor",
        "Check this setup and suggest fixes: packages, machine, data, GPU, and a game of each environment.\n"
        "It takes a minute or so at most; loading PyTorch may need most of it.\n"
        "With RUN, say why a training run does not learn, and which option to change. The run may be finished,\n"
        "running or stopped. The exit status is 0 without problems, 1 with some, 2 if RUN is no run.",
        "roleagent doctor\nroleagent doctor --quick\nroleagent doctor --full --json > doctor.json\n"
        "roleagent doctor runs/toy",
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="the folder of a training run")
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="a second or two: without imports, GPU and games")
    depth.add_argument(
        "--full", action="store_true", help="also import extras that often break (three minutes at most)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    if options.runs:
        if options.quick or options.full:
            parser.error("--quick and --full check the setup: leave them out, or leave out RUN")
        return judge(options.runs, options.json)
    began = time.perf_counter()
    # Progress goes to stderr, so that stdout can be piped.
    progress = Console(stderr=True)
    console = Console(soft_wrap=True, highlight=False)
    told: list[dict[str, str]] = []
    end = time.monotonic() + (SECONDS_FULL if options.full else SECONDS)
    listed = checks(options.quick, options.full, end)
    names = [name for checked in listed.values() for name, _ in checked]
    shown = ""
    with progress.status(f"checking {names[0]}") as status:
        for number, (section, found) in enumerate(findings(listed, end), start=1):
            told += [{"section": section, **finding.as_dict()} for finding in found]
            if not options.json:
                if section != shown:
                    console.print(f"\n{escape(HEADINGS.get(section, section))}", style="bold")
                    shown = section
                show(console, found)
            status.update(f"checking {names[number]} ({number} of {len(names)})" if number < len(names) else "")
    problems = sum(finding["grade"] == "problem" for finding in told)
    notes = sum(finding["grade"] == "note" for finding in told)
    if options.json:
        print(json.dumps({"works": not problems, "findings": told}, indent=2))
    else:
        what = "Training" if installed.has_trainer() else "The base package"
        works = f"{what} would {'not ' if problems else ''}work here"
        counted = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((problems, "problem"), (notes, "note")) if n]
        tail = f": {' and '.join(counted)}" if counted else ""
        console.print(f"\n{works}{tail} ({time.perf_counter() - began:.1f} s).", style="bold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
