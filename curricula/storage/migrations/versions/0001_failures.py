"""The table of failures, as it was before tables had versions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    texts = ("mode", "env_id", "task_id", "split", "goal", "task_type", "detail")
    op.create_table(
        "failures",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("policy_version", sa.Integer(), nullable=False),
        *(sa.Column(name, sa.String(), nullable=False) for name in texts),
        sa.Column("critical_step", sa.Integer()),
        *(sa.Column(name, sa.String(), nullable=False) for name in ("lesson", "query", "source")),
        sa.Column("trajectory", sa.JSON(), nullable=False),
    )
    op.create_index("failures_entry", "failures", ["env_id", "mode", "task_id"])
    op.create_index("failures_run", "failures", ["run"])
