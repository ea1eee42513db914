"""Open databases for tests: a SQLite file each, or a database on the one real PostgreSQL."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store.db import Database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database, of each kind in turn."""
    if request.param == "sqlite":
        target = str(tmp_path / "books" / "ledger.sqlite")
    else:
        target = request.getfixturevalue("postgres_url")
    opened = Database.open(target, only_below=Path(tempfile.gettempdir()))
    yield opened
    opened.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """An empty SQLite database."""
    opened = Database.open(tmp_path / "books" / "ledger.sqlite", only_below=tmp_path)
    yield opened
    opened.close()
