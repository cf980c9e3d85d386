"""The revision test of Agent-R (arXiv 2501.11425): a policy goes on from the failures of another one.

The failed episodes of a fixed base policy are cut at a drawn step. Every compared policy begins with the recorded
commands up to the cut and goes on alone. All policies face the same states, so their final rewards can be compared.

The same is done with a policy's own episodes that are cut before a revision signal: with and without such signals it
shows what they are worth.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import numpy as np

from roleagent.agents.builders import EnvSplit
from roleagent.agents.episode import EpisodeResult
from roleagent.agents.evaluation.records import Record, records_of
from roleagent.agents.policies.protocol import Policy
from roleagent.envs.pool import EnvPool
from roleagent.envs.wrappers.notes import REVISE
from roleagent.files import drop_torn_line, make_folder
from roleagent.types import Completion, Trajectory, Turn


@dataclass(frozen=True)
class Failure:
    """A failed episode, or one with a revision signal, and where it is cut.

    Attributes:
        commands: T bare commands.
        cut: steps that are played again, in 1 … T − 1.
    """

    task_id: str
    commands: tuple[str, ...]
    cut: int

    @classmethod
    def of(cls, trajectory: Trajectory, rng: np.random.Generator) -> Failure | None:
        """A failure of an episode with final reward 0, cut at a drawn step; None for another episode or a single step.

        Replies that could not be read, and revision notes, are no commands.
        """
        commands = _commands(trajectory.turns)
        if trajectory.outcome or len(commands) < 2:
            return None
        return cls(trajectory.task.task_id, commands, int(rng.integers(1, len(commands))))

    @classmethod
    def at_signal(cls, trajectory: Trajectory) -> Failure | None:
        """An episode, won or lost, cut before its first revision signal; None without one between two commands."""
        turns = trajectory.turns
        signal = next((place for place, turn in enumerate(turns) if turn.info.get("revision")), 0)
        commands, cut = _commands(turns), len(_commands(turns[:signal]))
        return cls(trajectory.task.task_id, commands, cut) if 0 < cut < len(commands) else None


def _commands(turns: Sequence[Turn]) -> tuple[str, ...]:
    return tuple(turn.action for turn in turns if turn.action and not turn.info.get("revision"))


def begin_failures(path: Path, done: int) -> None:
    """Creates the file of an evaluation, or continues it after an interruption.

    Args:
        done: episodes of the evaluation that were played earlier.

    Raises:
        ValueError: these were not kept, or the file has episodes of another evaluation.
    """
    if done and not path.exists():
        raise ValueError(
            f"{done} episodes of this evaluation are already played, and were not kept in {path}; "
            "play them again with --out and a new file"
        )
    if not done and path.exists() and path.stat().st_size:
        raise ValueError(f"{path} has episodes of another evaluation: delete it, or name another file")
    make_folder(path.parent)
    path.touch()
    drop_torn_line(path)


def keep_revisions(episode: Trajectory, rng: np.random.Generator, failures: Path | None, signals: Path | None) -> None:
    """Adds an episode to the file of failures if it failed, its cut drawn; to that of signals if it has one."""
    for path, found in ((failures, Failure.of(episode, rng)), (signals, Failure.at_signal(episode))):
        if path is not None and found is not None:
            append_failure(path, found)


def append_failure(path: Path, failure: Failure) -> None:
    """Adds a failure to a file of JSON lines."""
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(failure)) + "\n")


def read_failures(path: Path) -> list[Failure]:
    """The failures of a file, one per task: the last.

    Raises:
        ValueError: the file has none, or cannot be read as failures.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
        found = [Failure(str(row["task_id"]), tuple(map(str, row["commands"])), int(row["cut"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"cannot read {path} as failed episodes: {error}") from error
    if not found:
        raise ValueError(f"{path} has no failed episode: an evaluation with --keep-failures writes them")
    if wrong := next((one for one in found if not 0 < one.cut < len(one.commands)), None):
        raise ValueError(f"{path}: the cut of {wrong.task_id} lies outside its episode")
    return list({one.task_id: one for one in found}.values())


def revise_failures(
    split: EnvSplit,
    policy: Policy,
    failures: Sequence[Failure],
    temperature: float,
    progress: Callable[[int, int], None] | None = None,
    keep: Callable[[Trajectory | EpisodeResult], None] = lambda episode: None,
    note: str = "",
) -> Iterator[Record]:
    """Plays one batch: each episode begins with the commands up to the cut, then a note if one is given, and the policy
    continues.

    The step limit of an environment counts from the cut, where it has the attribute ``max_steps``. ``keep`` is given
    every episode.

    Yields:
        a record per failure; its reward is that of the whole episode, and ``steps`` counts the given ones, too.
    """
    rollout, cuts = split.rollout(policy), iter(failures)

    def make() -> gymnasium.Env:
        env, failure = split.make_wrapped(), next(cuts)
        limit = getattr(env.unwrapped, "max_steps", None)
        if limit is not None:
            setattr(env.unwrapped, "max_steps", limit + failure.cut)  # noqa: B010 - no attribute of every environment
        return env

    def reply(command: str) -> Completion:
        return rollout.text_reply(rollout.reader.write(command, policy.literal), rollout.action_stops)

    rollout.pool = EnvPool(make, len(failures))
    after = [f"{REVISE}[{note}]"] if note else []
    openings = [[reply(command) for command in (*failure.commands[: failure.cut], *after)] for failure in failures]
    task_ids = [failure.task_id for failure in failures]
    with contextlib.closing(rollout.pool):
        groups = rollout.play(task_ids, 1, temperature, progress, openings=openings)
    yield from records_of(groups, rollout.stats.failures, keep)


__all__ = ["Failure", "append_failure", "begin_failures", "keep_revisions", "read_failures", "revise_failures"]
