"""What takes long is named on stderr, and only that."""

import io
import json
import re
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest
import torch

from roleagent import slow_notice
from roleagent.config import ConfigError
from roleagent.slow_notice import waiting


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Seconds are hundredths here."""
    monkeypatch.setattr(slow_notice, "AFTER", 0.05)
    monkeypatch.setattr(slow_notice, "EVERY", 0.1)
    monkeypatch.setattr(slow_notice, "_GLANCE", 0.01)


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def test_what_is_slow_is_named_again_and_again(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with waiting("a slow friend"):
        until(lambda: said.getvalue().count("\n") == 3)
        assert time.monotonic() - slow_notice._speakers[-1][1].since > 0.25  # not at every look
    assert re.fullmatch(r"(waiting \(\d+ s\) for a slow friend\n){3}", said.getvalue())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("every", [False, True])
def test_of_many_processes_one_speaks_unless_each_has_something_to_say(monkeypatch, every):
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    monkeypatch.setenv("RANK", "3")
    with waiting("rank 0", every=every):
        until(said.getvalue) if every else time.sleep(0.3)
    assert said.getvalue().startswith("rank 3: waiting (0 s) for rank 0" if every else "")
    assert bool(said.getvalue()) == every


def test_a_broken_stderr_ends_nothing(monkeypatch):
    tries = []

    class Broken(io.StringIO):
        def write(self, text):
            tries.append(text)
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    with waiting("somebody who left"):
        until(lambda: len(tries) >= 2)  # it looks on all the same


# --- workers that do not answer ---------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture
def gather(monkeypatch):
    """What becomes of processes (threads here) that come as these ranks of so many: an error or nothing."""
    from roleagent.learners.run import ranks as rendezvous

    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    monkeypatch.setattr(rendezvous, "TO_MEET", timedelta(seconds=1))

    def come(size, *ranks):
        port, stores = free_port(), []

        def one(rank):
            try:
                stores.append(rendezvous.meet(rank, size, "127.0.0.1", port))  # whoever opened it keeps it open
            except ConfigError as error:
                return str(error)

        with ThreadPoolExecutor(len(ranks)) as pool:
            return [*pool.map(one, ranks)]

    return come


def test_ranks_that_all_come_meet(gather):
    assert gather(3, 2, 0, 1) == [None, None, None]


def test_ranks_that_do_not_come_are_named_to_all_that_did(gather):
    reported = gather(5, 0, 3)
    assert re.search(r"ranks 1-2, 4 of 5 did not come to 127.0.0.1:\d+ within 1 s .*--nnodes", reported[0])
    assert reported[1] == reported[0] or "rank 0 left" in reported[1]


def test_whoever_comes_to_another_run_is_turned_away_and_the_run_goes_on(gather):
    from roleagent.learners.run import ranks as rendezvous

    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        stores = [*pool.map(lambda rank: rendezvous.meet(rank, 2, "127.0.0.1", port), (0, 1))]
    with pytest.raises(ConfigError, match=r"two processes of rank 1 .* its own --master_port"):
        rendezvous.meet(1, 2, "127.0.0.1", port)
    with pytest.raises(ConfigError, match=r"rank 2 of 4, but at 127.0.0.1:.* meet 2 ranks"):
        rendezvous.meet(2, 4, "127.0.0.1", port)
    assert all(store.get("word") == b"all have come: 2" for store in stores)


def test_nobody_opens_the_place(gather, monkeypatch):
    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    [reported] = gather(2, 1)
    assert "rank 1 of 2 found no rank 0" in reported and "\n" not in reported
    assert "for rank 0 at 127.0.0.1:" in said.getvalue()


@pytest.mark.parametrize("missing", ["RANK", "MASTER_PORT"])
def test_half_a_launcher_is_refused(monkeypatch, missing):
    from roleagent.learners.run.ranks import announced

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "2")
    assert announced() == (2, 2, "2", 2)
    monkeypatch.delenv(missing)
    with pytest.raises(ConfigError, match=missing):
        announced()
    monkeypatch.delenv("WORLD_SIZE")
    assert announced() is None


class VLLMServer(BaseHTTPRequestHandler):
    """One with two workers, of which the second cannot reach the trainer; the first may."""

    def log_message(self, *_):
        pass

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        from roleagent.agents.policies.vllm.requests import PROTOCOL

        known = {"protocol": PROTOCOL, "context": 64, "dtype": "float32", "model": {}, "lora_rank": 0, "instance": "a"}
        self.answer(200, json.dumps({**known, "devices": ["one", "two"]}))

    def do_POST(self):
        from roleagent.agents.policies.vllm.sync import join_store

        place = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["place"]
        store = join_store(place["address"], place["port"], 1)
        closed = free_port()
        while "workers [2]" not in sys.stderr.getvalue():  # the trainer names who is missing, meanwhile
            time.sleep(0.01)
        try:
            join_store(place["address"], closed, 2)
        except ConnectionError as error:
            self.answer(409, f"ConnectionError: {error}")
        del store


def test_a_vllm_server_that_cannot_reach_the_trainer_says_so_at_once(monkeypatch):
    from roleagent.agents.policies.hf import PolicyError
    from roleagent.agents.policies.vllm.client import ServerPool
    from roleagent.config import from_dict

    monkeypatch.setattr(sys, "stderr", said := io.StringIO())
    with ThreadingHTTPServer(("127.0.0.1", 0), VLLMServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = from_dict({"vllm": {"url": f"http://127.0.0.1:{server.server_port}"}})
        model = SimpleNamespace(config=SimpleNamespace(to_dict=dict))
        engine = ServerPool(config, SimpleNamespace(device=torch.device("cpu"), context_length=64, model=model))
        with pytest.raises(
            PolicyError, match=r"answered 409: ConnectionError: the trainer at 127.0.0.1:\d+ cannot be reach"
        ):
            engine.load_weights(iter([]))
        server.shutdown()
    assert re.search(r"waiting \(0 s\) for workers \[(1, )?2\] of the vLLM server to come to", said.getvalue())
