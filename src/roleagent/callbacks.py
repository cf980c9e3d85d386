"""Callbacks: a user's code in the training loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Callback:
    """What :func:`roleagent.train` calls during a run. Override the methods that you need.

    Callbacks are called by the first process of a run alone, in their order. An exception ends the run, which can be
    resumed from its last checkpoint.
    """

    def on_log(self, stage: str, step: int, metrics: Mapping[str, Any]) -> None:
        """After a step was logged.

        Args:
            stage: ``warmstart``, ``train`` for reinforcement, or that of a method of another kind, such as ``revise``.
            step: its number within the stage, from 1; in ``train`` an iteration.
            metrics: as in ``metrics.jsonl`` (docs/monitoring.md).
        """

    def on_evaluate(self, name: str, result: Mapping[str, Any]) -> None:
        """After an evaluation on held-out tasks was played and saved.

        Args:
            name: ``before``, ``after``, ``iteration-…``; with ``-sampled`` for the second temperature.
            result: as in the file of that name: ``success``, ``interval``, ``by_type``, ``records``, ….
        """

    def on_save(self, checkpoint: Path) -> None:
        """After a checkpoint was written; ``checkpoint / "policy"`` is a Hugging Face folder."""


__all__ = ["Callback"]
