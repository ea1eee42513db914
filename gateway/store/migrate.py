"""Brings a database to the newest version of our tables, at start. Knows no table by name.

Safe when several processes start at once: they take turns, and the later ones find it done.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine

MIGRATIONS = Path(__file__).parent / "migrations"
ADVISORY_LOCK = 0x54414E44454D  # "TANDEM": whoever migrates a PostgreSQL database holds it


def migrate(engine: Engine) -> None:
    """Runs the missing migrations, all of them in one transaction.

    `engine`: the writer of a `Database`; with SQLite its transactions begin with the write lock.

    Raises: sqlalchemy.exc.DBAPIError.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})")
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
