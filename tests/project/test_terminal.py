"""What a user meets at a terminal: results without JSON, verbs, and errors that name what was meant."""

import json
import os
import pty
import socket
import subprocess
import sys

import gymnasium
import pytest
from programs import ROOT, load

from roleagent.agents.evaluation.options import options_of
from roleagent.agents.evaluation.records import read_records
from roleagent.cli import main as roleagent
from roleagent.config import ConfigError
from roleagent.config import load as load_config
from roleagent.envs.retrieval.manifest import Manifest
from roleagent.envs.retrieval.passages import RetrievalError
from roleagent.learners.run.folder import read_config
from roleagent.learners.run.options import open_config, read_command, training_parser
from roleagent.reports.play import main as play

TOY = ["--env", "RoleAgent/Toy-v0", "--split", "valid", "--tasks", "1"]


def at_terminal(*words):
    """The output of ``evaluate.py`` whose standard output is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "evaluate.py"), *map(str, words)]
    process = subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"})
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # the end of a terminal
        pass
    assert process.wait(timeout=300) == 0
    os.close(ours)
    return shown.decode()


def test_a_terminal_gets_json_only_if_it_is_asked_for(tmp_path):
    words = [*TOY, "--agent", "random", "--out", tmp_path / "records.jsonl"]
    assert '"protocol"' not in at_terminal(*words)
    assert json.loads(at_terminal(*words, "--json").splitlines()[-1])["n"] == 1
    assert json.loads((tmp_path / "records.result.json").read_text())["n"] == 1


def test_an_agent_may_be_a_function(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_functions.py").write_text(
        "def first(observation, info):\n    return info['admissible_actions'][0]\n\n\n"
        "def look(observation, often=1):\n    return 'look ' * often\n"
    )
    monkeypatch.chdir(tmp_path)
    evaluate = load("evaluate")
    for number, words in enumerate((["my_functions:first"], ["my_functions:look", "--agent-arg", "often=2"])):
        assert evaluate.main([*TOY, "--agent", *words, "--out", f"{number}.jsonl"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("env_id", "split"), [("RoleAgent/WebShop-v0", "valid"), ("RoleAgent/ALFWorld-v0", "valid_seen")]
)
def test_the_default_split_is_one_of_the_environment(env_id, split):
    evaluate = load("evaluate")
    options = options_of(["--env", env_id, "--agent", "random"], None, "evaluate.py")
    target = evaluate.eval_target("random")
    assert evaluate.configuration(options, target).env.eval_split == split
    options = options_of(["--agent", "random", "--set", "optim.lr=1"], None, "evaluate.py")
    with pytest.raises(ConfigError, match=r"--set optim\.lr has no effect in an evaluation"):
        evaluate.configuration(options, target)


@pytest.mark.parametrize("env_id", ["RoleAgent/ALFWorld-v0", "RoleAgent/Toy-v0", "RoleAgent/ToolEnv-v0"])
def test_a_misspelled_argument_of_an_environment_names_the_nearest(env_id):
    with pytest.raises(TypeError, match="has no argument spilt; did you mean split"):
        gymnasium.make(env_id, spilt="train")


@pytest.mark.parametrize("command", [["serve", "RoleAgent/Toy-v0"], ["webshop", "serve"], ["watch", "."]])
def test_a_port_in_use_is_one_line(command, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert roleagent([*command, "--port", str(port)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use): give another --port" in said


def test_a_player_may_write_the_environments_own_commands(monkeypatch, capsys):
    lines = iter(['{"calls": [{"name": "convert", "arguments": {"amount": 3, "unit": "km"}}]}', "quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert play(["ToolEnv", "--seed", "0"]) == 0
    assert "3000.0" in capsys.readouterr().out


# --- continuing a run ---


def resumed(*words):
    return open_config(read_command(training_parser("", "train.py"), words))


@pytest.fixture
def run(tmp_path):
    import yaml

    from roleagent.config import to_dict

    config = load_config(ROOT / "configs" / "toy.yaml", ["seed=3", "optim.lr=0.5", "run_dir=somewhere/else"])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    return tmp_path


def test_resume_with_a_run_reads_its_own_configuration(run):
    config = resumed("--resume", str(run), "train.iterations=9")
    assert (config.seed, config.optim.lr, config.train.iterations) == (3, 0.5, 9)
    assert config.folder == run  # where it is now
    for words in (["--resume", f"run_dir={run}"], [f"run_dir={run}", "--resume"]):
        assert resumed(*words).folder == run and resumed(*words).seed == 0
    with pytest.raises(ConfigError, match="remove --config"):
        resumed("--resume", str(run), "--config", "configs/toy.yaml")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("future: {option: 1}", "was written by another version of roleagent"),
        ("optim: {lr: x}", "is damaged"),
    ],
)
def test_a_file_of_another_version_is_not_called_damaged(line, words, tmp_path):
    (tmp_path / "config.yaml").write_text(line)
    with pytest.raises(ConfigError, match=words):
        read_config(tmp_path)


def test_records_and_indexes_of_a_newer_version(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({"protocol": 99}) + "\n" + json.dumps({"something": "new"}) + "\n")
    with pytest.raises(ValueError, match="newer version"):
        read_records(path)
    (tmp_path / "retrieval.json").write_text(json.dumps({"format": 99, "something": "new"}))
    with pytest.raises(RetrievalError, match="newer version"):
        Manifest.read(tmp_path)
