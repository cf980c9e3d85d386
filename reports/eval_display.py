"""Terminal output of an evaluation: progress, result and comparison."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.agents.evaluation.comparison import EvalRecords, compare_all
from roleagent.agents.evaluation.records import Record, RecordFile
from roleagent.agents.evaluation.statistics import result_rows, signed, spending
from roleagent.config import ConfigError
from roleagent.learners.run.display import Display
from roleagent.tasks.split import split_text


def so_far(file: RecordFile, prices: tuple[float, float] | None) -> str:
    """The success of the recorded episodes, and what they cost; empty without any."""
    sound = [record.won for record in file.records if record.sound]
    parts = [f"won {sum(sound) / len(sound):.1%}"] if sound else []
    if spent := spending(file.header, file.written, prices):
        parts += [f"{spent['prompt_tokens']:,} tokens read, {spent['completion_tokens']:,} written"]
        if "seconds_per_answer" in spent:
            parts += [f"an answer in {spent['seconds_per_answer']:.2f} s"]
        if "cost" in spent:
            parts += [f"cost {spent['cost']:.4f}"]
    return ", ".join(parts)


def report(
    display: Display, name: str, summary: Mapping[str, Any], records: Sequence[Record], task_split: Mapping[str, Any]
) -> None:
    """Shows the result of an evaluation.

    Args:
        name: of the agent.
        summary: from :func:`~roleagent.agents.evaluation.statistics.summarize`, with ``usage``.
        records: all that count.
        task_split: the split with its data, as in the header.
    """
    repeats = summary["repeats"]
    often = f", {len(repeats['success'])} times" if repeats else ""
    display.say(f"{name} on {task_split['env_id']}:{task_split['split']} ({split_text(task_split)}{often})")
    display.table(
        "success, with 95 % intervals over tasks",
        ["task type", "success", "steps", *(f"{metric}\n×100" for metric in summary["metrics"])],
        result_rows({"success": summary}, details=True),
    )
    if len(summary["by_type"]) > 1:
        display.say(f"mean of the task types: {summary['macro']:.1%}")
    if repeats:
        each = ", ".join(f"{share:.1%}" for share in repeats["success"])
        over = ""
        if repeats["interval"]:
            low, high = repeats["interval"]
            over = f", 95 % interval over repeats [{low:.1%}, {high:.1%}]"
        display.say(
            f"repeats: {each}; mean {repeats['mean']:.1%}, standard deviation {100 * repeats['std']:.1f} points{over}"
        )
        courses = {(record.task_id, record.won, record.steps) for record in records}
        if summary["success"] and len(courses) == len({record.task_id for record in records}):
            display.warn("all repeats are identical: at temperature 0 they add no information")
    if summary["at_k"]:
        display.table(
            "one of k episodes of a task won (pass@k), all k won (pass^k)",
            ["k", "tasks", "pass@k", "pass^k"],
            [
                [str(row["k"]), str(row["tasks"]), *(_with_interval(row[name]) for name in ("pass@k", "pass^k"))]
                for row in summary["at_k"]
            ],
        )
    if summary["by_trial"]:
        shown = ", ".join(f"{share:.1%} within {n}" for n, share in enumerate(summary["by_trial"], 1))
        display.say(f"success by number of trials: {shown}")
    if summary["invalid"]:
        display.say(f"invalid commands: {summary['invalid']:.1%}")
    if summary["prediction"] is not None:
        display.say(f"predictions: mean similarity {summary['prediction']:.3f}")
    if behavior := summary["behavior"]:
        shown = ", ".join(f"{name.replace('_', ' ')} {one['mean']:.2f}" for name, one in behavior.items())
        display.say(f"per episode: {shown}")
    if spent := summary["usage"]:
        line = f"answers: {spent['answers']:,}, tokens: {spent['prompt_tokens']:,} read, "
        line += f"{spent['completion_tokens']:,} written{' (estimated)' if spent['estimated'] else ''}"
        if "seconds_per_answer" in spent:
            line += f", {spent['seconds_per_answer']:.2f} s an answer ({spent['slow_seconds_per_answer']:.2f} s slow)"
        display.say(line + (f", cost {spent['cost']:.4f}" if "cost" in spent else ""))
        if spent["corrections"]:
            display.say(f"answers without a command: {spent['corrections'] / spent['answers']:.1%}")
        if spent["shortened"]:
            display.warn(
                f"{spent['shortened']} answers are to conversations that the server cut without saying so: the agent "
                "did not see its whole episode. Give the server a longer context and play again"
            )
        if spent["dropped_thoughts"]:
            display.warn(
                f"at least {spent['dropped_thoughts']} answers are to conversations from which the server's chat "
                "template dropped earlier thoughts. Training with prompt.style=transcript kept them: serve a template "
                "that keeps them, or evaluate the run itself (--run)"
            )
        if spent["cut"] > 0.01 * spent["answers"]:
            display.warn(f"{spent['cut']} answers were cut off at the token limit; raise --max-tokens")
    if summary["errors"]:
        first = next(record.error for record in records if not record.sound)
        display.warn(
            f"{summary['errors']} episodes have no outcome and are in no rate (the first: {first}); the same command "
            "retries them"
        )


def _with_interval(found: Mapping[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['mean']:.1%}  [{low:.1%}, {high:.1%}]"


def run_comparison(options: argparse.Namespace) -> dict[str, Any]:
    """Compares one side with each other one on each split, prints the tables, returns the results."""
    first, others = options.records, options.against
    if not others:
        if len(first) != 2:
            raise ConfigError("name two record files, or several and after --against those of the other side")
        first, others = first[:1], [first[1:]]
    mine, *theirs = ([EvalRecords.read(path) for path in side] for side in (first, *others))
    found = compare_all(mine, theirs, options.seed)
    with Display("A minus B: above zero, A has more") as display:
        for result in found:
            report_comparison(display, result)
    return {"comparisons": found}


def report_comparison(display: Display, result: Mapping[str, Any]) -> None:
    """Shows the result of :func:`~roleagent.agents.evaluation.comparison.compare`."""
    task_split = result["task_split"]
    display.say(f"A: {', '.join(result['first'])}")
    display.say(f"B: {', '.join(result['second'])}")
    display.say(f"on {task_split['env_id']}:{task_split['split']} ({split_text(task_split)})")
    for name, (a, b) in result["differs"].items():
        display.warn(f"not the same on both sides: {name} (A: {', '.join(a)}; B: {', '.join(b)})")
    if result["left_out"]:
        display.warn(f"{result['left_out']} tasks have no outcome in one of the files and are left out")
    display.table(
        "A minus B, with 95 % bootstrap intervals over tasks",
        ["", "n", "A", "B", "A − B", "only A : only B\nwon (McNemar)"],
        comparison_rows(result),
    )
    if seeds := result["seeds"]:
        low, high = (signed(100 * bound, 1) for bound in seeds["interval"])
        display.say(
            f"A minus B over seeds: {100 * seeds['difference']:+.1f} points [{low}, {high}]"
            f"{' (paired by run)' if seeds['paired'] else ''}"
        )


def comparison_rows(result: Mapping[str, Any]) -> list[list[str]]:
    """Rows of a comparison, for a table: success, over all and by type, pass@k and pass^k, the measures (times a
    hundred), the steps."""
    rows = [_row("all", result["success"])]
    rows += [_row(name, cell) for name, cell in result["by_type"].items()]
    rows += [_row(f"{name[:-1]}{at['k']}", at[name]) for name in ("pass@k", "pass^k") for at in result["at_k"]]
    rows += [_row(f"{name} ×100", cell, sign="") for name, cell in result["metrics"].items()]
    return [*rows, _row("steps", result["steps"], scale=1.0, sign="")]


def _row(label: str, cell: Mapping[str, Any], scale: float = 100.0, sign: str = "%") -> list[str]:
    low, high = (scale * bound for bound in cell["interval"])
    split = "–"
    if "p" in cell:
        chance = f"p={cell['p']:.2g}" if cell["p"] >= 0.001 else "p<0.001"
        split = f"{cell['only_first']} : {cell['only_second']} {chance}"
    return [
        label,
        str(cell["tasks"]),
        f"{scale * cell['first']:.1f}{sign}",
        f"{scale * cell['second']:.1f}{sign}",
        f"{scale * cell['difference']:+.1f} [{signed(low, 1)}, {signed(high, 1)}]",
        split,
    ]
