"""Checkpoints: a folder per step that is either whole or not there.

A checkpoint is written beside its final name, flushed to the disk, and renamed at the end, so that a kill, a power cut
or a full disk in the middle leaves the last good one untouched. It holds the policy in safetensors with its tokenizer
(what ``evaluate.py`` and other programs load), the learner's state in DeepSpeed's own format, and ``state.json``.
DeepSpeed's is the only part that is pickled.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from roleagent.agents.hf import HFPolicy, PolicyError, reason_of
from roleagent.learners.adapters import Adapter, adapted
from roleagent.learners.disk import PARTIAL, make_folder, settle, settle_tree, write_whole
from roleagent.learners.learner import Learner
from roleagent.learners.run_folder import CheckpointError
from roleagent.settings import PolicyConfig


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

    def tidy(self) -> None:
        """Clears away what a kill left unfinished, and checkpoints beyond those to keep."""
        for leftover in self.folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(leftover)
        for old in self.all()[: -self.keep]:
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
            ranks.once(lambda: write_whole(final / "state.json", json.dumps(state)))
            return final
        try:
            weights = whole_weights(learner)
            ranks.once(lambda: self._begin(partial, learner.policy, weights, state))
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

    def _begin(self, partial: Path, policy: HFPolicy, weights: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        self.tidy()
        make_folder(partial)
        save_policy(policy, partial / "policy", weights)
        if adapted(policy.model):
            Adapter.of(policy.model).save(partial / "adapter")
        (partial / "state.json").write_text(json.dumps(state), encoding="utf-8")

    def _finish(self, partial: Path, final: Path) -> None:
        settle_tree(partial)
        partial.rename(final)
        settle(self.folder)
        self.tidy()

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
    def adapter(path: Path) -> Adapter:
        """The policy's adapter as it was saved."""
        try:
            return Adapter.load(path / "adapter")
        except Exception as error:  # whatever safetensors makes of half a file
            raise _unreadable(path, error) from error

    @staticmethod
    def restore(path: Path, learner: Learner) -> None:
        """Puts weights and optimiser state back into a learner."""
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
    """Writes a plain Hugging Face folder: configuration, safetensors, tokenizer.

    Args:
        weights: by name; None: those of the policy's model.
    """
    policy.model.save_pretrained(str(folder), state_dict=weights, safe_serialization=True)
    for passing in ("is_local", "local_files_only"):  # transformers would write down how it was once loaded
        policy.tokenizer.init_kwargs.pop(passing, None)
    policy.tokenizer.save_pretrained(str(folder))


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} cannot be read ({reason_of(error)}); remove that folder to go on from the one before"
    )
