"""The failure library: which tasks failed in which way, kept in a database.

Every failure is one row that is never changed; an *entry* (a task under a mode) is what the rows of the same mode,
environment and task say together. So there is nothing to merge when several machines write, and going back to a
checkpoint means deleting the rows written after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from rapidfuzz import fuzz, process
from sqlalchemy import event, exc
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from roleagent.types import Failure, Reflection, Task, Trajectory

_BUSY_SECONDS = 30.0  # how long SQLite waits for another writer


class LibraryError(RuntimeError):
    """A failure library that cannot be opened or written; the message is one line that says why."""


class _Base(DeclarativeBase):
    pass


class _Row(_Base):
    """One failed trajectory with its analysis."""

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
    trajectory: Mapped[list[dict[str, Any]]] = mapped_column(sa.JSON, deferred=True)

    def failure(self, count: int) -> Failure:
        task = Task(self.env_id, self.task_id, self.split, self.goal, self.task_type)
        reflection = Reflection(self.mode, self.detail, self.critical_step, self.lesson, self.query, self.source)
        return Failure(task, reflection, count, self.iteration)


class FailureLibrary:
    """Failure mode → tasks, with analysis and trajectory.

    Args:
        url: an SQLAlchemy URL: ``sqlite:///runs/x/failures.db``, ``sqlite://`` (in memory) or, for many machines,
            ``postgresql+psycopg://user@host/database``.
        run: whose failures are written and rolled back here. Runs that share a database read each other's.

    Raises:
        LibraryError: the database cannot be opened.
    """

    def __init__(self, url: str = "sqlite://", run: str = ""):
        self.run = run
        try:
            parsed = sa.make_url(url)
            if parsed.get_backend_name() == "sqlite" and parsed.database and parsed.database != ":memory:":
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(parsed)
            if parsed.get_backend_name() == "sqlite":
                event.listen(self._engine, "connect", _prepare_sqlite)
            try:
                _Base.metadata.create_all(self._engine)
            except (exc.OperationalError, exc.ProgrammingError, exc.IntegrityError):
                _Base.metadata.create_all(self._engine)  # somebody else was making the tables just now
            self._indexed = parsed.get_backend_name() == "sqlite" and self._make_index()
        except ModuleNotFoundError as error:
            hint = "; pip install 'roleagent[postgresql]'" if "psycopg" in str(error) else ""
            raise LibraryError(f"the failure library needs a database driver: {error}{hint}") from error
        except (exc.SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            where = re.sub(r"//([^:/@]*):[^@]*@", r"//\1:***@", url)
            raise LibraryError(f"cannot open the failure library {where}: {reason}") from error

    def close(self) -> None:
        """Gives the connections back."""
        self._engine.dispose()

    # --- writing ---

    def record(self, failures: Iterable[tuple[Trajectory, Reflection]], iteration: int = 0) -> int:
        """Adds failed trajectories with their analyses, all or none of them. Returns how many.

        Raises:
            LibraryError: the database does not take them (a full disk, a lost connection).
        """
        rows = [self._row(trajectory, reflection, iteration) for trajectory, reflection in failures]
        try:
            with Session(self._engine) as session, session.begin():
                for row in rows:
                    session.add(row)
                    session.flush()
                    if self._indexed:
                        self._index(session, row)
        except exc.OperationalError as error:
            raise LibraryError(f"cannot write the failure library: {str(error.orig).splitlines()[0]}") from error
        return len(rows)

    @property
    def cursor(self) -> int:
        """Where this run stands: everything it has written is at or before here. 0: nothing."""
        with Session(self._engine) as session:
            return session.scalar(sa.select(sa.func.max(_Row.id)).where(_Row.run == self.run)) or 0

    def rollback(self, cursor: int) -> int:
        """Forgets what this run wrote after ``cursor``. Returns the number of failures forgotten."""
        with Session(self._engine) as session, session.begin():
            later = session.scalars(sa.select(_Row.id).where(_Row.run == self.run, _Row.id > cursor)).all()
            session.execute(sa.delete(_Row).where(_Row.run == self.run, _Row.id > cursor))
            if later and self._indexed:
                self._fill_index(session)
        return len(later)

    # --- reading ---

    def candidates(self, env_id: str, limit: int = 32, mode: str | None = None) -> list[Failure]:
        """Entries of an environment, those of ``mode`` first, then the newest first."""
        newest = sa.func.max(_Row.id)
        entries = (
            sa.select(newest, sa.func.count())
            .where(_Row.env_id == env_id)
            .group_by(_Row.env_id, _Row.mode, _Row.task_id)
            .order_by(sa.case((_Row.mode == (mode or ""), 0), else_=1), newest.desc())
            .limit(limit)
        )
        with Session(self._engine) as session:
            counts = {key: count for key, count in session.execute(entries)}
            rows = {row.id: row for row in session.scalars(sa.select(_Row).where(_Row.id.in_(counts)))}
            return [rows[key].failure(count) for key, count in counts.items() if key in rows]

    def search(self, text: str, k: int = 4, env_id: str | None = None) -> list[Failure]:
        """The ``k`` entries whose mode, lesson and query are nearest to a text, best first.

        SQLite's full-text index ranks where there is one (BM25), a comparison of the words otherwise.
        """
        words = _words(text)
        if not words or k < 1:
            return []
        with Session(self._engine) as session:
            if self._indexed:
                found = sa.text(
                    "SELECT failures.id FROM failures_text JOIN failures ON failures.id = failures_text.rowid "
                    "WHERE failures_text MATCH :words AND (:env_id IS NULL OR env_id = :env_id) "
                    "ORDER BY bm25(failures_text), failures.id DESC LIMIT :k"
                )
                match = " OR ".join(f'"{word}"' for word in dict.fromkeys(words))
                ids = list(session.scalars(found, {"words": match, "env_id": env_id, "k": k}))
            else:
                entries = {
                    row.id: _words(f"{row.mode} {row.lesson} {row.query}") for row in self._entries(session, env_id)
                }
                texts = {key: " ".join(own) for key, own in entries.items() if not set(words).isdisjoint(own)}
                ranked = process.extract(" ".join(words), texts, scorer=fuzz.token_set_ratio, limit=k)
                ids = [key for *_, key in ranked]
            return [self._entry(session, key) for key in ids]

    def trajectory(self, failure: Failure) -> list[dict[str, Any]]:
        """The newest trajectory of an entry: dictionaries with ``action``, ``observation`` and ``reward``, the first
        with the initial observation alone."""
        query = (
            sa.select(_Row.trajectory)
            .where(*_same_entry(failure.task.env_id, failure.reflection.mode, failure.task.task_id))
            .order_by(_Row.id.desc())
            .limit(1)
        )
        with Session(self._engine) as session:
            return session.scalar(query) or []

    def modes(self, env_id: str | None = None) -> dict[str, int]:
        """How many tasks are kept under each mode, most first."""
        tasks = sa.func.count(sa.distinct(_Row.env_id + " " + _Row.task_id))
        query = sa.select(_Row.mode, tasks).group_by(_Row.mode).order_by(tasks.desc(), _Row.mode)
        if env_id is not None:
            query = query.where(_Row.env_id == env_id)
        with Session(self._engine) as session:
            return {mode: count for mode, count in session.execute(query)}

    def growth(self) -> list[dict[str, int]]:
        """Per iteration: ``iteration, failures, new_entries, new_modes``."""
        first = sa.func.min(_Row.iteration)
        entries = sa.select(first).group_by(_Row.env_id, _Row.mode, _Row.task_id)
        with Session(self._engine) as session:
            per_iteration = session.execute(
                sa.select(_Row.iteration, sa.func.count()).group_by(_Row.iteration).order_by(_Row.iteration)
            ).all()
            new_entries = list(session.scalars(entries))
            new_modes = list(session.scalars(sa.select(first).group_by(_Row.mode)))
        return [
            {
                "iteration": iteration,
                "failures": count,
                "new_entries": new_entries.count(iteration),
                "new_modes": new_modes.count(iteration),
            }
            for iteration, count in per_iteration
        ]

    def __len__(self) -> int:
        """The number of entries."""
        with Session(self._engine) as session:
            entries = sa.select(sa.func.max(_Row.id)).group_by(_Row.env_id, _Row.mode, _Row.task_id).subquery()
            return session.scalar(sa.select(sa.func.count()).select_from(entries)) or 0

    # --- inside ---

    def _row(self, trajectory: Trajectory, reflection: Reflection, iteration: int) -> _Row:
        task, turns = trajectory.task, trajectory.turns
        story: list[dict[str, Any]] = [{"observation": _clean(trajectory.initial_observation)}]
        for turn in turns:
            reward = float(turn.rewards.get("task", 0.0))
            story.append({"action": _clean(turn.action), "observation": _clean(turn.observation), "reward": reward})
        return _Row(
            run=self.run,
            iteration=iteration,
            policy_version=turns[-1].completion.policy_version if turns else 0,
            mode=_clean(reflection.mode),
            env_id=task.env_id,
            task_id=task.task_id,
            split=task.split,
            goal=_clean(task.goal),
            task_type=_clean(task.task_type),
            detail=_clean(reflection.detail),
            critical_step=reflection.critical_step,
            lesson=_clean(reflection.lesson),
            query=_clean(reflection.query),
            source=reflection.source,
            trajectory=story,
        )

    def _entries(self, session: Session, env_id: str | None) -> Sequence[_Row]:
        """The newest row of every entry."""
        newest = sa.select(sa.func.max(_Row.id)).group_by(_Row.env_id, _Row.mode, _Row.task_id)
        if env_id is not None:
            newest = newest.where(_Row.env_id == env_id)
        return session.scalars(sa.select(_Row).where(_Row.id.in_(newest))).all()

    def _entry(self, session: Session, key: int) -> Failure:
        row = session.get_one(_Row, key)
        same = _same_entry(row.env_id, row.mode, row.task_id)
        return row.failure(session.scalar(sa.select(sa.func.count()).select_from(_Row).where(*same)) or 1)

    def _make_index(self) -> bool:
        """Makes SQLite's full-text index: one line per entry. False where SQLite was built without FTS5."""
        try:
            with Session(self._engine) as session, session.begin():
                if not session.scalar(sa.text("SELECT 1 FROM sqlite_master WHERE name = 'failures_text'")):
                    table = "CREATE VIRTUAL TABLE IF NOT EXISTS failures_text USING fts5(mode, lesson, query)"
                    session.execute(sa.text(table))
                    self._fill_index(session)
        except exc.OperationalError as error:
            if "no such module" not in str(error):
                raise
            return False
        return True

    def _fill_index(self, session: Session) -> None:
        session.execute(sa.text("DELETE FROM failures_text"))
        for row in self._entries(session, None):
            self._index(session, row)

    def _index(self, session: Session, row: _Row) -> None:
        older = sa.text(
            "DELETE FROM failures_text WHERE rowid IN (SELECT id FROM failures WHERE env_id = :env_id "
            "AND mode = :mode AND task_id = :task_id)"
        )
        session.execute(older, {"env_id": row.env_id, "mode": row.mode, "task_id": row.task_id})
        session.execute(
            sa.text("INSERT INTO failures_text (rowid, mode, lesson, query) VALUES (:id, :mode, :lesson, :query)"),
            {"id": row.id, "mode": row.mode.replace("_", " "), "lesson": row.lesson, "query": row.query},
        )


def _same_entry(env_id: str, mode: str, task_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    return _Row.env_id == env_id, _Row.mode == mode, _Row.task_id == task_id


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _clean(text: str) -> str:
    """Text that any database takes: no lone surrogates, no zero bytes."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """A log beside the file lets others read while one writes, and outlives a kill at any moment."""
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()
