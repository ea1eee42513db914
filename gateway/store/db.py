"""Opens a database for us: one connection that writes, engines for reports. Knows no table.

SQLite for one machine, PostgreSQL for several gateways. SQLAlchemy is loaded with the first engine
that somebody asks for, so a gateway that only books requests never loads it.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from gateway.store.connection import WriteConnection
from gateway.store.statements import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    from sqlalchemy import Engine

# Python's driver looks for an adapter whenever a None is bound. To find none takes it four times as
# long as to call this one: a dictionary's `get`, the quickest function that answers None.
sqlite3.register_adapter(type(None), dict[None, None]().get)

ROWS_AT_ONCE = 32  # in one statement of SQLite
BUSY_S = 30.0  # how long SQLite waits for another process that is writing
CONNECT_S = 5  # PostgreSQL that does not answer is down
SILENCE_MS = 30_000  # PostgreSQL that takes no bytes for so long is gone


class StoreFault(Exception):
    """Why a database cannot be used.

    StoreFault
    ├── NotTemporary     a test run may not touch a real database
    ├── UnknownDatabase  an address of a kind we do not speak
    ├── BadAddress       an address that cannot be read
    ├── NoDatabase       a file that is something else
    ├── DriverMissing    PostgreSQL without its driver
    └── MigrationFailed  its tables could not be brought to the newest version
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


class BadAddress(StoreFault):
    """PostgreSQL's library cannot read the address. It is not quoted: it may hold a password."""

    def __init__(self) -> None:
        super().__init__(
            "The database address cannot be read: write postgresql://USER:PASSWORD@HOST:PORT/NAME "
            "and percent-encode signs such as @, / and % in its parts."
        )


class NoDatabase(StoreFault):
    """What stands at `path` cannot be used as a database."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class DriverMissing(StoreFault):
    """The driver of PostgreSQL is not installed."""

    def __init__(self) -> None:
        super().__init__("PostgreSQL needs its driver: pip install 'tandem-llm[postgres]'.")


class MigrationFailed(StoreFault):
    """`reason`: what the database said, in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The tables could not be brought to the newest version: {reason}")
        self.reason = reason


class Database:
    """A database that is open.

    `target`: what another process opens it with; it may hold a password. `path`: the file, with
    SQLite only. `connect`: how its driver is called, with further options by keyword.
    """

    def __init__(
        self,
        target: str,
        writer: WriteConnection,
        connect: Callable[..., Any],
        path: Path | None = None,
    ) -> None:
        self.target = target
        self.writer = writer
        self.connect = connect
        self.path = path
        self._lock = Lock()  # reports are made in threads of their own
        self._engines: dict[str, Engine] = {}

    @classmethod
    def open(cls, target: str | Path, *, only_below: Path | None = None) -> "Database":
        """Opens a file, or the database a URL names. With PostgreSQL nothing is connected yet.

        `only_below`: the folder of temporary files, in a test run; databases elsewhere are refused.

        Raises: NotTemporary, UnknownDatabase, BadAddress, NoDatabase, DriverMissing, OSError.
        """
        if (file := file_of(target)) is not None:
            return _open_sqlite(file, only_below)
        kind, place = _parts_of(str(target))
        if kind in ("postgresql", "postgres"):
            return _open_postgres(f"postgresql://{place}", only_below)
        raise UnknownDatabase(kind)

    @property
    def reader(self) -> "Engine":
        """Reads only: whoever opens a connection of it sees one moment of the database."""
        from gateway.store.engines import reading

        return self._engine("reader", reading)

    @property
    def editor(self) -> "Engine":
        """Changes what is there, at the command line: tables and prices."""
        from gateway.store.engines import editing

        return self._engine("editor", editing)

    def close(self) -> None:
        """Closes the connections that nobody uses right now."""
        self.writer.close()
        with self._lock:
            for engine in self._engines.values():
                engine.dispose()

    def _engine(self, name: str, make: Callable[["Database"], "Engine"]) -> "Engine":
        with self._lock:
            if name not in self._engines:
                self._engines[name] = make(self)
            return self._engines[name]


def file_of(target: str | Path) -> Path | None:
    """The SQLite file that a path or a URL names, None where it names none."""
    if isinstance(target, Path) or "://" not in target:
        return Path(target).expanduser()
    kind, place = _parts_of(target)
    file = place.partition("?")[0].removeprefix("/")
    if kind == "sqlite" and file and place.startswith("/"):
        return Path(file).expanduser()
    return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the folder's lock: processes that would make the same file in it take turns."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _parts_of(url: str) -> tuple[str, str]:
    """The kind of database, without a driver's name, and where it is."""
    scheme, _, place = url.partition("://")
    return scheme.partition("+")[0], place


def _open_sqlite(path: Path, only_below: Path | None) -> Database:
    if only_below is not None and not path.resolve().is_relative_to(only_below.resolve()):
        raise NotTemporary(str(path), only_below)
    _prepare_file(path)

    def connect(setting: str = "PRAGMA synchronous = NORMAL") -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute(setting)
        # What it notes to undo one statement of many rows is not written to a file each time.
        connection.execute("PRAGMA temp_store = MEMORY")
        return connection

    # Takes the write lock when it begins, where waiting for it works, and not at the first write.
    writer = WriteConnection(
        connect, sqlite3, SQLITE, begin="BEGIN IMMEDIATE", rows_at_once=ROWS_AT_ONCE
    )
    return Database(str(path.resolve()), writer, connect, path)


def _prepare_file(path: Path) -> None:
    """Creates folder and file, and sets what must be set before there is a table.

    Nothing is done to what is no database: a slip in a path must not close somebody's folder.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.parent):
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not path.is_file():
            raise NoDatabase(path, "it is no file")
        try:
            _set_up(path)
        except sqlite3.Error as fault:
            raise NoDatabase(path, str(fault)) from fault
        # By name: closing a descriptor of the file would drop SQLite's own locks on it.
        path.chmod(0o600)


def _set_up(path: Path) -> None:
    with closing(sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)) as connection:
        if connection.execute("PRAGMA page_count").fetchone()[0] == 0:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")


def _open_postgres(address: str, only_below: Path | None) -> Database:
    if find_spec("psycopg") is None:
        raise DriverMissing
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        place = conninfo_to_dict(address)
    except psycopg.Error:
        raise BadAddress from None  # what it says quotes the address
    if only_below is not None and not _is_socket_below(place.get("host"), only_below):
        raise NotTemporary(f"postgresql://{place.get('host', '')}", only_below)
    settings: dict[str, Any] = place | {
        "connect_timeout": CONNECT_S,
        "tcp_user_timeout": SILENCE_MS,
        "application_name": "tandem",
    }

    def connect(**further: Any) -> Any:
        return psycopg.connect(**(settings | further))

    return Database(address, WriteConnection(connect, psycopg, POSTGRESQL), connect)


def _is_socket_below(host: Any, folder: Path) -> bool:
    """Whether the server is reached through a Unix socket in this folder."""
    if not isinstance(host, str) or not host.startswith("/"):
        return False
    return Path(host).resolve().is_relative_to(folder.resolve())
