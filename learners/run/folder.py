"""The folder of a training run.

=====================  ============================================================================
``config.yaml``        the resolved configuration, every default written out
``metrics.jsonl``      one JSON object per ten updates of imitation, and per iteration
``tensorboard/``       the same numbers for TensorBoard (:mod:`roleagent.learners.run.trackers`)
``tracking.json``      what the trackers have received
``trajectories/``      one file of JSON lines per iteration, packed (``zcat``), an episode a line: see
                       :mod:`roleagent.learners.run.trajectory_log`
``tasks/``             with ``genenv=on`` such a file per iteration, an event a line: a task that was written (or why it
                       was refused), played fresh, or replayed (:meth:`RunFolder.tasks`)
``failures.db``        the failure library (SQLite, unless the configuration names another database)
``identity``           the run's name in a failure library that it shares with others
``before.json`` …      evaluations on the held-out split; ``suite-000010.json`` … on a frozen suite
``reference/``         the policy as the warm start left it, where a KL penalty pulls towards it
``simulator/``         with ``simulator.kind=model`` and its own weights: the simulator after its warm start
``search/``            Agent-R's search trees: :mod:`roleagent.learners.agent_r.search_trees`
``revision/``          Agent-R's data, iteration by iteration: :mod:`roleagent.learners.agent_r.iterate`
``base/``              with adapters: the model that they adapt
``fork.json``          of a fork: the run, the iteration and the options (:mod:`roleagent.learners.run.forks`)
``checkpoints/``       see :mod:`roleagent.learners.run.checkpoints`
=====================  ============================================================================
"""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from roleagent.config import Config, ConfigError, from_dict, to_dict
from roleagent.curricula.suite import EVALUATIONS
from roleagent.files import PARTIAL, make_folder, settle, write_json_lines, write_whole
from roleagent.options import UnknownOption, differing, shown

AFTER_WARM_START = 500_000
"""The number of the checkpoint after the warm start; those of later stages follow."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message is one line with the solution."""


class RunFolder:
    """The files of one run.

    Args:
        path: the folder.
        config: the run's configuration. Options that were given to continue it are kept for the next time.
        resume: whether to go on with what is there.

    Raises:
        ConfigError: a new run into a folder that has one, or nothing to resume, or another configuration there.
    """

    def __init__(self, path: Path, config: Config, resume: bool):
        self.path = path
        saved = path / "config.yaml"
        if resume:
            if not saved.exists():
                raise ConfigError(f"{path} holds no run to resume; start it without --resume")
            known = read_config(path)
            others = differing(to_dict(known), to_dict(config))
            # A teacher behind a server may have another address.
            moved = known.distill.served and config.distill.served and "distill.teacher"
            if changed := [name for name in others if not is_free(name) and name != moved]:
                raise ConfigError(
                    f"{path} was started with another configuration: {', '.join(changed)}; --resume {path} alone "
                    "continues it with its own"
                )
            if others:
                self._keep(config)
        elif saved.exists():
            raise ConfigError(
                f"{path} holds a run already: go on with --resume {path}, or name another folder with run_dir=…"
            )
        else:
            make_folder(path)
            self._keep(config)

    def _keep(self, config: Config) -> None:
        write_whole(self.path / "config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False))

    def log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends one line to ``metrics.jsonl``."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"stage": stage, "step": step, **metrics}) + "\n")

    def settle(self) -> None:
        """Waits until the log is on the disk: a checkpoint must not remember more than it."""
        if (self.path / "metrics.jsonl").exists():
            settle(self.path / "metrics.jsonl")

    def rewind(self, stage: str, step: int) -> None:
        """Removes everything written after ``step`` of ``stage``: a resumed run writes it again.

        Raises:
            ConfigError: ``metrics.jsonl`` is damaged before that step; nothing has been removed then.
        """
        kept = self._kept_log(stage, step)
        for leftover in self.path.rglob(f".*{PARTIAL}"):
            leftover.unlink()
        last = step if stage == "train" else -1  # a suite is played before the first iteration, too
        patterns = ("trajectories/iteration-*.jsonl*", "tasks/iteration-*.jsonl*", "iteration-*.json", EVALUATIONS)
        for file in [*chain.from_iterable(map(self.path.glob, patterns))]:
            if int(re.sub(r"\D", "", file.name)) > last:
                file.unlink()
        for file in self.rounds() if stage == "warmstart" else []:
            if (self.read_json(str(file.relative_to(self.path))) or {}).get("step", 0) > step:
                file.unlink()
        if stage == "warmstart":
            for name in ("revision", "search", "reference", "simulator"):
                shutil.rmtree(self.path / name, ignore_errors=True)
            for file in self.path.glob("before*.json"):
                file.unlink()
        if kept is not None:
            write_whole(self.path / "metrics.jsonl", kept)

    def _kept_log(self, stage: str, step: int) -> str | None:
        """The lines of ``metrics.jsonl`` up to a step; None without the file."""
        path = self.path / "metrics.jsonl"
        if not path.exists():
            return None
        kept, torn = [], 0  # a kill tears the line that is being written: no line up to the step can follow it
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(True), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                torn = torn or number
                continue
            if wrong := _wrong_row(row):
                raise _damaged(f"{path}, line {number},", wrong, "correct or remove that line")
            if line.endswith("\n") and _place(row["stage"], row["step"]) <= _place(stage, step):
                if torn:
                    raise _damaged(f"{path}, line {torn},", "it is not JSON", "correct or remove that line")
                kept.append(line)
        return "".join(kept)

    def trajectories(self, iteration: int, episodes: Iterable[Mapping[str, Any]]) -> None:
        """Writes the iteration's episodes (:mod:`roleagent.learners.run.trajectory_log`) atomically."""
        self._write_lines("trajectories", iteration, episodes)

    def tasks(self, iteration: int, events: Iterable[Mapping[str, Any]]) -> None:
        """Writes what happened to generated tasks in the iteration, whole or not at all.

        Every line has ``iteration``, ``event`` and, if it is known, ``task_id``. A line ``written`` is a proposal: the
        ``line``, whether it is ``varied`` from a recent task, the number of its situation (``context``), commands of
        its ``plan``, and why it was ``refused``. Lines ``fresh`` and ``replayed`` are groups that were played:
        ``successes``, ``attempts``, and of fresh ones the ``reward`` R_env and the ``weight`` of the record.
        """
        self._write_lines("tasks", iteration, events)

    def _write_lines(self, name: str, iteration: int, rows: Iterable[Mapping[str, Any]]) -> None:
        write_json_lines(self.path / name / f"iteration-{iteration:06d}.jsonl.gz", rows)

    def rounds(self) -> list[Path]:
        """The files of the warm start's rounds (:mod:`roleagent.learners.sft.demonstrations`), in order."""
        return sorted(self.path.glob("corrections/round-*.json"))

    @staticmethod
    def round_name(number: int) -> str:
        """The name of a round's file in the run folder; rounds are numbered from 1."""
        return f"corrections/round-{number:03d}.json"

    @property
    def identity(self) -> str:
        """A unique name of the run, independent of its folder; drawn on first use."""
        path = self.path / "identity"
        if not path.exists():
            write_whole(path, uuid.uuid4().hex)
        return path.read_text(encoding="utf-8")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the run, or None.

        Raises:
            ConfigError: it is damaged.
        """
        path = self.path / name
        if not path.exists():
            return None
        restore = "put back a copy of it, or start a new run in another folder"
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise _damaged(str(path), str(error), restore) from error
        if not isinstance(value, dict):
            raise _damaged(str(path), "it holds no object", restore)
        return value

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a JSON file of the run atomically."""
        (self.path / name).parent.mkdir(exist_ok=True)
        write_whole(self.path / name, json.dumps(value, indent=1))


def _damaged(what: str, reason: str, advice: str) -> ConfigError:
    return ConfigError(f"{what} is damaged ({reason}): {advice}")


def _place(stage: str, step: int) -> tuple[bool, int]:
    """Orders the steps of a run: those of the warm start come first."""
    return stage != "warmstart", step


def _wrong_row(row: Any) -> str:
    """What is wrong with a line of ``metrics.jsonl``; empty: nothing."""
    if not isinstance(row, dict):
        return "it holds no object"
    stage, step = row.get("stage"), row.get("step")
    if not isinstance(stage, str):
        return f"stage must be a word, not {shown(stage)}"
    if type(step) is not int:
        return f"step must be a whole number, not {shown(step)}"
    wrong = [name for name, value in row.items() if isinstance(value, str) and name != "stage"]
    return f"{shown(wrong[0])} must be a number" if wrong else ""


def library_of(run: Path) -> str | Path:
    """The failure library of a run folder: the configured one, or the run's own file, which may be missing.

    Raises:
        ConfigError: see :func:`read_config`.
    """
    return read_config(run).curriculum.library or run / "failures.db"


def read_config(path: Path) -> Config:
    """The configuration of a run.

    Raises:
        ConfigError: there is no run, or its configuration is damaged or of another version.
    """
    try:
        return from_dict(yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8")), imports=False)
    except OSError as error:
        raise ConfigError(f"{path} is no run folder: it has no config.yaml") from error
    except UnknownOption as error:
        raise ConfigError(
            f"{path / 'config.yaml'} was written by another version of roleagent ({error}): use that version"
        ) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path / 'config.yaml'} is damaged: {' '.join(str(error).split())}") from error


# What may differ between a run and its continuation: its length, trackers, addresses of servers, and in which
# pieces it is computed (or a run that is out of memory could not go on), not what it does.
_FREE = frozenset(
    {
        *(
            "run_dir",
            "train.iterations",
            "train.until",
            "train.tokens",
            "train.checkpoint_every",
            "train.keep_checkpoints",
            "train.keep_warmstart",
            "train.stop_after",
            "train.stop_on_alarm",
            "train.suite",
            "train.stop_on_regression",
            "options.revision.iterations",
        ),
        *("optim.micro_batch_tokens", "optim.compile", "deepspeed.activation_checkpointing"),
        *("endpoint.url", "distill.model", "agent.processes", "agent.timeout"),
    }
)
_FREE_SECTIONS = ("tracking.", "vllm.")


def is_free(name: str) -> bool:
    """Whether an option, by its dotted name, may change in a run, for it changes nothing that is learned."""
    return name in _FREE or name.startswith(_FREE_SECTIONS)


def is_same(one: Config, other: Config) -> bool:
    """Whether two configurations are of the same run, however its folder is written."""
    return not {*differing(to_dict(one), to_dict(other))} - {"run_dir"}


# What a fork may change besides: how the policy learns from here on. Weights, tasks, prompts and measurements stay, and
# so does what the optimizer's state or a library of several runs holds.
FORKED = (
    *("method", "wia", "aiw", "seed", "rollout", "estimator", "loss", "optim", "critic", "curriculum", "lessons"),
    *("train", "options", "distill"),
)
FIXED_IN_FORKS = ("optim.weight_decay", "curriculum.library", "train.evaluate_tasks", "rollout.eval_")
"""Beginnings of names of options in these sections that stay."""


def may_fork(name: str) -> bool:
    """Whether an option, by its dotted name, may differ between a run and its fork.

    >>> may_fork("aiw"), may_fork("distill.teacher"), may_fork("env.id"), may_fork("rollout.eval_batch")
    (True, True, False, False)
    """
    learns = name.partition(".")[0] in FORKED and not name.startswith(FIXED_IN_FORKS)
    return learns or is_free(name)
