"""What Alembic runs to take the steps: on the connection, and in the transaction, of the one who calls it."""

from alembic import context

from roleagent.curricula.storage.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
