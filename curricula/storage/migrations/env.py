"""Alembic's environment: it migrates on the connection and in the transaction of its caller."""

from alembic import context

from roleagent.curricula.storage.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
