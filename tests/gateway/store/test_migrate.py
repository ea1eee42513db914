"""Migrations and metadata describe the same tables, and may run whenever, by whomever."""

import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

from gateway.store.db import Database
from gateway.store.migrate import ADVISORY_LOCK, migrate
from gateway.store.tables import ledger, metadata

ROOT = Path(__file__).resolve().parents[3]


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


START = """
import sys
from gateway.store.db import Database
from gateway.store.migrate import migrate
database = Database.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
migrate(database.writer)
"""


def test_gateways_that_start_at_once_migrate_once(database: Database) -> None:
    url = database.writer.url.render_as_string(hide_password=False)
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                Popen([sys.executable, "-c", START, url], stdin=PIPE, stdout=PIPE, cwd=ROOT)
            )
            for _ in range(4)
        ]
        for gateway in gateways:
            assert gateway.stdout is not None and gateway.stdout.readline() == b"ready\n"
        for gateway in gateways:
            assert gateway.stdin is not None
            gateway.stdin.close()  # go
        assert [gateway.wait(60) for gateway in gateways] == [0] * 4
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM ledger_version").scalar() == 1


@pytest.mark.postgres
def test_a_migration_waits_for_the_one_that_runs(postgres_url: str) -> None:
    database = Database.open(postgres_url)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(postgres_url, autocommit=True) as other:
        other.execute(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
        migrating = Thread(target=migrate, args=[database.writer])
        migrating.start()
        while other.execute(waiting).fetchone() == (0,):
            assert migrating.is_alive()
        assert other.execute("SELECT to_regclass('ledger')").fetchone() == (None,)
    migrating.join(60)
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM ledger").scalar() == 0
    database.close()
