"""Opens a database for us: one engine that writes, one that only reads. Knows no table.

SQLite for one machine, PostgreSQL for several gateways; everything above sees only engines.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from sqlite3 import connect as sqlite_connect
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.pool import NullPool

BUSY_S = 30.0  # how long SQLite waits for another process that is writing
CONNECT_S = 5  # PostgreSQL that does not answer is down
SILENCE_MS = 30_000  # PostgreSQL that takes no bytes for so long is gone
POSTGRES_READERS = 4  # reports that run at the same time


class StoreFault(Exception):
    """Why a database was not opened.

    StoreFault
    ├── NotTemporary     a test run may not touch a real database
    ├── UnknownDatabase  an address of a kind we do not speak
    └── DriverMissing    PostgreSQL without its driver
    """


class NotTemporary(StoreFault):
    """`target` is not below `folder`, the only place a test run may write to."""

    def __init__(self, target: str, folder: Path) -> None:
        super().__init__(f"A test run opens databases below {folder} only, not {target}.")
        self.target = target
        self.folder = folder


class UnknownDatabase(StoreFault):
    """`scheme` is neither SQLite nor PostgreSQL."""

    def __init__(self, scheme: str) -> None:
        super().__init__(
            f"A database address begins with sqlite: or postgresql:, or is a path; not {scheme}:."
        )
        self.scheme = scheme


class DriverMissing(StoreFault):
    """The driver of PostgreSQL is not installed."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL needs its driver: pip install 'tandem-llm[postgres]'.")


@dataclass(frozen=True, slots=True)
class Database:
    """A database that is open. `path`: the file, with SQLite only."""

    writer: Engine
    reader: Engine
    path: Path | None = None

    @classmethod
    def open(cls, target: str | Path, *, only_below: Path | None = None) -> "Database":
        """Opens a file, or the database a URL names. With PostgreSQL nothing is connected yet.

        `only_below`: the folder of temporary files, in a test run; databases elsewhere are refused.

        Raises: NotTemporary, UnknownDatabase, DriverMissing, OSError.
        """
        if isinstance(target, Path) or "://" not in target:
            return _open_sqlite(Path(target).expanduser(), only_below)
        url = make_url(target)
        backend = url.get_backend_name()
        if backend == "sqlite" and url.database:
            return _open_sqlite(Path(url.database).expanduser(), only_below)
        if backend in ("postgresql", "postgres"):
            return _open_postgres(url.set(drivername="postgresql+psycopg"), only_below)
        raise UnknownDatabase(backend)

    def close(self) -> None:
        """Closes the connections that nobody uses right now."""
        self.writer.dispose()
        self.reader.dispose()


def _open_sqlite(path: Path, only_below: Path | None) -> Database:
    if only_below is not None and not path.resolve().is_relative_to(only_below.resolve()):
        raise NotTemporary(str(path), only_below)
    _prepare_file(path)
    url = URL.create("sqlite+pysqlite", database=str(path))
    options: dict[str, Any] = {"timeout": BUSY_S, "check_same_thread": False}
    writer = create_engine(
        url, connect_args=options, pool_size=1, max_overflow=1, hide_parameters=True
    )
    # A reader lives for one report: nobody else's thread ever sees its connection.
    reader = create_engine(url, connect_args=options, poolclass=NullPool, hide_parameters=True)
    event.listen(writer, "connect", _set_up_writer)
    event.listen(writer, "begin", _begin_immediate)
    event.listen(reader, "connect", _set_up_reader)
    event.listen(reader, "begin", _begin)
    return Database(writer, reader, path)


def _prepare_file(path: Path) -> None:
    """Creates folder and file, and sets what must be set before there is a table."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.parent):
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        # By name: closing a descriptor of the file would drop SQLite's own locks on it.
        path.chmod(0o600)
        with closing(sqlite_connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
            if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock: processes that would make the same file in it take turns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _set_up_writer(connection: SqliteConnection, _: object) -> None:
    connection.isolation_level = None  # BEGIN is ours
    connection.execute("PRAGMA synchronous = NORMAL")


def _set_up_reader(connection: SqliteConnection, _: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")


def _begin_immediate(connection: Connection) -> None:
    # Takes the write lock now, where waiting for it works, and not at the first write.
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")  # one report, one snapshot


def _open_postgres(url: URL, only_below: Path | None) -> Database:
    if only_below is not None and not _is_socket_below(url, only_below):
        raise NotTemporary(url.render_as_string(hide_password=True), only_below)
    if find_spec("psycopg") is None:
        raise DriverMissing
    options: dict[str, Any] = {
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": SILENCE_MS,
        "application_name": "tandem",
    }
    writer = create_engine(
        url, connect_args=options, pool_size=1, max_overflow=1, hide_parameters=True
    )
    reader = create_engine(
        url,
        connect_args=options | {"options": "-c default_transaction_read_only=on"},
        isolation_level="REPEATABLE READ",  # one report, one snapshot
        pool_size=POSTGRES_READERS,
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
    )
    return Database(writer, reader)


def _is_socket_below(url: URL, folder: Path) -> bool:
    """Whether the server is reached through a Unix socket in this folder."""
    host = url.query.get("host", url.host)
    if not isinstance(host, str) or not host.startswith("/"):
        return False
    return Path(host).resolve().is_relative_to(folder.resolve())
