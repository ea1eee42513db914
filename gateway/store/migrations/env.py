"""Run by Alembic: migrates over the connection that it is handed. Knows no configuration file."""

from alembic import context

from gateway.store.tables import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    transactional_ddl=True,  # SQLite as well: our transaction is open already
)
with context.begin_transaction():
    context.run_migrations()
