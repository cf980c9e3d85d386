"""Every command that the documents show is run, or read to its last argument where it cannot be run here.

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
from fake_openai import KEY, MODEL, serving
from packaging.requirements import Requirement
from programs import ROOT
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


def rules_of(command):
    return [rule for rule in RULES if re.fullmatch(rule.pattern, command.text)]


def test_every_command_has_one_rule_and_every_rule_a_command():
    wrong = [
        f"{command} has {len(rules_of(command))} rules in tests/rules.py"
        for command in COMMANDS
        if len(rules_of(command)) != 1
    ]
    used = {rule.pattern for command in COMMANDS for rule in rules_of(command)}
    wrong += [f"the rule {rule.pattern!r} matches no command" for rule in RULES if rule.pattern not in used]
    wrong += [f"the rule {rule.pattern!r} does not say why" for rule in RULES if rule.how == "parsed" and not rule.why]
    assert not wrong, "\n".join(wrong)


# --- reading ----------------------------------------------------------------------------------------------------------


class ReadError(Exception):
    """What a command's arguments turned out to be; raised in place of doing anything."""

    def __init__(self, found):
        self.found = found


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
            return arguments.found
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
    """Reads a command to its last argument, whatever it starts."""
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
        read_command(["python", found.value.found.user_script, *found.value.found.user_args], read)
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


def filled(command, rule, place=None):
    """The command's words, and its variables, with the rule's replacements and further arguments."""

    def made(name):
        return str(getattr(place, name[1])) if place else name[1].upper()

    def fill(text):
        for old, new in rule.put.items():
            text = text.replace(old, re.sub(r"\{(\w+)\}", made, new))
        return text

    def expand(word):
        return re.sub(r"\$([A-Z_]+)", lambda name: variables[name[1]], fill(word))

    variables = {name: fill(value) for name, value in command.variables.items()}
    words = [expand(word).split() if "…" in word else [expand(word)] for word in command.words]
    return [part for parts in words for part in parts], variables


@pytest.mark.parametrize("command", DIFFERENT, ids=str)
def test_a_command_can_be_read(command, read, tmp_path, monkeypatch):
    (rule,) = rules_of(command)
    if rule.how == "parsed" and rule.needs:
        pytest.importorskip(rule.needs, reason=f"needs {rule.needs}: .ci/adapters")
    _lay_out(tmp_path)
    shutil.copy(ROOT / "configs" / "toy.yaml", tmp_path / "run.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # a program finds what lies beside it
    words, _ = filled(command, rule)
    if ">" in words:
        words = words[: words.index(">")]
    read_command([*words, *rule.more.split()], read)


# --- running ----------------------------------------------------------------------------------------------------------


def _lay_out(folder):
    """What a newcomer has before them, without copying it."""
    for name in ("train.py", "evaluate.py", "configs", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)


def started(words, folder, variables, **options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "DS_ACCELERATOR": "cpu", **variables}
    for name in {"ALFWORLD_DATA", "WEBSHOP_DATA", "SEARCHQA_DATA", "TEXTCRAFT_DATA"} - set(variables):
        environment.pop(name, None)
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

    model = MODEL

    def __init__(self, folder):
        self.folder = folder
        _lay_out(folder)

    @cached_property
    def run(self):
        """A run folder: a real one."""
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
    def policy(self):
        return self.run / "checkpoints" / "step-500001" / "policy"

    @cached_property
    def alfworld(self):
        pytest.importorskip("alfworld", reason="needs the extra [alfworld]")
        for split in ("train", "valid_seen"):
            done(
                ["roleagent", "games", "--split", split, "--size", "tiny", "--games", "12", "--out", "alfworld"],
                self.folder,
            )
        return self.folder / "alfworld"

    @cached_property
    def webshop(self):
        done(["roleagent", "webshop", "generate", "--out", "webshop"], self.folder)
        return self.folder / "webshop"

    @cached_property
    def searchqa(self):
        done(["roleagent", "searchqa", "generate", "--out", "searchqa"], self.folder)
        return self.folder / "searchqa"

    @cached_property
    def recipes(self):
        done(["roleagent", "textcraft", "generate", "--out", "recipes"], self.folder)
        return self.folder / "recipes"

    @cached_property
    def encoder(self):
        from tiny_e5 import save_model

        return save_model(self.folder / "e5")

    @cached_property
    def tools(self):
        """The files that docs/plug_in_a_tool.md writes."""
        folder = self.folder / "tools"
        folder.mkdir()
        page = (ROOT / "docs" / "plug_in_a_tool.md").read_text("utf-8")
        for name, block in re.findall(r"^```python\n(?:# (\S+\.py)\n)?(.*?)^```", page, re.DOTALL | re.MULTILINE):
            (folder / (name or "program.py")).write_text(block, encoding="utf-8")
        done(["python", "program.py"], folder)
        return folder

    @cached_property
    def openenv(self):
        serve = ["roleagent", "serve", "RoleAgent/ALFWorld-v0", "--port", "0", "--env-arg", "size=tiny"]
        return self.open.enter_context(listening(serve, self.folder, {}))

    @cached_property
    def agentgym(self):
        serve = ["roleagent", "serve", "RoleAgent/ALFWorld-v0", "--port", "0", "--protocol", "agentgym"]
        return self.open.enter_context(listening([*serve, "--env-arg", "size=tiny"], self.folder, {}))

    @cached_property
    def index(self):
        done(["roleagent", "index", "build", "--corpus", f"{self.searchqa}/corpus.jsonl", "--out", "wiki"], self.folder)
        return self.folder / "wiki"


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("commands"))
    with serving("yes", key=KEY) as server, ExitStack() as made.open:
        made.server = server.url
        yield made


@pytest.fixture
def here(place, tmp_path, monkeypatch, request):
    """A folder in which a command may do as it likes, with a copy of the run."""
    _lay_out(tmp_path)
    shutil.copytree(place.run if request.node.get_closest_marker("slow") else place.sketch, tmp_path / "runs" / "toy")
    (tmp_path / "my_module.py").write_text(AGENT)
    monkeypatch.setenv("ROLEAGENT_API_KEY", KEY)
    return tmp_path


HOW = {command: rule.how for command in DIFFERENT for rule in rules_of(command)}
QUICK = [command for command in DIFFERENT if HOW.get(command) == "quick"]
SLOW = [command for command in DIFFERENT if HOW.get(command) in ("slow", "serves")]
SLOW += [command for command in QUICK if command.text.startswith("roleagent report")]
# Of several commands of one form in docs/, one is run; all of them are read.
SLOW = [*{(command.page == PAGES[0] and command) or rules_of(command)[0].pattern: command for command in SLOW}.values()]


@pytest.mark.parametrize("command", QUICK, ids=str)
def test_a_command_runs(command, place, here):
    run(command, place, here)


@pytest.mark.slow
@pytest.mark.parametrize("command", SLOW, ids=str)
def test_a_command_runs_beside_a_real_run(command, place, here):
    run(command, place, here)


def run(command, place, here):
    (rule,) = rules_of(command)
    if rule.needs:
        pytest.importorskip(rule.needs, reason=f"needs the extra [{rule.needs}]")
    words, variables = filled(command, rule, place)
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
    process = started(words, folder, variables)
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
