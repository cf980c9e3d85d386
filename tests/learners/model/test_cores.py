"""PyTorch leaves a core that another program uses, and takes it back."""

from collections import namedtuple

import psutil
import pytest
import torch

from roleagent.learners.model import cores

Times = namedtuple("Times", "user system idle")


@pytest.fixture
def machine(monkeypatch):
    """A machine of two cores; the function lets ten seconds pass."""
    state = {"now": 0.0, "own": 0.0, "idle": 0.0}
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(0.0, 0.0, state["idle"]))
    monkeypatch.setattr(psutil.Process, "cpu_times", lambda self: Times(state["own"], 0.0, 0.0))

    def passes(own, others):
        for name, value in (("now", 10), ("own", 10 * own), ("idle", 10 * (2 - own - others))):
            state[name] += value

    yield passes
    torch.set_num_threads(before)


def test_threads_follow_the_free_cores(machine):
    found = cores.Cores()
    for own, others, expected in ((1.8, 0.1, 2), (1.0, 1.0, 1), (1.0, 1.0, 1), (1.0, 0.0, 2), (0.1, 1.9, 1)):
        machine(own, others)
        found.adapt()
        assert torch.get_num_threads() == expected


def test_a_number_of_the_environment_wins(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = cores.Cores()
    machine(1.0, 1.0)
    found.adapt()
    assert torch.get_num_threads() == 2
