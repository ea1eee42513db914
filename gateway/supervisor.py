"""Starts the engine worker and brings it back when it dies. Knows no model and imports no torch.

The worker is a child with a pipe on its standard input: when this process goes, however it goes,
the pipe closes and the worker ends too.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable

import structlog

from proto import codec
from proto.worker_settings import Launch

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 0.5  # before the first restart
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0  # a worker that lived this long starts with a clean record
CANNOT_START = 2  # exit status of a worker whose settings or files are at fault


def worker_command(launch: Launch) -> list[str]:
    """The command line of a worker."""
    return [sys.executable, "-m", "worker", "--launch", json.dumps(codec.to_wire(launch))]


class Supervisor:
    """Keeps one worker running. `on_exit` is called whenever one has gone."""

    def __init__(self, launch: Launch, on_exit: Callable[[str], None]) -> None:
        self._launch = launch
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = False
        self.restarts = 0
        self.last_exit: str | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the worker, the last one when it has gone; None before the first."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> None:
        """Starts the worker, and again after each death, until it is cancelled or stopped."""
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
            log.error("worker.exited", how=self.last_exit, restart_in_s=pause_s)
            self._on_exit(f"the worker {self.last_exit}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def stop(self, grace_s: float) -> None:
        """Lets the worker finish what it runs, for `grace_s` at most, and ends it."""
        self._is_stopping = True
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            log.warning("worker.killed", grace_s=grace_s)
            process.kill()
            await process.wait()

    async def _run_once(self) -> int:
        command = [*worker_command(self._launch), "--exit-with-parent"]
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
        self._process = process
        log.info("worker.spawned", pid=process.pid)
        try:
            return await process.wait()
        finally:
            if process.returncode is None and not self._is_stopping:
                process.kill()
            assert process.stdin is not None
            process.stdin.close()


def _how(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"
