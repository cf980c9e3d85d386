"""Compares two run folders bit for bit, without times.

It compares checkpoints with every tensor, log, trajectories, evaluations, result and failure library. It ignores
numbers in seconds and per second, checksums of files with such numbers, trackers' files, and the random name of a run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

CLOCKS = ("seconds", "per_second")
"""Suffixes of the names of times and speeds."""

_OWN = {
    "identity",
    ".lock",
    "tracking.json",
    "failures.db",
    "failures.db-wal",
    "failures.db-shm",
    "config.yaml",
    "checksums",
}


def differences(left: Path, right: Path) -> list[str]:
    """One line per difference; empty for equal runs."""
    found = []
    files = [{str(path) for path in _files(folder)} for folder in (left, right)]
    found += [f"{name} is in one of them only" for name in sorted(files[0] ^ files[1])]
    for name in sorted(files[0] & files[1]):
        one, other = left / name, right / name
        if one.read_bytes() != other.read_bytes():
            found += [f"{name}: {what}" for what in _unlike(_content(one), _content(other))]
    if (left / "failures.db").exists() or (right / "failures.db").exists():
        found += [f"failures.db: {what}" for what in _unlike(_tables(left), _tables(right))]
    return found


def _files(folder: Path) -> Iterator[Path]:
    """The compared files, relative to the folder."""
    for path in folder.rglob("*"):
        place = path.relative_to(folder)
        if path.is_file() and place.parts[0] != "tensorboard" and place.name not in _OWN:
            yield place


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.name == "metrics.jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".pt":
        return torch.load(path, weights_only=False)
    return path.read_bytes()


def _tables(folder: Path) -> dict[str, list[Any]]:
    """Every table of the failure library by row; the full-text index by its content."""
    with sqlite3.connect(folder / "failures.db") as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        names = [name for name in names if not name.startswith("failures_words_")]
        return {name: connection.execute(f"SELECT rowid, * FROM {name} ORDER BY rowid").fetchall() for name in names}


def _unlike(left: Any, right: Any, place: str = "") -> list[str]:
    """One line per difference of two values.

    >>> _unlike({"loss": 1.0, "seconds": 2}, {"loss": 1.5, "seconds": 3})
    ['loss: 1.0 and 1.5']
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        found = []
        for key in [*left, *(key for key in right if key not in left)]:
            if not str(key).endswith(CLOCKS):
                found += _unlike(left.get(key), right.get(key), f"{place}.{key}" if place else str(key))
        return found
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)) and len(left) == len(right):
        return [
            line
            for number, pair in enumerate(zip(left, right, strict=True))
            for line in _unlike(*pair, f"{place}[{number}]")
        ]
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same = left.dtype == right.dtype and left.shape == right.shape and torch.equal(_bits(left), _bits(right))
        return [] if same else [f"{place}: tensors differ"]
    if left == right or repr(left) == repr(right):  # repr: NaN does not equal itself
        return []
    return [f"{place}: {_short(left)} and {_short(right)}"]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"
