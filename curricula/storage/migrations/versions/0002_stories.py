"""Trajectories compressed; what was retrieved and why; PostgreSQL's own index of words."""

import zlib
from contextlib import suppress

import sqlalchemy as sa
from alembic import op
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql import TSVECTOR

from roleagent.curricula.storage.database import LibraryError

revision = "0002"
down_revision = "0001"

_PAGE = 256  # rows in memory at once

# Blanks for punctuation, or PostgreSQL reads "drawer.Then" as the name of a host, and around every character of a
# script that is written without blanks. Cut, because a document may have a megabyte.
_WORDS = r"""
to_tsvector('english', regexp_replace(regexp_replace(
    left(mode, 1000) || ' ' || left(lesson, 20000) || ' ' || left(query, 20000),
    '[\u0021-\u002f\u003a-\u0040\u005b-\u0060\u007b-\u007e]', ' ', 'g'),
    '([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff])', ' \1 ', 'g'))
"""


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        encoding = connection.scalar(sa.text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise LibraryError(f"the failure library needs a PostgreSQL database in UTF8, not {encoding}")
    op.add_column("failures", sa.Column("story", sa.LargeBinary()))
    _compress(connection)
    with op.batch_alter_table("failures") as table:
        table.alter_column("story", existing_type=sa.LargeBinary(), nullable=False)
        table.drop_column("trajectory")
    op.create_table(
        "retrievals",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False) for name in ("iteration", "after")),
        *(
            sa.Column(name, sa.String(), nullable=False)
            for name in ("env_id", "mode", "task_id", "chosen_task_id", "reason")
        ),
    )
    op.create_index("retrievals_run", "retrievals", ["run", "iteration"])
    if connection.dialect.name == "postgresql":
        words = sa.Computed(_WORDS, persisted=True)
        op.add_column("failures", sa.Column("words", TSVECTOR(), words))
        op.create_index("failures_words", "failures", ["words"], postgresql_using="gin")
    elif connection.dialect.name == "sqlite":
        with suppress(exc.OperationalError):  # a SQLite without FTS5 cannot drop it either
            op.execute(
                "DROP TABLE IF EXISTS failures_text"
            )  # the words of old; the library makes its index when opened


def _compress(connection: sa.Connection) -> None:
    page = sa.text("SELECT id, CAST(trajectory AS TEXT) FROM failures WHERE id > :last ORDER BY id LIMIT :page")
    last = -(2**31)
    while rows := connection.execute(page, {"last": last, "page": _PAGE}).all():
        stories = [{"id": key, "story": zlib.compress(text.encode())} for key, text in rows]
        connection.execute(sa.text("UPDATE failures SET story = :story WHERE id = :id"), stories)
        last = rows[-1][0]
