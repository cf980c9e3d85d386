"""What a user installs: the wheel, the light base without torch, extras, and types that other tools can read."""

import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from test_house import MODULES, ROOMS, ROOT, SOURCE, run

TORCH = {"torch", "transformers", "deepspeed", "tokenizers", "safetensors", "tensorboard"}
TRAINER = {*TORCH, "plotly", "scipy", "openai", "faiss-cpu"}
PROGRAM = Path(__file__).with_name("base_program.py")


@pytest.fixture(scope="module")
def setup_cfg():
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def extra(setup_cfg, name):
    extras, text = setup_cfg["options.extras_require"], "%(" + name + ")s"
    while "%(" in text:
        text = re.sub(r"%\((\w+)\)s", lambda inner: extras[inner[1]], text)
    return set(re.findall(r"^[\w-]+", text, re.MULTILINE))


def test_every_console_script_has_a_target(setup_cfg):
    for line in setup_cfg["options.entry_points"]["console_scripts"].strip().split("\n"):
        module, _, function = line.partition("=")[2].strip().partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for name in ("src", "configs", *ROOMS):
        shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored, symlinks=True)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "train.py", "evaluate.py"):
        shutil.copy(ROOT / name, folder / "source")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source"))
    [wheel] = folder.glob("*.whl")
    return wheel


def needed(requirements, extra=""):
    """The installed distributions that requirements lead to, with an extra of the first of them."""
    found, waiting = {}, [(one, extra) for one in requirements]
    while waiting:
        line, extra = waiting.pop()
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = requirement.name.lower().replace("_", "-")
            if name not in found:
                found[name] = metadata.distribution(name)
                waiting += [(one, "") for one in found[name].requires or []]
    return found


def environment(wheel, folder, extra, without):
    """The Python of a new virtual environment with the wheel and what it requires, and nothing else."""
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    [site] = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    [about] = site.glob("roleagent-*.dist-info")
    distributions = needed(metadata.PathDistribution(about).requires, extra)
    assert not without & set(distributions)
    for distribution in distributions.values():
        for top in {file.parts[0] for file in distribution.files if file.parts[0] not in ("..", "__pycache__")}:
            link = site / top
            if not link.exists():
                link.symlink_to(distribution.locate_file(top))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory):
    return environment(wheel, tmp_path_factory.mktemp("base"), "", TRAINER)


def test_the_extra_eval_evaluates_and_reports_without_torch(wheel, tmp_path):
    python = environment(wheel, tmp_path / "eval", "eval", TORCH)
    verb = (str(python), "-m", "roleagent.cli")
    words = ("--env", "RoleAgent/Toy-v0", "--tasks", "3", "--out", "a.jsonl", "--agent")
    assert json.loads(run(*verb, "evaluate", *words, "expert", cwd=tmp_path, PYTHONPATH="").splitlines()[-1])["n"] == 3
    run(*verb, "evaluate", "compare", "a.jsonl", "a.jsonl", cwd=tmp_path, PYTHONPATH="")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    done = subprocess.run(
        [*verb, "evaluate", "--agent", "model"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.startswith("roleagent evaluate needs torch")
    assert done.stderr.endswith("pip install 'roleagent[train]'\n")


def test_the_wheel_holds_the_trees_modules(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert sorted(name for name in names if name.endswith(".py")) == sorted(
        [*(str(path.relative_to(SOURCE)) for path in MODULES.values()), "roleagent_verifiers.py"]
    )
    assert "roleagent/py.typed" in names
    configs = {f"roleagent/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    assert configs == {name for name in names if name.endswith(".yaml")}


def test_the_wheel_has_the_experiments(base, tmp_path):
    shown = run(str(base), "-m", "roleagent.cli", "experiment", "genenv_toy", "--plan", cwd=tmp_path, PYTHONPATH="")
    assert shown.startswith("GenEnv on the toy kitchen: 35 runs in runs/genenv_toy")


def test_the_base_plays_every_environment_and_steers_by_failures(base, tmp_path):
    shutil.copy(PROGRAM, tmp_path)
    shown = run(str(base), PROGRAM.name, cwd=tmp_path, PYTHONPATH="")
    assert str(base.parent.parent) in shown.splitlines()[-1]


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        *((command, "train") for command in ("train.py", "-m roleagent train", "-m roleagent.cli train")),
        *((f"{program} --agent random", "eval") for program in ("evaluate.py", "-m roleagent.cli evaluate")),
        ("-m roleagent.cli export x --out y", "train"),
        ("-m roleagent.cli index serve --index x", "serve"),
        ("-m roleagent.cli experiment genenv_toy", "experiments"),
    ],
)
def test_a_program_names_the_extra_that_it_needs(command, extra, base, tmp_path):
    for name in ("train.py", "evaluate.py", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([base, *command.split()], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert re.fullmatch(rf".* needs [\w, ]+: pip install 'roleagent\[{extra}\]'\n", done.stderr), done.stderr


def test_a_type_checker_resolves_the_public_names(tmp_path):
    pyright = shutil.which("pyright") or shutil.which("pyright", path=str(Path(sys.executable).parent))
    if pyright is None:
        pytest.skip("pyright is not installed")
    names = {
        "roleagent.envs.alfworld.env": "ALFWorldEnv",
        "roleagent.envs.wrappers": "PredictedState",
        "roleagent.curricula": "FailureLibrary",
        "roleagent.types": "Trajectory",
        "roleagent.config": "load",
        "roleagent.learners.method": "Method",
    }
    lines = [f"from {module} import {name}\nreveal_type({name})" for module, name in names.items()]
    (tmp_path / "program.py").write_text("\n".join(lines) + "\nreveal_type(ALFWorldEnv().reset)\n")
    settings = {"extraPaths": [str(SOURCE)], "pythonVersion": "3.10", "typeCheckingMode": "basic"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [pyright, "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [each["message"] for each in found if each["severity"] == "error"] == []
    types = [each["message"].partition(" is ")[2] for each in found if each["severity"] == "information"]
    assert len(types) == len(names) + 1
    assert all("Unknown" not in kind and '"Any"' not in kind for kind in types), types
