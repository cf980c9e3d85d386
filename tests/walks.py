"""Pages of the documents from an empty folder to their end: files are saved, programs and commands run."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import yaml
from commands import blocks_of, commands_in, commands_of
from failures import failed
from programs import HANGS, ROOT, default_signals
from rules import RULES

from roleagent import config
from roleagent.curricula.library import FailureLibrary

ROLEAGENT = (sys.executable, "-m", "roleagent.cli")
NEAR = 10.0
"""Points by which a trained policy's percentages may differ from the page's, on another machine."""
RETRIEVER = 'HTTPRetriever("http://127.0.0.1:8000"'
"""In docs/retrieval.md: where a server of the page is asked."""


def rule_of(command):
    """How a command is run; None: it is only read."""
    return next((rule for rule in RULES if re.fullmatch(rule.pattern, command.text)), None)


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


def lay_out(folder):
    """Puts what a clone has into a folder."""
    for name in ("train.py", "evaluate.py", "configs", "examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)


def started(words, folder, variables, **options):
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_DATA")}
    environment.pop("LOCAL_RANK", None)  # a run in this process has set it
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "DS_ACCELERATOR": "cpu", "COLUMNS": "100"}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # as if activated
    environment |= {"PYTHONPATH": str(folder / "installed"), **variables}  # where `pip install .` puts a package
    program = {"python": (sys.executable,), "pip": (sys.executable, "-m", "pip"), "roleagent": ROLEAGENT}.get(
        words[0], words[:1]
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen([*program, *words[1:]], cwd=folder, env=environment, text=True, **pipes | options)


def done(words, folder, variables=None, types=""):
    with started(words, folder, variables or {}) as process:
        try:
            shown, _ = process.communicate(types, timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, f"{shlex.join(words)} ended with {process.returncode}:\n{shown}"
    return shown


class Place:
    """What the rules name in braces, made when it is first wanted and shared by all commands."""

    def __init__(self, folder):
        self.folder = folder
        lay_out(folder)

    @cached_property
    def run(self):
        """The run of the quick start, as it stands there."""
        self.trained = done(["python", "train.py", "--config", "configs/toy.yaml", "run_dir=runs/toy"], self.folder)
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
        from roleagent.learners.engine.engine import NotFinite
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

    def _served(self, *command):
        said = self.open.enter_context(listening(["roleagent", *command, "--port", "0"], self.folder, {}))
        return address_in(said)

    @cached_property
    def openenv(self):
        return self._served("serve", "RoleAgent/ALFWorld-v0", "--env-arg", "size=tiny")

    @cached_property
    def agentgym(self):
        return self._served("serve", "RoleAgent/ALFWorld-v0", "--protocol", "agentgym")

    @cached_property
    def retriever(self):
        done(["roleagent", "index", "build", "--corpus", f"{self.searchqa}/corpus.jsonl", "--out", "wiki"], self.folder)
        return self._served("index", "serve", "--index", "wiki")


def address_in(said):
    """The address that a server has named, or None."""
    found = re.search(r"http://127\.0\.0\.1:\d+", said)
    return found and found[0]


@contextmanager
def listening(words, folder, variables):
    """What a server prints until it listens. It gets a signal when the block ends, and must end."""
    process = started(words, folder, variables, preexec_fn=default_signals)
    try:
        said = ""
        while not address_in(said):
            line = process.stdout.readline()
            assert line, f"{shlex.join(words)} never said where it listens:\n{said}"
            said += line
        yield said
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    finally:
        process.kill()
        process.communicate()


class Walk:
    """A page as a user goes through it.

    Attributes:
        slow: whether slow commands are run, too, beside the quick start's run.
        seen: the line of the last block of expected output that was compared.
    """

    def __init__(self, page, place, folder, slow):
        self.page, self.place, self.folder, self.slow = page, place, folder, slow
        self.program, self.seen, self.skipped = "", 0, set()
        lay_out(folder)
        if any("runs/" in command.text and rule_of(command) for command in commands_of(page)):
            shutil.copytree(place.run if slow else place.sketch, folder / "runs" / "toy")

    def to_the_end(self):
        """Runs every block, and compares what the page says that it prints."""
        shown, near, waits, saved = None, 0.0, False, set()
        for block in blocks_of(self.page):
            if waits and not (block.kind == "python" and not block.name):
                shown, near, waits = self._run_program(), 0.0, False
            if block.name:
                (self.folder / block.name).parent.mkdir(exist_ok=True)
                with open(self.folder / block.name, "a" if block.name in saved else "w", encoding="utf-8") as file:
                    file.write(block.text)
                saved.add(block.name)
            elif block.kind == "python":
                self.program, waits = f"{self.program}\n{block.text}", True
            elif block.kind == "bash":
                shown, near = self._run_commands(block)
            elif block.kind == "text" and shown is not None:
                check_output(f"{self.page.name}:{block.line}", block.text, shown, near)
                self.seen = block.line
        if waits:
            self._run_program()

    def _run_program(self):
        """What the page's Python blocks so far print, as one program; None: the server that it asks is not there."""
        program = self.program
        if RETRIEVER in program:
            if not self.slow:
                return None
            program = program.replace(RETRIEVER, f'HTTPRetriever("{self.place.retriever}"')
        return done(["python", "-W", "error::UserWarning", "-c", program], self.folder)

    def _run_commands(self, block):
        """What a block of commands prints, and by how many points its percentages may differ.

        None: not all was run, or on the sketch of a run.
        """
        rules = [(command, rule_of(command)) for command in commands_in(self.page, block)]
        rules = [(command, rule) for command, rule in rules if rule or command.words[0] != "pip"]
        printed = [self._run_command(command, rule) for command, rule in rules if rule and self._is_run(rule)]
        on_sketch = not self.slow and any("runs/" in command.text for command, _ in rules)
        whole = rules and len(printed) == len(rules) and not on_sketch
        quick = all(rule and rule.how == "quick" for _, rule in rules)
        return "".join(printed) if whole else None, 0.0 if quick else NEAR

    def _is_run(self, rule):
        if rule.needs and not find_spec(rule.needs):
            self.skipped.add(f"the extra [{rule.needs}]")
            return False
        return self.slow or rule.how == "quick"

    def _run_command(self, command, rule):
        words, variables = filled(command, rule.put, self.place)
        words += rule.more.split()
        if rule.how == "made":
            return self.place.trained
        if rule.how == "serves":
            with (
                listening(words, self.folder, variables) as said,
                urllib.request.urlopen(address_in(said) + rule.says, timeout=20) as page,
            ):
                assert page.status == 200
            return said
        if ">" in words:
            words = ["bash", "-c", f"{shlex.join((*ROLEAGENT, *words[1:-2]))} > {words[-1]}"]
        shown = done(words, self.folder, variables, rule.types)
        assert re.search(rule.says, shown), shown
        return shown


def check_output(place, expected, shown, near=0.0):
    """Every expected line must be printed, in this order; ``…`` stands for anything, and the width of a table for any.

    Args:
        place: of the page, for the message.
        near: points by which percentages may differ.

    >>> check_output("page", "won … of 12\\n──── 96.0 %", "x\\nwon 7 of 12\\n── 90.5 %", near=10)
    """
    lines, at = shown.splitlines(), 0
    for line in filter(str.strip, expected.splitlines()):
        while at < len(lines) and not _alike(line, lines[at], near):
            at += 1
        assert at < len(lines), f"{place}: nothing that was printed is like\n{line}\nPrinted was:\n{shown}"
        at += 1


PERCENTAGE = r"\d[\d,]*(?:\.\d+)?(?= ?%)"


def _alike(expected, line, near):
    expected, line = (re.sub(r"([ ━─])\1+", r"\1", text.strip()) for text in (expected, line))
    parts = re.split(f"({PERCENTAGE})", expected)
    pattern = "".join(
        f"({PERCENTAGE})" if i % 2 else re.escape(part).replace("…", ".*") for i, part in enumerate(parts)
    )
    found = re.fullmatch(pattern, line)
    return found and all(abs(float(a) - float(b)) <= near for a, b in zip(parts[1::2], found.groups(), strict=True))
