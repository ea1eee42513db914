"""A gateway that books requests until somebody kills it: `crashing.py DATABASE STATE_DIR NAME`.

Prints how many rows are written for certain, again and again.
"""

import sys
import time
from itertools import count, islice
from pathlib import Path

import structlog

from gateway.ledger.clock import Clock
from gateway.ledger.writer import Ledger
from gateway.settings.types import LedgerSettings
from gateway.store.db import Database
from tests.gateway.ledger.made import opened, unpriced


def main(target: str, state_dir: Path, name: str) -> None:
    """Books until it is killed. Every fifth request stays open."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    books = Ledger(
        Database.open(target),
        LedgerSettings(queue=40),
        state_dir=state_dir,
        price=unpriced,
        clock=Clock(lambda: time.time_ns() // 1_000_000, time.monotonic),
    )
    books.start()
    numbers = count(1)
    while True:
        for number in islice(numbers, 10):
            entry = opened(f"{name}-{number:06}")
            books.open(entry)
            if number % 5:
                entry.close(1.0, outcome="succeeded")
                books.close(entry)
        print(books.counts().written, flush=True)
        time.sleep(0.01)  # requests of a real gateway leave some time


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
