"""`tandem serve`: a gateway process from its start to the end of its drain.

Knows sockets and signals; what is served is built in `app`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import uvloop

from gateway.app import Gateway
from gateway.ledger.command import open_books
from gateway.observe.logs import configure
from gateway.preflight import (
    CommandFailed,
    check_model,
    check_otel_packages,
    check_worker_packages,
)
from gateway.settings.load import SettingsError, load, open_to_everybody
from gateway.settings.types import Settings

if TYPE_CHECKING:
    from gateway.door.shared import Sharing

log = structlog.get_logger(__name__)

GC_THRESHOLD = (10_000, 10, 10)

ReadAgain = Callable[[Gateway], None]
Accompany = Callable[[Gateway, asyncio.Event], Coroutine[Any, Any, None]]


def serve(path: Path, environ: Mapping[str, str], args: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT, then drains. Returns the exit status.

    Raises: SettingsError, CommandFailed; before anything is bound.
    """
    settings = with_options(load(path, environ), args)
    logs = configure(level_of(args))
    check_start(settings)
    if settings.server.workers > 1:
        from gateway.processes.parent import serve_together

        return serve_together(settings, path, environ, args)
    listener = listen(settings)
    ledger = open_books(settings, args.ledger)

    def read_again(gateway: Gateway) -> None:
        try:
            gateway.apply(with_options(load(path, environ), args))
        except SettingsError as fault:
            log.error("settings.refused", problems=str(fault).splitlines())

    async def accompany(gateway: Gateway, stopping: asyncio.Event) -> None:
        if gateway.engine is not None:
            await gateway.engine.wait_ready()
        greet(gateway.settings, listener)

    return run_gateway(lambda: Gateway(settings, ledger, logs), listener, read_again, accompany)


def level_of(args: argparse.Namespace) -> str:
    """The least serious lines that are logged."""
    return "debug" if args.debug else "info"


def check_start(settings: Settings) -> None:
    """Raises: CommandFailed when what these settings need is not there."""
    if settings.worker is not None and settings.worker.spawn:
        check_model(settings)
        check_worker_packages()
    if settings.server.otel_endpoint is not None:
        check_otel_packages()


def with_options(settings: Settings, args: argparse.Namespace) -> Settings:
    """The settings as the command line changes them."""
    server = settings.server
    if args.host is not None:
        server = replace(server, host=args.host)
    if args.port is not None:
        server = replace(server, port=args.port)
    changed = replace(settings, server=server)
    if (exposure := open_to_everybody(changed)) is not None:
        raise SettingsError([f"--host: {exposure}"])
    return changed


def run_gateway(
    build: Callable[[], Gateway],
    listener: socket.socket,
    read_again: ReadAgain,
    accompany: Accompany,
    sharing: Sharing | None = None,
) -> int:
    """The life of a gateway in this process; its exit status. `accompany` runs beside it."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(build, listener, read_again, accompany, sharing))


async def _run(
    build: Callable[[], Gateway],
    listener: socket.socket,
    read_again: ReadAgain,
    accompany: Accompany,
    sharing: Sharing | None,
) -> int:
    gateway = build()
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, read_again, gateway)
    await gateway.open(listener, sharing)
    gc.collect()
    gc.freeze()  # what lives as long as the process need not be looked at again,
    gc.set_threshold(*GC_THRESHOLD)  # and only requests that were cut off leave cycles behind
    waits = [asyncio.create_task(work) for work in (stopping.wait(), gateway.has_failed.wait())]
    companion = asyncio.create_task(accompany(gateway, stopping))
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in (companion, *waits):
        task.cancel()
    if stopping.is_set():
        await gateway.drain()
    await gateway.close()
    return 1 if gateway.has_failed.is_set() else 0


def greet(settings: Settings, listener: socket.socket) -> None:
    """Says, once everything answers, what to type next."""
    host, port = listener.getsockname()[:2]
    where = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
    print(_greeting(settings, where), flush=True)


def _greeting(settings: Settings, where: str) -> str:
    model = settings.worker.model_name if settings.worker else "MODEL"
    # Drawn, an answer of the embedded model may stray; another's model may refuse the field.
    likeliest = '"temperature":0,' if settings.worker else ""
    key = " -H 'authorization: Bearer YOUR_KEY'" if settings.keys else ""
    messages = '[{"role":"user","content":"What is the capital of France?"}]'
    body = f'{{"model":"{model}",{likeliest}"messages":{messages}}}'
    return (
        f"\nTandem is serving at {where}. Try it:\n\n"
        f"  curl {where}/v1/chat/completions{key} -H 'content-type: application/json' \\\n"
        f"    -d '{body}'\n"
    )


def listen(settings: Settings) -> socket.socket:
    """A socket on the configured address, which accepts nothing yet. Raises: CommandFailed."""
    server = settings.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((server.host, server.port))
    except OSError as fault:
        listener.close()
        raise CommandFailed(
            f"cannot listen on {server.host}:{server.port}: {fault.strerror}; "
            "choose another with --port"
        ) from fault
    return listener
