"""The connection that writes: all or nothing, and a new one after a fault."""

from typing import Any

import pytest

from gateway.store.connection import WriteConnection
from gateway.store.db import Database
from gateway.store.migrate import migrate

KEYS = "SELECT key FROM ledger_meta WHERE value = 'mine'"


@pytest.fixture
def writer(database: Database) -> WriteConnection:
    """The writer of each kind of database, with tables."""
    migrate(database)
    return database.writer


def put(writer: WriteConnection, key: str | None) -> None:
    with writer.transaction() as cursor:
        cursor.execute(writer.statements.write_meta, (key, "mine"))


def keys(writer: WriteConnection) -> list[str]:
    with writer.transaction() as cursor:
        found: Any = cursor.execute(KEYS).fetchall()  # type: ignore[attr-defined]
    return sorted(key for (key,) in found)


def test_what_is_done_is_there_and_replaces_what_was(writer: WriteConnection) -> None:
    put(writer, "a")
    put(writer, "a")
    assert keys(writer) == ["a"]


def test_a_body_that_raises_leaves_nothing(writer: WriteConnection) -> None:
    with pytest.raises(ZeroDivisionError), writer.transaction() as cursor:
        cursor.execute(writer.statements.write_meta, ("a", "mine"))
        raise ZeroDivisionError
    assert keys(writer) == []


def test_a_refused_row_costs_no_connection(writer: WriteConnection) -> None:
    put(writer, "a")
    before = writer._connection
    with pytest.raises(writer.driver.IntegrityError) as refused:
        put(writer, None)
    assert writer.is_fault(refused.value) and writer.is_rows_fault(refused.value)
    assert writer.reason_of(refused.value).startswith("IntegrityError: ")
    put(writer, "b")
    assert writer._connection is before
    assert keys(writer) == ["a", "b"]


def test_after_any_other_fault_a_new_connection_is_made(writer: WriteConnection) -> None:
    put(writer, "a")
    before = writer._connection
    with pytest.raises(writer.driver.Error) as broken, writer.transaction() as cursor:
        cursor.execute(writer.statements.write_meta, ("b", "mine"))
        cursor.execute("SELECT 1 FROM nowhere")
    assert writer.is_fault(broken.value) and not writer.is_rows_fault(broken.value)
    put(writer, "c")
    assert writer._connection is not before
    assert keys(writer) == ["a", "c"]


def test_a_connection_that_went_away_is_replaced(writer: WriteConnection) -> None:
    put(writer, "a")
    writer._connection.close()  # as a server does that is stopped
    with pytest.raises(writer.driver.Error):
        put(writer, "b")
    put(writer, "c")
    assert keys(writer) == ["a", "c"]


def test_a_closed_writer_opens_again_when_it_is_used(writer: WriteConnection) -> None:
    put(writer, "a")
    writer.close()
    writer.close()
    put(writer, "b")
    assert keys(writer) == ["a", "b"]


def test_a_fault_that_names_values_is_said_by_its_kind_alone(writer: WriteConnection) -> None:
    assert writer.reason_of(writer.driver.DataError("secret")) == "DataError"
    assert writer.reason_of(writer.driver.OperationalError("gone\nsecret")) == (
        "OperationalError: gone"
    )
    assert not writer.is_fault(ZeroDivisionError("ours"))
