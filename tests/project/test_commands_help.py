"""Command lines: --help at once and with examples, nearest names, and one line about what is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from programs import status

from roleagent.cli import VERBS, main

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "faiss", "deepspeed", "textworld", "sqlalchemy", "plotly", "pandas", "scipy"}
HEAVY |= {"openenv", "fastapi", "uvicorn", "trl", "datasets", "tensorboard", "pettingzoo", "vllm"}
GROUPS = {
    "webshop": ("build", "generate", "serve"),
    "searchqa": ("generate",),
    "textcraft": ("generate",),
    "index": ("build", "serve"),
    "tools": ("show", "call"),
    "failures": ("list", "show", "modes", "growth", "export"),
}
HELP = [
    *([verb] for verb in VERBS if verb not in GROUPS or verb == "failures"),
    *([verb, inner] for verb, inners in GROUPS.items() for inner in inners),
]


@pytest.mark.parametrize("verb", HELP, ids=" ".join)
def test_help_says_what_and_how_with_an_example_that_is_understood(verb, capsys):
    assert status(main, [*verb, "--help"]) == 0
    text = capsys.readouterr().out
    _, _, examples = text.partition("examples:")
    lines = [line for line in examples.splitlines() if line.strip().startswith("roleagent ")]
    assert any(line.strip().startswith(f"roleagent {verb[0]}") for line in lines)
    assert max(map(len, text.splitlines())) <= 125


def test_help_of_every_verb_comes_without_what_is_heavy():
    program = (
        "import contextlib, io, sys\nfrom roleagent.cli import main\n"
        f"for verb in {HELP!r}:\n    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        main([*verb, '--help'])\nprint(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    ("program", "arguments", "status", "words"),
    [
        ("train.py", ["--help"], 0, "examples:\n  python train.py\n"),
        ("train.py", ["method=gigpo", "--reusme"], 2, "did you mean --resume?"),
        ("train.py", ["optim.lr=fast"], 2, "train.py: optim.lr must be of type float, not 'fast'"),
        ("evaluate.py", ["--help"], 0, "python evaluate.py --agent runs/"),
        ("evaluate.py", ["--repaets", "3"], 2, "did you mean --repeats?"),
        ("evaluate.py", ["compare", "-h"], 0, "--against"),
    ],
)
def test_the_programs_answer_before_torch_is_loaded(program, arguments, status, words):
    heavy = HEAVY - {"pydantic"} if "=" in arguments[0] else HEAVY  # which checks values
    code = (
        f"import os, runpy, sys\nsys.argv = {[program, *arguments]!r}\ntry:\n"
        f"    runpy.run_path({str(ROOT / program)!r}, run_name='__main__')\n"
        f"finally:\n    loaded = {heavy!r} & set(sys.modules)\n    assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
    assert status == 0 or len(done.stderr.splitlines()) == 1


def test_without_a_verb_the_help(capsys):
    for arguments in ([], ["--help"], ["webshop"], ["index", "-h"]):
        assert status(main, arguments) == 0
        assert "verbs:" in capsys.readouterr().out
    assert status(main, []) == 0
    assert all(f"  {verb} " in capsys.readouterr().out for verb in [next(iter(VERBS))])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plya", "Toy"], "did you mean play?"),
        (["games", "--out", "x", "--split", "valid_sen"], "did you mean valid_seen?"),
        (["webshop", "generate", "--out", "{file}"], "File exists"),
        (["webshop", "build", "--data", "{new}"], "new"),
        (["webshop", "serve", "--port", "99999999"], "port"),
        (["searchqa", "generate", "--out", "{new}", "--people", "1"], "16 to"),
        (["index", "build", "--corpus", "{new}", "--out", "{new}2"], "new"),
        (["index", "build", "--corpus", "{empty}", "--out", "{new}2"], "empty"),
        (["index", "serve", "--index", "{new}"], "new"),
        (["failures", "list", "{new}"], "new"),
        (["failures", "list", "{file}"], "file"),
        (["failures", "list", "{empty}"], "empty"),
        (["failures", "lst", "{folder}"], "list, show"),
        (["export", "{new}", "--out", "{new}2"], "new"),
        (["export", "{folder}", "--out", "{file}"], "{folder}"),
        (["export", "{folder}", "--out", "{new}", "--dtype", "float3"], "float32"),
        (["serve", "RoleAgent/Toy-v0", "--port", "99999"], "port"),
        (["play", "RoleAgent/Tay-v0"], "Toy"),
        (["play", "Toy", "--env-arg", "split=trian"], "trian"),
        (["report", "{new}"], "new"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_one_line(arguments, words, tmp_path, capsys):
    places = {name: str(tmp_path / name) for name in ("new", "file", "empty", "folder")}
    Path(places["file"]).write_text("nothing of the kind\n")
    Path(places["empty"]).touch()
    Path(places["folder"]).mkdir()
    assert status(main, [argument.format(**places) for argument in arguments]) == 2
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("roleagent") and words.format(**places) in lines[0]
    assert not Path(places["new"] + "2").exists()
