"""The commands that the documents show, taken out of them: every line of every ``bash`` block, as words."""

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


def commands_of(page):
    """The commands of a page, in order."""
    block = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if block is None and re.fullmatch(r" *```bash.*", line):
            block = []
        elif block is not None and line.strip() == "```":
            yield from _commands(page, block)
            block = None
        elif block is not None:
            block.append((number, line))


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
