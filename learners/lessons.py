"""Lessons of the failure library in the prompts of a run: which it reads, when, and whether they helped."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from roleagent.agents.builders import EnvSplit
from roleagent.config import ConfigError
from roleagent.curricula.lessons import Lessons
from roleagent.curricula.library import FailureLibrary
from roleagent.failures.modes import failure_modes_of
from roleagent.random_streams import random_stream

if TYPE_CHECKING:
    from roleagent.learners.run.run import Run


def read_lessons(
    library: FailureLibrary,
    split: EnvSplit,
    seed: int,
    *moment: str | int,
    share: float = 1.0,
    until: int | None = None,
) -> Lessons:
    """The lessons of a library for the environments of a split.

    Args:
        library: is read.
        split: the tasks.
        seed: of what is drawn at random.
        moment: names the stream.
        share: of the tasks that read lessons.
        until: see :meth:`~roleagent.curricula.lessons.Lessons.read`.
    """
    options = split.config.lessons
    return Lessons.read(
        library,
        [part.task_split.env_id for part in split.environments.values()],
        partial(random_stream, seed, "lessons", *moment),
        until,
        shuffled=options.show == "shuffled",
        share=share,
        most=options.most,
        tokens=options.tokens,
    )


def training_lessons(run: Run, split: EnvSplit, iteration: int) -> Lessons | None:
    """The lessons of an iteration's episodes; None without any. Every rank must call it.

    With ``rollout.async_level=1`` the failures of the iteration before are not known yet; a resumed run, which knows
    them, leaves them out.
    """
    until = iteration - 1 - run.config.rollout.async_level
    return _of_run(run, split, until, run.config.lessons.share, "iteration", iteration)


def evaluation_lessons(run: Run, split: EnvSplit) -> Lessons | None:
    """The lessons of the library for an evaluation after the present iteration; None without any. Every rank must call
    it."""
    if not run.config.lessons.evaluate:
        return None
    return _of_run(run, split, run.progress.step, 1.0, "evaluation", run.progress.step)


def _of_run(run: Run, split: EnvSplit, until: int, share: float, *moment: str | int) -> Lessons | None:
    config = run.config
    if config.lessons.show == "none":
        return None

    def read() -> Lessons | None:
        url, name = run.library
        if isinstance(url, Path) and not url.exists():
            return None  # nothing was trained yet
        with closing(FailureLibrary(url, name, read_only=True)) as library:
            return read_lessons(library, split, config.seed, *moment, share=share, until=until)

    return run.ranks.once(read)


def check_lessons(split: EnvSplit) -> None:
    """Refuses lessons that nobody writes.

    Raises:
        ConfigError: one line that explains what to change.
    """
    config = split.config
    if config.lessons.show == "none" or config.curriculum.analyst != "rule":
        return
    if not any(failure_modes_of(part.task_split.env_id).detectors for part in split.environments.values()):
        raise ConfigError(
            f"lessons.show={config.lessons.show} with curriculum.analyst=rule needs an environment with rules for "
            "failures"
        )


__all__ = ["check_lessons", "evaluation_lessons", "read_lessons", "training_lessons"]
