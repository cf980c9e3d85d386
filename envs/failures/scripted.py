"""Failed episodes whose failure mode is known, because a script failed on purpose.

The scripts of an environment are its card's ``scripted_failures``: by mode, a function that plays a
:class:`~roleagent.envs.failures.scripted_episode.ScriptedEpisode`. It plays as the expert would until it departs from
it, and then lets the episode fail for that reason alone. The label is what the script did, never what a detector finds,
so detectors can be measured by it. A script may use what no agent sees, and draws when, how often and with what it
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import gymnasium
import numpy as np

from roleagent.env_card import card_of
from roleagent.envs.failures.scripted_episode import EpisodeOver, Impossible, ScriptedEpisode
from roleagent.types import Trajectory

ATTEMPTS = 12  # per episode wanted: not every failure is possible in every task


class ScriptedFailure(NamedTuple):
    """A failed episode and why it failed.

    Attributes:
        trajectory: as a rollout would have kept it, without tokens.
        mode: a name of the environment's taxonomy.
        step: the turn at which it went wrong, 0-based; None if it is no single step (a search that never ends).
    """

    trajectory: Trajectory
    mode: str
    step: int | None


def scripted_modes(env: gymnasium.Env) -> tuple[str, ...]:
    """The failure modes that have a script in an environment; ``()`` without any."""
    return tuple(_scripts(env))


def play_failure(env: gymnasium.Env, task_id: str, mode: str, rng: np.random.Generator) -> ScriptedFailure | None:
    """Plays one task and fails it by one mode.

    Args:
        env: a base environment, which takes bare commands.
        task_id: of its split.
        mode: one of :func:`scripted_modes`.
        rng: draws where and how it fails; the same generator gives the same episode.

    Returns:
        The failed episode; None if this task cannot fail by the mode, or the episode was won all the same.

    Raises:
        ValueError: there is no such mode, or no such task.
    """
    scripts = _scripts(env)
    if mode not in scripts:
        raise ValueError(f"{env} has no scripted failure {mode!r}; there are: {', '.join(scripts) or 'none'}")
    episode = ScriptedEpisode(env, task_id, rng)
    try:
        scripts[mode](episode)
    except Impossible:
        return None
    except EpisodeOver:
        pass
    if not episode.over or not episode.marked or episode.info["won"]:
        return None
    return ScriptedFailure(episode.trajectory(), mode, episode.step)


def play_failures(env: gymnasium.Env, mode: str, n: int, rng: np.random.Generator) -> list[ScriptedFailure]:
    """``n`` episodes that fail by one mode, on tasks drawn from the split; fewer if hardly any task allows it.

    At most :data:`ATTEMPTS` tasks are drawn per episode wanted.
    """
    task_ids = env.unwrapped.task_split.task_ids  # type: ignore[attr-defined]
    drawn = (task_ids[int(rng.integers(len(task_ids)))] for _ in range(ATTEMPTS * n))
    made = (failure for task_id in drawn if (failure := play_failure(env, task_id, mode, rng)))
    return list(islice(made, n))


def _scripts(env: gymnasium.Env) -> dict[str, Callable[[ScriptedEpisode], None]]:
    return card_of(env).load("scripted_failures") or {}


__all__ = ["ATTEMPTS", "ScriptedFailure", "play_failure", "play_failures", "scripted_modes"]
