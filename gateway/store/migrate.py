"""Brings a database to the newest version of our tables. Knows no table by name.

Safe when several processes start at once: they take turns, and the later ones find it done. As a
program it migrates the database whose address is the first line of its standard input, the tables
that its argument names; it says what went wrong in one line, and ends when that pipe closes.
"""

import os
import sys
from pathlib import Path
from threading import Thread

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

from gateway.store.connection import NEW_LINE, REASON_CHARS
from gateway.store.db import Database, StoreFault
from gateway.store.schema import LEDGER, STORE, Lineage

MIGRATIONS = Path(__file__).parent / "migrations"
ADVISORY_LOCK = 0x54414E44454D  # "TANDEM": whoever migrates a PostgreSQL database holds it
FAILED = 1  # exit status
ADDRESS_BYTES = 64 * 1024  # more than any address, and what a pipe holds


def alembic_config(lineage: Lineage) -> Config:
    """What Alembic must know to find the migrations of some tables."""
    config = Config()
    versions = MIGRATIONS / lineage.name
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("version_locations", str(versions).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["version_table"] = lineage.version_table
    return config


def migrate(database: Database, lineage: Lineage = LEDGER) -> None:
    """Runs the missing migrations, all of them in one transaction.

    Raises: sqlalchemy.exc.DBAPIError, alembic.util.CommandError.
    """
    config = alembic_config(lineage)
    with database.editor.begin() as connection:
        if database.path is None:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def main() -> int:
    """Migrates for another process, which reads what is printed."""
    target = os.read(sys.stdin.fileno(), ADDRESS_BYTES).decode().strip()
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        database = Database.open(target)
        migrate(database, STORE if STORE.name in sys.argv[1:] else LEDGER)
        database.close()
    except (DBAPIError, CommandError, StoreFault, OSError) as fault:
        print(_reason_of(fault))
        return FAILED
    return 0


def _reason_of(fault: Exception) -> str:
    what = fault.orig if isinstance(fault, DBAPIError) else fault
    return f"{type(fault).__name__}: {what}".partition(NEW_LINE)[0][:REASON_CHARS]


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(FAILED)


if __name__ == "__main__":
    sys.exit(main())
