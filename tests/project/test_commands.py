"""Every command that the documents show is read to its last argument; :mod:`test_pages` runs those with a rule."""

import argparse
import configparser
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest
from commands import PAGES, blocks_of, commands_of, commands_of_tables
from packaging.requirements import Requirement
from programs import ROOT
from rules import RULES
from walks import filled, lay_out, rule_of

from roleagent import config

COMMANDS = [command for page in PAGES for command in commands_of(page)]
TABLES = list(commands_of_tables(ROOT / "docs" / "paper_tables.md"))
DIFFERENT = list({(one.text, *one.variables.items()): one for one in reversed([*COMMANDS, *TABLES])}.values())[::-1]
ADAPTERS = (
    "verifiers",
    "skyrl_gym",
    "tinker_cookbook",
    "verl",
    "omegaconf",
)  # .ci/adapters has them


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
            Requirement("roleagent" + word[1:]) if word[0] == "." else None if word[0] == "-" else Requirement(word)
        )
        if wanted is not None and wanted.name == "roleagent":
            assert all(setup.has_option("options.extras_require", extra) for extra in wanted.extras), word


def read_command(words, read):
    program, *arguments = words
    if program == "pip":
        read_pip(words)
    elif program == "vf-eval":
        assert find_spec(arguments[0].replace("-", "_")) and "--env.taskset.env" in arguments
    elif program in ("vllm", "tw-make") or arguments[:2] == ["-m", "llama_cpp.server"]:
        return  # programs of other projects, which are not installed here
    elif program in ("pytest", "mkdocs", "tail"):
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
    elif program == "sbatch":
        place = next(number for number, word in enumerate(arguments) if word.endswith(".sbatch"))
        assert (ROOT / arguments[place]).exists()
        read_command(["python", "train.py", *(word for word in arguments[place + 1 :] if word != "…")], read)
    elif arguments[0] == "-m":
        read(runpy.run_module, arguments[1], arguments[2:])
    elif not re.search("sys.argv|argparse|parse_|read_command", (ROOT / arguments[0]).read_text("utf-8")):
        assert not arguments[1:], f"{arguments[0]} takes no arguments"
    else:
        found = read(runpy.run_path, arguments[0], arguments[1:])
        if arguments[0] == "train.py":
            config.load(found.config, found.overrides)


def _behind(parse, arguments):
    found, _ = parse(arguments)
    return [found.training_script, *found.training_script_args]


@pytest.mark.parametrize("command", [one for one in DIFFERENT if " [" not in one.text], ids=str)
def test_a_command_can_be_read(command, read, tmp_path, monkeypatch):
    rule = rule_of(command)
    lay_out(tmp_path)
    shutil.copy(ROOT / "configs" / "toy.yaml", tmp_path / "run.yaml")
    for block in blocks_of(command.page):
        if block.name and "/" not in block.name:
            (tmp_path / block.name).write_text(block.text, "utf-8")
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


def test_ctrl_c_is_one_line_wherever_a_program_is():
    code = "from roleagent.program import begin; begin('train.py'); raise KeyboardInterrupt"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("", "train.py: stopped\n") and ended.returncode != 0
