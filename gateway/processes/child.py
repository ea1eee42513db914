"""One of several gateway processes on one port: `python -m gateway.processes.child NUMBER`.

Serves as a process alone does, on the socket that it inherits; knows its parent by the orders on
its standard input, and no sibling.
"""

import argparse
import asyncio
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

from gateway.app import Gateway
from gateway.ledger.command import open_books
from gateway.observe.logs import configure
from gateway.observe.shared import SharedMetrics
from gateway.preflight import CommandFailed
from gateway.processes.orders import LINE_BYTES, SERVING, News, Order
from gateway.processes.shares import Shares
from gateway.serve import level_of, run_gateway, with_options
from gateway.settings.load import SettingsError, parse
from gateway.settings.texts import Texts
from gateway.settings.types import Settings
from gateway.supervisor import CANNOT_START

log = structlog.get_logger(__name__)


def main() -> int:
    """Serves as the first line of standard input says; the exit status."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
        line = unbuffered.readline()  # and not a byte more: the rest is read in the event loop
    if not line.endswith(b"\n"):
        return 0  # the parent went before it had said a word
    order = Order.read(line)
    try:
        return Child(order).serve()
    except SettingsError as fault:
        print(f"process {order.number}: {fault}", file=sys.stderr)
        return CANNOT_START
    except (CommandFailed, OSError) as fault:
        print(f"process {order.number}: {fault}", file=sys.stderr)
        return 1


class Child:
    """A gateway, and what ties it to its parent."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._options = argparse.Namespace(
            host=order.host, port=order.port, ledger=order.ledger, debug=order.is_debug
        )
        run_dir = Path(order.run_dir)
        self._metrics = SharedMetrics(run_dir, order.number)
        self._shares = Shares(run_dir, order.number)

    def serve(self) -> int:
        """Serves until SIGTERM or SIGINT, or until the parent is gone; the exit status.

        Raises: SettingsError, CommandFailed, OSError.
        """
        settings = self._settings(self._order.configuration)
        logs = configure(level_of(self._options), self._order.number)
        ledger = open_books(settings, self._order.ledger)
        status = run_gateway(
            lambda: Gateway(settings, ledger, logs, self._metrics),
            socket.socket(fileno=self._order.listener),
            _leave_it_to_the_parent,
            self._accompany,
            self._shares,
        )
        self._metrics.write()
        return status

    def _settings(self, packed: str) -> Settings:
        texts = Texts.unpack(packed)
        settings = with_options(parse(Path(self._order.path), texts, os.environ), self._options)
        if settings.worker is None:
            return settings
        return replace(settings, worker=replace(settings.worker, spawn=False))  # the parent does

    async def _accompany(self, gateway: Gateway, stopping: asyncio.Event) -> None:
        gateway.start(self._heed(gateway, stopping))
        gateway.start(self._metrics.keep_written())
        if gateway.engine is not None:
            await gateway.engine.wait_ready()
        with suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), SERVING)

    async def _heed(self, gateway: Gateway, stopping: asyncio.Event) -> None:
        """Takes news from the parent. Without one, makes room on the port for the next."""
        reader = asyncio.StreamReader(limit=LINE_BYTES)
        pipe = os.fdopen(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        while (line := await reader.readline()).endswith(b"\n"):
            self._take(News.read(line), gateway)
        log.warning("parent.lost")
        self._metrics.leave()  # the next parent may take the folder
        gateway.door.stop_accepting()
        stopping.set()

    def _take(self, news: News, gateway: Gateway) -> None:
        if news.worker_lost is not None and gateway.engine is not None:
            gateway.engine.lose(news.worker_lost)
        if news.configuration is not None:
            try:
                gateway.apply(self._settings(news.configuration))
            except SettingsError as fault:
                log.error("settings.refused", problems=str(fault).splitlines())


def _leave_it_to_the_parent(gateway: Gateway) -> None:
    """SIGHUP: the parent reads the file, and tells all its children the same."""


if __name__ == "__main__":
    sys.exit(main())
