"""The version of a library's tables, and making those of a new one.

The tables are made in one transaction: a process that is killed in the middle leaves nothing. There is one version so
far. The next one needs a way from this one, for example Alembic's.
"""

from __future__ import annotations

import sqlalchemy as sa

from roleagent.curricula.storage.database import Database, LibraryError
from roleagent.curricula.storage.tables import Base

VERSION = "0001"  # of today's tables
VERSION_TABLE = "failures_version"

_VERSION = sa.Table(VERSION_TABLE, Base.metadata, sa.Column("version_num", sa.String(32), primary_key=True))
# PostgreSQL's full-text index. Blanks for punctuation, or it reads "drawer.Then" as the name of a host, and around
# every character of a script that is written without blanks. Cut, because a document may have a megabyte.
_WORDS = r"""
to_tsvector('english', regexp_replace(regexp_replace(
    left(mode, 1000) || ' ' || left(lesson, 20000) || ' ' || left(query, 20000),
    '[\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e]', ' ', 'g'),
    '([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff])', ' \1 ', 'g'))
"""
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
        if version != VERSION:
            age = "a newer" if str(version) > VERSION else "another"
            raise LibraryError(
                f"{database.where} was written by {age} version of roleagent (its tables are of version {version}, "
                f"this program knows {VERSION}): open it with that version"
            )
        return True
    if failures:
        raise LibraryError(f"{database.where} has a table `failures` of another program: take another database")
    return False


def _make_tables(connection: sa.Connection) -> None:
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        encoding = connection.scalar(sa.text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise LibraryError(f"the failure library needs a PostgreSQL database in UTF8, not {encoding}")
    Base.metadata.create_all(connection)
    if postgresql:
        connection.exec_driver_sql(
            f"ALTER TABLE failures ADD COLUMN words tsvector GENERATED ALWAYS AS ({_WORDS}) STORED"
        )
        connection.exec_driver_sql("CREATE INDEX failures_words ON failures USING gin (words)")
    connection.execute(_VERSION.insert(), {"version_num": VERSION})
