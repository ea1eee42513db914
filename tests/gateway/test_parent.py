"""The parent of several gateway processes: when it greets, what its end says."""

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import supervisor
from gateway.processes import parent as parents
from gateway.processes.orders import News, Order
from gateway.processes.parent import ChildKeeper, Parent, claim_run_dir
from gateway.processes.shares import Shares
from gateway.settings.texts import Texts
from gateway.settings.types import ServerSettings, Settings


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def order(folder: Path, listener: socket.socket, text: str) -> Order:
    return Order(1, listener.fileno(), "tandem.yaml", text, str(folder), None, None, None, False)


async def test_the_greeting_comes_once_all_serve(
    listener: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(server=ServerSettings(workers=2))
    parent = Parent(settings, lambda number, text: order(tmp_path, listener, text), "")
    first, second = [child for child in parent.keepers if isinstance(child, ChildKeeper)]
    greeting = asyncio.create_task(parent.greet(listener))
    second.is_serving.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not greeting.done() and not capsys.readouterr().out
    first.is_serving.set()
    await greeting
    assert f"http://127.0.0.1:{listener.getsockname()[1]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "was_serving", "expected"),
    [
        (0, True, 0),
        (1, True, 1),
        (-signal.SIGKILL, True, 137),
        (-signal.SIGTERM, True, 143),
        (-signal.SIGTERM, False, 0),  # told to end before it could take notice
    ],
)
async def test_how_a_child_ended_is_told_as_a_shell_does(
    listener: socket.socket, tmp_path: Path, status: int, was_serving: bool, expected: int
) -> None:
    child = ChildKeeper(1, lambda number: order(tmp_path, listener, ""))
    child._process = SimpleNamespace(returncode=status)  # type: ignore[assignment]
    if was_serving:
        child.is_serving.set()
    assert child.final_status() == expected


async def test_a_child_is_told_the_configuration_of_the_moment_and_what_changes(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that writes down what it hears, and serves when it has heard two lines."""
    heard = tmp_path / "heard"
    code = (
        "import sys; lines = [sys.stdin.buffer.readline() for _ in range(2)];"
        f"open({str(heard)!r}, 'wb').writelines(lines); print('serving', flush=True);"
        "sys.stdin.buffer.read()"
    )
    real = asyncio.create_subprocess_exec
    texts = iter(["at the decision", "at the start"])

    async def instead(*command: str, **options: Any) -> Any:
        return await real(sys.executable, "-c", code, **options)

    monkeypatch.setattr(parents.asyncio, "create_subprocess_exec", instead)  # type: ignore[attr-defined]
    child = ChildKeeper(1, lambda number: order(tmp_path, listener, next(texts)))
    task = asyncio.create_task(child.run())
    async with asyncio.timeout(10):
        while child.pid is None:
            await asyncio.sleep(0.005)
        child.tell(News(configuration="later"))
        await child.is_serving.wait()
    await child.stop(5)
    await task
    first, second = heard.read_bytes().splitlines()
    assert Order.read(first).configuration == "at the start"
    assert News.read(second) == News(configuration="later")


async def test_a_child_that_was_being_started_when_the_end_came_ends_too(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = asyncio.create_subprocess_exec
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*command: str, **options: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await real(sys.executable, "-c", "import sys; sys.stdin.read()", **options)

    monkeypatch.setattr(parents.asyncio, "create_subprocess_exec", slowly)  # type: ignore[attr-defined]
    child = ChildKeeper(1, lambda number: order(tmp_path, listener, ""))
    task = asyncio.create_task(child.run())
    await begun.wait()
    await child.stop(5)
    go_on.set()
    async with asyncio.timeout(10):
        await task
    assert (child.status, child.restarts) == (-signal.SIGTERM, 0)


async def test_a_child_that_cannot_read_its_configuration_is_tried_again_slowly(
    listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real program, and a configuration whose secret has gone since."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        raise asyncio.CancelledError

    monkeypatch.setattr(supervisor.asyncio, "sleep", sleep)  # type: ignore[attr-defined]
    Shares.make(tmp_path, 1)
    packed = Texts("keys: [{label: a}]").pack()
    child = ChildKeeper(1, lambda number: order(tmp_path, listener, packed))
    with pytest.raises(asyncio.CancelledError):
        await child.run()
    assert (child.status, pauses) == (supervisor.CANNOT_START, [supervisor.LONGEST_PAUSE_S])


def test_each_parent_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert [claim_run_dir(tmp_path).name for _ in range(3)] == ["run", "run.1", "run.2"]
