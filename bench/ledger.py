"""What one request costs the ledger in CPU time, on each thread: `python -m bench.ledger`.

20,000 closed requests with about 40 known columns and a price, into a SQLite file with all indexes.
Prints microseconds a row: filling an entry and `open` + `close` on the thread of the requests; the
writer's thread in all (fitting, pricing, SQLite).
"""

import os
import sys
import tempfile
import time
from decimal import Decimal
from pathlib import Path

from gateway.ledger.clock import Clock
from gateway.ledger.entry import Entry
from gateway.ledger.prices import PriceList
from gateway.ledger.writer import Ledger
from gateway.middleware.request_id import RequestIds
from gateway.settings.types import LedgerSettings, PriceSettings, TokenPrices
from gateway.store.db import Database

ROWS = 20_000
AT_A_TIME = 5_000  # fewer than the queue holds
PRICES = PriceList([
    PriceSettings(
        model="kestrel-*", backend="skyline", currency="EUR",
        per_mtok=TokenPrices(input=Decimal(5), cached_input=Decimal("0.5"), output=Decimal(20)),
    )
])  # fmt: skip


class NoThread:
    """The rounds of the writer are run here, where their CPU time can be read."""

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""


def filled(request_id: str, body_hash: str, number: int) -> Entry:
    """One relayed request from its arrival to its end."""
    entry = Entry(
        request_id=request_id, ts_ms=1_785_499_200_000 + number, arrived_s=1.0,
        client_id="k:0123456789ab", user_id="ann", client_kind="codex", surface="chat",
        version="0.1.0", code_sha="0123456789ab",
    )  # fmt: skip
    entry.model = entry.upstream_model = "kestrel-large"
    entry.stream, entry.max_tokens, entry.body_hash = 1, 4096, body_hash
    entry.session_hash, entry.config_rev = "0123456789abcdef", "0123456789ab"
    entry.path, entry.backend, entry.upstream_key = "relay", "skyline", "team"
    entry.status = entry.upstream_status = 200
    entry.finish_reason, entry.served_model = "stop", "kestrel-large-2026"
    entry.error_type = entry.tool_calls = None
    entry.first_delta_s, entry.last_delta_s = 1.2, 3.5
    entry.book_usage(
        prompt=12_000 + number % 100, completion=300, cached=11_000, cache_write=10, reasoning=20,
        source="backend",
    )  # fmt: skip
    entry.close(4.0, outcome="succeeded")
    return entry


def main() -> None:
    """Measures and prints."""
    row_count = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    new_id = RequestIds()
    names = [(new_id(), os.urandom(8).hex(), number) for number in range(row_count)]
    fill_s = put_s = write_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        books = Ledger(
            Database.open(Path(folder) / "books" / "ledger.sqlite"),
            LedgerSettings(),
            state_dir=Path(folder),
            price=PRICES.price,
            clock=Clock(lambda: time.time_ns() // 1_000_000, time.monotonic),
            start_thread=lambda name, work: NoThread(),
        )
        books.start()
        books.step()  # makes the tables
        for first in range(0, row_count, AT_A_TIME):
            began_s = time.thread_time()
            entries = [filled(*name) for name in names[first : first + AT_A_TIME]]
            filled_s = time.thread_time()
            for entry in entries:
                books.open(entry)
                books.close(entry)
            closed_s = time.thread_time()
            while books.counts().waiting:
                books.step()
            fill_s += filled_s - began_s
            put_s += closed_s - filled_s
            write_s += time.thread_time() - closed_s
    for what, spent_s in (("fill", fill_s), ("open + close", put_s), ("write", write_s)):
        print(f"{what:12}  {spent_s / row_count * 1e6:6.2f} µs a row")


if __name__ == "__main__":
    main()
