"""``roleagent doctor``: would a run work on this machine, and what would make it better."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from textwrap import TextWrapper

from rich.console import Console
from rich.markup import escape

from roleagent.commands import Parser
from roleagent.reports import data_folders, installed, machine
from roleagent.reports.findings import Check, Finding, asked, found_by

SIGNS = {
    "good": ("ok", "green"),
    "absent": ("-", "dim"),
    "note": ("note", "yellow"),
    "problem": ("PROBLEM", "bold red"),
}
HEADINGS = {"extras": "extras, each by pip install 'roleagent[NAME]'"}
ENVS = ("RoleAgent/Toy-v0", "RoleAgent/ALFWorld-v0", "RoleAgent/WebShop-v0", "RoleAgent/SearchQA-v0")
_EPISODE = """
import json, sys, time
import gymnasium, roleagent
began = time.perf_counter()
env = gymnasium.make(sys.argv[1], disable_env_checker=True)
task_id = env.unwrapped.panel.task_ids[0]
_, info = env.reset(options={"task_id": task_id})
steps, over = 0, False
for command in env.unwrapped.walkthrough():
    _, _, terminated, truncated, info = env.step(command)
    steps, over = steps + 1, terminated or truncated
    if over:
        break
print(json.dumps({"won": bool(info["won"]), "steps": steps, "task": task_id, "tasks": len(env.unwrapped.panel),
                  "seconds": time.perf_counter() - began}))
"""


def episode(env_id: str, seconds: float = 120.0) -> Finding:
    """Makes an environment as a run does and plays its first task with the oracle, in a process of its own."""
    name = env_id.partition("/")[2]
    try:
        told = asked(_EPISODE, seconds, env_id)
    except TimeoutError as error:
        advice = "large data take long to read the first time: try roleagent play to see what it waits for"
        return Finding(name, "note", str(error), advice)
    except RuntimeError as error:
        return Finding(
            name, "problem", str(error)[:200], "mend what it names; unset its data variable to go on without"
        )
    if told["steps"] and not told["won"]:
        return Finding(
            name, "problem", f"{told['task']} is not won by its own solution", "the data do not fit this version"
        )
    played = f"won in {told['steps']} steps" if told["steps"] else "begins; no solution of it is known"
    return Finding(name, "good", f"{told['tasks']:,} tasks; the first {played} ({told['seconds']:.1f} s)")


def checks(quick: bool = False, full: bool = False) -> dict[str, list[tuple[str, Check]]]:
    """All that is looked at, by section; what takes long stands last.

    Args:
        quick: whether that is left out: imports, GPUs, episodes.
        full: whether extras are imported as well.
    """
    found: dict[str, list[tuple[str, Check]]] = {
        "packages": [("python", installed.python), ("packages", installed.packages), ("command", installed.command)],
        "machine": [
            ("cores", machine.cores),
            ("memory", machine.memory),
            ("disk", machine.disk),
            ("model cache", machine.models),
            ("variables", machine.variables_that_hurt),
            ("java", machine.java),
        ],
        "data": [
            ("ALFWorld", data_folders.alfworld_games),
            ("WebShop", data_folders.webshop_products),
            ("SearchQA", data_folders.searchqa_questions),
        ],
        "extras": [("extras", partial(installed.extras, full))],
    }
    if not quick:
        found["tried out"] = [
            ("import", partial(installed.imports, "transformers, deepspeed")),
            ("gpu", machine.gpus),
            *((name.partition("/")[2], partial(episode, name)) for name in ENVS),
        ]
    return found


def findings(listed: dict[str, list[tuple[str, Check]]]) -> Iterator[tuple[str, list[Finding]]]:
    """Section and findings of each check, in order; what comes later is looked at meanwhile."""
    with ThreadPoolExecutor(max_workers=min(4, max(2, machine.usable_cores()[0]))) as pool:
        looks = [
            (section, pool.submit(lambda name=name, check=check: list(found_by(name, check))))
            for section, checked in listed.items()
            for name, check in checked
        ]
        try:
            for section, look in looks:
                yield section, look.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def show(console: Console, found: Sequence[Finding]) -> None:
    """A line for what is well, two for what is not; wrapped at the width of the console."""
    width = max(40, min(console.width, 120))
    wrapper = TextWrapper(width=width - 1, subsequent_indent=" " * 28, break_long_words=False, break_on_hyphens=False)
    for finding in found:
        sign, style = SIGNS[finding.grade]
        lines = wrapper.wrap(f"  {sign:<8} {finding.name:<16} {finding.said}")
        first = escape(lines[0]).replace(sign, f"[{style}]{sign}[/]", 1)
        console.print("\n".join([first, *map(escape, lines[1:])]), highlight=False, soft_wrap=True)
        if finding.advice and finding.grade != "absent":  # the heading says it of all
            advice = TextWrapper(width=width - 1, initial_indent=" " * 28 + "→ ", subsequent_indent=" " * 30)
            advice.break_long_words = advice.break_on_hyphens = False
            console.print(escape(advice.fill(finding.advice)), highlight=False, soft_wrap=True)


def main(arguments: Sequence[str]) -> int:
    """The verb ``doctor``; returns the exit status: 0 where a run would work, else 1."""
    parser = Parser(
        "roleagent doctor",
        "Look at this machine: would a run work here, and what would make it better?\n"
        "The exit status is 0 if it would, else 1.",
        "roleagent doctor\nroleagent doctor --quick\nroleagent doctor --full --json > doctor.json",
    )
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="a second or two: no imports, no GPU, no games")
    depth.add_argument(
        "--full", action="store_true", help="import the extras that are known to break as well (half a minute)"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    # Progress goes where it disturbs neither a pipe nor a file.
    progress = Console(stderr=True)
    console = Console(soft_wrap=True, highlight=False)
    told: list[dict[str, str]] = []
    listed = checks(options.quick, options.full)
    names = [name for checked in listed.values() for name, _ in checked]
    shown = ""
    with progress.status(f"looking at: {names[0]}") as status:
        for number, (section, found) in enumerate(findings(listed), start=1):
            told += [{"section": section, **finding.as_dict()} for finding in found]
            if not options.json:
                if section != shown:
                    console.print(f"\n{escape(HEADINGS.get(section, section))}", style="bold")
                    shown = section
                show(console, found)
            status.update(f"looking at: {names[number]} ({number} of {len(names)})" if number < len(names) else "")
    problems = sum(finding["grade"] == "problem" for finding in told)
    notes = sum(finding["grade"] == "note" for finding in told)
    if options.json:
        print(json.dumps({"works": not problems, "findings": told}, indent=2))
    else:
        works = "A run would work here" if not problems else "A run would not work here"
        counted = [f"{n} {word}{'s' * (n != 1)}" for n, word in ((problems, "problem"), (notes, "note")) if n]
        tail = f": {' and '.join(counted)}" if counted else ""
        console.print(f"\n{works}{tail} ({time.perf_counter() - began:.1f} s).", style="bold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
