"""The project uses the field's words and plain English: the replaced words are refused."""

import ast
import io
import re
import subprocess
import tokenize
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
"""Words that no documentation may contain: pages, configurations, docstrings and comments."""
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


def documentation(source):
    """The numbered lines of a Python file's docstrings, without doctests, and its comments."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                if not lines[number - 1].lstrip().startswith((">>>", "...")):
                    yield number, lines[number - 1]
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_every_file_uses_the_standard_words():
    found = [f"{name}:{hit}" for name, text in text_files() for hit in hits(enumerate(text.split("\n"), 1), STANDARD)]
    assert not found, "\n".join(found)


def test_documentation_is_plain():
    found = []
    for name, text in text_files():
        if not name.startswith("tests/"):
            lines = documentation(text) if name.endswith(".py") else enumerate(text.split("\n"), 1)
            found += [f"{name}:{hit}" for hit in hits(lines, PLAIN)]
    assert not found, "\n".join(found)
