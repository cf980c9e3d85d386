"""The version of a library's tables, and making those of a new one.

The versions are Alembic scripts (:mod:`roleagent.curricula.storage.migrations`). Alembic is loaded only when there are
tables to make, which is one transaction: a process that is killed in the middle leaves nothing.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from roleagent.curricula.storage.database import Database, LibraryError

REVISION = "0001"  # today's version
VERSION_TABLE = "failures_version"  # in a shared database Alembic's own name would be some other program's

_PATIENCE = 600.0  # seconds to wait while another process makes the tables


def ensure_tables(database: Database) -> None:
    """Makes the tables of a new library. Of several processes that open it at once, one makes them.

    Raises:
        LibraryError: the tables are of another version or another program, or there are none and it is read-only.
    """
    with database.engine.connect() as connection:
        found = _has_tables(database, connection)
    if found:
        return
    if database.read_only:
        raise LibraryError(f"{database.where} holds no failure library")
    with database.alone(_PATIENCE) as connection:
        if not _has_tables(database, connection):
            _make_tables(connection)


def _has_tables(database: Database, connection: sa.Connection) -> bool:
    tables = sa.inspect(connection)
    # The version is looked at last: another process may be making the tables meanwhile, all at once.
    failures = tables.has_table("failures")
    if tables.has_table(VERSION_TABLE):
        version = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
        if version != REVISION:
            age = "a newer" if str(version) > REVISION else "another"
            raise LibraryError(
                f"{database.where} was written by {age} version of roleagent (its tables are of version {version}, "
                f"this program knows {REVISION}): open it with that version"
            )
        return True
    if failures:
        raise LibraryError(f"{database.where} has a table `failures` of another program: take another database")
    return False


def _make_tables(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, REVISION)
