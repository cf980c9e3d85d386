"""A database of failures: opening it, transactions, and one clear line when something is wrong with it.

SQLite keeps a log beside the file (WAL), so that any number of processes read while one writes. Writers take turns: a
writing transaction asks for the lock when it begins and waits for it, because one that asks only when it first writes
fails at once when another process wrote in between.

Commits reach the disk before they are reported (``synchronous = FULL``): a run commits a few times per iteration, which
costs milliseconds, and a checkpoint must never remember failures that a power cut has taken back.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.orm import Session

from roleagent.options import user_path

_BUSY_SECONDS = 30.0  # how long SQLite waits for another writer


class LibraryError(RuntimeError):
    """The failure library cannot be opened, read or written; the message is one line."""


class Database:
    """A connection to SQLite or PostgreSQL.

    Args:
        url: an SQLAlchemy URL, or the path of an SQLite file, whose name may have any character.
        read_only: writes nothing: a file that is missing is an error then.

    Raises:
        LibraryError: there is no such database, or no driver for it.
    """

    def __init__(self, url: str | Path, read_only: bool = False):
        self.read_only = read_only
        self.where = re.sub(r"//([^:/@]*):[^@]*@", r"//\1:***@", str(url))
        with self.errors("open"):
            own = isinstance(url, Path)  # in a URL a name with "?" would end there
            parsed = sa.URL.create("sqlite", database=str(url.resolve())) if own else sa.make_url(url)
            self.dialect = parsed.get_backend_name()
            if self.dialect == "sqlite":
                self.engine = _sqlite_engine(parsed, read_only)
            else:
                options = {"postgresql_readonly": read_only}  # and a run outlives its server's restart: pre_ping
                self.engine = sa.create_engine(parsed, execution_options=options, pool_pre_ping=True)

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turns whatever a database or its driver raises into a :class:`LibraryError`."""
        try:
            yield
        except ModuleNotFoundError as error:
            hint = "; pip install 'roleagent[postgresql]'" if "psycopg" in str(error) else ""
            raise LibraryError(f"the failure library needs a database driver: {error}{hint}") from error
        except (exc.SQLAlchemyError, sqlite3.Error, zlib.error, OSError, UnicodeError, OverflowError) as error:
            reason = str(getattr(error, "orig", None) or error).strip().split("\n")[0]
            raise LibraryError(f"cannot {doing} the failure library {self.where}: {reason}") from error

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session with snapshot isolation: it sees the database as of its first query."""
        whole = {} if self.dialect == "sqlite" else {"isolation_level": "REPEATABLE READ"}  # SQLite's always are
        with self.errors("read"), Session(self.engine.execution_options(**whole)) as session, session.begin():
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session whose changes are kept all together when it ends, or not at all."""
        engine = self.engine.execution_options(writes=True)
        with self.errors("write"), Session(engine) as session, session.begin():
            yield session

    @contextmanager
    def alone(self, patience: float) -> Iterator[sa.Connection]:
        """An exclusive write transaction; waits up to ``patience`` seconds for others."""
        engine = self.engine.execution_options(writes=True)
        with engine.connect() as connection:
            if self.dialect == "sqlite":
                driver: Any = connection.connection.driver_connection
                driver.execute(f"PRAGMA busy_timeout = {int(patience * 1000)}")
                try:
                    with connection.begin():
                        yield connection
                finally:
                    driver.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
            else:
                with connection.begin():
                    connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext('roleagent failures'))"))
                    yield connection

    def close(self) -> None:
        """Gives the connections back."""
        self.engine.dispose()


def _sqlite_engine(url: sa.URL, read_only: bool) -> sa.Engine:
    file = url.database or ""
    named = file not in ("", ":memory:") and not file.startswith("file:")
    if named:
        file = str(user_path(file))
        url = url.set(database=file)
    if named and Path(file).is_dir():
        raise IsADirectoryError("it is a folder")
    if read_only and named:
        path = Path(file).resolve()
        if not path.exists():
            raise FileNotFoundError("there is no such file")
        place = f"{path.as_uri()}?mode=ro"
        if not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists():
            place += "&immutable=1"  # the log's files cannot exist there, so there is no writer
        engine = sa.create_engine(url, creator=lambda: sqlite3.connect(place, uri=True, check_same_thread=False))
    else:
        if named:
            Path(file).parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(url)

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: Any) -> None:
        connection.isolation_level = None  # transactions begin with `begin` below
        connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_SECONDS * 1000)}")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            _keep_a_log(connection)
            connection.execute("PRAGMA synchronous = FULL")

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _keep_a_log(connection: sqlite3.Connection) -> None:
    """Switches to a write-ahead log. Of several that switch a new file at once SQLite refuses all but one, at once."""
    late = time.monotonic() + _BUSY_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return  # done, or this file system cannot
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > late:
                raise
            time.sleep(0.01)
