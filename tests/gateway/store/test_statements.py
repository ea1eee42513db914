"""The frozen statements are those that SQLAlchemy compiles from the tables today."""

from dataclasses import astuple

import pytest

from gateway.store import (
    freeze,
    freeze_memory,
    freeze_notebook,
    memory_statements,
    notebook_statements,
    statements,
)
from gateway.store.tables import ledger


def test_what_is_frozen_is_what_the_tables_say() -> None:
    """Red after a change of the tables: `python -m gateway.store.freeze` writes it anew."""
    assert freeze.TARGET.read_text() == freeze.render()


def test_what_is_frozen_of_the_notebook_is_what_its_tables_say() -> None:
    """Red after a change of the tables: `python -m gateway.store.freeze_notebook`."""
    assert freeze_notebook.TARGET.read_text() == freeze_notebook.render()
    for frozen in (notebook_statements.SQLITE, notebook_statements.POSTGRESQL):
        assert all(" ".join(text.split()) == text for text in astuple(frozen))


def test_what_is_frozen_of_memory_notes_is_what_their_table_says() -> None:
    """Red after a change of the table: `python -m gateway.store.freeze_memory`."""
    assert freeze_memory.TARGET.read_text() == freeze_memory.render()
    assert freeze_memory.compiled("sqlite") == memory_statements.SQLITE
    assert freeze_memory.compiled("postgresql") == memory_statements.POSTGRESQL


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
def test_what_is_loaded_is_what_is_frozen(name: str) -> None:
    """Whatever the layout of the file, its strings are the statements themselves."""
    frozen = {"sqlite": statements.SQLITE, "postgresql": statements.POSTGRESQL}[name]
    assert frozen == freeze.compiled(name)
    assert all(" ".join(text.split()) == text for text in astuple(frozen))


def test_parameters_stand_in_the_order_of_the_table() -> None:
    """So that a row has each of its values in one place, whichever statement writes it."""
    table = [column.name for column in ledger.columns if column.name != "id"]
    assert list(statements.ROW) == table
    for some in (statements.BRIEF, statements.HEAD):
        assert list(some) == [name for name in table if name in some]
    assert statements.BRIEF[:2] == statements.HEAD[:2] == statements.ROW[:2]
