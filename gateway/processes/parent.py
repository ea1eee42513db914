"""The parent of several gateway processes on one port. Serves nothing itself.

It binds the socket, starts the children that accept on it, and brings back those that die. Only it
starts the engine's worker and reads the configuration again.
"""

import argparse
import asyncio
import fcntl
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
import uvloop

from gateway.app import LAST_ANSWERS_S, STOP_CUT_S, build_launch, worker_end_s
from gateway.ledger.books import STOP_S
from gateway.ledger.command import open_database
from gateway.observe.shared import forget_all, metrics_file, retire
from gateway.preflight import CommandFailed
from gateway.processes.orders import SERVING, News, Order
from gateway.processes.shares import Shares
from gateway.serve import greet, listen, with_options
from gateway.settings.installation import make_state_dir
from gateway.settings.load import MOST_WORKERS, SettingsError, parse, read_texts
from gateway.settings.types import Settings
from gateway.supervisor import Keeper, Supervisor

log = structlog.get_logger(__name__)

CODE = Path(__file__).resolve().parents[2]  # the folder of our packages: the children's too
# What a child may need after the end of its drain: cut what is left, write the books.
END_S = 2 * STOP_CUT_S + LAST_ANSWERS_S + STOP_S + 5.0
SIGNALLED = 128  # and the signal's number: the status of what a signal ended, as shells have it


def serve_together(
    settings: Settings, path: Path, environ: Mapping[str, str], args: argparse.Namespace
) -> int:
    """Serves with `server.workers` processes until SIGTERM or SIGINT, and lets them drain.

    Returns the worst of their exit statuses. Raises: SettingsError, CommandFailed.
    """
    texts = read_texts(path)
    parse(path, texts, environ)
    run_dir = claim_run_dir(make_state_dir(settings.state_dir))
    if args.ledger != "none":
        open_database(settings, args.ledger).close()  # what is wrong with it is said here, once
    listener = listen(settings)
    descriptor = listener.fileno()
    forget_all(run_dir)
    Shares.make(run_dir, settings.server.workers)

    def order(number: int, configuration: str) -> Order:
        return Order(
            number=number,
            listener=descriptor,
            path=str(path),
            configuration=configuration,
            run_dir=str(run_dir),
            host=args.host,
            port=args.port,
            ledger=args.ledger,
            is_debug=args.debug,
        )

    def read() -> str:
        again = read_texts(path)
        with_options(parse(path, again, environ), args)
        return again.pack()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, listener, order, texts.pack(), read))


def claim_run_dir(state_dir: Path) -> Path:
    """The first folder `run`, `run.1`, … that no living parent holds; held until the process ends.

    Raises: CommandFailed.
    """
    for number in range(MOST_WORKERS):
        folder = state_dir / (f"run.{number}" if number else "run")
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / "parent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return folder
    raise CommandFailed(f"{MOST_WORKERS} other 'tandem serve' use {state_dir}")


async def _serve(
    settings: Settings,
    listener: socket.socket,
    order: Callable[[int, str], Order],
    text: str,
    read: Callable[[], str],
) -> int:
    parent = Parent(settings, order, text)
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, parent.read_again, read)
    lives = [asyncio.create_task(keeper.run()) for keeper in parent.keepers]
    told = asyncio.create_task(stopping.wait())
    greeting = asyncio.create_task(parent.greet(listener))
    await asyncio.wait([told, *lives], return_when=asyncio.FIRST_COMPLETED)
    greeting.cancel()
    listener.close()  # the children have it until their drain ends
    status = await parent.stop()
    for task in (told, *lives):
        task.cancel()
    for fault in await asyncio.gather(*lives, return_exceptions=True):
        if isinstance(fault, Exception):
            log.error("service.died", exc_info=fault)
            status = status or 1
    return status


class Parent:
    """The children and, where there is one, the engine's worker.

    `text`: the configuration, packed.
    """

    def __init__(self, settings: Settings, order: Callable[[int, str], Order], text: str) -> None:
        self._settings = settings
        self._text = text
        numbers = range(1, settings.server.workers + 1)
        self._children = [
            ChildKeeper(number, lambda number: order(number, self._text)) for number in numbers
        ]
        self._worker: Supervisor | None = None
        if settings.worker is not None and settings.worker.spawn:
            self._worker = Supervisor(build_launch(settings), self._tell_worker_lost)

    @property
    def keepers(self) -> list[Keeper]:
        """Everything that is kept running."""
        return [*self._children, *([self._worker] if self._worker else [])]

    async def greet(self, listener: socket.socket) -> None:
        """Says what to type next, once all children serve."""
        for child in self._children:
            await child.is_serving.wait()
        greet(self._settings, listener)

    def read_again(self, read: Callable[[], str]) -> None:
        """Hands the configuration on to all children. A faulty one changes nothing."""
        try:
            self._text = read()
        except SettingsError as fault:
            log.error("settings.refused", problems=str(fault).splitlines())
            return
        self._tell(News(configuration=self._text))

    async def stop(self) -> int:
        """Lets every child drain, then ends the worker; the worst exit status of a child."""
        grace_s = self._settings.server.drain_s + END_S
        await asyncio.gather(*(child.stop(grace_s) for child in self._children))
        if self._worker is not None:
            await self._worker.stop(worker_end_s(self._settings))
        return max(child.final_status() for child in self._children)

    def _tell_worker_lost(self, how: str) -> None:
        self._tell(News(worker_lost=how))

    def _tell(self, news: News) -> None:
        for child in self._children:
            child.tell(news)


class ChildKeeper(Keeper):
    """Keeps the gateway process with one number running. `order`: what it is told at its start."""

    def __init__(self, number: int, order: Callable[[int], Order]) -> None:
        super().__init__()
        self.is_serving = asyncio.Event()  # since it was started last
        self._number = number
        self._order = order
        self._run_dir: Path | None = None

    def tell(self, news: News) -> None:
        """Sends news to the child; one that is being started hears of it with its order."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.write(news.line())

    def final_status(self) -> int:
        """How the child ended, as a shell puts it. One that was told to end before it could take
        notice has done nothing wrong."""
        status = self.status or 0
        if status == -signal.SIGTERM and not self.is_serving.is_set():
            return 0
        return SIGNALLED - status if status < 0 else status

    async def _start(self) -> Process:
        self.is_serving.clear()
        order = self._order(self._number)
        self._run_dir = Path(order.run_dir)
        places = [str(CODE), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = await asyncio.create_subprocess_exec(
            # Nothing in the folder we were started in may stand in for our packages.
            *(sys.executable, "-P", "-m", "gateway.processes.child", str(self._number)),
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=[order.listener],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            start_new_session=True,  # a Ctrl-C is for us alone: we pass it on
        )
        assert process.stdin is not None
        process.stdin.write(self._order(self._number).line())  # the configuration of this moment
        return process

    async def _attend(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line == SERVING:
                self.is_serving.set()

    def _note_start(self, pid: int) -> None:
        log.info("process.spawned", process=self._number, pid=pid)

    def _note_exit(self, how: str, pause_s: float) -> None:
        log.error("process.exited", process=self._number, how=how, restart_in_s=pause_s)
        assert self._run_dir is not None
        try:
            Shares(self._run_dir, self._number).forget()
            retire(metrics_file(self._run_dir, self._number))
        except OSError as fault:  # a full disk must not end the others
            log.error("metrics.not_written", errno=fault.errno, reason=fault.strerror)

    def _note_kill(self, grace_s: float) -> None:
        log.warning("process.killed", process=self._number, grace_s=grace_s)
