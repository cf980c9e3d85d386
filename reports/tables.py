"""Tables as LaTeX, CSV and Markdown, and that of agents × environments, from record files."""

from __future__ import annotations

import argparse
import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from roleagent.agents.evaluation.comparison import (
    OF_ONE_AGENT,
    EvalRecords,
    by_split,
    differing_settings,
    setting,
)
from roleagent.agents.evaluation.statistics import summarize
from roleagent.options import ConfigError, user_path
from roleagent.tasks.split import split_text


def run_table(options: argparse.Namespace) -> str:
    """The table of ``evaluate.py table``.

    Raises:
        ConfigError: no file is named.
        ValueError: a file is no evaluation.
    """
    rows = _rows([EvalRecords.read(path) for path in dict.fromkeys(options.records)])
    for name, *paths in options.row:
        rows.setdefault(name, []).extend(EvalRecords.read(path) for path in dict.fromkeys(map(user_path, paths)))
    if not any(rows.values()):
        raise ConfigError("name record files, or a row and its record files after --row")
    return agent_table(rows, options.format)


def _rows(evaluations: Sequence[EvalRecords]) -> dict[str, list[EvalRecords]]:
    """Evaluations by agent. Those of one split whose settings differ in more than the seed have rows of their own."""
    rows: dict[str, list[EvalRecords]] = {}
    alike: dict[str, list[EvalRecords]] = {}
    for one in evaluations:
        alike.setdefault(_row_of(one), []).append(one)
    for name, own in alike.items():
        names = {key for cell in by_split(own).values() for key in differing_settings(cell, OF_ONE_AGENT)}
        names -= {"agent.weights"} if "agent.checkpoint" in names else set()
        for one in own:
            apart = (f"{key.removeprefix('agent.')}={setting(one, key)}" for key in sorted(names))
            rows.setdefault(", ".join([name, *apart]), []).append(one)
    return rows


def _row_of(one: EvalRecords) -> str:
    """The agent's name, with the judge and the lessons of an evaluation, which are no other seed of it."""
    judge, lessons = one.settings.get("judge"), one.settings.get("lessons")
    return ", ".join(
        [
            one.agent,
            *([f"judged by {judge['name']}"] if judge else []),
            *([f"with {lessons['show']} lessons"] if lessons else []),
        ]
    )


def agent_table(rows: Mapping[str, Sequence[EvalRecords]], form: str) -> str:
    """Success of agents on splits, with 95 % intervals over tasks.

    Args:
        rows: evaluations by the agent's name; those of one agent on one split are one cell.
        form: ``markdown`` or ``latex`` (agents × splits, in percent), or ``csv`` (one row per cell, in [0, 1], with the
            measures that all its evaluations have).
    """
    cells = {name: by_split(evaluations) for name, evaluations in rows.items()}
    splits = {split: parts[0].task_split for own in cells.values() for split, parts in own.items()}
    measured = {
        (name, split): summarize([record for one in own[split] for record in one.records])
        for name, own in cells.items()
        for split in splits
        if split in own
    }
    if form == "csv":
        return csv_text(
            [
                {"agent": name, **{key: splits[split][key] for key in ("env_id", "split", "digest")}}
                | {"evaluations": len(cells[name][split]), "tasks": found["tasks"], "episodes": found["n"]}
                | {"success": found["success"], "low": found["interval"][0], "high": found["interval"][1]}
                | {m: found["metrics"][m]["mean"] for m in found["metrics"] if _measured_by_all(cells[name][split], m)}
                for (name, split), found in measured.items()
            ]
        )
    short = {split: f"{one['env_id']}:{one['split']}" for split, one in splits.items()}
    twice = {title for title in short.values() if list(short.values()).count(title) > 1}
    titles = [f"{name} ({split_text(splits[split])})" if name in twice else name for split, name in short.items()]
    if form == "latex":
        lines = [
            [latex_text(name), *(cell for split in splits for cell in _latex_cells(measured.get((name, split))))]
            for name in cells
        ]
        return latex_table(["agent", *(cell for title in titles for cell in (latex_text(title), "95\\,\\%"))], lines)
    lines = [[name, *(_markdown_cell(measured.get((name, split))) for split in splits)] for name in cells]
    note = "\nSuccess in %, with 95 % intervals over tasks; n episodes.\n"
    return (
        "\n".join(markdown_row(*row) for row in (["agent", *titles], ["---"] * (1 + len(titles)), *lines)) + "\n" + note
    )


def _measured_by_all(evaluations: Sequence[EvalRecords], metric: str) -> bool:
    return all(any(metric in record.metrics for record in one.records) for one in evaluations)


def _percent(found: Mapping[str, Any]) -> tuple[str, str]:
    low, high = found["interval"]
    return f"{100 * found['success']:.1f}", f"[{100 * low:.1f}, {100 * high:.1f}]"


def _latex_cells(found: Mapping[str, Any] | None) -> tuple[str, str]:
    return ("--", "--") if found is None else tuple(f"${part}$" for part in _percent(found))


def _markdown_cell(found: Mapping[str, Any] | None) -> str:
    return "–" if found is None else f"{' '.join(_percent(found))}, n={found['n']}"


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with a header of all their keys; a missing value is an empty cell."""
    header = list(dict.fromkeys(key for row in rows for key in row))
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def markdown_row(*cells: str) -> str:
    r"""A row of a table in Markdown.

    >>> print(markdown_row("a|b", "1"))
    | a\|b | 1 |
    """
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table of booktabs.

    Args:
        left: number of left-aligned columns.

    >>> print(latex_table(["arm", "points"], [["GRPO", "$+1.0$"]]), end="")
    % \\usepackage{booktabs}
    \\begin{tabular}{lr}
    \\toprule
    arm & points \\\\
    \\midrule
    GRPO & $+1.0$ \\\\
    \\bottomrule
    \\end{tabular}
    """
    lines = [" & ".join(cells) + r" \\" for cells in (header, *rows)]
    columns = "l" * left + "r" * (len(header) - left)
    begin = ["% \\usepackage{booktabs}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*begin, *lines[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    """A name in LaTeX.

    >>> print(latex_text("H_1 & 20 % ~x^2"))
    H\\_1 \\& 20 \\% \\textasciitilde{}x\\textasciicircum{}2
    """
    names = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum"}
    return re.sub(r"[&%$#_{}\\~^]", lambda m: rf"\text{names[m[0]]}{{}}" if m[0] in names else rf"\{m[0]}", text)
