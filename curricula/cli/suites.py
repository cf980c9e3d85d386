"""``roleagent failures freeze`` and ``suite``: frozen suites of a run."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import yaml
from rich.table import Table

from roleagent.curricula.cli.tables import console, plain
from roleagent.curricula.suite import EVALUATIONS, Suite, matrix
from roleagent.options import ConfigError


def freeze(run: Path, out: Path | None, limit: int) -> int:
    """Writes the suite of a run; returns the exit status.

    Raises:
        ConfigError: there is no run, it has solved no failure, or the name is that of an evaluation in a run folder.
    """
    if out is not None and fnmatch(out.name, EVALUATIONS) and (out.parent / "config.yaml").exists():
        raise ConfigError(f"{out.name} is the name of an evaluation of the run in {out.parent}: choose another")
    try:
        env = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["env"]
        played = env if isinstance(env, list) else [env]
        env_id, split = (", ".join(dict.fromkeys(str(one[key]) for one in played)) for key in ("id", "train_split"))
    except (OSError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{run} is no run folder: it has no config.yaml") from error
    suite, out = Suite.of_run(run, env_id, split, limit), out or run / "suite.json"
    suite.write(out)
    modes = ", ".join(f"{count} {mode}" for mode, count in suite.modes.items())
    tasks = f"{len(suite.tasks)} tasks of {env_id}:{split}"
    print(f"{out}: {tasks} with a failed episode that were solved in a later iteration ({modes})")
    return 0


def show(run: Path, as_json: bool) -> int:
    """Prints the matrix; returns 1 if the newest evaluation solves a smaller share than the best one, else 0.

    Raises:
        ConfigError: the run has not played a suite.
    """
    found = matrix(run)
    if not found:
        raise ConfigError(f"{run} has played no suite: train with train.suite=FILE and train.evaluate_every")
    iterations = [*found["all"]]
    if as_json:
        print(json.dumps(found))
    else:
        table = Table("failure mode", "tasks", *(str(iteration) for iteration in iterations))
        for mode, rows in found.items():
            tasks = max(row["tasks"] for row in rows.values())
            table.add_row(plain(mode), str(tasks), *(_cell(rows.get(iteration)) for iteration in iterations))
        console().print(table)
        print("solved tasks by iteration; −: forgotten, +: regained since the evaluation before")
    solved = [row["solved"] / max(1, row["tasks"]) for row in found["all"].values()]
    return int(solved[-1] < max(solved))


def _cell(row: dict[str, int] | None) -> str:
    if row is None:
        return "–"
    changed = {"−": row.get("forgotten", 0), "+": row.get("regained", 0)}
    return " ".join([str(row["solved"]), *(f"{sign}{count}" for sign, count in changed.items() if count)])


__all__ = ["freeze", "show"]
