"""Our gateway's ledger, read from outside while and after it runs. Knows its SQLite file only.

The ledger is written behind the answers. A run's processor time is complete when its rows are.
"""

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.05
BOOKED_S = 5.0  # the longest to wait for rows; what is missing then shows in the final count

# What the mock upstream says in every answer (upstream.c): a row that has it was read rightly.
PROMPT_TOKENS, COMPLETION_TOKENS = 21, 64

CLOSED = "SELECT count(*) FROM ledger WHERE id > ? AND outcome IS NOT NULL"
ALL = "SELECT count(*) FROM ledger"
RIGHT = f"{ALL} WHERE status = 200 AND prompt_tokens = ? AND completion_tokens = ?"


@dataclass(frozen=True, slots=True)
class LedgerCount:
    """Rows at the end, against the requests that were sent."""

    requests: int
    rows: int
    right_rows: int  # with status 200 and the upstream's token counts

    @property
    def is_complete(self) -> bool:
        """A row for every request, no other, and every one right."""
        return self.requests == self.rows == self.right_rows


class LedgerFile:
    """One ledger. Row ids count from 1 without gaps: nothing here deletes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._closed = 0  # rows known to be written and closed

    def wait_booked(self, requests: int) -> None:
        """Returns once so many requests, in all, have a closed row, or after BOOKED_S."""
        until_s = time.monotonic() + BOOKED_S
        while time.monotonic() < until_s:
            if self._closed + self._count(CLOSED, self._closed) >= requests:
                self._closed = requests
                return
            time.sleep(POLL_S)

    def count(self, requests: int) -> LedgerCount:
        """To be asked when the gateway has ended."""
        right = self._count(RIGHT, PROMPT_TOKENS, COMPLETION_TOKENS)
        return LedgerCount(requests, self._count(ALL), right)

    def _count(self, query: str, *values: int) -> int:
        if not self._path.exists():
            return 0
        # Opened anew each time: the gateway, not we, should be the last to close it.
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as database:
            try:
                return int(database.execute(query, values).fetchone()[0])
            except sqlite3.OperationalError:  # its tables are not made yet, or it is locked
                return 0
