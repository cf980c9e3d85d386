"""The version of a library's tables, and bringing old ones up to date.

The steps from version to version are Alembic scripts (:mod:`roleagent.curricula.storage.migrations`). Alembic is loaded
only when there is a step to take, and every step of an upgrade is one transaction: who is killed in the middle leaves
the library as it was.
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import sqlalchemy as sa

from roleagent.curricula.storage.database import Database, LibraryError

REVISIONS = ("0001", "0002")  # every version there has been, oldest first; the last one is today's
VERSION_TABLE = "failures_version"  # in a shared database Alembic's own name would be some other program's

_PATIENCE = 600.0  # seconds to wait while somebody else upgrades


def bring_up_to_date(database: Database) -> None:
    """Makes the tables of a new library, and upgrades those of an old one.

    Of several processes that do so at once one upgrades, and the others wait for it.

    Raises:
        LibraryError: the library is newer than this program, or is old and may only be read, or is none.
    """
    with database.engine.connect() as connection:
        before = _version(database, connection)
    if before == REVISIONS[-1]:
        return
    if database.read_only and before is None:
        raise LibraryError(f"{database.where} holds no failure library")
    if database.read_only:
        raise LibraryError(
            f"{database.where} was written by an older roleagent and must be upgraded before it can be read: "
            f"roleagent failures upgrade '{database.where}'"
        )
    with database.alone(_PATIENCE) as connection:
        found = _version(database, connection)
        if found != REVISIONS[-1]:
            _upgrade(connection, found)
    if found in REVISIONS[:-1] and database.dialect == "sqlite":
        _give_room_back(database)


def _version(database: Database, connection: sa.Connection) -> str | None:
    """The version of the tables; None where there are none."""
    tables = sa.inspect(connection)
    # What tells the version is looked at last: somebody may be making or upgrading the tables meanwhile, all at once.
    columns = {c["name"] for c in tables.get_columns("failures")} if tables.has_table("failures") else None
    if tables.has_table(VERSION_TABLE):
        version = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
        if version not in REVISIONS:
            raise LibraryError(
                f"{database.where} was written by a newer roleagent (its tables are of version {version}, this "
                f"program knows {REVISIONS[-1]}): pip install --upgrade roleagent"
            )
        return version
    if columns is None:
        return None
    if not {"critical_step", "trajectory"} <= columns:
        raise LibraryError(f"{database.where} has a table `failures` of another program: take another database")
    return REVISIONS[0]  # from before tables had versions


def _upgrade(connection: sa.Connection, version: str | None) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.attributes["connection"] = connection
    if version is not None and not sa.inspect(connection).has_table(VERSION_TABLE):
        command.stamp(config, version)
    command.upgrade(config, REVISIONS[-1])


def _give_room_back(database: Database) -> None:
    """Shrinks the file. Only space is lost where that fails (a full disk, others at work): new rows will use it."""
    with database.engine.connect() as connection, suppress(sqlite3.OperationalError):
        driver = connection.connection.driver_connection
        if driver is not None:
            driver.execute("VACUUM")
