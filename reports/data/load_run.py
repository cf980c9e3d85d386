"""Loads a run folder as :class:`~roleagent.reports.data.run_schema.RunData`, in any state of the run.

Nothing is written and no lock is taken, because a run may be active in the folder. Incomplete lines are skipped. Data
that an older version did not write are missing. Nothing here imports torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from roleagent.curricula.suite import matrix
from roleagent.files import at_work
from roleagent.learners.method import known_method
from roleagent.learners.run.metrics import held_out_signs, idle_mechanisms, not_learning
from roleagent.learners.run.trackers import flat, without_secrets
from roleagent.reports.data.curves import curve, find_alarms, load_metrics, names_in, number
from roleagent.reports.data.eval_results import json_file, load_evaluations, measure_gain
from roleagent.reports.data.load_lessons import summarize_lessons, training_episodes
from roleagent.reports.data.load_revisions import summarize_revisions
from roleagent.reports.data.load_tasks import summarize_tasks
from roleagent.reports.data.load_trajectories import RunDataError, TrajectoryReader
from roleagent.reports.data.run_schema import Curve, EpisodeCard, Revisions, RunData, WrittenTasks
from roleagent.timer import PARTS

if TYPE_CHECKING:
    from roleagent.config import Config

EPISODES = 150
"""Default number of episodes in a report."""
_BY_TYPE = "success/"


def load_run(run: Path, episodes: int = EPISODES) -> RunData:
    """Everything a report shows about a run.

    Args:
        run: the run folder.
        episodes: about how many episodes to load.

    Raises:
        RunDataError: there is no run, or one of its files is damaged.
    """
    notes: list[str] = []
    tree = _configuration(run)
    config = _checked(tree, notes)
    rows = load_metrics(run)
    warmstart = [row for row in rows if row["stage"] == "warmstart"]
    trained = [row for row in rows if row["stage"] == "train"]
    continued = trained or [row for row in rows if row["stage"] != "warmstart"]
    state = newest_checkpoint(run)
    result = json_file(run / "result.json", notes) or {}
    if stopped := result.get("stopped"):
        notes.append(f"{stopped['reason']} ended the run after {stopped['done']} of {stopped['of']} steps")
    working = at_work(run)
    measured = load_evaluations(run, notes)
    if longer := "after" in measured and is_outdated(run, measured["after"], trained, state):
        del measured["after"]
        result = {}
    gain = measure_gain(measured)
    if config and result and not (gain and gain["all"]["interval"][0] > 0):
        figures = [{name: number(value) for name, value in row.items()} for row in trained]
        notes += filter(None, [not_learning(figures, config)])
    alarms = find_alarms(trained)
    alarms += _held_out_alarms(trained, measured, {alarm["name"] for alarm in alarms}, notes)
    reader = TrajectoryReader(run)
    grown = _growth(run, tree, notes)
    revisions = _revisions(run, notes)
    written = without_secrets(flat(tree))
    counters = result.get("counters") if not state else state.get("counters")
    return {
        "kind": "training",
        "name": run.resolve().name,
        "path": str(run.resolve()),
        "method": config.method if config else str(tree.get("method", "")),
        "env_id": config.environment if config else str(written.get("env.id", "")),
        "seed": int(number(tree.get("seed")) or 0),
        "state": _state(working, tree, trained, state, measured, bool(result), longer),
        "steps": _steps(tree, continued, revisions),
        "seconds": _seconds(trained, state),
        "imitation_seconds": number(state.get("seconds" if state.get("stage") == "warmstart" else "imitation_seconds"))
        or 0.0,
        "config": {name: _shown(value) for name, value in written.items()},
        "differing": _differing(config, written),
        "warmstart": curve(warmstart, names_in(warmstart)),
        "training": curve(continued, [name for name in names_in(continued) if not name.startswith(_BY_TYPE)]),
        "success_by_type": curve(trained, names_in(trained), _BY_TYPE),
        "time": curve(trained, [f"{part}_seconds" for part in (*PARTS, "other")], suffix="_seconds"),
        "modes": _by_mode(grown, "entries"),
        "mode_failures": _by_mode(grown, "failures"),
        "written_tasks": _written_tasks(run, notes),
        "revisions": revisions,
        "evaluations": {name: _without_records(summary) for name, summary in measured.items()},
        "lessons": summarize_lessons(training_episodes(reader)) if config and config.lessons.show != "none" else None,
        "suite": _suite(run, notes),
        "gain": gain,
        "counters": dict(counters or {}),
        "alarms": alarms,
        "idle": idle_mechanisms(known_method(config), counters) if config and counters and trained else None,
        "episodes": reader.select(episodes, _modes(grown)),
        "episodes_recorded": _episodes(trained, reader),
        "notes": notes,
    }


def _held_out_alarms(
    trained: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Mapping[str, Any]],
    logged: Collection[str],
    notes: list[str],
) -> list[dict[str, Any]]:
    """Alarms by the evaluations of a run, besides the logged ones; the newest evaluation's add a note."""
    found: dict[str, dict[str, Any]] = {}
    signs: dict[str, str] = {}
    last = trained[-1]["step"] if trained else 0
    for name, summary in measured.items():
        step = step_of(name, last)
        signs = held_out_signs([row for row in trained if row["step"] <= step + 1], summary)
        for sign in signs:
            found.setdefault(sign, {"name": sign, "step": step})["until"] = step
    notes += [f"held-out tasks: {message}" for message in signs.values()]
    return [alarm for name, alarm in found.items() if name not in logged]


def step_of(evaluation: str, last: int) -> int:
    """The iteration after which an evaluation was; of ``after`` the ``last``.

    >>> step_of("before", 40), step_of("iteration-000020", 40), step_of("after", 40)
    (0, 20, 40)
    """
    digits = re.findall(r"\d+", evaluation)
    return 0 if evaluation == "before" else int(digits[0]) if digits else last


def load_episodes(run: Path, iteration: int) -> list[EpisodeCard]:
    """All episodes of one iteration; none if the folder does not have it.

    Raises:
        RunDataError: its file is damaged.
    """
    return TrajectoryReader(run).cards(iteration)


def _configuration(run: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunDataError(f"{run} is no run folder: it has no config.yaml") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunDataError(f"{run / 'config.yaml'} is damaged: {' '.join(str(error).split())}") from error
    if not isinstance(tree, Mapping):
        raise RunDataError(f"{run / 'config.yaml'} is damaged: it holds no options")
    return dict(tree)


def _checked(tree: Mapping[str, Any], notes: list[str]) -> Config | None:
    from roleagent.config import ConfigError, from_dict  # pydantic: help does without

    try:
        return from_dict(tree, imports=False)
    except ConfigError as error:
        notes.append(f"the configuration is of another version of roleagent ({error})")
        return None


def _differing(config: Config | None, written: Mapping[str, Any]) -> list[str]:
    """Options that differ from the defaults of the run's method."""
    if config is None:
        return []
    from roleagent.config import Config, from_dict, to_dict  # pydantic: help does without

    default, own = flat(to_dict(from_dict({"method": config.method}, imports=False))), flat(to_dict(config))
    names = [name for name in own if own[name] != default.get(name) and name != "run_dir"]
    return [
        name for name in ["method", *names] if name in written and (name != "method" or config.method != Config.method)
    ]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def newest_checkpoint(run: Path) -> dict[str, Any]:
    """The state file of the newest checkpoint; empty without one."""
    for path in sorted(run.glob("checkpoints/step-*/state.json"), reverse=True):
        if path.parent.name.removeprefix("step-").isdecimal() and (state := json_file(path, [])):
            return state
    return {}


def _without_records(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name != "records"}


def is_outdated(
    run: Path, after: Mapping[str, Any], trained: Sequence[Mapping[str, Any]], checkpoint: Mapping[str, Any]
) -> bool:
    """Whether a finished run was resumed for more iterations, so that its last evaluation is outdated.

    Args:
        run: the folder.
        after: that evaluation.
        trained: the logged iterations.
        checkpoint: :func:`newest_checkpoint`.
    """
    version = after.get("policy_version")
    if checkpoint.get("version", version) != version:
        return True
    if trained and checkpoint and trained[-1]["step"] > checkpoint.get("step", 0):
        return True
    try:  # a process writes the lock when it starts
        return at_work(run) and (run / ".lock").stat().st_mtime_ns > (run / "after.json").stat().st_mtime_ns
    except OSError:
        return False


def _state(
    working: bool,
    tree: Mapping[str, Any],
    trained: Sequence[Mapping[str, Any]],
    checkpoint: Mapping[str, Any],
    evaluations: Mapping[str, Any],
    result: bool,
    longer: bool,
) -> str:
    """The run's state, as in :class:`RunData`."""
    if result:
        return "finished"
    if not working:
        return "stopped"
    if not trained and checkpoint.get("stage", "warmstart") == "warmstart":
        return "warm start"
    step = trained[-1]["step"] if trained else 0
    every = int(number(_section(tree, "train").get("evaluate_every")) or 0)
    waits = "before" not in evaluations
    waits |= not longer and "after" not in evaluations and step >= (_wanted(tree) or math.inf)
    waits |= bool(every and step and step % every == 0 and f"iteration-{step:06d}" not in evaluations)
    return "measuring" if waits else "training"


def _wanted(tree: Mapping[str, Any]) -> int:
    return int(number(_section(tree, "train").get("iterations")) or 0)


def _section(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    options = tree.get(name)
    return options if isinstance(options, Mapping) else {}


def _steps(tree: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], revisions: Revisions | None) -> tuple[int, int]:
    """Iterations done and wanted. The rows of Agent-R are updates, of which an iteration has many."""
    if wanted := int(number(_section(_section(tree, "options"), "revision").get("iterations")) or 0):
        done = len(revisions["counts"]) if revisions else 0
        return done, max(done, wanted)
    done = rows[-1]["step"] if rows else 0
    return done, max(done, _wanted(tree))


def _seconds(trained: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> float:
    """The seconds of the iterations, or of the stage that takes their place: its updates log none."""
    if not trained and state.get("stage") not in (None, "warmstart", "train"):
        return number(state.get("seconds")) or 0.0
    return math.fsum(number(row.get("seconds")) or 0.0 for row in trained)


def _growth(run: Path, tree: Mapping[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """Entries and failures of the run's own library by mode and iteration."""
    url: str | Path | None = _section(tree, "curriculum").get("library")
    own: str | None = None
    if not url:
        if not (run / "failures.db").exists():
            return []
        url = run / "failures.db"
    elif (run / "identity").exists():  # the library may be shared
        own = (run / "identity").read_text(encoding="utf-8")
    from roleagent.curricula import archive  # here: --help does not need SQLAlchemy
    from roleagent.curricula.library import FailureLibrary, LibraryError

    try:
        with closing(FailureLibrary(url, read_only=True)) as library:
            return archive.curves(library.growth(own))
    except LibraryError as error:
        notes.append(str(error))
        return []


def _suite(run: Path, notes: list[str]) -> dict[str, dict[int, dict[str, int]]] | None:
    """What the run forgot of its frozen suite; None without one."""
    try:
        return matrix(run) or None
    except (OSError, ValueError, KeyError, TypeError) as error:
        notes.append(f"an evaluation of the frozen suite cannot be read: {error}")
        return None


def _written_tasks(run: Path, notes: list[str]) -> WrittenTasks | None:
    try:
        return summarize_tasks(run)
    except RunDataError as error:
        notes.append(str(error))
        return None


def _revisions(run: Path, notes: list[str]) -> Revisions | None:
    try:
        return summarize_revisions(run)
    except RunDataError as error:
        notes.append(str(error))
        return None


def _by_mode(grown: Sequence[Mapping[str, Any]], what: str) -> Curve:
    steps = sorted({row["iteration"] for row in grown})
    values: dict[str, list[float | None]] = {}
    for row in grown:
        values.setdefault(row["mode"], []).append(float(row[what]))
    return {"step": steps, "values": values}


def _modes(grown: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Failure modes by decreasing number of failures, each with the newest iteration that had one."""
    counts: dict[str, int] = {}
    newest: dict[str, int] = {}
    for row in grown:
        if row["failures"]:
            counts[row["mode"]] = counts.get(row["mode"], 0) + row["failures"]
            newest[row["mode"]] = row["iteration"]
    return {mode: newest[mode] for mode in sorted(counts, key=lambda mode: -counts[mode])}


def _episodes(trained: Sequence[Mapping[str, Any]], reader: TrajectoryReader) -> int | None:
    """Number of recorded episodes: turns divided by the mean length; None if that was not logged."""
    counts: dict[int, int] = {}
    for row in trained:
        turns, mean = number(row.get("environment_steps")), number(row.get("turns"))
        if row["step"] in reader.files and (turns is None or mean is None):
            return None
        counts[row["step"]] = round(turns / mean) if turns and mean else 0
    return sum(counts.get(iteration, 0) for iteration in reader.files)
