"""The updates of an iteration of Agent-R or ETO: they continue in a resumed run, are logged, and are checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from roleagent.learners.model.learner import Learner
from roleagent.learners.run.run import Run
from roleagent.learners.sft.imitation import CHUNK

Batch = TypeVar("Batch")


def make_updates(
    run: Run,
    learner: Learner,
    order: Iterator[Batch],
    updates: int,
    step: Callable[[Batch], dict[str, float]],
    shown: str,
) -> None:
    """Makes those of the iteration's updates that are left.

    Args:
        run: is saved every :data:`~roleagent.learners.sft.imitation.CHUNK` updates, but not after the last one.
        learner: its learning rate follows the share of the updates that is done.
        order: a batch for each update, from the iteration's first one.
        updates: of the iteration.
        step: makes one update; returns its metrics, with the ``loss``.
        shown: the name of the loss on the display.
    """
    began = run.progress.began
    for number, batch in zip(range(1, updates + 1), order, strict=False):
        if began + number <= run.progress.step:
            continue
        learner.share = number / updates
        metrics = step(batch)
        run.progress.step = began + number
        if number % 10 == 0 or number == updates:
            run.log({"revision": run.progress.searched, **metrics}, **{shown: metrics["loss"]})
        if run.progress.step % CHUNK == 0 and number < updates:
            run.save(learner)


__all__ = ["make_updates"]
