"""Trackers: what the real packages kept of a run, of one that was resumed, and of one whose tracker broke."""

import importlib.util
import json
import os
import struct
import sys
import time

import pytest

from roleagent.config import load
from roleagent.learners.run import trackers as tracking
from roleagent.learners.run.folder import RunFolder
from roleagent.learners.run.trackers import TRACKERS, Tracking, without_secrets
from roleagent.options import ConfigError

PASSWORD = "hunter2secret"
ROWS = [
    ("warmstart", 10, {"loss": 2.0}),
    ("warmstart", 20, {"loss": 1.5}),
    ("train", 1, {"loss": 0.5, "success": 0.25, "alarms": []}),
    ("train", 2, {"loss": 0.25, "success": 0.5, "alarms": ["kl"]}),
    ("train", 3, {"loss": 0.125, "success": 0.75, "alarms": []}),
]


def available(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (extra {name})")


def config_for(name, folder, **more):
    options = {
        "tracking.to": f"[{name}]",
        "run_dir": folder,
        "curriculum.library": f"postgresql://me:{PASSWORD}@host/db",
        **more,
    }
    return load(
        overrides=[
            f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in options.items()
        ]
    )


def run_of(name, folder, resume=False):
    """A tracking and what it warned of."""
    warnings = []
    config = config_for(name, folder)
    return Tracking(config, RunFolder(folder, config, resume), warnings.append), warnings


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    for variable in [v for v in os.environ if v.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_MODE", "offline")


def kept_by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    kept = []
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            kept += [
                (v.tag, event.step, tensor_util.make_ndarray(v.tensor).item()) for v in event.summary.value if v.tag
            ]
    return kept


def wandb_records(data):
    """The records of a ``.wandb`` file: a header of 7 bytes, then blocks of 32 KiB as LevelDB's log has them."""
    place, whole = 7, b""
    while place < len(data):
        if 32768 - place % 32768 < 7:  # no room for another header: padding
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)  # behind the checksum
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def kept_by_wandb(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    kept = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in wandb_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            row = {"/".join([item.key, *item.nested_key]).strip("/"): item.value_json for item in record.history.item}
            row = {key: json.loads(value) for key, value in row.items()}
            stage = next((key.partition("/")[0] for key in row if key.endswith("/step")), "")
            named = {key: value for key, value in row.items() if "/" in key and not key.endswith("/step")}
            kept += [(key, row[f"{stage}/step"], value) for key, value in named.items()]
            items = {"/".join([i.key, *i.nested_key]).strip("/"): i.value_json for i in record.summary.update}
            kept += [(key, None, json.loads(value)) for key, value in items.items() if key.startswith("result/")]
    return kept


def kept_by_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("roleagent").experiment_id])
    assert run.info.status == "FINISHED"
    names = run.data.metrics
    return [(name, m.step, m.value) for name in names for m in client.get_metric_history(run.info.run_id, name)]


def kept_by_trackio(folder):
    from trackio.sqlite_storage import SQLiteStorage

    [name] = [name for name in SQLiteStorage.get_runs("roleagent") if name.startswith(folder.name)]
    kept = []
    for row in SQLiteStorage.get_logs("roleagent", name):
        stage = next((key.partition("/")[0] for key in row if key.endswith("/step")), "result")
        step = row.get(f"{stage}/step")
        kept += [(key, step, value) for key, value in row.items() if "/" in key and not key.endswith("/step")]
    return kept


KEPT = {
    "tensorboard": kept_by_tensorboard,
    "wandb": kept_by_wandb,
    "mlflow": kept_by_mlflow,
    "trackio": kept_by_trackio,
}


@pytest.fixture
def trackio_folder(tmp_path, monkeypatch):
    """trackio looks for its folder when it is imported; here it is told of another one afterwards."""
    if importlib.util.find_spec("trackio") is None:
        return
    import trackio  # noqa: F401

    for module in [m for name, m in sys.modules.items() if name.split(".")[0] == "trackio"]:
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio")


@pytest.mark.parametrize("name", TRACKERS)
def test_every_number_arrives_once_however_often_a_run_is_resumed(name, tmp_path, trackio_folder):
    available(name)
    folder = tmp_path / "run"
    for attempt, (start, end) in enumerate([(0, 4), (3, 4), (2, 5)]):  # steps are repeated from the last checkpoint on
        tracked, warnings = run_of(name, folder, resume=attempt > 0)
        with tracked:
            for row in ROWS[start:end]:
                tracked.log(*row)
            if end == len(ROWS):
                tracked.result({"gain": 0.5, "counters": {"failures": 3}})
        assert warnings == []
        time.sleep(1.0 if name == "wandb" else 0.0)  # it names its folders by the second
    kept = KEPT[name](folder)
    expected = {(f"{stage}/{n}", step, v) for stage, step, row in ROWS for n, v in row.items() if isinstance(v, float)}
    assert sorted(item for item in kept if not item[0].startswith("result/")) == sorted(expected)
    result = {tag: value for tag, _, value in kept if tag.startswith("result/")}
    assert result == {"result/gain": 0.5, "result/counters.failures": 3.0}


@pytest.mark.parametrize("name", TRACKERS)
def test_the_configuration_is_told_without_its_secrets(name, tmp_path, trackio_folder, monkeypatch):
    available(name)
    monkeypatch.setattr(sys, "argv", ["train.py", f"curriculum.library=postgresql://me:{PASSWORD}@host/db"])
    tracked, _ = run_of(name, tmp_path / "run")
    with tracked:
        tracked.log(*ROWS[2])
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "config.yaml"]
    reported = b"".join(path.read_bytes() for path in files)
    assert PASSWORD.encode() not in reported
    if name != "tensorboard":
        assert b"postgresql://***@host/db" in reported


@pytest.mark.parametrize(
    "value, expected",
    [
        ("postgresql://me:a/b@host/db", "postgresql://***@host/db"),
        ("postgresql://me:p@ss@host/db", "postgresql://***@host/db"),
        ("https://host:8000/v1", "https://host:8000/v1"),
        ("postgresql://h/d?user=me&password=x&ssl=1", "postgresql://h/d?user=me&password=***&ssl=1"),
        ({"kwargs": {"hub_token": "t", "tokens": "few"}}, {"kwargs": {"hub_token": "***", "tokens": "few"}}),
        (["https://a:b@c"], ["https://***@c"]),
    ],
)
def test_secrets_are_found_where_they_hide(value, expected):
    assert without_secrets(value) == expected


class Broken:
    calls = 0

    def __init__(self, *_):
        pass

    def log(self, row, stage, step, numbers):
        Broken.calls += 1
        if row:
            raise ConnectionError("no route\nto host")

    def result(self, row, numbers):
        raise AssertionError("it was left alone long ago")

    close = result


def test_a_tracker_that_fails_is_warned_of_once_and_left_alone(tmp_path, monkeypatch):
    monkeypatch.setitem(TRACKERS, "trackio", Broken)
    monkeypatch.setattr(Broken, "calls", 0)
    tracked, warnings = run_of("trackio", tmp_path / "run")
    with tracked:
        for step in range(1, 9):
            tracked.log("train", step, {"loss": 1.0})
        tracked.result({"gain": 0.0})
    assert Broken.calls == 4  # one that went well, and three
    assert len(warnings) == 1 and "trackio failed (no route to host)" in warnings[0]


def test_a_run_folder_that_is_no_part_of_a_url_is_refused_for_mlflow_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda *asked: asked)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for folder in ("what?", "100%20"):
        with pytest.raises(ConfigError, match=r"MLflow cannot keep its database in .*MLFLOW_TRACKING_URI"):
            tracking.check_trackers(config_for("mlflow", tmp_path / folder))
        tracking.check_trackers(config_for("tensorboard", tmp_path / folder))
    tracking.check_trackers(config_for("mlflow", tmp_path / "50% of it's ü, #1"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    tracking.check_trackers(config_for("mlflow", tmp_path / "what?"))


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_a_missing_package_is_one_line_before_the_run_begins(name, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked, *rest: None if asked == name else find(asked, *rest))
    with pytest.raises(ConfigError, match=rf"pip install 'roleagent\[{name}\]'"):
        tracking.check_trackers(config_for(name, tmp_path / "run"))
