"""Sees to it that the tables are those of the newest version. Knows none of them, nor Alembic.

Alembic and SQLAlchemy cost a gateway 25 MB and a third of a second: when something is to be
migrated, and only then, a process of its own loads them and ends.
"""

import sys
from pathlib import Path
from subprocess import PIPE, Popen

from gateway.store.db import Database, MigrationFailed

HEAD = "0004"  # the newest of `migrations/versions`
CODE = Path(__file__).resolve().parents[2]  # the folder of our packages: the other process's too


def bring_up_to_date(database: Database) -> None:
    """Runs the missing migrations, if there are any.

    Raises: MigrationFailed; what the driver says when the database cannot be read.
    """
    if not is_newest(database):
        _migrate_elsewhere(database.target)


def is_newest(database: Database) -> bool:
    """Whether there is nothing to migrate."""
    statements = database.writer.statements
    with database.writer.transaction() as cursor:
        cursor.execute(statements.find_version)
        if cursor.fetchone() in (None, (None,)):
            return False
        cursor.execute(statements.read_version)
        return bool(cursor.fetchone() == (HEAD,))


def _migrate_elsewhere(target: str) -> None:
    """The target goes through a pipe: a password stands on no command line. While the pipe is open
    we live; the other process ends with us, and not at a Ctrl-C that we are still draining after.
    """
    command = [sys.executable, "-m", "gateway.store.migrate"]
    with Popen(command, stdin=PIPE, stdout=PIPE, cwd=CODE, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{target}\n".encode())
        process.stdin.flush()
        said = process.stdout.read().decode(errors="replace").strip()  # until it ends
    if process.returncode:
        raise MigrationFailed(said or f"exit status {process.returncode}")
