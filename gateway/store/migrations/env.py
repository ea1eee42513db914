"""Run by Alembic: migrates over the connection that it is handed. Knows no configuration file."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table=context.config.attributes["version_table"],
    transactional_ddl=True,  # SQLite as well: our transaction is open already
)
with context.begin_transaction():
    context.run_migrations()
