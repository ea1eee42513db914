"""Starts child processes and brings them back when they die: the engine worker here, gateway
processes in `processes/parent`. Knows no model and imports no torch.

Each is a child with a pipe on its standard input: when this process goes, however it goes, the pipe
closes and the child ends too.
"""

import asyncio
import json
import signal
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence

import structlog

from proto import codec
from proto.worker_settings import Launch

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5  # before the first restart
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # a child that lived this long starts with a clean record
CANNOT_START = 2  # exit status of a child whose settings or files are at fault


def worker_command(launch: Launch) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "worker", "--launch", json.dumps(codec.to_wire(launch))]


def training_command(launch: Launch, options: Sequence[str]) -> list[str]:
    """The command line that trains a drafter for a worker's model. `options`: of the training."""
    told = ["--launch", json.dumps(codec.to_wire(launch))]
    return [sys.executable, "-m", "worker.draft.train", *told, *options]


class Keeper(ABC):
    """Keeps one child process running. Who inherits says which one, and what the log says of it."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._is_stopping = False
        self.restarts = 0
        self.last_exit: str | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the child, the last one when it has gone; None before the first."""
        return self._process.pid if self._process is not None else None

    @property
    def status(self) -> int | None:
        """The exit status of the last child; None while it runs."""
        return self._process.returncode if self._process is not None else None

    async def run(self) -> None:
        """Starts the child, and again after each death, until it is cancelled or stopped."""
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while not self._is_stopping:
            started_s = loop.time()
            status = await self._run_once()
            if self._is_stopping:
                return
            self.restarts += 1
            self.last_exit = _how(status)
            if loop.time() - started_s >= STEADY_S:
                pause_s = FIRST_PAUSE_S
            if status == CANNOT_START:  # it said why; trying at once would only say it again
                pause_s = LONGEST_PAUSE_S
            self._note_exit(self.last_exit, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def stop(self, grace_s: float) -> None:
        """Lets the child finish what it does, for `grace_s` at most, and ends it."""
        self._is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            self._note_kill(grace_s)
            process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        self._process = process = await self._start()
        self._note_start(process.pid)
        if self._is_stopping:  # meanwhile: `stop` knew of no process
            process.terminate()
        try:
            await self._attend(process)
            return await process.wait()
        finally:
            if process.returncode is None and not self._is_stopping:
                process.kill()
            assert process.stdin is not None
            process.stdin.close()

    @abstractmethod
    async def _start(self) -> Process:
        """Starts a child with a pipe on its standard input."""

    async def _attend(self, process: Process) -> None:
        """What is done while the child runs; ends with it."""
        await process.wait()

    @abstractmethod
    def _note_start(self, pid: int) -> None:
        """A child was started."""

    @abstractmethod
    def _note_exit(self, how: str, pause_s: float) -> None:
        """It has gone by itself; the next one starts after the pause."""

    @abstractmethod
    def _note_kill(self, grace_s: float) -> None:
        """It did not end in time."""


class Supervisor(Keeper):
    """Keeps one worker running. `on_exit` is called whenever one has gone."""

    def __init__(self, launch: Launch, on_exit: Callable[[str], None]) -> None:
        super().__init__()
        self._launch = launch
        self._on_exit = on_exit

    async def _start(self) -> Process:
        command = [*worker_command(self._launch), "--exit-with-parent"]
        return await asyncio.create_subprocess_exec(*command, stdin=PIPE)

    def _note_start(self, pid: int) -> None:
        log.info("worker.spawned", pid=pid)

    def _note_exit(self, how: str, pause_s: float) -> None:
        log.error("worker.exited", how=how, restart_in_s=pause_s)
        self._on_exit(f"the worker {how}")

    def _note_kill(self, grace_s: float) -> None:
        log.warning("worker.killed", grace_s=grace_s)


def _how(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"
