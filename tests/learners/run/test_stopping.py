"""A run that ends early evaluates what it has, says what it left out, and continues with --resume."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from programs import cut_short, load

from roleagent.callbacks import Callback
from roleagent.config import ConfigError
from roleagent.config import load as load_config
from roleagent.experiments.runs import result_of
from roleagent.learners.run.stopping import Stopping

train = load("train")


@pytest.fixture
def own(finished, config, tmp_path):
    """A run of one of six iterations, and the arguments that resume it."""
    folder = cut_short(shutil.copytree(finished[0], tmp_path / "run"), 500_003, 500_002)
    return folder, ["--config", str(config), f"run_dir={folder}", "train.iterations=6", "--resume"]


def trained(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row["step"] for row in rows if row["stage"] == "train"]


class SignalsItself(Callback):
    def on_log(self, stage, step, metrics):
        signal.raise_signal(signal.SIGUSR1)


class GoesOn(Callback):
    def __init__(self, folder):
        self.folder, self.known = folder, []

    def on_log(self, stage, step, metrics):
        self.known.append((self.folder / "result.json").exists())


def test_sigusr1_ends_a_run_after_its_iteration_and_resume_continues_it(own, capsys):
    folder, arguments = own
    before = signal.getsignal(signal.SIGUSR1)
    train.run_training(load_config(arguments[1], arguments[2:4]), True, callbacks=[SignalsItself()])
    assert signal.getsignal(signal.SIGUSR1) is before
    stopped = {"reason": "SIGUSR1", "done": 2, "of": 6}
    assert json.loads((folder / "result.json").read_text())["stopped"] == stopped and trained(folder) == [1, 2]
    assert json.loads((folder / "after.json").read_text())["n"] == 4
    said = capsys.readouterr().out
    assert "SIGUSR1 ends the run after 2 of 6 iterations: 4 are left out" in " ".join(said.split())
    assert result_of(folder) is None  # an experiment does not take it for a whole run
    later = GoesOn(folder)
    train.run_training(load_config(arguments[1], arguments[2:4]), True, callbacks=[later])
    assert trained(folder) == [1, 2, 3, 4, 5, 6] and "stopped" not in result_of(folder)
    assert later.known == [False] * 4  # a run that is killed now is not taken for finished, with its earlier result


def test_a_limit_of_time_ends_a_run(own):
    folder, arguments = own
    assert train.main([*arguments, "train.iterations=10000", "train.stop_after=3s"]) == 0
    stopped = json.loads((folder / "result.json").read_text())["stopped"]
    assert stopped["reason"] == "train.stop_after=3s" and 1 <= stopped["done"] == trained(folder)[-1] < 10_000


def test_what_a_run_starts_survives_the_signal_that_slurm_sends_to_every_process():
    with Stopping("") as stopping:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        child.send_signal(signal.SIGUSR1)
        assert not stopping.reason
        child.communicate(b"\n")
        assert child.returncode == 0
        os.kill(os.getpid(), signal.SIGUSR1)  # may reach another thread of the process: the handler then runs later
        end = time.monotonic() + 60
        while not stopping.reason and time.monotonic() < end:
            time.sleep(0.01)
        assert stopping.reason == "SIGUSR1"


def test_a_limit_without_a_unit_is_refused():
    with pytest.raises(ConfigError, match="stop_after must be a duration such as 90s, 20m or 12h"):
        load_config(overrides=["train.stop_after=20"])
