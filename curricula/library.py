"""The failure library: which tasks failed in which way, kept in a database (Agent-In-World, step 3).

Every failure is one row that is never changed; an *entry* (a task under a mode) is what the rows of the same mode,
environment and task say together. So there is nothing to merge when several machines write, and going back to a
checkpoint means deleting the rows written after it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import aliased

from roleagent.curricula.storage.database import Database, LibraryError
from roleagent.curricula.storage.full_text_search import Query, open_index, terms
from roleagent.curricula.storage.schema import ensure_tables
from roleagent.curricula.storage.tables import (
    NAME_LENGTH,
    FailureRow,
    RetrievalRow,
    clean,
    newest_rows,
    same_entry,
)
from roleagent.types import Failure, Reflection, Trajectory

_KEYS = 500  # asked for at a time: databases limit the parameters of a query


class Entry(NamedTuple):
    """A task under a failure mode.

    Attributes:
        key: the id of its newest failure.
        mode: how the task failed.
        task_id: the task.
    """

    key: int
    mode: str
    task_id: str


@dataclass(frozen=True, slots=True)
class Retrieval:
    """A task that was chosen because of a failure (Agent-In-World, step 4).

    Attributes:
        run: whose choice it was.
        iteration: when.
        env_id: the environment of both tasks.
        mode: how the task failed.
        task_id: the task that failed.
        chosen_task_id: the task to train on next.
        reason: the analyst's, or what was done in its place.
    """

    run: str
    iteration: int
    env_id: str
    mode: str
    task_id: str
    chosen_task_id: str
    reason: str


class FailureLibrary:
    """Failure mode → tasks, with analysis and trajectory.

    Any number of processes may read while others write. Texts are cut where they are longer than anybody reads:
    modes at 200 characters, lessons and the like at 10,000, observations at 50,000.

    Args:
        url: an SQLAlchemy URL: ``sqlite:///runs/x/failures.db``, ``sqlite://`` (in memory) or, for many machines,
            ``postgresql+psycopg://user@host/database``. Or the path of an SQLite file.
        run: whose failures are written and rolled back here. Runs that share a database read each other's.
        read_only: changes nothing, and makes no file.

    Raises:
        LibraryError: the database cannot be opened. So does every method when it cannot be read or written.
    """

    def __init__(self, url: str | Path = "sqlite://", run: str = "", read_only: bool = False):
        self.run = run
        self.database = Database(url, read_only)
        try:
            with self.database.errors("open"):
                ensure_tables(self.database)
                self._index = open_index(self.database)
        except LibraryError:
            self.database.close()
            raise

    def close(self) -> None:
        """Gives the connections back."""
        self.database.close()

    # --- writing ---

    def record(self, failures: Iterable[tuple[Trajectory, Reflection]], iteration: int = 0) -> int:
        """Adds failed trajectories with their analyses, all or none of them. Returns how many.

        When it returns they are on disk: neither a kill nor a power cut takes them back.
        """
        rows = [FailureRow.of(trajectory, reflection, self.run, iteration) for trajectory, reflection in failures]
        if rows:
            with self.database.write() as session:
                for row in rows:
                    session.add(row)
                    session.flush()
                    self._index.add(session, row)
        return len(rows)

    def record_retrievals(self, iteration: int, rows: Iterable[tuple[str, str, str, str]]) -> int:
        """Keeps why tasks were chosen: rows of mode, failed task, chosen task, reason. Returns how many.

        To be called after :meth:`record` of the same iteration; :meth:`rollback` forgets both together.
        """
        chosen = list(rows)
        if not chosen:
            return 0
        with self.database.write() as session:
            newest = sa.select(FailureRow.id, FailureRow.env_id).where(FailureRow.run == self.run)
            after, env_id = session.execute(newest.order_by(FailureRow.id.desc()).limit(1)).first() or (0, "")
            shared = {"run": self.run, "iteration": iteration, "after": after, "env_id": env_id}
            for mode, failed, task_id, reason in chosen:
                names = {"mode": clean(mode, NAME_LENGTH), "task_id": clean(failed), "chosen_task_id": clean(task_id)}
                session.add(RetrievalRow(**shared, **names, reason=clean(reason)))
        return len(chosen)

    @property
    def cursor(self) -> int:
        """The position of this run's last entry; 0 without entries."""
        with self.database.read() as session:
            return session.scalar(sa.select(sa.func.max(FailureRow.id)).where(FailureRow.run == self.run)) or 0

    def rollback(self, cursor: int) -> int:
        """Forgets what this run wrote after ``cursor``. Returns the number of failures forgotten."""
        with self.database.write() as session:
            later = FailureRow.run == self.run, FailureRow.id > cursor
            forgotten = session.scalar(sa.select(sa.func.count()).select_from(FailureRow).where(*later)) or 0
            session.execute(sa.delete(RetrievalRow).where(RetrievalRow.run == self.run, RetrievalRow.after > cursor))
            if forgotten:
                session.execute(sa.delete(FailureRow).where(*later))
                self._index.rebuild(session)
        return forgotten

    # --- reading ---

    def candidates(
        self, env_id: str, limit: int = 32, mode: str | None = None, until: int | None = None
    ) -> list[Failure]:
        """Entries of an environment, those of ``mode`` first, then the newest first.

        Args:
            env_id: the environment.
            limit: most entries.
            mode: a failure mode.
            until: the last iteration whose failures of this run count; None: all.
        """
        first = sa.case((FailureRow.mode == clean(mode, NAME_LENGTH), 0), else_=1)
        known = [] if until is None else [sa.or_(FailureRow.run != self.run, FailureRow.iteration <= until)]
        entries = newest_rows(FailureRow.env_id == env_id, *known)
        entries = entries.order_by(first, sa.func.max(FailureRow.id).desc())
        with self.database.read() as session:
            counted: Any = session.execute(entries.limit(limit))
            counts = {key: count for key, count in counted}
            rows = {row.id: row for row in session.scalars(sa.select(FailureRow).where(FailureRow.id.in_(counts)))}
            return [rows[key].failure(count) for key, count in counts.items()]

    def search(self, text: str, k: int = 4, env_id: str | None = None) -> list[Failure]:
        """The ``k`` entries whose mode, lesson and query are nearest to a text, best first.

        Any text will do; what is no word is passed over. See :mod:`roleagent.curricula.storage.full_text_search`.
        """
        wanted = terms(text)
        if not wanted or k < 1:
            return []
        with self.database.read() as session:
            keys = self._index.search(session, Query(wanted, k, env_id))
        found = self.failures(keys)
        return [found[key] for key in keys if key in found]

    def search_among(self, asked: Iterable[tuple[str, Container[int]]], k: int) -> list[list[int]]:
        """:meth:`search` for many texts, each among the entries of given keys: the keys that each text finds."""
        found = []
        with self.database.read() as session:
            for text, keys in asked:
                wanted = terms(text)
                query = Query(wanted, k, among=keys)
                found.append(self._index.search(session, query) if wanted and k > 0 else [])
        return found

    def entries(self, env_id: str) -> list[Entry]:
        """All entries of an environment, the longest unchanged first."""
        newest = sa.func.max(FailureRow.id)
        columns = newest, FailureRow.mode, FailureRow.task_id
        query = sa.select(*columns).where(FailureRow.env_id == env_id).group_by(*columns[1:])
        with self.database.read() as session:
            return sorted(Entry(*row) for row in session.execute(query))

    def failures(self, keys: Iterable[int]) -> dict[int, Failure]:
        """The entries of these keys, by key; what no longer exists is left out."""
        wanted, other = list(dict.fromkeys(keys)), aliased(FailureRow)
        same = (getattr(other, name) == getattr(FailureRow, name) for name in ("env_id", "mode", "task_id"))
        count = sa.select(sa.func.count()).select_from(other).where(*same).scalar_subquery()
        query = sa.select(FailureRow, count)
        with self.database.read() as session:
            return {
                row.id: row.failure(number)
                for part in range(0, len(wanted), _KEYS)
                for row, number in session.execute(query.where(FailureRow.id.in_(wanted[part : part + _KEYS])))
            }

    def trajectory(self, failure: Failure) -> list[dict[str, Any]]:
        """The newest trajectory of an entry: dictionaries with ``action``, ``observation`` and ``reward``, the first
        with the initial observation alone."""
        same = same_entry(failure.task.env_id, failure.reflection.mode, failure.task.task_id)
        query = sa.select(FailureRow.story).where(*same).order_by(FailureRow.id.desc()).limit(1)
        with self.database.read() as session:
            return session.scalar(query) or []

    def modes(self, env_id: str | None = None) -> dict[str, int]:
        """The number of tasks of each mode, the largest first."""
        conditions = [] if env_id is None else [FailureRow.env_id == env_id]
        entries = newest_rows(*conditions).add_columns(FailureRow.mode).subquery()
        tasks = sa.func.count()
        query = sa.select(entries.c.mode, tasks).group_by(entries.c.mode).order_by(tasks.desc(), entries.c.mode)
        with self.database.read() as session:
            return {mode: count for mode, count in session.execute(query)}

    def newest_modes(self, until: int) -> dict[tuple[str, str], str]:
        """The mode of each task's newest failure up to an iteration, by environment and task."""
        place = FailureRow.env_id, FailureRow.task_id
        up_to = sa.select(sa.func.max(FailureRow.id)).where(FailureRow.iteration <= until).group_by(*place)
        with self.database.read() as session:
            query = sa.select(*place, FailureRow.mode).where(FailureRow.id.in_(up_to))
            return {(env_id, task_id): mode for env_id, task_id, mode in session.execute(query)}

    def growth(self, run: str | None = None) -> list[dict[str, Any]]:
        """Per iteration and mode with failures: ``iteration, mode, failures, new_entries``, in this order; of a run, or
        of all that share the library.

        ``new_entries`` counts tasks that failed for the first time in this way; their running sum is what the paper's
        figure 4 plots.
        """
        place = FailureRow.iteration, FailureRow.mode
        own = [] if run is None else [FailureRow.run == run]
        told = sa.select(*place, sa.func.count()).where(*own).group_by(*place).order_by(*place)
        first = sa.func.min(FailureRow.iteration).label("iteration")
        entry = FailureRow.env_id, FailureRow.mode, FailureRow.task_id
        firsts = sa.select(first, FailureRow.mode).where(*own).group_by(*entry).subquery()
        with self.database.read() as session:
            failures = session.execute(told).all()
            begun: Any = session.execute(sa.select(*firsts.c, sa.func.count()).group_by(*firsts.c))
            new = {(iteration, mode): count for iteration, mode, count in begun}
        return [
            {
                "iteration": iteration,
                "mode": mode,
                "failures": count,
                "new_entries": new.get((iteration, mode), 0),
            }
            for iteration, mode, count in failures
        ]

    def retrievals(
        self, mode: str | None = None, task_id: str | None = None, chosen_task_id: str | None = None
    ) -> list[Retrieval]:
        """The retrievals, with the failure that led to each, in order; all, or those of some tasks."""
        asked = {"mode": mode, "task_id": task_id, "chosen_task_id": chosen_task_id}
        equal = [getattr(RetrievalRow, name) == clean(value) for name, value in asked.items() if value is not None]
        names = Retrieval.__dataclass_fields__
        columns = [getattr(RetrievalRow, name) for name in names]
        with self.database.read() as session:
            return [
                Retrieval(*row) for row in session.execute(sa.select(*columns).where(*equal).order_by(RetrievalRow.id))
            ]

    def led_to(self, env_id: str, task_ids: Iterable[str]) -> dict[str, Retrieval]:
        """The newest retrieval of each task of an environment by this run; tasks that were never retrieved are left
        out."""
        named = {clean(task_id): task_id for task_id in task_ids}
        if not named:
            return {}
        own = (
            RetrievalRow.run == self.run,
            RetrievalRow.env_id == env_id,
            RetrievalRow.chosen_task_id.in_(named),
        )
        newest = sa.select(sa.func.max(RetrievalRow.id)).where(*own).group_by(RetrievalRow.chosen_task_id)
        columns = [getattr(RetrievalRow, name) for name in Retrieval.__dataclass_fields__]
        with self.database.read() as session:
            found = [Retrieval(*row) for row in session.execute(sa.select(*columns).where(RetrievalRow.id.in_(newest)))]
        return {named[retrieval.chosen_task_id]: retrieval for retrieval in found}

    def __len__(self) -> int:
        """The number of entries."""
        with self.database.read() as session:
            return session.scalar(sa.select(sa.func.count()).select_from(newest_rows().subquery())) or 0

    @staticmethod
    def names(task_id: str, mode: str) -> tuple[str, str]:
        """A task and a mode as the library writes them."""
        return clean(task_id), clean(mode, NAME_LENGTH)


__all__ = ["Entry", "FailureLibrary", "LibraryError", "Retrieval"]
