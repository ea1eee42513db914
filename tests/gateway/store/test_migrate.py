"""Migrations and metadata describe the same tables, and may run whenever, by whomever."""

import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from threading import Thread
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event, inspect
from sqlalchemy.exc import OperationalError

from gateway.store import notebook_tables, schema
from gateway.store.db import BUSY_S, Database, MigrationFailed
from gateway.store.migrate import ADVISORY_LOCK, alembic_config, migrate
from gateway.store.schema import LEDGER, STORE, Lineage, bring_up_to_date, is_newest
from gateway.store.tables import ledger, metadata

ROOT = Path(__file__).resolve().parents[3]


def test_migrations_and_metadata_agree(database: Database) -> None:
    migrate(database)
    options = {"version_table": "ledger_version", "compare_type": True}
    with database.editor.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        columns = inspect(connection).get_columns("ledger")
    # compare_metadata looks at neither of these.
    assert [column["name"] for column in columns] == [column.name for column in ledger.columns]
    assert [column["nullable"] for column in columns] == [
        column.nullable for column in ledger.columns
    ]


def test_migrations_and_metadata_of_the_store_agree(database: Database) -> None:
    migrate(database, STORE)
    options = {"version_table": "store_version", "compare_type": True}
    with database.editor.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, notebook_tables.metadata) == []
        for table in notebook_tables.metadata.sorted_tables:
            columns = inspect(connection).get_columns(table.name)
            assert [(column["name"], column["nullable"]) for column in columns] == [
                (column.name, column.nullable) for column in table.columns
            ]


def test_ledger_and_store_share_a_database_and_know_nothing_of_each_other(
    database: Database,
) -> None:
    bring_up_to_date(database, STORE)
    assert (is_newest(database, STORE), is_newest(database)) == (True, False)
    bring_up_to_date(database)
    assert is_newest(database, STORE) and is_newest(database, LEDGER)
    with database.editor.connect() as connection:
        tables = set(inspect(connection).get_table_names())
    assert {"ledger", "ledger_version", "notebook_notes", "store_version"} <= tables


def test_a_run_is_billed_once_is_a_constraint_of_both(database: Database) -> None:
    migrate(database)
    with database.editor.connect() as connection:
        indexes = {index["name"]: index for index in inspect(connection).get_indexes("ledger")}
    bill = indexes["ledger_one_bill_a_run"]
    assert (bill["column_names"], bool(bill["unique"])) == (["run_id"], True)
    name = database.editor.dialect.name
    condition = str(bill["dialect_options"][f"{name}_where"])
    assert "generation" in condition and "billed" in condition


def test_migrating_again_changes_nothing(database: Database) -> None:
    migrate(database)
    with database.reader.connect() as connection:
        before = connection.exec_driver_sql("SELECT * FROM ledger_meta ORDER BY key").all()
    migrate(database)
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT * FROM ledger_meta ORDER BY key").all() == before
    assert [key for key, _ in before] == ["created_at", "schema_version"]
    assert before[1] == ("schema_version", "0002")
    assert len(before[0][1]) == len("2026-07-31T12:00:00Z")


START = """
import sys
from gateway.store.db import Database
from gateway.store.migrate import migrate
database = Database.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
migrate(database)
"""


def test_gateways_that_start_at_once_migrate_once(database: Database) -> None:
    target = database.target
    with ExitStack() as stack:
        gateways = [
            stack.enter_context(
                Popen([sys.executable, "-c", START, target], stdin=PIPE, stdout=PIPE, cwd=ROOT)
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
        migrating = Thread(target=migrate, args=[database])
        migrating.start()
        while other.execute(waiting).fetchone() == (0,):
            assert migrating.is_alive()
        assert other.execute("SELECT to_regclass('ledger')").fetchone() == (None,)
    migrating.join(60)
    with database.reader.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM ledger").scalar() == 0
    database.close()


# -- from a gateway, which does not load Alembic --------------------------------------------------


def rename_version(database: Database, version: str) -> None:
    with database.writer.transaction() as cursor:
        cursor.execute(f"UPDATE ledger_version SET version_num = '{version}'")


@pytest.mark.parametrize("lineage", [LEDGER, STORE], ids=["ledger", "store"])
def test_the_newest_version_is_the_one_that_alembic_knows(lineage: Lineage) -> None:
    scripts = ScriptDirectory.from_config(alembic_config(lineage))
    assert scripts.get_current_head() == lineage.head


def test_a_database_says_whether_it_is_the_newest(database: Database) -> None:
    assert not is_newest(database)  # there is no table at all
    migrate(database)
    assert is_newest(database)
    rename_version(database, "0000")
    assert not is_newest(database)
    with database.writer.transaction() as cursor:
        cursor.execute("DELETE FROM ledger_version")
    assert not is_newest(database)


def test_another_process_migrates_and_only_when_it_must(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def spying(command: list[str], **options: Any) -> Popen[bytes]:
        started.append(command)
        return Popen(command, **options)

    monkeypatch.setattr(schema, "Popen", spying)
    bring_up_to_date(database)
    assert is_newest(database)
    bring_up_to_date(database)
    (command,) = started
    assert database.target not in " ".join(command)  # it may hold a password


def test_a_migration_that_fails_says_what_the_database_said(database: Database) -> None:
    with database.writer.transaction() as cursor:
        cursor.execute("CREATE TABLE ledger (somebody_elses INTEGER)")
    with pytest.raises(MigrationFailed, match=r"Error: .*ledger.* already exists"):
        bring_up_to_date(database)
    with database.writer.transaction() as cursor:
        cursor.execute("DROP TABLE ledger")
    bring_up_to_date(database)
    assert is_newest(database)


def test_a_database_of_a_newer_tandem_is_left_alone(database: Database) -> None:
    migrate(database)
    rename_version(database, "9999")
    with pytest.raises(MigrationFailed, match="9999"):
        bring_up_to_date(database)


def test_a_migration_ends_with_the_gateway_that_wanted_it(sqlite: Database) -> None:
    """It waits for a lock; the gateway goes, and it does not wait any longer."""
    with sqlite.writer.transaction():
        command = [sys.executable, "-m", "gateway.store.migrate"]
        with Popen(command, stdin=PIPE, stdout=PIPE, cwd=ROOT) as migrating:
            assert migrating.stdin is not None
            migrating.stdin.write(f"{sqlite.target}\n".encode())
            migrating.stdin.close()
            assert migrating.wait(BUSY_S / 2) == 1
    assert not is_newest(sqlite)


def test_a_migration_that_breaks_off_anywhere_leaves_nothing_behind(database: Database) -> None:
    """Its Nth statement fails, for every N; the next attempt finds the database as it was."""
    engine = database.editor
    struck = -1
    while not is_newest(database):
        struck += 1
        left = iter(range(struck))

        def fail_later(*_: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise OperationalError("broken off", None, sqlite3.OperationalError("broken off"))

        with database.writer.transaction() as cursor:
            cursor.execute(database.writer.statements.find_version)
            assert cursor.fetchone() in (None, (None,))
        event.listen(engine, "before_cursor_execute", fail_later)
        try:
            migrate(database)
        except OperationalError:
            assert struck < 60
        finally:
            event.remove(engine, "before_cursor_execute", fail_later)
    assert struck > 5
