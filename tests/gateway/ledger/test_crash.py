"""A gateway that is killed, and the next one that starts."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

from structlog.testing import capture_logs

from gateway.store.db import Database
from gateway.store.migrate import migrate
from tests.gateway.ledger.made import FakeClock, hand_driven, outcomes

ROOT = Path(__file__).resolve().parents[3]


def killed_after(
    target: str, state_dir: Path, name: str, rows: int, until: Callable[[], bool] = lambda: True
) -> int:
    """Lets a gateway book until so many rows are written, and more holds; then kills it.

    Returns how many were written for sure.
    """
    script = "tests.gateway.ledger.crashing"
    process = subprocess.Popen(
        [sys.executable, "-m", script, target, str(state_dir), name],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    written = 0
    try:
        while written < rows or not until():
            written = int(process.stdout.readline())
    finally:
        process.kill()
        process.stdout.close()
        assert process.wait() == -9
    return written


def wait_for_silence(database: Database) -> None:
    """Until PostgreSQL has noticed that its client is dead: a last commit may be under way."""
    if database.path is not None:
        return
    database.close()
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    with database.reader.connect() as connection:
        for _ in range(500):
            text = f"SELECT count(*) FROM pg_stat_activity WHERE {others}"
            if connection.exec_driver_sql(text).scalar() == 0:
                return
            connection.rollback()
            Event().wait(0.02)
    raise AssertionError("the dead gateway is still connected")


def test_a_kill_at_any_moment_costs_only_what_was_not_written_yet(
    database: Database, tmp_path: Path
) -> None:
    migrate(database)
    target = database.target
    written = 0

    def has_open_rows() -> bool:
        return None in outcomes(database).values()

    lives = [(1, lambda: True), (130, lambda: True), (400, has_open_rows)]
    for turn, (rows, until) in enumerate(lives):
        written += killed_after(target, tmp_path, f"life-{turn}", rows, until)
        wait_for_silence(database)
        open_count = list(outcomes(database).values()).count(None)
        spilled = (tmp_path / "ledger.spill").read_bytes().count(b"\n")
        with capture_logs() as logs:
            books = hand_driven(database, tmp_path, FakeClock())
            assert books.counts().made == spilled
            while books.counts().waiting:
                books.step()
            books.step()
        assert books.counts().written == spilled
        books.stop(0)
        found = outcomes(database)
        assert set(found.values()) <= {"succeeded", "lost"}
        assert list(found.values()).count("succeeded") >= written
        said = [entry for entry in logs if entry["event"] == "ledger.rows_lost"]
        assert bool(said) == (open_count > 0)
    assert any(end == "lost" for end in found.values())
