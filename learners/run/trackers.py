"""Trackers of metrics besides ``metrics.jsonl``: TensorBoard, and on request W&B, MLflow and trackio.

A tracker must never end a run. A missing package is found before the run starts (:func:`check_trackers`); one that
fails later causes one warning and is dropped. None needs a network: W&B writes offline unless the user has logged in or
``WANDB_MODE`` is set, MLflow writes into the run folder unless ``MLFLOW_TRACKING_URI`` names a server, trackio keeps
its files on this machine (``TRACKIO_DIR``).

A resumed run continues in the same run of every tracker. It repeats the steps since its last checkpoint, but does not
log them again. ``tracking.json`` in the run folder keeps the necessary state.

Configurations go out flat and without secrets.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from roleagent.config import Config, ConfigError, to_dict
from roleagent.files import write_whole
from roleagent.learners.run.folder import RunFolder


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted names.

    >>> flat({"optim": {"lr": 1e-4}, "seed": 0})
    {'optim.lr': 0.0001, 'seed': 0}
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found


# Up to the last @ where there is a password: such URLs may contain a / or an @ in it.
_IN_URL = re.compile(r"(?<=://)(?:[^/:\s]*:\S*|[^/\s]*)@")
_IN_QUERY = re.compile(r"((?:password|passwd|secret|token|key)=)[^&\s]+", re.IGNORECASE)
_SECRET_NAME = re.compile(r"(password|passwd|secret|token|key)$", re.IGNORECASE)


def without_secrets(value: Any, name: str = "") -> Any:
    """A configuration without user names and passwords.

    >>> without_secrets({"library": "postgresql://me:pw@host/db?password=x", "env": {"api_key": "abc"}, "tokens": 3})
    {'library': 'postgresql://***@host/db?password=***', 'env': {'api_key': '***'}, 'tokens': 3}
    """
    if isinstance(value, Mapping):
        return {key: without_secrets(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if value and _SECRET_NAME.search(name):
        return "***"
    return _IN_QUERY.sub(r"\1***", _IN_URL.sub("***@", value))


_PATIENCE = 3  # failures in a row after which a tracker is left alone


class Tracker(Protocol):
    """Somewhere that numbers go to."""

    def log(self, row: int, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        """Logs one row. ``step`` restarts with every stage; ``row`` counts over all stages, from 0."""
        ...

    def result(self, row: int, numbers: Mapping[str, float]) -> None:
        """Logs the result of a run after ``row`` rows."""
        ...

    def close(self, status: str) -> None:
        """Flushes and closes. ``status`` is ``finished``, ``failed`` or ``killed``."""
        ...


class TensorBoard:
    """Event files in ``tensorboard/``."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], project: str, notes: dict[str, Any]):
        from torch.utils.tensorboard.writer import SummaryWriter

        self._board = SummaryWriter(str(folder.path / "tensorboard"))

    def log(self, row: int, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._board.add_scalar(f"{stage}/{name}", value, step)
        self._board.flush()  # a resumed run does not log it again

    def result(self, row: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._board.add_scalar(f"result/{name}", value, row)

    def close(self, status: str) -> None:
        self._board.close()


class WandB:
    """Weights & Biases; in ``wandb/`` without a login (send it later with ``wandb sync``)."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], project: str, notes: dict[str, Any]):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        with contextlib.redirect_stderr(io.StringIO()):
            known = bool(os.environ.get("WANDB_MODE")) or wandb.login(prompt=False, verify=False)
        # No command line, environment, source or console output: any of them may hold a password.
        settings = wandb.Settings(
            mode=os.environ.get("WANDB_MODE") or ("online" if known else "offline"),  # type: ignore[arg-type]
            console="off",
            silent=True,
            save_code=False,
            disable_git=True,
            x_disable_meta=True,
        )
        self._run: Any = wandb.init(
            project=project,
            name=folder.path.name,
            id=folder.identity,
            resume="allow",
            dir=str(folder.path),
            config=dict(config),
            allow_val_change=True,
            settings=settings,
        )
        self._stages: set[str] = set()

    def log(self, row: int, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        named = {f"{stage}/{name}": value for name, value in numbers.items()}
        self._run.log({f"{stage}/step": step, **named}, step=row, commit=True)

    def result(self, row: int, numbers: Mapping[str, float]) -> None:
        self._run.summary.update({f"result/{name}": value for name, value in numbers.items()})

    def close(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """MLflow; a database in ``mlflow/`` unless ``MLFLOW_TRACKING_URI`` is set (look at it with ``mlflow ui``)."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], project: str, notes: dict[str, Any]):
        # Its own defaults wait for minutes for a server that does not answer, and report how it is used.
        for name, value in (
            ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"),
            ("MLFLOW_HTTP_REQUEST_TIMEOUT", "10"),
            ("MLFLOW_DISABLE_TELEMETRY", "true"),
        ):
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        own = folder.path.resolve() / "mlflow"
        address, place = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not address:
            own.mkdir(exist_ok=True)
            address, place = f"sqlite:///{own / 'mlflow.db'}", (own / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=address)
        self._id: str = notes.get("mlflow", "")
        if self._id:
            try:
                self._client.set_terminated(self._id, "RUNNING")
                return
            except MlflowException:
                pass  # it was deleted there, or this is another server: a new one takes its place
        experiment = self._client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else self._client.create_experiment(project, place)
        self._id = notes["mlflow"] = self._client.create_run(number, run_name=folder.path.name).info.run_id
        for name, value in flat(config).items():
            self._client.log_param(self._id, name, str(value)[:500])

    def log(self, row: int, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        self._put({f"{stage}/{name}": value for name, value in numbers.items()}, step)

    def result(self, row: int, numbers: Mapping[str, float]) -> None:
        self._put({f"result/{name}": value for name, value in numbers.items()}, row)

    def _put(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = round(1000 * time.time())
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in numbers.items()])

    def close(self, status: str) -> None:
        self._client.set_terminated(self._id, status.upper())


class Trackio:
    """trackio's files on this machine (look at them with ``trackio show``)."""

    def __init__(self, folder: RunFolder, config: Mapping[str, Any], project: str, notes: dict[str, Any]):
        import trackio

        self._numbers: dict[str, float] = {}
        with contextlib.redirect_stdout(io.StringIO()):  # there is one display, and it is ours
            self._run = trackio.init(
                project=project,
                name=f"{folder.path.name}-{folder.identity[:8]}",  # a run is known by its name alone
                resume="allow",
                config=dict(config),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, row: int, stage: str, step: int, numbers: Mapping[str, float]) -> None:
        named = {f"{stage}/{name}": value for name, value in numbers.items()}
        self._run.log({f"{stage}/step": step, **named}, step=row)

    def result(self, row: int, numbers: Mapping[str, float]) -> None:
        self._run.log({f"result/{name}": value for name, value in numbers.items()}, step=row)

    def close(self, status: str) -> None:
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            trackio.finish()


TRACKERS: dict[str, Callable[[RunFolder, Mapping[str, Any], str, dict[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}
"""By name in the option ``tracking.to``; each is opened with the run folder, the configuration, the project's name,
and its own saved notes."""


def chosen(config: Config) -> list[str]:
    """The trackers that are switched on."""
    return list(dict.fromkeys(config.tracking.to))


def check_trackers(config: Config) -> None:
    """Refuses trackers whose package is missing, and a run folder that MLflow cannot name in the URL of its database.

    Raises:
        ConfigError: one line with the solution.
    """
    for name in chosen(config):
        if importlib.util.find_spec(name) is None:
            extra = "tensorboard" if name == "tensorboard" else f"'roleagent[{name}]'"
            raise ConfigError(f"tracking.to={name} needs a package that is not installed: pip install {extra}")
        path = str(config.folder.resolve())
        in_folder = name == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI")
        # What reads the URL may decode it, depending on its version, so no form of it is the same path for all.
        if in_folder and (unquote(path) != path or "?" in path):
            raise ConfigError(
                f"tracking.to=mlflow: MLflow cannot keep its database in {path}. Name a run_dir without ? and "
                "%-codes, or a server in MLFLOW_TRACKING_URI"
            )


class Tracking:
    """The trackers of one run, as a context manager around the run.

    Args:
        config: the run's configuration; secrets in it are not logged.
        folder: the run folder.
        warn: takes a line for a person to read.
        quiet: logs nothing (ranks other than the first).
    """

    def __init__(self, config: Config, folder: RunFolder, warn: Callable[[str], None], quiet: bool = False):
        self._path, self._warn = folder.path / "tracking.json", warn
        self._notes: dict[str, Any] = {"rows": 0, "logged": {}, **(folder.read_json("tracking.json") or {})}
        self._failures: dict[str, int] = {}  # in a row
        self._warned: set[str] = set()
        self._trackers: dict[str, Tracker] = {}
        options = without_secrets(to_dict(config))
        for name in [] if quiet else chosen(config):
            with self._guard(name):
                self._trackers[name] = TRACKERS[name](folder, options, config.tracking.project, self._notes)
        self._keep()

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Logs the numbers of a step with all trackers, unless they were logged before a resume."""
        if not self._trackers or step <= self._notes["logged"].get(stage, 0):
            return
        numbers = _numbers(metrics)
        self._each(lambda tracker: tracker.log(self._notes["rows"], stage, step, numbers))
        self._notes["logged"][stage] = step
        self._notes["rows"] += 1
        self._keep()

    def result(self, result: Mapping[str, Any]) -> None:
        """Logs the result of the run with all trackers."""
        numbers, row = _numbers(flat(result)), self._notes["rows"]
        if self._notes.get("result") != row:
            self._each(lambda tracker: tracker.result(row, numbers))
            self._notes["result"] = row
            self._keep()

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "finished"
        if kind is not None:
            status = "failed" if issubclass(kind, Exception) else "killed"
        self._each(lambda tracker: tracker.close(status))
        self._trackers.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._guard(name):
                act(tracker)
                self._failures[name] = 0
            if self._failures.get(name, 0) >= _PATIENCE:
                del self._trackers[name]

    @contextlib.contextmanager
    def _guard(self, name: str):
        try:
            yield
        except Exception as error:  # whatever a tracker raises, the run continues
            if name not in self._warned:
                self._warned.add(name)
                reason = " ".join(str(error).split()) or type(error).__name__
                self._warn(f"{name} failed ({reason[:200]}); the run continues, metrics.jsonl has every number")
            self._failures[name] = self._failures.get(name, 0) + 1

    def _keep(self) -> None:
        if self._trackers:
            write_whole(self._path, json.dumps(self._notes))


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
