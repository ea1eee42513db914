"""SQLAlchemy's engines on an open database, for reports and for the command line. Knows no table.

A gateway loads this module with its first report and not before.
"""

from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from gateway.store.db import Database

POSTGRES_READERS = 4  # reports that run at the same time


def reading(database: Database) -> Engine:
    """An engine that cannot write; each of its transactions sees one moment."""
    if database.path is None:
        return _postgres(
            database,
            {"options": "-c default_transaction_read_only=on"},
            isolation_level="REPEATABLE READ",
            pool_size=POSTGRES_READERS,
        )
    # A connection lives for one report: nobody else's thread ever sees it.
    return _sqlite(database, "PRAGMA query_only = ON", "BEGIN")


def editing(database: Database) -> Engine:
    """An engine that writes. With SQLite its transactions begin with the write lock."""
    if database.path is None:
        return _postgres(database, {}, pool_size=1)
    return _sqlite(database, "PRAGMA synchronous = NORMAL", "BEGIN IMMEDIATE")


def _sqlite(database: Database, setting: str, begin: str) -> Engine:
    engine = create_engine(
        "sqlite+pysqlite://",
        creator=lambda: database.connect(setting),
        poolclass=NullPool,
        hide_parameters=True,
    )

    def begins(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    event.listen(engine, "begin", begins)
    return engine


def _postgres(database: Database, further: dict[str, str], **options: Any) -> Engine:
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: database.connect(**further),
        max_overflow=0,
        pool_pre_ping=True,
        hide_parameters=True,
        **options,
    )
