"""Records of evaluated episodes, and the JSON-lines file that stores them.

A record has how an episode was played: loops, revision signals with their false alarms (Agent-R, arXiv 2501.11425), and
failures that were predicted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from roleagent.agents.episode import EpisodeResult
from roleagent.curricula.rule_analyst import RuleAnalyst
from roleagent.failures.modes import failure_modes_of
from roleagent.options import differing
from roleagent.tasks.split import TaskSplit
from roleagent.types import Group, Prediction, Trajectory, Turn

LONGEST_BLOCK = 5
"""Commands of the longest block whose repetitions are counted, as published."""


def loops(commands: Sequence[str], longest: int = LONGEST_BLOCK) -> dict[str, float]:
    """For each block length the largest number of consecutive repetitions of one block of commands; 0 without a loop.

    >>> loops(["look", "look", "look", "a", "b", "a", "b"], longest=2)
    {'loops_1': 2.0, 'loops_2': 1.0}
    """
    found = {}
    for length in range(1, longest + 1):
        most = run = 0
        for place in range(length, len(commands)):
            run = run + 1 if commands[place] == commands[place - length] else 0
            most = max(most, run // length)
        found[f"loops_{length}"] = float(most)
    return found


def signals(trajectory: Trajectory) -> dict[str, float]:
    """The revision signals of an episode, and how many of them follow a step that is no mistake.

    The rule analyst decides: it reads the episode up to the signal as one that failed. A signal is right if the
    critical step is the last one before it.

    Returns:
        ``revisions``, and, with rules for the environment, ``false_alarms``; empty without a signal.
    """
    turns = trajectory.turns
    places = [place for place, turn in enumerate(turns) if turn.info.get("revision")]
    if not places:
        return {}
    found = {"revisions": float(len(places))}
    if not failure_modes_of(trajectory.task.env_id).detectors:
        return found
    played = [[turn for turn in turns[:place] if turn.played] for place in places]
    past = [replace(trajectory, turns=tuple(steps)) for steps in played if steps]
    reflections = RuleAnalyst().reflect(past) if past else []
    right = sum(
        reflection.critical_step == len(steps) - 1
        for reflection, steps in zip(reflections, filter(None, played), strict=True)
    )
    return {**found, "false_alarms": float(len(places) - right)}


def is_exact(prediction: Prediction, state: str) -> bool:
    """Whether the prediction for the next state is that state. The parser of tags strips predictions."""
    return prediction.texts[:1] == (state.strip(),)


def failure_predicted(turn: Turn) -> bool | None:
    """Whether the prediction for the next state is exactly the state of the failed command.

    Returns:
        None if the command did not fail (``info["valid_action"]``), or has no prediction or no known state.
    """
    if turn.prediction is None or turn.next_state is None or turn.info.get("valid_action", True):
        return None
    return is_exact(turn.prediction, turn.next_state)


def predicted_failures(trajectory: Trajectory) -> dict[str, float]:
    """``failures_with_prediction``, and how many of them were ``predicted_failures``; empty without predictions."""
    if all(turn.prediction is None for turn in trajectory.turns):
        return {}
    found = [known for known in map(failure_predicted, trajectory.turns) if known is not None]
    return {"failures_with_prediction": float(len(found)), "predicted_failures": float(sum(found))}


def behavior_of(trajectory: Trajectory) -> dict[str, float]:
    """All measures of this module; notes are no commands."""
    commands = [turn.action for turn in trajectory.turns if turn.played]
    return {**loops(commands), **signals(trajectory), **predicted_failures(trajectory)}


PROTOCOL = 3
"""Version of the record files; it changes when records of two versions cannot be compared."""


class Attempt(NamedTuple):
    """A task of the split in one repeat (0, 1, …)."""

    repeat: int
    task_id: str


@dataclass(frozen=True, slots=True)
class Record:
    """One evaluated episode.

    Attributes:
        reward: sum of the ``task`` terms.
        steps: turns taken.
        stop_reason: ``"won"``, ``"lost"``, ``"max_steps"``, ``"context"``, ``"gave_up"``, or ``"error"``: the
            environment failed or the model did not answer. Such a record has no outcome: it is counted in ``errors``,
            is in no rate, and is retried.
        prediction: mean score of the episode's predictions in [0, 1]; None without predictions.
        error: the message, if the stop reason is ``error``.
        repeat: which repeat of the split this is, 0-based.
        invalid: commands that the environment did not understand, replies without a command included.
        trials: trials at the task (Reflexion); a won task was won in the last one.
        metrics: the environment's own measures of the finished episode, by name (see :func:`measures`).
        usage: of the model behind the agent: ``answers``, ``prompt_tokens``, ``completion_tokens``, … (the fields
            of :class:`roleagent.agents.episode.Usage`), and ``corrections``, answers without a command; empty for
            other agents.
        behavior: loops and revision signals of a policy's episode (:mod:`roleagent.agents.evaluation.records`).
    """

    task_id: str
    task_type: str
    won: bool
    reward: float
    steps: int
    stop_reason: str
    prediction: float | None = None
    error: str = ""
    repeat: int = 0
    invalid: int = 0
    trials: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    behavior: Mapping[str, float] = field(default_factory=dict)

    @property
    def attempt(self) -> Attempt:
        """The attempt that this record is of."""
        return Attempt(self.repeat, self.task_id)

    @property
    def sound(self) -> bool:
        """Whether the episode has an outcome."""
        return self.stop_reason != "error"

    @classmethod
    def failed(cls, task_id: str, task_type: str, error: str, repeat: int = 0) -> Record:
        """The record of an episode without an outcome."""
        return cls(task_id, task_type, False, 0.0, 0, "error", error=error, repeat=repeat)

    @classmethod
    def of(cls, trajectory: Trajectory, repeat: int = 0) -> Record:
        """The record of a played trajectory."""
        turns = trajectory.turns
        scores = [s.score for turn in turns if turn.prediction for s in turn.prediction.scores]
        return cls(
            trajectory.task.task_id,
            trajectory.task.task_type,
            trajectory.success,
            trajectory.outcome,
            len(turns),
            trajectory.stop_reason,
            sum(scores) / len(scores) if scores else None,
            repeat=repeat,
            invalid=sum(not turn.info.get("valid_action", True) for turn in turns),
            metrics=measures(turns[-1].info) if turns else {},
            behavior=behavior_of(trajectory),
        )

    @classmethod
    def of_result(cls, result: EpisodeResult, repeat: int, timed: bool = False) -> Record:
        """The record of an episode without tokens; ``timed`` keeps the seconds of the model's answers."""
        usage = {**asdict(result.usage), "corrections": result.corrections} if result.usage.answers else {}
        if usage and not timed:
            usage.pop("seconds")
        return cls(
            result.task_id,
            result.task_type,
            result.won,
            result.reward,
            result.steps,
            result.stop_reason,
            error=result.error,
            repeat=repeat,
            invalid=result.invalid,
            trials=result.trials,
            metrics=measures(result.info),
            usage=usage,
        )


def records_of(
    groups: Sequence[Group], failures: Mapping[str, str], keep: Callable[[Trajectory | EpisodeResult], None]
) -> Iterator[Record]:
    """The records of groups of one episode, which ``keep`` is given.

    Args:
        failures: errors of environments, by task id; such an episode has the stop reason ``error``.
    """
    for group in groups:
        task = group.task
        if group.trajectories:
            keep(group.trajectories[0])
            yield Record.of(group.trajectories[0])
        else:
            error = failures[task.task_id]
            keep(EpisodeResult(task.task_id, task.task_type, error=error, goal=task.goal))
            yield Record.failed(task.task_id, task.task_type, error)


def measures(info: Mapping[str, Any]) -> dict[str, float]:
    """An environment's own measures of an episode: all floats in its last ``info``.

    WebShop reports ``score`` like this, search ``em``, ``f1`` and ``sub_em``.

    >>> measures({"won": True, "goal": "a red mug", "score": 0.5, "steps": 3})
    {'score': 0.5}
    """
    return {name: float(value) for name, value in info.items() if isinstance(value, float) and math.isfinite(value)}


class RecordFile:
    """Records as JSON lines after a header; an interrupted evaluation continues in it.

    The last record of an attempt counts.

    Args:
        path: the file.
        header: protocol, split digest, agent; a file with another header is refused.

    Attributes:
        written: every record in the file, replaced ones included.

    Raises:
        ValueError: the file belongs to another evaluation, or is damaged.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]):
        self.path, self.header = path, header
        self.written: list[Record] = []
        if not path.exists():
            return
        content = path.read_bytes()
        if self._first_line().startswith(content):  # empty, or the disk was full
            path.write_bytes(b"")
            return
        found, self.written, whole = read_records(path)
        changed = differing(found, header)
        if changed:
            raise ValueError(
                f"{path} holds another evaluation ({', '.join(changed)} differ); name another file with --out"
            )
        if not whole:  # killed in the middle of a line
            path.write_bytes(content[: content.rindex(b"\n") + 1])

    @classmethod
    @contextmanager
    def alone(cls, path: Path, header: Mapping[str, Any]) -> Iterator[RecordFile]:
        """The file, locked until the block ends: a second process is refused.

        Raises:
            BlockingIOError: another process has it.
            ValueError: see the class.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with path.open("ab") as stream:  # the system releases the lock when the process ends
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockingIOError(
                    f"another process is writing {path}: let it finish, or name another file with --out"
                ) from None
            except OSError:
                pass  # a file system without locks
            try:
                yield cls(path, header)
            finally:
                if new and not path.stat().st_size:  # nothing was measured
                    path.unlink()

    @property
    def records(self) -> list[Record]:
        """The records that count."""
        return list({record.attempt: record for record in self.written}.values())

    def missing(self, task_split: TaskSplit, repeats: int = 1) -> list[Attempt]:
        """Attempts without an outcome, in order."""
        done = {record.attempt for record in self.records if record.sound}
        attempts = [Attempt(repeat, task_id) for repeat in range(repeats) for task_id in task_split.task_ids]
        return [attempt for attempt in attempts if attempt not in done]

    def append(self, record: Record) -> None:
        """Adds one record to memory and disk; the first one writes the header."""
        self.written.append(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            header = "" if stream.tell() else self._first_line().decode()
            stream.write(header + json.dumps(asdict(record)) + "\n")

    def _first_line(self) -> bytes:
        return f"{json.dumps(self.header)}\n".encode()


def default_file(header: Mapping[str, Any]) -> Path:
    """The default record file: the same header gives the same path."""
    agent = header["agent"]
    shown = [agent["name"], agent.get("checkpoint"), header["env_id"].split("/")[-1], header["split"]]
    name = "-".join(re.sub(r"[^\w.]+", "-", part) for part in shown if part)
    key = hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:8]
    return Path("evaluations") / f"{name}-{key}.jsonl"


def read_records(path: Path) -> tuple[dict[str, Any], list[Record], bool]:
    """Header and records of a file, and whether its last line is complete; a partial line is skipped.

    Raises:
        ValueError: not a record file.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        sound = [line for line in lines if line.endswith("\n")]
        header, *rows = [json.loads(line) for line in sound]
        newer = dict(header).get("protocol", 0) > PROTOCOL
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not an evaluation file; move it away or name another with --out") from error
    if newer:
        raise ValueError(f"{path} was written by a newer version of roleagent: use that version")
    try:
        return dict(header), [Record(**row) for row in rows], len(sound) == len(lines)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not an evaluation file; move it away or name another with --out") from error
