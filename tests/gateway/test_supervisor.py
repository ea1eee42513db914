"""The supervisor: a worker that dies comes back, and none outlives its gateway."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gateway import supervisor
from gateway.supervisor import Supervisor, training_command, worker_command
from proto import codec
from proto.worker_settings import Launch, WorkerSettings

LAUNCH = Launch(WorkerSettings(), "TandemLLM", "/m", "ipc:///tmp/x", "/tmp")
STEADY = "import sys; sys.stdin.read()"


def use(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(supervisor, "worker_command", lambda launch: [sys.executable, "-c", code])
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_S", 0.01)


async def wait_for_pid(sup: Supervisor, other_than: int | None = None) -> int:
    async with asyncio.timeout(5):
        while sup.pid is None or sup.pid == other_than:
            await asyncio.sleep(0.005)
    return sup.pid


async def test_a_worker_that_was_killed_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, STEADY)
    told: list[str] = []
    sup = Supervisor(LAUNCH, told.append)
    task = asyncio.create_task(sup.run())
    first = await wait_for_pid(sup)
    os.kill(first, signal.SIGKILL)
    second = await wait_for_pid(sup, other_than=first)
    await sup.stop(5)
    await task
    assert told == ["the worker was ended by SIGKILL"]
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


@pytest.mark.parametrize(
    ("status", "expected"),
    [(1, [0.01, 0.02, 0.04, 0.08]), (2, [30.0, 30.0])],
    ids=["dying: longer each time", "cannot start: slowly at once"],
)
async def test_pauses_between_tries(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: list[float]
) -> None:
    use(monkeypatch, f"import sys; sys.exit({status})")
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real_sleep(0)
        if len(pauses) == len(expected):
            raise asyncio.CancelledError

    monkeypatch.setattr(supervisor.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await Supervisor(LAUNCH, lambda how: None).run()
    assert pauses == expected


async def test_a_worker_that_will_not_end_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "up"
    use(
        monkeypatch,
        "import signal, pathlib, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(mark)!r}).touch(); time.sleep(60)",
    )
    sup = Supervisor(LAUNCH, lambda how: None)
    task = asyncio.create_task(sup.run())
    pid = await wait_for_pid(sup)
    async with asyncio.timeout(5):
        while not mark.exists():
            await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        await sup.stop(0.05)
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_command_line_carries_the_launch() -> None:
    import json

    command = worker_command(LAUNCH)
    assert command[:4] == [sys.executable, "-m", "worker", "--launch"]
    assert codec.from_wire(Launch, json.loads(command[4])) == LAUNCH


def test_a_training_is_told_the_launch_and_the_options() -> None:
    import json

    command = training_command(LAUNCH, ["--minutes=5", "--steps", "3"])
    assert command[:4] == [sys.executable, "-m", "worker.draft.train", "--launch"]
    assert codec.from_wire(Launch, json.loads(command[4])) == LAUNCH
    assert command[5:] == ["--minutes=5", "--steps", "3"]
