"""Checkpoints: a folder per step, written atomically.

A checkpoint is written beside its final name, flushed to the disk, and renamed at the end, so that a kill, a power cut
or a full disk in the middle leaves the last good one untouched. It holds the policy in safetensors with its tokenizer
(what ``evaluate.py`` and other programs load), a task simulator with weights of its own likewise, the state of the
learner in DeepSpeed's own format, ``state.json``, and a checksum of every file. Only DeepSpeed's state is pickled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from roleagent.agents.policies.hf import HFPolicy, PolicyError, reason_of
from roleagent.config.settings import PolicyConfig
from roleagent.files import (
    PARTIAL,
    damage,
    make_folder,
    replace_checked,
    settle,
    settle_tree,
    write_checksums,
)
from roleagent.learners.engine.engine import Learner
from roleagent.learners.engine.lora import Adapter, adapted
from roleagent.learners.run.folder import AFTER_WARM_START, CheckpointError
from roleagent.slow_notice import waiting
from roleagent.validation import check_arguments


@dataclass
class Progress:
    """The progress of a run: the contents of a checkpoint besides the weights.

    Attributes:
        stage: ``warmstart``, then ``train``, and of a method of another kind its own.
        step: what is done of the stage: updates of imitation, or iterations.
        seconds: wall-clock time spent on them.
        imitation_seconds: of the warm start, once it is over.
        version: updates of the policy since the warm start.
        sampler: state of the curriculum; None before the first iteration.
        method: the state of the method, by its name; empty without one. A fork with another method has no use for it.
        counters: what the run's mechanisms did so far.
        revisions: iterations of ``revise`` and ``eto`` that are finished.
        searched: iterations of them whose trees are searched.
        began: ``step`` before the updates of the newest searched iteration.
    """

    stage: str = "warmstart"
    step: int = 0
    seconds: float = 0.0
    imitation_seconds: float = 0.0
    version: int = 0
    sampler: dict[str, Any] | None = None
    method: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    revisions: int = 0
    searched: int = 0
    began: int = 0


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: holds ``step-NNNNNN`` folders.
        keep: how many of the newest to keep.
        keep_warmstart: whether to keep the one after the warm start, too.
    """

    def __init__(self, folder: Path, keep: int = 2, keep_warmstart: bool = False):
        self.folder, self.keep, self.keep_warmstart = folder, keep, keep_warmstart

    def all(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.startswith("step-") and path.suffix == "")

    def latest(self) -> Path | None:
        """The newest whole checkpoint."""
        return (self.all() or [None])[-1]

    def tidy(self) -> None:
        """Removes unfinished files of a kill, and old checkpoints."""
        for leftover in self.folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(leftover)
        for old in self.all()[: -self.keep]:
            if self.keep_warmstart and old.name == f"step-{AFTER_WARM_START}":
                continue
            # It loses its name at once: half of it must not be taken for the whole.
            shutil.rmtree(old.rename(old.with_suffix(PARTIAL)), ignore_errors=True)

    def save(self, number: int, learner: Learner, state: dict[str, Any]) -> Path:
        """Writes checkpoint ``number`` and drops the oldest; every rank must call it.

        Args:
            number: they must ascend. Where it is the newest one's, its weights are there already, and only the state
                is written.
            learner: holds the policy.
            state: for ``state.json``.

        Raises:
            CheckpointError: it could not be written whole; earlier ones are untouched.
        """
        final = self.folder / f"step-{number:06d}"
        partial = final.with_suffix(PARTIAL)
        ranks = learner.ranks
        if ranks.once(final.exists):
            ranks.once(lambda: replace_checked(final, "state.json", json.dumps(state)))
            return final
        try:
            with waiting(f"{final} to be written"):
                learners = {"policy": learner, **learner.beside}
                models = {name: (one.policy, whole_weights(one)) for name, one in learners.items()}
                ranks.once(lambda: self._begin(partial, models, state))
                learner.save(partial / "learner")  # each rank its part
                settle_tree(partial / "learner")  # which another host could not flush
                ranks.wait()
                ranks.once(lambda: self._finish(partial, final))
        except Exception as error:  # OSError, and what torch and safetensors make of a full disk
            shutil.rmtree(partial, ignore_errors=True)
            last = self.latest()
            kept = f"the last good one is {last}" if last else "there is none yet"
            raise CheckpointError(
                f"cannot write the checkpoint {final}: {reason_of(error)}; {kept}. "
                "Free some space and go on with --resume"
            ) from error
        return final

    def _begin(
        self, partial: Path, models: dict[str, tuple[HFPolicy, dict[str, torch.Tensor]]], state: dict[str, Any]
    ) -> None:
        self.tidy()
        make_folder(partial)
        for name, (policy, weights) in models.items():
            save_policy(policy, partial / name, weights)
        policy, _ = models["policy"]
        if adapted(policy.model):
            Adapter.of(policy.model).save(partial / "adapter")
        (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def _finish(self, partial: Path, final: Path) -> None:
        write_checksums(partial)
        settle_tree(partial)
        partial.rename(final)
        settle(self.folder)
        self.tidy()

    # What follows reads one checkpoint, and raises CheckpointError where it is missing something or damaged.

    @staticmethod
    def check(path: Path, part: str = "") -> None:
        """Compares the files whose names begin with ``part`` with their checksums."""
        try:
            wrong = damage(path, part)
        except OSError as error:
            raise _unreadable(path, error) from error
        if wrong:
            raise _unreadable(path, wrong)

    @staticmethod
    def progress(path: Path, stages: Collection[str] = ()) -> Progress:
        """The saved progress; of a run that has only these ``stages``."""
        try:
            found = _progress(path)
            if stages and found.stage not in stages:
                raise ValueError(f"stage must be one of {', '.join(stages)}, not {found.stage!r}")
            return found
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error

    @staticmethod
    def policy(path: Path, generator: torch.Generator, options: PolicyConfig, name: str = "policy") -> HFPolicy:
        """The policy as it was saved, or the ``simulator`` with weights of its own."""
        try:
            return HFPolicy.from_path(path / name, generator, options.dtype, options.context)
        except PolicyError as error:
            raise _unreadable(path, error) from error

    @staticmethod
    def adapter(path: Path) -> Adapter:
        """The policy's adapter as it was saved."""
        try:
            return Adapter.load(path / "adapter")
        except Exception as error:  # whatever safetensors makes of half a file
            raise _unreadable(path, error) from error

    @staticmethod
    def restore(path: Path, learner: Learner) -> None:
        """Restores weights and optimizer state of a learner."""
        try:
            learner.load(path / "learner")
        except Exception as error:  # whatever unpickling makes of half a file
            raise _unreadable(path, error) from error


def whole_weights(learner: Learner) -> dict[str, torch.Tensor]:
    """The policy's weights by name, on the first rank; elsewhere nothing. Every rank must ask."""
    tied = learner.policy.model.all_tied_weights_keys  # one tensor under two names is written under the first alone
    found = learner.weights()
    if learner.ranks.first:
        return {name: weight.detach().to("cpu", copy=True) for name, weight in found if name not in tied}
    for _ in found:
        pass
    return {}


def save_policy(policy: HFPolicy, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Writes a plain Hugging Face folder: configuration, safetensors, tokenizer, and how images are read.

    Args:
        weights: by name; None: those of the policy's model.
    """
    settings = policy.model.generation_config
    try:
        settings.validate(strict=True)
    except ValueError:  # a temperature without sampling, as some models are published; some versions refuse to write it
        settings.do_sample = True
    policy.model.save_pretrained(str(folder), state_dict=weights, safe_serialization=True)
    for passing in ("is_local", "local_files_only"):  # transformers would write down how it was once loaded
        policy.tokenizer.init_kwargs.pop(passing, None)
    policy.tokenizer.save_pretrained(str(folder))
    for name, content in policy.processors.items():
        (folder / name).write_bytes(content)


def _progress(path: Path) -> Progress:
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if not isinstance(state, dict) or not {"stage", "step"} <= state.keys():
        raise ValueError("state.json does not say how far the run was")
    sampler, method = state.pop("sampler", None), state.pop("method", {})
    if not isinstance(sampler, dict | None) or not isinstance(method, dict):
        raise ValueError("state.json: sampler and method must be objects")
    progress = Progress(
        **check_arguments(Progress, {own.name: state[own.name] for own in fields(Progress) if own.name in state})
    )
    progress.sampler, progress.method = sampler, method
    return progress


def _unreadable(path: Path, reason: Exception | str) -> CheckpointError:
    said = reason if isinstance(reason, str) else reason_of(reason)
    others = [other for other in reversed(Checkpoints(path.parent).all()) if other != path]
    whole = next((other for other in others if _whole(other)), None)
    if whole is None:
        advice = "no other one is whole; start a new run in another folder (run_dir=…)"
    else:
        newer = [path.name, *(other.name for other in others if other.name > whole.name)]
        remove = "that folder" if len(newer) == 1 else ", ".join(sorted(newer))
        advice = f"the newest whole one is {whole}; remove {remove} to continue from it"
    return CheckpointError(f"the checkpoint {path} cannot be read ({said}); {advice}")


def _whole(path: Path) -> bool:
    try:
        return not damage(path) and bool(_progress(path))
    except (OSError, ValueError):
        return False
