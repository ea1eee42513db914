"""Sees to it that the tables are those of the newest version. Knows none of them, nor Alembic.

Alembic and SQLAlchemy cost a gateway 25 MB and a third of a second: when something is to be
migrated, and only then, a process of its own loads them and ends.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen

from gateway.store import notebook_statements
from gateway.store.connection import NotebookStatements
from gateway.store.db import Database, MigrationFailed

CODE = Path(__file__).resolve().parents[2]  # the folder of our packages: the other process's too


@dataclass(frozen=True, slots=True)
class Lineage:
    """Tables that are migrated together, and apart from others in the same database.

    `name`: of their folder below `migrations`. `head`: the newest of its versions.
    """

    name: str
    head: str

    @property
    def version_table(self) -> str:
        """Where Alembic notes which version is there."""
        return f"{self.name}_version"


LEDGER = Lineage("ledger", head="0002")
STORE = Lineage("store", head="0002")  # every table but the ledger


def bring_up_to_date(database: Database, lineage: Lineage = LEDGER) -> None:
    """Runs the missing migrations, if there are any.

    Raises: MigrationFailed; what the driver says when the database cannot be read.
    """
    if not is_newest(database, lineage):
        _migrate_elsewhere(database.target, lineage)


def is_newest(database: Database, lineage: Lineage = LEDGER) -> bool:
    """Whether there is nothing to migrate."""
    find, read = _version_statements(database, lineage)
    with database.writer.transaction() as cursor:
        cursor.execute(find)
        if cursor.fetchone() in (None, (None,)):
            return False
        cursor.execute(read)
        return bool(cursor.fetchone() == (lineage.head,))


def notebook_statements_of(database: Database) -> NotebookStatements:
    """Those of its kind of database."""
    is_postgresql = database.path is None
    return notebook_statements.POSTGRESQL if is_postgresql else notebook_statements.SQLITE


def _version_statements(database: Database, lineage: Lineage) -> tuple[str, str]:
    if lineage is STORE:
        notebook = notebook_statements_of(database)
        return notebook.find_version, notebook.read_version
    ledger = database.writer.statements
    return ledger.find_version, ledger.read_version


def _migrate_elsewhere(target: str, lineage: Lineage) -> None:
    """The target goes through a pipe: a password stands on no command line. While the pipe is open
    we live; the other process ends with us, and not at a Ctrl-C that we are still draining after.
    """
    command = [sys.executable, "-m", "gateway.store.migrate", lineage.name]
    with Popen(command, stdin=PIPE, stdout=PIPE, cwd=CODE, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{target}\n".encode())
        process.stdin.flush()
        said = process.stdout.read().decode(errors="replace").strip()  # until it ends
    if process.returncode:
        raise MigrationFailed(said or f"exit status {process.returncode}")
