"""The tables of the failure library."""

from __future__ import annotations

import json
import math
import re
import zlib
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from roleagent.types import Failure, Reflection, Task, Trajectory

# What is longer is cut: a model that babbles must not fill the database. In characters.
NAME_LENGTH = 200  # modes, kinds of task, sources
TEXT_LENGTH = 10_000  # goals, details, lessons, queries, reasons
OBSERVATION_LENGTH = 50_000  # actions and observations, each
_LARGEST_INTEGER = 2**31 - 1  # PostgreSQL's


class Base(DeclarativeBase):
    """The tables."""


class Story(sa.types.TypeDecorator[Any]):
    """JSON, compressed: the observations of an environment repeat themselves, and take a tenth of the room then."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else zlib.compress(json.dumps(value).encode())

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(zlib.decompress(value))


class FailureRow(Base):
    """One failed trajectory and its analysis."""

    __tablename__ = "failures"
    __table_args__ = (sa.Index("failures_entry", "env_id", "mode", "task_id"), sa.Index("failures_run", "run"))

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]
    iteration: Mapped[int]
    policy_version: Mapped[int]
    mode: Mapped[str]
    env_id: Mapped[str]
    task_id: Mapped[str]
    split: Mapped[str]
    goal: Mapped[str]
    task_type: Mapped[str]
    detail: Mapped[str]
    critical_step: Mapped[int | None]
    lesson: Mapped[str]
    query: Mapped[str]
    source: Mapped[str]
    story: Mapped[list[dict[str, Any]]] = mapped_column(Story, deferred=True)

    @classmethod
    def of(cls, trajectory: Trajectory, reflection: Reflection, run: str, iteration: int) -> FailureRow:
        """The row of a failed trajectory."""
        task, turns = trajectory.task, trajectory.turns
        story: list[dict[str, Any]] = [{"observation": clean(trajectory.initial_observation, OBSERVATION_LENGTH)}]
        for turn in turns:
            reward = float(turn.rewards.get("task", 0.0))
            exchange = {"action": turn.action, "observation": turn.observation}
            told = {name: clean(text, OBSERVATION_LENGTH) for name, text in exchange.items()}
            story.append({**told, "reward": reward if math.isfinite(reward) else None})
        step = reflection.critical_step
        return cls(
            run=run,
            iteration=iteration,
            policy_version=turns[-1].completion.policy_version if turns else 0,
            mode=clean(reflection.mode, NAME_LENGTH),
            env_id=task.env_id,
            task_id=task.task_id,
            split=task.split,
            goal=clean(task.goal),
            task_type=clean(task.task_type, NAME_LENGTH),
            detail=clean(reflection.detail),
            critical_step=step if isinstance(step, int) and 0 <= step <= _LARGEST_INTEGER else None,
            lesson=clean(reflection.lesson),
            query=clean(reflection.query),
            source=clean(reflection.source, NAME_LENGTH),
            story=story,
        )

    def failure(self, count: int) -> Failure:
        """The row as the entry it is the newest of; ``count``: how many rows the entry has."""
        task = Task(self.env_id, self.task_id, self.split, self.goal, self.task_type)
        reflection = Reflection(self.mode, self.detail, self.critical_step, self.lesson, self.query, self.source)
        return Failure(task, reflection, count, self.iteration)


class RetrievalRow(Base):
    """One task that was chosen because of a failure.

    ``after`` is where the run stood then (:attr:`FailureLibrary.cursor`): going back to an earlier place forgets it.
    """

    __tablename__ = "retrievals"
    __table_args__ = (sa.Index("retrievals_run", "run", "iteration"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]
    iteration: Mapped[int]
    after: Mapped[int]
    env_id: Mapped[str]
    mode: Mapped[str]
    task_id: Mapped[str]
    chosen_task_id: Mapped[str]
    reason: Mapped[str]


def same_entry(env_id: Any, mode: Any, task_id: Any) -> tuple[sa.ColumnElement[bool], ...]:
    """The columns that identify an entry."""
    return FailureRow.env_id == env_id, FailureRow.mode == mode, FailureRow.task_id == task_id


def newest_rows(*conditions: sa.ColumnElement[bool]) -> Any:
    """A query for the newest row's id and the number of rows of every entry."""
    entry = FailureRow.env_id, FailureRow.mode, FailureRow.task_id
    return sa.select(sa.func.max(FailureRow.id), sa.func.count()).where(*conditions).group_by(*entry)


def clean(text: Any, length: int = TEXT_LENGTH) -> str:
    """Text that any database takes, cut to ``length`` characters: no lone surrogates, no zero bytes.

    PostgreSQL takes the control characters behind ASCII for letters; they become blanks.

    >>> clean("an \\ud800 egg\\x00"), clean("\\x85egg"), clean(None), clean("x" * 99, 3)
    ('an ? egg', ' egg', '', 'xx…')
    """
    told = "" if text is None else str(text)
    told = told.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")
    told = re.sub("[\x80-\x9f]", " ", told)
    return told if len(told) <= length else told[: length - 1] + "…"
