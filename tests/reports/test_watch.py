"""`roleagent watch`: runs that go on, as a page on loopback."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.client import HTTPConnection

import pytest
from programs import default_signals

from roleagent.reports.data.run_watcher import RunWatcher, newest_run
from roleagent.reports.web.live_server import LiveServer

HOSTILE = "\x1b]0;owned\x07\x1b[2J</script><script>alert(1)</script>\u202e"


def begin(run, iterations=4):
    """A run as train.py begins it."""
    run.mkdir(parents=True)
    (run / "trajectories").mkdir()
    config = f"env: {{id: RoleAgent/Toy-v0}}\ntrain: {{iterations: {iterations}}}\n"
    (run / "config.yaml").write_text(config)
    return run


def iterate(run, step, success=0.5, alarms=()):
    """Adds what train.py writes in an iteration."""
    turn = {"action": "look", "format_error": None, "observation": HOSTILE, "predictions": [], "scores": []}
    episode = {"group": 0, "task_id": "boil-egg-1", "goal": "boil the egg", "stop_reason": "lost", "reward": 0.0}
    episode |= {"initial_observation": "A kitchen.", "turns": [{**turn, "advantage": 0.5}] * 5}
    (run / "trajectories" / f"iteration-{step:06d}.jsonl").write_text(json.dumps(episode) + "\n")
    row = {"stage": "train", "step": step, "success": success, "entropy": 1.0 / step, "seconds": 60.0, "turns": 5.0}
    row |= {"environment_steps": 5.0, "update_seconds": 45.0, "other_seconds": 15.0, "alarms": list(alarms)}
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps(row | {"success/boil": success}) + "\n")
    return run


@pytest.fixture
def run(tmp_path):
    return iterate(begin(tmp_path / "runs" / "first"), 1)


@contextlib.contextmanager
def serving(*places, **options):
    """A server; ``ask(path, **headers)`` gives status, headers and text."""
    watcher = RunWatcher(places)
    with LiveServer(watcher, **options) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

        def ask(path, method="GET", **headers):
            connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            answer = connection.getresponse()
            body = answer.read()
            connection.close()
            return answer.status, answer.headers, body.decode() if "Content-Encoding" not in answer.headers else body

        ask.server = server
        try:
            yield ask
        finally:
            server.shutdown()


# --- watched runs ----------------------------------------------------------------------------------------------------


def test_a_folder_of_runs_means_the_newest_and_stays_with_it(tmp_path, run):
    os.utime(run / "config.yaml", (1, 1))
    os.utime(run / "metrics.jsonl", (2e9, 2e9))
    begin(tmp_path / "runs" / "second")
    assert newest_run(tmp_path / "runs") == run and newest_run(run) == run
    watcher = RunWatcher([tmp_path / "runs"])
    assert watcher.runs() == [run]
    iterate(begin(tmp_path / "runs" / "third"), 1)
    os.utime(tmp_path / "runs" / "third" / "metrics.jsonl", (3e9, 3e9))
    assert watcher.runs() == [run] and newest_run(tmp_path / "runs").name == "third"
    assert newest_run(tmp_path / "nothing") is None


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_and_its_numbers(run):
    with serving(run) as ask:
        status, headers, page = ask("/")
        assert status == 200 and '"live": "data.json"' in page and "<script>alert" not in page
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        status, headers, reported = ask("/data.json?x=1")
        [data] = json.loads(reported)["runs"]
        assert data["steps"] == [1, 4] and data["training"]["values"]["success"] == [0.5]
        assert ask("/data.json", If_None_Match=headers["ETag"])[::2] == (304, "")
        assert ask("/", If_None_Match=f'"x", {headers["ETag"]}')[0] == 304
        [card] = json.loads(ask("/episodes/1.json")[2])
        assert card["id"] == "1/0/0" and card["turns"][0]["observation"] == HOSTILE
        assert ask("/episodes/7.json")[2] == "[]"
        iterate(run, 2)
        ask.server.watcher._read_again = 0.0
        status, _, reported = ask("/data.json", If_None_Match=headers["ETag"])
        assert status == 200 and json.loads(reported)["runs"][0]["steps"] == [2, 4]
        assert ask("/", Accept_Encoding="gzip")[1]["Content-Encoding"] == "gzip"
        with socket.create_connection(("127.0.0.1", ask.server.server_port)) as raw:
            raw.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert raw.makefile("rb").read().endswith(b"\r\n\r\n")  # and no body


@pytest.mark.parametrize(
    "path",
    [
        *("/config.yaml", "/../config.yaml", "/episodes/../config.yaml", "/episodes/1.json/..", "//etc/passwd"),
        *("/episodes/%2e%2e%2fconfig.yaml", f"/episodes/{'9' * 5000}.json", "/episodes/-1.json", "/episodes/.json"),
    ],
)
def test_no_part_of_an_address_is_a_path(run, path):
    with serving(run) as ask:
        status, headers, said = ask(path)
    assert status == 404 and "Toy" not in said and headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "host, served",
    [
        *[(name, True) for name in ("127.0.0.1:9", "localhost", "[::1]:80", "me.localhost:1", "192.0.2.7")],
        *[(name, False) for name in ("evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "")],
    ],
)
def test_only_this_machines_names_are_let_in(run, host, served):
    """A page elsewhere may have its own name resolve to this machine."""
    with serving(run) as ask:
        status, _, said = ask("/data.json", Host=host)
    assert (status == 200) == served and ("first" in said) == served


def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path):
    with serving(tmp_path / "<new>") as ask:
        status, _, page = ask("/")
        assert status == 200 and "&lt;new&gt;" in page and 'http-equiv="refresh"' in page
        assert ask("/data.json")[0] == 503
        iterate(begin(tmp_path / "<new>"), 1)
        assert json.loads(ask("/data.json")[2])["runs"][0]["name"] == "<new>"


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def shell(request):
    """What the shell that started the tests does with Ctrl-C: in the background of a script it is ignored."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_command_says_where_and_what_and_ends_with_ctrl_c(tmp_path, shell):
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "roleagent.cli", "watch", str(runs), "--port", "0", "--host", "0.0.0.0"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **options, preexec_fn=default_signals)
    try:
        assert re.match(r"the report is at http://127\.0\.0\.1:\d+/ \(Ctrl-C stops\)", process.stdout.readline())
        assert "waiting for the training to begin" in process.stdout.readline()
        begin(runs / "one")
        assert process.stdout.readline() == f"watching {runs / 'one'}, the newest run in {runs}\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0 and out == "stopped\n"
    [warning] = err.splitlines()
    assert warning.startswith("warning: everyone who can reach 0.0.0.0 can read these runs")


def test_a_browser_follows_a_run_from_before_its_beginning(tmp_path, chromium):
    """The real page from the real server: it waits, becomes a report, and goes on with the run."""
    run = tmp_path / "run"

    def until(script, wanted):
        deadline = time.monotonic() + 60
        while (found := chromium.execute_script(f"return {script}")) != wanted:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    with serving(run) as ask:
        chromium.get(ask.server.url)
        until("document.querySelector('h1').textContent", "Waiting for a run")
        iterate(begin(run), 1)
        until("document.querySelector('h1').textContent", "run")
        chromium.execute_script("document.querySelector('.card-head').click()")
        iterate(run, 2)
        ask.server.watcher._read_again = 0.0
        chromium.execute_script("document.dispatchEvent(new Event('visibilitychange'))")  # sooner than by itself
        until("/iteration 2 of 4/.test(document.getElementById('live').textContent)", True)
        until("document.getElementById('news').textContent", "Show 1 new episode")
        until("document.querySelectorAll('.turn').length", 5)  # what the reader has opened stays open
        assert [line["message"] for line in chromium.get_log("browser")] == []
        chromium.get("about:blank")  # or it would go on asking
