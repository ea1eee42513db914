"""Migrations and metadata describe the same tables, and may run whenever, by whomever."""

from concurrent.futures import ThreadPoolExecutor

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from gateway.store.db import Database
from gateway.store.migrate import migrate
from gateway.store.tables import ledger, metadata


def test_migrations_and_metadata_agree(database: Database) -> None:
    migrate(database.writer)
    options = {"version_table": "ledger_version", "compare_type": True}
    with database.writer.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        columns = inspect(connection).get_columns("ledger")
    # compare_metadata looks at neither of these.
    assert [column["name"] for column in columns] == [column.name for column in ledger.columns]
    assert [column["nullable"] for column in columns] == [
        column.nullable for column in ledger.columns
    ]


def test_a_run_is_billed_once_is_a_constraint_of_both(database: Database) -> None:
    migrate(database.writer)
    with database.writer.connect() as connection:
        indexes = {index["name"]: index for index in inspect(connection).get_indexes("ledger")}
    bill = indexes["ledger_one_bill_a_run"]
    assert (bill["column_names"], bool(bill["unique"])) == (["run_id"], True)
    name = database.writer.dialect.name
    condition = str(bill["dialect_options"][f"{name}_where"])
    assert "generation" in condition and "billed" in condition


def test_migrating_again_changes_nothing(database: Database) -> None:
    migrate(database.writer)
    with database.reader.connect() as connection:
        before = connection.exec_driver_sql("SELECT * FROM ledger_meta ORDER BY key").all()
    migrate(database.writer)
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM ledger_meta ORDER BY key").all() == before
    assert [key for key, _ in before] == ["created_at", "schema_version"]
    assert before[1] == ("schema_version", "0001")
    assert len(before[0][1]) == len("2026-07-31T12:00:00Z")


def test_gateways_that_start_at_once_migrate_once(database: Database) -> None:
    url = database.writer.url.render_as_string(hide_password=False)
    gateways = [Database.open(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda gateway: migrate(gateway.writer), gateways))
    for gateway in gateways:
        gateway.close()
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM ledger_version").scalar() == 1
