"""The batch of a refused update: written by the run that stopped, for inspection.

Per rank a ``.safetensors`` file (token ids, masks, log-probabilities, advantages and the objective's columns, segment
after segment, and their lengths) and a ``.json`` file (loss, gradient norm, the task of every segment).

examples:
    python -m roleagent.learners.run.nan_dump runs/…/halted/train-000007
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from roleagent.commands import Parser
from roleagent.learners.engine.engine import NotFinite
from roleagent.learners.run.run import Run
from roleagent.program import begin


class Collapse(ArithmeticError):
    """A run that cannot continue; the message is one line."""


@contextmanager
def dump_nan_batch(run: Run) -> Iterator[None]:
    """Saves the batch of an update whose loss or gradient is not finite.

    Raises:
        Collapse: in place of :class:`NotFinite`, the same on every rank; it names the saved batch.
    """
    try:
        yield
    except NotFinite as error:
        progress = run.progress
        folder = run.folder.path / "halted" / f"{progress.stage}-{progress.step + 1:06d}"
        try:
            write(folder / f"rank-{run.ranks.rank}", error)
            hint = f"inspect the batch with: python -m roleagent.learners.run.nan_dump {folder}"
        except (OSError, SafetensorError) as reason:
            hint = f"the batch could not be saved ({reason})"
        good = run.latest if run.latest is not None else "none yet"
        raise Collapse(
            f"{_what(error)} in step {progress.step + 1} of {progress.stage}; the weights are unchanged; last good "
            f"checkpoint: {good}; {hint}"
        ) from error


def _what(error: NotFinite) -> str:
    if error.loss - error.loss == 0:  # neither infinite nor nan
        return f"the gradient is not finite (its norm is {error.norm:g}, the loss is {error.loss:g})"
    return f"the loss is {error.loss:g}"


@dataclass(frozen=True)
class Suspect:
    """A segment of such a batch.

    Attributes:
        task: the task id; empty if unknown.
        token_ids: (T,).
        mask: (T,), the kinds of trained token.
        columns: by name, each (T,).
    """

    task: str
    token_ids: torch.Tensor
    mask: torch.Tensor
    columns: dict[str, torch.Tensor]

    def faults(self) -> dict[str, int]:
        """By column, the number of trained tokens without a finite value."""
        found = {name: int((~values[self.mask != 0].isfinite()).sum()) for name, values in self.columns.items()}
        return {name: count for name, count in found.items() if count}

    def extremes(self) -> dict[str, float]:
        """By column, the largest absolute finite value of a trained token."""
        known = {name: values[(self.mask != 0) & values.isfinite()] for name, values in self.columns.items()}
        return {name: float(values.abs().max()) if len(values) else math.nan for name, values in known.items()}


def write(path: Path, error: NotFinite) -> None:
    """Writes this rank's part of the batch as ``path.safetensors`` and ``path.json``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    segments = error.segments
    columns = {"sampler_logprobs": [segment.sampler_logprobs for segment in segments], **error.columns}
    tensors = {f"columns.{name}": _flat(rows, torch.float64) for name, rows in columns.items()}
    tensors["token_ids"] = _flat([segment.token_ids for segment in segments], torch.int64)
    tensors["mask"] = _flat([segment.token_kind for segment in segments], torch.int64)
    tensors["lengths"] = torch.tensor([len(segment) for segment in segments], dtype=torch.int64)
    save_file(tensors, path.with_suffix(".safetensors"))
    tasks = [error.tasks[segment.trajectory] if error.tasks else "" for segment in segments]
    facts = {"loss": str(error.loss), "gradient_norm": str(error.norm), "segments": len(segments), "tasks": tasks}
    path.with_suffix(".json").write_text(json.dumps(facts, indent=1), encoding="utf-8")


def read(path: Path) -> list[Suspect]:
    """The inverse of :func:`write`."""
    tensors = load_file(path.with_suffix(".safetensors"))
    tasks = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["tasks"]
    lengths = tensors.pop("lengths").tolist()
    parts = {name.removeprefix("columns."): values.split(lengths) for name, values in tensors.items()}
    columns = [name.removeprefix("columns.") for name in tensors if name.startswith("columns.")]
    return [
        Suspect(
            task,
            parts["token_ids"][number],
            parts["mask"][number],
            {name: parts[name][number] for name in columns},
        )
        for number, task in enumerate(tasks)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Shows every segment of a batch: its task, and its non-finite and extreme values."""
    parser = Parser("python -m roleagent.learners.run.nan_dump", __doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="halted/… in a run folder, which the run names")
    folder = parser.parse_args(arguments).folder
    ranks = sorted(folder.glob("rank-*.json"))
    if not ranks:
        print(f"{folder} has no batch of a halted run", file=sys.stderr)
        return 2
    for path in ranks:
        facts = json.loads(path.read_text(encoding="utf-8"))
        print(f"{path.stem}: loss {facts['loss']}, gradient norm {facts['gradient_norm']}")
        suspects = read(path.with_suffix(""))
        for number, suspect in sorted(enumerate(suspects), key=lambda pair: -sum(pair[1].faults().values())):
            faults = ", ".join(f"{count} of {name} not finite" for name, count in suspect.faults().items())
            extremes = ", ".join(f"{name} {value:.3g}" for name, value in suspect.extremes().items())
            print(
                f"  segment {number}, {len(suspect.mask)} tokens, {int((suspect.mask != 0).sum())} trained, task "
                f"{suspect.task or 'unknown'}: {faults or 'all values finite'}; largest: {extremes}"
            )
    return 0


def _flat(rows: Sequence[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0), *rows])).to(dtype)


if __name__ == "__main__":
    begin("nan_dump")
    sys.exit(main())
