"""The project's structure: imports, docstrings, doctests."""

import ast
import doctest
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import roleagent  # noqa: F401 - registers the environments

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
ROOMS = ("agents", "curricula", "envs", "learners", "reports")
HEAVY = ("torch", "transformers", "deepspeed", "textworld", "alfworld", "faiss", "sqlalchemy")


def module_names():
    names = {}
    for folder, _, files in os.walk(SOURCE / "roleagent", followlinks=True):
        for path in (Path(folder) / name for name in files if name.endswith(".py")):
            parts = path.relative_to(SOURCE).with_suffix("").parts
            names[".".join(part for part in parts if part != "__init__")] = path
    return dict(sorted(names.items()))


MODULES = module_names()


def run(*command, cwd=ROOT, **environment):
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def room_of(name):
    part = name.split(".")[1] if name.startswith("roleagent.") else ""
    return part if part in (*ROOMS, "compat") else ""


# The verbs of the command line load the packages that they need when they run.
FRONT_DOOR = "roleagent.cli"


def needed_modules(path, name):
    """Modules that a module imports anywhere in it, functions included; not what only a type checker sees."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unread = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(inner) for node in unread for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            for module in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if module in MODULES and MODULES[module].name != "__init__.py" and module != name:
                    yield module


def test_no_modules_import_each_other():
    graph = {name: set(needed_modules(path, name)) for name, path in MODULES.items()}
    while free := [name for name, imported in graph.items() if not imported & graph.keys()]:
        for name in free:
            del graph[name]
    assert not graph, f"a circle of imports, or what leads to one: {sorted(graph)}"


LOADED = "import sys; print(*sorted(sys.modules))"
PACKAGES = {"roleagent.envs", *(name.rpartition(".")[0] for name in MODULES if name.endswith(".card"))}


@pytest.mark.parametrize("module", ["roleagent", FRONT_DOOR])
def test_importing_the_package_loads_neither_torch_nor_an_environment(module):
    """Of an environment only its spec is loaded, which is strings."""
    loaded = set(run(sys.executable, "-c", f"import {module}; {LOADED}").split())
    assert module in loaded
    assert not {name for name in loaded if name.split(".")[0] in HEAVY}
    assert {name for name in loaded if room_of(name)} == PACKAGES | {name for name in MODULES if name.endswith(".card")}


def test_playing_an_environment_loads_no_torch():
    program = "import gymnasium, roleagent; gymnasium.make('RoleAgent/ALFWorld-v0').reset(seed=0); "
    loaded = set(run(sys.executable, "-c", program + LOADED).split())
    assert "roleagent.envs" in loaded
    assert not {name for name in loaded if name.split(".")[0] in HEAVY}


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if ">>> " in path.read_text("utf-8")])
def test_doctests(name):
    """By import name, not by path: pytest's own collection would load the rooms under their bare names."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
