"""Checks of the installed packages: versions, extras, imports, and the command."""

from __future__ import annotations

import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import roleagent
from roleagent.reports.doctor.findings import SLOW, Finding, asked

SHOWN = ("torch", "transformers", "deepspeed", "gymnasium")
ADDS = {
    "eval": "evaluation of agents without a local model, and reports",
    "train": "training, and evaluation of local models",
    "dense": "dense indexes of passages (FAISS)",
    "parquet": "questions in Parquet files",
    "alfworld": "TextWorld, the reference engine",
    "pyserini": "Lucene as a search engine",
    "serve": "a retrieval server (roleagent index serve)",
    "lora": "low-rank adapters (lora.rank)",
    "vllm": "vLLM as the sampler",
    "postgresql": "a failure library for many hosts",
    "wandb": "tracking with Weights & Biases",
    "mlflow": "tracking with MLflow",
    "trackio": "tracking with Trackio",
    "openenv": "environments over HTTP (roleagent serve)",
    "trl": "environments for TRL",
    "experiments": "experiments over seeds (roleagent experiment)",
    "docs": "building the documentation",
    "test": "running the tests",
}
"""What each extra is for."""
MODULES = {"lora": "peft", "pyserini": "pyserini", "vllm": "vllm"}
"""Extras that ``--full`` imports, because they often break with other versions."""


def requirements(extra: str = "") -> list[Requirement]:
    """The package's requirements on this machine: of the base, or of an extra."""
    found = []
    for requirement in map(Requirement, metadata.requires("roleagent") or ()):
        always = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if always != bool(extra) and (always or requirement.marker.evaluate({"extra": extra})):  # type: ignore[union-attr]
            found.append(requirement)
    return found


def lacking(requirement: Requirement) -> str | None:
    """The problem of a requirement, or None.

    >>> lacking(Requirement("gymnasium>=1")), lacking(Requirement("no-such-package>=1"))
    (None, 'no-such-package is not installed')
    """
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name} {version} is installed, but {requirement.specifier} is required"


def python() -> Finding:
    """The version of this interpreter."""
    wanted = SpecifierSet(metadata.metadata("roleagent")["Requires-Python"])
    version = platform.python_version()
    summary = f"{version} ({sys.executable})"
    if not wanted.contains(version, prereleases=True):
        return Finding(
            "python", "problem", f"{summary}, but {wanted} is required", "create an environment with Python 3.12"
        )
    return Finding("python", "good", summary)


def packages() -> Iterator[Finding]:
    """The package, its base requirements, and the trainer's if it is installed."""
    yield Finding("roleagent", "good", f"{roleagent.__version__} ({Path(roleagent.__file__).parent})")
    fine = 0
    trainer = has_trainer()
    if not trainer:
        summary = "not installed: the environments work, training and local models do not"
        yield Finding("trainer", "note", summary, "pip install 'roleagent[train]'")
    for requirement in requirements() + (requirements("train") if trainer else []):
        wrong = lacking(requirement)
        if wrong:
            yield Finding(requirement.name, "problem", wrong, f"pip install '{requirement}'")
        elif requirement.name in SHOWN:
            yield Finding(requirement.name, "good", metadata.version(requirement.name))
        else:
            fine += 1
    yield Finding("other packages", "good", f"{fine} in matching versions")


def has_trainer() -> bool:
    """Whether the extra ``train`` is installed, in any version."""
    return find_spec("torch") is not None


def imports(names: str, seconds: float, extra: str = "") -> Finding:
    """Whether packages can be imported, checked in a separate process.

    A slow import is a note and no problem, because the machine may be busy.

    Args:
        names: of modules, separated by commas.
        seconds: time limit.
        extra: to which they belong; empty: training needs them.
    """
    name = extra or "import"
    try:
        asked(f"import {names}; print(); print('{{}}')", seconds)
    except TimeoutError as error:
        return Finding(name, "note", f"import {names}: {error}", SLOW)
    except RuntimeError as error:
        advice = f"pip install --force-reinstall {names.replace(',', '')}"
        return Finding(name, "note" if extra else "problem", f"import {names}: {error}", advice)
    return Finding(name, "good", f"{names}: can be imported")


def extras() -> Iterator[Finding]:
    """Installed extras, and the benefits of the others."""
    known = metadata.metadata("roleagent").get_all("Provides-Extra") or []
    for extra in known:
        wrong = [problem for requirement in requirements(extra) if (problem := lacking(requirement))]
        added = ADDS.get(extra, "")
        how = f"pip install 'roleagent[{extra}]'"
        odd = [problem for problem in wrong if "is installed, but" in problem]
        if odd:
            yield Finding(extra, "note", odd[0], how)
        elif wrong:
            yield Finding(extra, "absent", f"not installed: {added}" if added else "not installed", how)
        else:
            yield Finding(extra, "good", f"installed: {added}" if added else "installed")


def command() -> Finding:
    """Whether ``roleagent`` on the path is of this environment."""
    schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
    places = [Path(sys.executable).parent, *(Path(sysconfig.get_path("scripts", how)) for how in schemes)]
    here = [place / "roleagent" for place in places if (place / "roleagent").exists()] or [places[0] / "roleagent"]
    found = shutil.which("roleagent")
    if found is None:
        return Finding("command", "note", "roleagent is not on the path", f"export PATH={here[0].parent}:$PATH")
    if Path(found).resolve() not in [path.resolve() for path in here]:
        advice = f"activate this environment: {here[0]}"
        return Finding("command", "note", f"roleagent is {found}, of another environment", advice)
    return Finding("command", "good", found)


__all__ = ["ADDS", "command", "extras", "has_trainer", "imports", "lacking", "packages", "python", "requirements"]
