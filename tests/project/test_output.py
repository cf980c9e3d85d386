"""Programs whose output cannot be printed as it is: another encoding, a closed stream or pipe, a full disk."""

import os
import subprocess
import sys

import pytest
from programs import ROOT

ASCII = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
EVALUATE = "evaluate.py --agent random --env RoleAgent/Toy-v0"


def start(command, tmp_path, variables=None, **streams):
    """The command as a shell would start it; an evaluation writes its records into a folder of its own."""
    program, *words = command.split()
    if program == "evaluate.py":
        words += ["--split", "valid", "--tasks", "2", "--out", str(tmp_path / "records.jsonl")]
    first = ["-m", "roleagent.cli"] if program == "roleagent" else [str(ROOT / program)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen([sys.executable, *first, *words], env=environment, cwd=tmp_path, **streams)


@pytest.mark.parametrize(
    "command",
    [
        "train.py --help",
        "roleagent doctor --quick",
        "roleagent play Toy --seed 1",
        "roleagent evaluate --help",
        EVALUATE,
    ],
)
def test_every_encoding_takes_every_text(command, tmp_path):
    out, err = (process := start(command, tmp_path, ASCII)).communicate(b"go to caf\xe9\nquit\n", timeout=300)
    assert process.returncode == 0, err
    assert out.decode("ascii") and b"Traceback" not in err and b"Error" not in err


@pytest.mark.parametrize(
    "command", ["roleagent tools show roleagent.envs.tools.examples", "roleagent play ALFWorld --list"]
)
def test_a_pipe_that_closes_is_no_error(command, tmp_path):
    process = start(command, tmp_path)
    process.stdout.close()
    process.stdin.close()
    err = process.stderr.read()
    assert process.wait(timeout=300) == 0 and b"Broken" not in err and b"Traceback" not in err, err


@pytest.mark.parametrize("command", ["train.py --help", "roleagent doctor --quick", EVALUATE])
def test_a_full_disk_is_one_line(command, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        _, err = (process := start(command, tmp_path, stdout=full)).communicate(b"quit\n", timeout=300)
    assert process.returncode == 1 and b"Traceback" not in err
    assert err.splitlines()[-1].endswith(b": the output could not be written: No space left on device")
    assert command != EVALUATE or (tmp_path / "records.result.json").exists()  # the work is done


@pytest.mark.parametrize(
    ("number", "command"), [(0, "roleagent play Toy"), (1, EVALUATE), (2, "roleagent play Nothing")]
)
def test_a_closed_stream_is_no_error(command, number, tmp_path):
    """The next file to be opened would take the number of the closed stream, and get what is printed."""
    streams = {("stdin", "stdout", "stderr")[number]: None}
    process = start(command, tmp_path, preexec_fn=lambda: os.close(number), **streams)
    out, err = process.communicate(b"quit\n" if number else None, timeout=300)
    assert process.returncode == (2 if number == 2 else 0) and b"Traceback" not in (err or b"")
    if command == EVALUATE:
        assert (tmp_path / "records.jsonl").read_text().count("\n") == 3
    assert number != 2 or out == b""  # errors do not go where results are read
