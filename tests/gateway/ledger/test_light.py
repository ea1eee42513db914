"""A gateway that books requests loads neither SQLAlchemy nor Alembic, whatever its books need."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.store.db import Database
from gateway.store.migrate import migrate
from tests.gateway.ledger.made import outcomes

ROOT = Path(__file__).resolve().parents[3]
BOOK = """
import sys, time
from pathlib import Path
from gateway.ledger.clock import Clock
from gateway.ledger.entry import Entry
from gateway.ledger.prices import PriceList
from gateway.ledger.writer import Ledger
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database

database = Database.open(sys.argv[1])
books = Ledger(
    database, LedgerSettings(), state_dir=Path(sys.argv[2]), price=PriceList([]).price,
    clock=Clock(lambda: time.time_ns() // 1_000_000, time.monotonic),
)
books.start()
entry = Entry(request_id="req-a", ts_ms=1, arrived_s=0.0)
books.open(entry)
entry.close(1.0, outcome="succeeded")
books.close(entry)
assert books.stop(60).written == 1
database.close()
print([name for name in ("sqlalchemy", "alembic") if name in sys.modules])
"""


@pytest.mark.parametrize("is_new", [True, False])
def test_a_life_of_the_books_loads_neither(
    database: Database, tmp_path: Path, is_new: bool
) -> None:
    """Also when tables are made: another process does that."""
    if not is_new:
        migrate(database)
    command = [sys.executable, "-c", BOOK, database.target, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert outcomes(database) == {"req-a": "succeeded"}
