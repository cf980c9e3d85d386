"""Every command that the documents show is read to its last argument; those with a rule are run.

The quick ones run always, on what little of a run folder they need; ``pytest -m slow`` runs the slow ones, and reports
of a real run.
"""

import argparse
import configparser
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib.util import find_spec

import pytest
import yaml
from commands import PAGES, commands_of
from failures import failed
from packaging.requirements import Requirement
from programs import ROOT, default_signals
from rules import RULES, SMALL

from roleagent import config
from roleagent.curricula.library import FailureLibrary

COMMANDS = [command for page in PAGES for command in commands_of(page)]
DIFFERENT = list({(command.text, *command.variables.items()): command for command in reversed(COMMANDS)}.values())[::-1]
ROLEAGENT = (sys.executable, "-m", "roleagent.cli")
AGENT = """
class MyAgent:
    def reset(self, observation, info): pass
    def act(self, observation, info): return info["admissible_actions"][0]
"""


ADAPTERS = (
    "verifiers",
    "skyrl_gym",
    "tinker_cookbook",
    "verl",
    "omegaconf",
)  # .ci/adapters has them


def rule_of(command):
    return next((rule for rule in RULES if re.fullmatch(rule.pattern, command.text)), None)


def test_every_rule_has_a_command():
    used = {rule.pattern for command in COMMANDS if (rule := rule_of(command))}
    assert {rule.pattern for rule in RULES} == used


class ReadError(Exception):
    """What a command's arguments turned out to be; raised in place of doing anything."""


@pytest.fixture
def read(monkeypatch):
    """Starts a program in this process and stops it when it has read its arguments; they are returned."""

    def reading(real):
        def parse(self, *arguments, **options):
            found = real(self, *arguments, **options)
            if set(vars(found)) == {"verb"}:  # the first word of `roleagent VERB …`: the verb reads the rest
                return found
            raise ReadError(found)

        return parse

    for name in ("parse_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, reading(getattr(argparse.ArgumentParser, name)))

    def start(run, name, arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        try:
            run(name, run_name="__main__")
        except ReadError as arguments:
            return arguments.args[0]
        except SystemExit as end:
            assert not end.code, f"{name} does not know one of these arguments: {shlex.join(arguments)}"
            return argparse.Namespace()
        pytest.fail(f"{name} has read no arguments")

    return start


def read_pip(words):
    if words[1] == "uninstall":
        return
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    for word in words[2:]:
        wanted = (
            Requirement("roleagent" + word[1:]) if word.startswith(".") else None if word == "-e" else Requirement(word)
        )
        if wanted is not None and wanted.name == "roleagent":
            assert all(setup.has_option("options.extras_require", extra) for extra in wanted.extras), word


def read_command(words, read):
    program, *arguments = words
    if program == "pip":
        read_pip(words)
    elif program == "vf-eval":
        assert find_spec(arguments[0]) and "env" in json.loads(arguments[arguments.index("-a") + 1])
    elif program in ("pytest", "mkdocs"):
        assert all((ROOT / word).exists() for word in arguments if word.startswith("tests/"))
    elif program.endswith(".sh") or program.startswith(".ci/"):
        assert os.access(ROOT / program, os.X_OK)
        subprocess.run(["bash", "-n", str(ROOT / program)], check=True)
    elif program == "roleagent":
        read(runpy.run_module, "roleagent.cli", arguments)
    elif program == "torchrun":
        from torch.distributed.run import get_args_parser

        read_command(["python", *_behind(get_args_parser().parse_known_args, arguments)], read)
    elif program == "deepspeed":
        from deepspeed.launcher.runner import parse_args

        with pytest.raises(ReadError) as found:
            parse_args(arguments)
        read_command(["python", found.value.args[0].user_script, *found.value.args[0].user_args], read)
    elif arguments[0] == "-m":
        read(runpy.run_module, arguments[1], arguments[2:])
    elif not re.search("sys.argv|argparse|parse_", (ROOT / arguments[0]).read_text("utf-8")):
        assert not arguments[1:], f"{arguments[0]} takes no arguments"
    else:
        found = read(runpy.run_path, arguments[0], arguments[1:])
        if arguments[0] == "train.py":
            config.load(found.config, found.overrides)


def _behind(parse, arguments):
    found, _ = parse(arguments)
    return [found.training_script, *found.training_script_args]


def filled(command, put, place=None):
    """The command's words, and its variables, with replacements."""

    def made(name):
        return str(getattr(place, name[1])) if place else name[1].upper()

    def fill(text):
        for old, new in put.items():
            text = text.replace(old, re.sub(r"\{(\w+)\}", made, new))
        return text

    def expand(word):
        return re.sub(r"\$([A-Z_]+)", lambda name: variables[name[1]], fill(word))

    variables = {name: fill(value) for name, value in command.variables.items()}
    words = [expand(word).split() if "…" in word else [expand(word)] for word in command.words]
    return [part for parts in words for part in parts], variables


@pytest.mark.parametrize("command", [one for one in DIFFERENT if " [" not in one.text], ids=str)
def test_a_command_can_be_read(command, read, tmp_path, monkeypatch):
    rule = rule_of(command)
    _lay_out(tmp_path)
    shutil.copy(ROOT / "configs" / "toy.yaml", tmp_path / "run.yaml")
    monkeypatch.chdir(tmp_path)
    for folder in ("benchmarks", "examples"):  # a program finds what lies beside it
        monkeypatch.syspath_prepend(ROOT / folder)
    elided = {"…": "run.yaml"} if "--config …" in command.text else {"…": ""}
    words, _ = filled(command, (rule.put if rule else {}) | elided)
    if ">" in words:
        words = words[: words.index(">")]
    try:
        read_command([*words, *(rule.more.split() if rule else ())], read)
    except ModuleNotFoundError as error:
        if error.name not in ADAPTERS:
            raise
        pytest.skip(f"needs {error.name}: .ci/adapters")


def _lay_out(folder):
    for name in ("train.py", "evaluate.py", "configs", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)


def started(words, folder, variables, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "DS_ACCELERATOR": "cpu", **variables}
    environment.pop("LOCAL_RANK", None)  # a run in this process has set it
    program = {"python": (sys.executable,), "roleagent": ROLEAGENT}.get(words[0], words[:1])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([*program, *words[1:]], cwd=folder, env=environment, text=True, **pipes | options)


def done(words, folder, variables=None, types=""):
    process = started(words, folder, variables or {})
    shown, _ = process.communicate(types, timeout=600)
    assert process.returncode == 0, f"{shlex.join(words)} ended with {process.returncode}:\n{shown}"
    return shown


class Place:
    """What the rules name in braces, made when it is first wanted and shared by all commands."""

    def __init__(self, folder):
        self.folder = folder
        _lay_out(folder)

    @cached_property
    def run(self):
        train = ["python", "train.py", "--config", "configs/toy.yaml", *SMALL.split(), "run_dir=runs/toy"]
        done(train, self.folder)
        run = self.folder / "runs" / "toy"
        self._halt(run / "halted" / "train-000007")
        return run

    @cached_property
    def sketch(self):
        """As much of a run folder as the quick commands look at."""
        run = self.folder / "runs" / "sketch"
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(yaml.safe_dump(config.to_dict(config.Config())))
        library = FailureLibrary(f"sqlite:///{run / 'failures.db'}")
        library.record([failed("egg-1"), failed("egg-2", "premature_give_up")], iteration=1)
        library.close()
        return run

    def _halt(self, batch):
        from roleagent.learners.model.engine import NotFinite
        from roleagent.learners.run import nan_dump
        from roleagent.types import Segment

        segment = Segment((1, 2), (0, 1), (0.0, float("nan")), (0.0, 1.0))
        nan_dump.write(batch / "rank-0", NotFinite(float("nan"), 0.0, [segment], {}))

    @cached_property
    def searchqa(self):
        done(["roleagent", "searchqa", "generate", "--out", "searchqa"], self.folder)
        return self.folder / "searchqa"

    @cached_property
    def encoder(self):
        from tiny_e5 import save_model

        return save_model(self.folder / "e5")

    @cached_property
    def tools(self):
        folder = self.folder / "tools"
        folder.mkdir()
        page = (ROOT / "docs" / "plug_in_a_tool.md").read_text("utf-8")
        for name, block in re.findall(r"^```python\n(?:# (\S+\.py)\n)?(.*?)^```", page, re.DOTALL | re.MULTILINE):
            (folder / (name or "program.py")).write_text(block, encoding="utf-8")
        done(["python", "program.py"], folder)
        return folder

    def _served(self, *options):
        serve = ["roleagent", "serve", "RoleAgent/ALFWorld-v0", "--port", "0", "--env-arg", "size=tiny", *options]
        return self.open.enter_context(listening(serve, self.folder, {}))

    @cached_property
    def openenv(self):
        return self._served()

    @cached_property
    def agentgym(self):
        return self._served("--protocol", "agentgym")

    @cached_property
    def index(self):
        done(["roleagent", "index", "build", "--corpus", f"{self.searchqa}/corpus.jsonl", "--out", "wiki"], self.folder)
        return self.folder / "wiki"


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("commands"))
    with ExitStack() as made.open:
        yield made


@pytest.fixture
def here(place, tmp_path, request):
    """A folder in which a command may do as it likes, with a copy of the run."""
    _lay_out(tmp_path)
    shutil.copytree(place.run if request.node.get_closest_marker("slow") else place.sketch, tmp_path / "runs" / "toy")
    (tmp_path / "my_module.py").write_text(AGENT)
    return tmp_path


HOW = {command: rule.how for command in DIFFERENT if (rule := rule_of(command))}
QUICK = [command for command, how in HOW.items() if how == "quick"]
SLOW = [command for command, how in HOW.items() if how != "quick" or command.text.startswith("roleagent report")]
# Of several commands of one form in docs/, one is run; all of them are read.
SLOW = [*{(command.page == PAGES[0] and command) or rule_of(command).pattern: command for command in SLOW}.values()]


@pytest.mark.parametrize("command", QUICK, ids=str)
def test_a_command_runs(command, place, here):
    run(command, place, here)


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW, ids=str)
def test_a_command_runs_beside_a_real_run(command, place, here):
    run(command, place, here)


def run(command, place, here):
    rule = rule_of(command)
    if rule.needs:
        pytest.importorskip(rule.needs, reason=f"needs the extra [{rule.needs}]")
    words, variables = filled(command, rule.put, place)
    words += rule.more.split()
    if rule.how == "serves":
        with (
            listening(words, here, variables) as address,
            urllib.request.urlopen(address + rule.says, timeout=20) as page,
        ):
            assert page.status == 200
        return
    if ">" in words:
        words = ["bash", "-c", f"{shlex.join((*ROLEAGENT, *words[1:-2]))} > {words[-1]}"]
    shown = done(words, here, variables, rule.types)
    assert re.search(rule.says, shown)


@contextmanager
def listening(words, folder, variables):
    """The address of a server, which is told to end when the block does, and must."""
    process = started(words, folder, variables, preexec_fn=default_signals)
    try:
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+", said)):
            line = process.stdout.readline()
            assert line, f"{shlex.join(words)} never said where it listens:\n{said}"
            said += line
        yield found[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    finally:
        process.kill()
        process.communicate()


def test_ctrl_c_is_one_line_wherever_a_program_is():
    code = "from roleagent.program import begin; begin('train.py'); raise KeyboardInterrupt"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("", "train.py: stopped\n") and ended.returncode != 0
