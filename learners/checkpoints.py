"""Checkpoints: a folder per step that is either whole or not there.

A checkpoint is written beside its final name and renamed at the end, so that a kill or a full disk in the middle
leaves the last good one untouched. It holds the policy in safetensors with its tokenizer (what ``evaluate.py`` and
other programs load), the learner's state in DeepSpeed's own format, and ``state.json``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from roleagent.agents.hf import HFPolicy, PolicyError, reason_of
from roleagent.learners.engine import Learner
from roleagent.settings import PolicyConfig


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be written or read; the message is one line that says what to do."""


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: holds ``step-NNNNNN`` folders.
        keep: how many of the newest to keep.
    """

    def __init__(self, folder: Path, keep: int = 2):
        self.folder, self.keep = folder, keep

    def all(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.startswith("step-") and path.suffix == "")

    def latest(self) -> Path | None:
        """The newest whole checkpoint."""
        return (self.all() or [None])[-1]

    def save(self, number: int, policy: HFPolicy, learner: Learner, state: dict[str, Any]) -> Path:
        """Writes checkpoint ``number`` (they must ascend) and drops the oldest.

        Raises:
            CheckpointError: it could not be written whole; earlier ones are untouched.
        """
        final = self.folder / f"step-{number:06d}"
        partial = final.with_suffix(".partial")
        try:
            learner.ranks.once(lambda: self._begin(partial, policy, state))
            learner.save(partial / "learner")  # each rank its part
            learner.ranks.wait()
            learner.ranks.once(lambda: self._finish(partial, final))
        except Exception as error:  # OSError, and what torch and safetensors make of a full disk
            shutil.rmtree(partial, ignore_errors=True)
            last = self.latest()
            kept = f"the last good one is {last}" if last else "there is none yet"
            raise CheckpointError(
                f"cannot write the checkpoint {final}: {reason_of(error)}; {kept}. "
                "Free some space and go on with --resume"
            ) from error
        return final

    def _begin(self, partial: Path, policy: HFPolicy, state: dict[str, Any]) -> None:
        for leftover in self.folder.glob("*.partial"):
            shutil.rmtree(leftover)
        partial.mkdir(parents=True)
        policy.model.save_pretrained(str(partial / "policy"), safe_serialization=True)
        policy.tokenizer.save_pretrained(str(partial / "policy"))
        (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def _finish(self, partial: Path, final: Path) -> None:
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    # What follows reads one checkpoint, and raises CheckpointError where it is missing something or damaged.

    @staticmethod
    def state(path: Path) -> dict[str, Any]:
        """What the run wrote into ``state.json``."""
        try:
            return json.loads((path / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from error

    @staticmethod
    def policy(path: Path, generator: torch.Generator, options: PolicyConfig) -> HFPolicy:
        """The policy as it was saved."""
        try:
            return HFPolicy.from_path(
                path / "policy", generator, options.dtype, options.context, options.trust_remote_code
            )
        except PolicyError as error:
            raise _unreadable(path, error) from error

    @staticmethod
    def restore(path: Path, learner: Learner) -> None:
        """Puts weights and optimiser state back into a learner."""
        try:
            learner.load(path / "learner")
        except Exception as error:  # whatever unpickling makes of half a file
            raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} cannot be read ({reason_of(error)}); remove that folder to go on from the one before"
    )
