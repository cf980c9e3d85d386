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


@pytest.mark.parametrize("program", ["train.py", "evaluate.py", "src/roleagent/__main__.py"])
def test_windows_gets_one_line_that_names_wsl(program):
    """Without fcntl, and with the package's links as text files, anything else would be a traceback."""
    here = (
        f"import runpy, sys, numpy; sys.platform = 'win32'; sys.modules['fcntl'] = None; runpy.run_path({program!r}, "
    )
    code = [sys.executable, "-c", here + "run_name='__main__')"]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "WSL" in done.stderr
