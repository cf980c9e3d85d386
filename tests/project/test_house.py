"""The project's structure: imports, docstrings, doctests."""

import ast
import doctest
import importlib
import os
import re
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


def imports_of(path, name):
    """Absolute names of what a module imports anywhere in it, functions included."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package.split(".")[: len(package.split(".")) + 1 - node.level], base]).rstrip(".")
            # `from roleagent import envs` imports a room as much as `import roleagent.envs` does.
            yield from ([f"{base}.{alias.name}" for alias in node.names] if base == "roleagent" else [base])


def room_of(name):
    part = name.split(".")[1] if name.startswith("roleagent.") else ""
    return part if part in MAY_IMPORT else ""


# Which packages a package may import, besides itself and the shared modules.
MAY_IMPORT = {
    "": set(),
    "envs": set(),
    "compat": {"envs"},
    "curricula": set(),
    "agents": {"envs", "curricula"},
    "learners": {"agents", "envs", "curricula"},
    "reports": {"envs", "agents", "curricula", "learners"},
}
# The verbs of the command line load the packages that they need when they run.
FRONT_DOOR = "roleagent.cli"
# The trainer and the evaluation: links to the programs of the root, above every package.
PROGRAMS = (FRONT_DOOR, "roleagent.train", "roleagent.evaluate")
# The encoders of a dense index: imported when an index needs one.
LAZY_TORCH = "roleagent.envs.retrieval.dense.e5"


def test_imports_go_one_way():
    wrong = []
    for name, path in MODULES.items():
        room = room_of(name)
        allowed = MAY_IMPORT[room] | {room, ""}
        for imported in imports_of(path, name):
            top = imported.split(".")[0]
            bare = top in ROOMS
            upward = top == "roleagent" and name not in PROGRAMS and room_of(imported) not in allowed
            light = room in ("", "envs", "compat", "curricula") and name not in (LAZY_TORCH, *PROGRAMS)
            heavy = light and top in ("torch", "transformers", "deepspeed")
            if bare or upward or heavy:
                wrong.append(f"{name} imports {imported}")
    assert not wrong, "\n".join(wrong)


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


def test_an_iteration_needs_few_imports():
    """``train.py`` reads as the algorithm: what a step needs is behind the step."""
    ours = [name for name in imports_of(ROOT / "train.py", "train") if name.startswith("roleagent")]
    assert len(ours) <= 20, ours


LOADED = "import sys; print(*sorted(sys.modules))"
PACKAGES = {"roleagent.envs", *(name.rpartition(".")[0] for name in MODULES if name.endswith(".spec"))}


@pytest.mark.parametrize("module", ["roleagent", FRONT_DOOR])
def test_importing_the_package_loads_neither_torch_nor_an_environment(module):
    """Of an environment only its spec is loaded, which is strings."""
    loaded = set(run(sys.executable, "-c", f"import {module}; {LOADED}").split())
    assert module in loaded
    assert not {name for name in loaded if name.split(".")[0] in HEAVY}
    assert {name for name in loaded if room_of(name)} == PACKAGES | {name for name in MODULES if name.endswith(".spec")}


def test_playing_an_environment_loads_no_torch():
    program = "import gymnasium, roleagent; gymnasium.make('RoleAgent/ALFWorld-v0').reset(seed=0); "
    loaded = set(run(sys.executable, "-c", program + LOADED).split())
    assert "roleagent.envs" in loaded
    assert not {name for name in loaded if name.split(".")[0] in HEAVY}


def test_every_module_has_a_docstring():
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), name


ADDED = ("alfworld", "textworld", "scienceworld", "vllm", "trl", "verifiers", "mcp", "wandb", "mlflow")
"""Optional packages."""


def test_the_tests_mirror_the_packages():
    """A folder of tests is a folder of the package. ``core`` tests the shared modules, and all environments at once."""
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    rooms = [folder for folder in folders if folder.parts[0] in (*ROOMS, "compat")]
    lacking = [str(folder) for folder in rooms if not (SOURCE / "roleagent" / folder / "__init__.py").is_file()]
    assert not lacking, f"no such package: {lacking}"
    assert {str(folder) for folder in folders.difference(rooms)} == {"benchmarks", "core", "project"}
    # pytest puts the folder of a test file on the path, where `alfworld` would be a package of that name.
    shadowing = [folder for folder in folders for name in ADDED if (tests / folder / name).is_dir()]
    assert not shadowing, f"its sub-folder looks like an optional package: {shadowing}"
    crowded = [str(folder) for folder in folders if len([*(tests / folder).glob("test_*.py")]) > 24]
    assert not crowded, f"move tests into the folder of what they test: {crowded}"


def test_the_programs_of_the_benchmarks_stay_short():
    long = [path.name for path in (ROOT / "benchmarks").rglob("*.py") if len(path.read_text().splitlines()) > 350]
    assert not long, long


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if ">>> " in path.read_text("utf-8")])
def test_doctests(name):
    """By import name, not by path: pytest's own collection would load the rooms under their bare names."""
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_checks_run_the_commands_of_the_readme():
    shown = run("bash", ".ci/run", "--show")
    assert re.search(r"^install: pip install -e '\.\[train\]' *$", shown, re.MULTILINE)
    assert re.search(r"^test: pip install -e '\.\[test\]' && pytest$", shown, re.MULTILINE)
