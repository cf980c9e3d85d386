"""Failures with compressed trajectories, retrievals with reasons, and PostgreSQL's full-text index."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

from roleagent.curricula.storage.database import LibraryError

revision = "0001"
down_revision = None

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
    postgresql = connection.dialect.name == "postgresql"
    if postgresql:
        encoding = connection.scalar(sa.text("SHOW server_encoding"))
        if encoding != "UTF8":
            raise LibraryError(f"the failure library needs a PostgreSQL database in UTF8, not {encoding}")
    op.create_table(
        "failures",
        sa.Column("id", sa.Integer(), primary_key=True),
        *_columns(sa.String(), "run"),
        *_columns(sa.Integer(), "iteration", "policy_version"),
        *_columns(sa.String(), "mode", "env_id", "task_id", "split", "goal", "task_type", "detail"),
        sa.Column("critical_step", sa.Integer()),
        *_columns(sa.String(), "lesson", "query", "source"),
        *_columns(sa.LargeBinary(), "story"),
        *([sa.Column("words", TSVECTOR(), sa.Computed(_WORDS, persisted=True))] if postgresql else []),
    )
    op.create_index("failures_entry", "failures", ["env_id", "mode", "task_id"])
    op.create_index("failures_run", "failures", ["run"])
    op.create_table(
        "retrievals",
        sa.Column("id", sa.Integer(), primary_key=True),
        *_columns(sa.String(), "run"),
        *_columns(sa.Integer(), "iteration", "after"),
        *_columns(sa.String(), "env_id", "mode", "task_id", "chosen_task_id", "reason"),
    )
    op.create_index("retrievals_run", "retrievals", ["run", "iteration"])
    if postgresql:
        op.create_index("failures_words", "failures", ["words"], postgresql_using="gin")


def _columns(kind: sa.types.TypeEngine, *names: str) -> list[sa.Column]:
    return [sa.Column(name, kind, nullable=False) for name in names]
