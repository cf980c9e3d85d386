"""The project uses the field's words and plain English: the replaced words are refused."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STANDARD = {
    r"fore(?:casts?|casting|tell|tells|told|see|sees|seen|seeing)": "predict, prediction, predicted",
    r"decoys?": "corrupted prediction",
    r"asides": "detached predictions",
    r"dead[ _]groups?": "zero-variance group",
    r"refills?": "dynamic sampling",
    r"optimisers?": "optimizer",
    r"mended|mends": "repaired",
    r"spelt|misspelt": "tokenized, misspelled",
    r"laid out|goes round": "built, repeats",
    r"analyse[dr]?|analysing": "analyze",
    r"(?:de)?(?:tokenis|optimis|recognis|serialis|summaris)\w+|normalise[ds]?|normalisation": "the same with z",
    r"centres?|programmes?": "center, program",
}
"""Words that no file may contain."""
PLAIN = {
    r"told|tells|telling": "reports, contains, describes",
    r"whoever|nobody": "the subject's name",
    r"for ever|(?:becomes|became|become) of": "a plain verb",
    r"foresaw|foresight": "predicted, prediction",
    r"learnt": "learned",
    r"lays out": "builds",
    r"says": "reports, contains, describes",
}
"""Words that no page and no configuration may contain."""
TEXT = (".py", ".md", ".yaml", ".yml", ".js", ".html", ".cfg")
OLD_NAMES = {"CHANGELOG.md", "CONTRIBUTING.md", "src/roleagent/config/__init__.py", "tests/project/test_language.py"}
"""Files that name what was renamed."""


def text_files():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone: only a repository lists its files")
    for name in listed.stdout.split("\n"):
        path = ROOT / name
        if path.suffix in TEXT and path.is_file() and name not in OLD_NAMES:
            yield name, path.read_text("utf-8")


def hits(lines, banned):
    """``line: 'word': say …`` for every banned word in numbered lines."""
    return [
        f"{number}: {match[0]!r}: say {standard}"
        for number, line in lines
        for pattern, standard in banned.items()
        for match in re.finditer(rf"\b(?:{pattern})\b", line, re.IGNORECASE)
    ]


def test_the_project_uses_standard_and_plain_words():
    found = []
    for name, text in text_files():
        banned = STANDARD if name.endswith((".py", ".js", ".html")) else {**STANDARD, **PLAIN}
        found += [f"{name}:{hit}" for hit in hits(enumerate(text.split("\n"), 1), banned)]
    assert not found, "\n".join(found)
