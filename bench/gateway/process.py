"""One started program: until it answers, what it uses, until it is gone. Knows no gateway by name.

Reads /proc, so Linux only. Processor time and memory are those of the whole process tree.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.targets import KEY, Place, Target

POLL_S = 0.002  # between two tries of the first request
ANSWER_S = 10.0  # for one try
STOP_S = 15.0  # after SIGTERM; then SIGKILL
IDLE_WINDOW_S = 0.05
IDLE_SHARE = 0.02  # of a core: a process that uses less has nothing left to do
IDLE_MOST_S = 4.0


class NotStarted(Exception):
    """A program that ended or gave no answer in time; says where its log is."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a process tree, MB (2^20 bytes)."""

    rss_mb: float
    pss_mb: float


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core the gateways run on, and which one the load client and the upstream."""

    gateway: int
    load: int


@contextlib.contextmanager
def on_core(core: int, back_to: int) -> Iterator[None]:
    """What is started inside runs on this core from its first instruction."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, {back_to})


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody uses now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Process:
    """A program in a process group of its own. `answers` counts its answers to first requests."""

    def __init__(
        self, name: str, command: list[str], log: Path, env: dict[str, str] | None
    ) -> None:
        self.name = name
        self.answers = 0
        self._log = log
        with log.open("ab") as out:
            self.began_s = time.perf_counter()
            self._child = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """Of the first process of the tree."""
        return self._child.pid

    def wait_answer(self, port: int, start_s: float) -> float:
        """Polls with a chat completion until one is answered 200. Seconds since the start.

        Raises: NotStarted.
        """
        status = None
        while (passed_s := time.perf_counter() - self.began_s) < start_s:
            if self._child.poll() is not None:
                raise NotStarted(f"ended with status {self._child.returncode}; see {self._log}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = _ask(port)
                self.answers += 1
                if status == 200:
                    return time.perf_counter() - self.began_s
            time.sleep(POLL_S)
        said = f"last status {status}" if status else "no answer"
        raise NotStarted(f"{said} after {passed_s:.0f} s; see {self._log}")

    def cpu_s(self) -> float:
        """Processor time of the tree so far, from schedstat: nanoseconds, not clock ticks."""
        total_ns = 0
        for pid in _tree(self.pid):
            for task in _listed(f"/proc/{pid}/task"):
                total_ns += int(_read(f"/proc/{pid}/task/{task}/schedstat", "0").split()[0])
        return total_ns / 1e9

    def idle_cpu_s(self) -> float:
        """The same, once it is idle: work after the answer belongs to the requests too."""
        until_s = time.monotonic() + IDLE_MOST_S
        before_s = self.cpu_s()
        while True:
            time.sleep(IDLE_WINDOW_S)
            now_s = self.cpu_s()
            is_idle = now_s - before_s < IDLE_SHARE * IDLE_WINDOW_S
            if is_idle or time.monotonic() > until_s:
                return now_s
            before_s = now_s

    def memory(self) -> Memory:
        """Of the tree, now."""
        sums = {"Rss": 0, "Pss": 0}
        for pid in _tree(self.pid):
            text = _read(f"/proc/{pid}/smaps_rollup", "")
            for name in sums:
                found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
                sums[name] += int(found[1]) if found else 0
        return Memory(sums["Rss"] / 1024, sums["Pss"] / 1024)

    def stop(self) -> None:
        """SIGTERM to its own group, SIGKILL if that does not help. Returns when it is gone."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._child.poll() is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(STOP_S)


def start(target: Target, place: Place, cores: Cores) -> tuple[Process, float]:
    """Starts a target on the gateways' core; with the seconds until its first answer.

    Raises: NotStarted, with nothing left running.
    """
    command, env = place.prepare(target)
    with on_core(cores.gateway, back_to=cores.load):
        try:
            process = Process(target.name, command, place.folder / "log", env)
        except OSError as fault:
            raise NotStarted(f"{command[0]}: {fault.strerror}") from fault
    try:
        return process, process.wait_answer(place.port, target.start_s)
    except BaseException:
        process.stop()
        raise


def _ask(port: int) -> int:
    """One small chat completion; the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    body = json.dumps({"model": "mock", "messages": [{"role": "user", "content": "hello"}]})
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def _tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for name in _listed("/proc"):
        if name.isdigit() and (stat := _read(f"/proc/{name}/stat", "")):
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, ahead = [], [root]
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += children.get(pid, [])
    return found


def _read(path: str, otherwise: str) -> str:
    """A file of /proc; a process may be gone in the meantime."""
    try:
        return Path(path).read_text()
    except OSError:
        return otherwise


def _listed(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
