"""A fork: a run that begins at a checkpoint of another run, with other options.

It has the past of that run: its log, episodes, evaluations and failures up to the checkpoint. Random numbers are a
function of the seed, the purpose and the iteration, so a fork without a change ends in the bits of the run itself.
No torch is imported here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from roleagent.config import Config, ConfigError, for_method, from_dict, method_class, overridden, to_dict
from roleagent.config.effects import without_effect
from roleagent.curricula.suite import EVALUATIONS
from roleagent.files import CHECKSUMS, damage, make_whole, replace_checked, write_checksums
from roleagent.learners.method import method_of
from roleagent.learners.run.conflicts import check_learning
from roleagent.learners.run.folder import (
    AFTER_WARM_START,
    FIXED_IN_FORKS,
    FORKED,
    RunFolder,
    is_same,
    may_fork,
    read_config,
)
from roleagent.options import differing
from roleagent.random_streams import random_stream

# Links: nothing writes into these files, they are replaced whole.
_LINKED = (
    *("before*.json", "iteration-*.json", EVALUATIONS, "splits.json", "reference", "base", "simulator"),
    *("corrections", "trajectories", "tasks"),
)


def forked(config: Config, options: Sequence[str]) -> Config:
    """The configuration of a fork.

    Another method brings its own settings, where the run has the default of its own method.

    Args:
        config: of the run.
        options: ``key=value``.

    Raises:
        ConfigError: an option that cannot change in a run, or has no effect there.
    """
    found = overridden(_with_settings(config, options), options)
    before, after = (method_class(one.method) for one in (config, found))
    if not (before.reinforces and after.reinforces):
        raise ConfigError(f"a fork continues reinforcement, and method={found.method} is none")
    refused = [name for name in differing(to_dict(config), to_dict(found)) if not may_fork(name)]
    if refused:
        raise ConfigError(
            f"{', '.join(refused)} cannot change in a fork, for the checkpoint or the comparison depends on it; what "
            f"can: {', '.join(FORKED)}, without {', '.join(f'{name}*' for name in FIXED_IN_FORKS)}"
        )
    check_learning(found)
    if after.critic and not before.critic:
        raise ConfigError(f"method={found.method} needs a critic, and a checkpoint of method={config.method} has none")
    chose = "aiw=off" if not config.aiw else f"curriculum.analyst={config.curriculum.analyst}"
    if found.aiw and found.curriculum.analyst == "frozen" and chose in ("aiw=off", "curriculum.analyst=types"):
        raise ConfigError(f"curriculum.analyst=frozen keeps the choices of a checkpoint, and this run has {chose}")
    if config.curriculum.library and config.aiw:
        raise ConfigError(
            "curriculum.library names a library beside the run, whose later failures a fork cannot take back: fork a "
            "run with a library of its own"
        )
    if idle := without_effect(found, options):
        raise ConfigError(idle[0])
    return found


def _with_settings(config: Config, options: Sequence[str]) -> dict[str, Any]:
    """The options of a run, with what another method sets if the options name one."""
    names = [value for key, _, value in (option.partition("=") for option in options) if key == "method"]
    own = to_dict(config)
    if not names or names[-1] == config.method:
        return own
    usual, other = (to_dict(from_dict({"method": name})) for name in (config.method, names[-1]))
    for key in differing(usual, other):
        if key.partition(".")[0] not in ("method", "options") and _at(own, key) == _at(usual, key):
            *path, last = key.split(".")
            section, value = _at(own, *path), _at(other, key)
            if value is None:  # of a mapping that has it with the old method alone, such as a price of overlong replies
                del section[last]
            else:
                section[last] = value
    return for_method(own, names[-1])


def _at(tree: Any, *names: str) -> Any:
    for part in ".".join(names).split(".") if names else ():
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def checkpoint_after(run: Path, iteration: int) -> Path:
    """The checkpoint of a run after an iteration; 0: after the warm start.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    path = run / "checkpoints" / _name(iteration)
    if not path.is_dir():
        numbers = sorted(int(one.name[5:]) for one in path.parent.glob("step-??????"))
        after = [str(number - AFTER_WARM_START) for number in numbers if number >= AFTER_WARM_START]
        has = f"it has those after {', '.join(after)}" if after else "it has none of reinforcement"
        raise ConfigError(
            f"{run} has no checkpoint after iteration {iteration}; {has} (train.keep_checkpoints keeps more, "
            "train.keep_warmstart that of iteration 0)"
        )
    if wrong := damage(path):
        raise ConfigError(f"the checkpoint {path} cannot be forked: {wrong}")
    return path


def fork(run: Path, at: int, options: Sequence[str], folder: Path) -> Config:
    """Makes the folder of a fork, for ``train --resume``; returns its configuration. A folder of this fork stays.

    Args:
        run: the folder of the run.
        at: the iteration of the checkpoint.
        options: ``key=value``, as for :func:`forked`.
        folder: of the fork.

    Raises:
        ConfigError: there is no such run or checkpoint, nothing is left of the run, an option cannot change, or the
            folder holds another run.
    """
    before = read_config(run)
    config = forked(before, [*options, f"run_dir={folder}"])
    if (folder / "config.yaml").exists():
        known = RunFolder(folder, read_config(folder), resume=True).read_json("fork.json") or {}
        listed = run / "checkpoints" / _name(at) / CHECKSUMS
        other = listed.exists() and known.get("checkpoint") != _digest(listed)  # where it still is
        if not is_same(read_config(folder), config) or known.get("at") != at or other:
            raise ConfigError(f"{folder} holds another run: name another folder with --out")
        return config
    checkpoint = checkpoint_after(run, at)
    if not (run / "metrics.jsonl").is_file():
        raise ConfigError(f"{run} has no metrics.jsonl: a fork has the log of its run, so put it back")
    start = reference_of(run, before, config) if at else None
    if config.train.last <= at:
        raise ConfigError(
            f"{run} ends at iteration {config.train.last}: nothing is left after {at}; choose an earlier checkpoint, "
            "or more train.iterations"
        )

    def fill(partial: Path) -> None:
        shutil.copytree(checkpoint, partial / "checkpoints" / checkpoint.name, copy_function=_link)
        for path in (path for pattern in _LINKED for path in run.glob(pattern)):
            if path.is_dir():
                shutil.copytree(path, partial / path.name, copy_function=_link)
            else:
                _link(path, partial / path.name)
        if start is not None:
            shutil.copytree(start, partial / "reference", copy_function=_link)
            write_checksums(partial / "reference")
        _change_draws(partial / "checkpoints" / checkpoint.name, before, config)
        shutil.copy(run / "metrics.jsonl", partial)
        if config.aiw and (run / "failures.db").exists():
            _copy_library(run / "failures.db", partial / "failures.db")
        (partial / "config.yaml").write_text(yaml.safe_dump(to_dict(config), sort_keys=False), encoding="utf-8")
        own = RunFolder(partial, config, resume=True)
        digest = _digest(checkpoint / CHECKSUMS)
        own.write_json("fork.json", {"run": str(run), "at": at, "options": list(options), "checkpoint": digest})
        own.rewind("train", at)

    folder.parent.mkdir(parents=True, exist_ok=True)
    make_whole(folder, fill)
    return config


def _copy_library(source: Path, target: Path) -> None:
    """Copies a failure library; the resumed sampler removes what came after the checkpoint.

    Raises:
        ConfigError: it is damaged, or lies where nobody may write, which SQLite must to read it.
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True)) as library,
            closing(sqlite3.connect(target)) as copy,
        ):
            library.backup(copy)
    except sqlite3.Error as error:
        raise ConfigError(f"{source} cannot be read ({error}): fork a copy of the run, or set aiw=off") from error


def first_with_reference(before: Config, after: Config) -> str:
    """The option with which a fork, unlike its run, needs the policy after the warm start; ``""``: it does not."""
    if method_of(before).needs_reference() or not method_of(after).needs_reference():
        return ""
    return after.reads_start or f"method={after.method}"


def reference_of(run: Path, before: Config, after: Config) -> Path | None:
    """The policy after the warm start, if the fork is the first that needs it.

    Raises:
        ConfigError: the run has not kept it.
    """
    reading = first_with_reference(before, after)
    if not reading:
        return None
    path = run / "checkpoints" / _name(0) / ("adapter" if after.lora.rank else "policy")
    if not path.is_dir():
        raise ConfigError(
            f"{reading} needs the policy after the warm start, which {run} has not kept (train.keep_warmstart=on): "
            "leave it out"
        )
    return path


def _change_draws(checkpoint: Path, before: Config, config: Config) -> None:
    """Draws other tasks in a fork with another seed: the generators of a sampler are part of its state.

    Tasks that are played ahead are those of the run: they go where another seed or number of groups asks for others.
    """
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    sampler = state.get("sampler")
    other = config.seed != before.seed
    if sampler is None or not (other or config.rollout.num_groups != before.rollout.num_groups):
        return
    sampler.pop("ahead", None)
    state["sampler"] = _redrawn(sampler, config.seed) if other else sampler
    replace_checked(checkpoint, "state.json", json.dumps(state))


def _redrawn(state: Any, seed: int, *place: str) -> Any:
    """A sampler's state with new generators, each by its place.

    >>> old = random_stream(0, "tasks").bit_generator.state
    >>> new = _redrawn({"inner": {"rng": old}, "drawn": 7}, 1)
    >>> new["drawn"], new["inner"]["rng"]["state"] == old["state"]
    (7, False)
    """
    if not isinstance(state, dict):
        return state
    if "bit_generator" in state:
        return random_stream(seed, "fork", *place).bit_generator.state
    return {name: _redrawn(value, seed, *place, name) for name, value in state.items()}


def _name(iteration: int) -> str:
    return f"step-{AFTER_WARM_START + iteration:06d}"


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _link(source: str | Path, target: str | Path) -> None:
    """A second name of a file; a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


__all__ = ["checkpoint_after", "first_with_reference", "fork", "forked", "reference_of"]
