"""The blocks of code that the documents show, and the commands in them: every line of a ``bash`` block, as words."""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from programs import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Command:
    """One command of a page.

    Attributes:
        words: as the shell would take them, settings of variables before the program left out.
        variables: what the block has set before it, or the command for itself.
    """

    page: Path
    line: int
    words: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict, hash=False)

    @property
    def text(self):
        return " ".join(self.words)

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        kind: its language; ``text`` is what the programs or commands before it print.
        line: of the page, where its text begins.
        name: of the file as which it is saved, below earlier blocks of that name; None if no comment names one.
    """

    kind: str
    line: int
    text: str

    @property
    def name(self):
        found = re.match(r"# ([\w/]+\.(?:py|toml|yaml))\n", self.text)
        return found and found[1]


def blocks_of(page):
    """The blocks of a page, in order."""
    kind, lines = None, []
    for number, line in enumerate(page.read_text("utf-8").splitlines(keepends=True), 1):
        if kind is None and (begun := re.fullmatch(r" *```(\w+)\n", line)):
            kind, lines = begun[1], []
        elif kind is not None and line.strip() == "```":
            yield Block(kind, number - len(lines), "".join(lines))
            kind = None
        elif kind is not None:
            lines.append(line)


def commands_of(page):
    """The commands of a page, in order."""
    for block in blocks_of(page):
        if block.kind == "bash":
            yield from commands_in(page, block)


def commands_in(page, block):
    """The commands of one ``bash`` block."""
    return _commands(page, list(enumerate(block.text.splitlines(), block.line)))


def _commands(page, lines):
    variables = {}
    whole, first = "", 0
    for number, line in lines:
        first = first if whole else number
        if line.endswith("\\"):
            whole += line[:-1]
            continue
        whole, text = "", whole + line
        words = []
        for word in [*shlex.split(text, comments=True), "&&"]:
            if word != "&&":
                words.append(word)
                continue
            own = {}
            while words and (found := re.fullmatch(r"([A-Z_]+)=(.*)", words[0])):
                own[found[1]] = found[2]
                words.pop(0)
            if words[:1] == ["export"]:
                variables = variables | dict(word.split("=", 1) for word in words[1:])
            elif words:
                yield Command(page, first, tuple(words), variables | own)
            words = []


def commands_of_tables(page):
    """The commands in the tables of a page: code that begins with a program."""
    rows = [(n, line) for n, line in enumerate(page.read_text("utf-8").splitlines(), 1) if line.startswith("|")]
    for number, row in rows:
        for code in re.findall(r"`((?:deepspeed|python|roleagent) [^`]+)`", row):
            yield from _commands(page, [(number, code)])
