"""Bytes in arbitrary cuts, a transport that only takes notes, and a clock that only we move.

Knows no protocol. Everything here is the same at every run: a find can be played again.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterator
from typing import Any

WAITS = object()  # what `run_now` returns for a coroutine that would have to wait


class Transport(asyncio.Transport):
    """Keeps what is written. Like asyncio's own, it tells of its end only when it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_paused = False
        self.is_over = False
        self.has_eof = False

    def write(self, data: Any) -> None:
        assert not self.has_eof, "written behind the end of file"
        if not self.is_over:
            self.written += data

    def writelines(self, list_of_data: Any) -> None:
        for piece in list_of_data:
            self.write(piece)

    def pause_reading(self) -> None:
        assert not self.is_paused
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    def setsockopt(self, *options: Any) -> None:
        """It is its own socket."""

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def get_write_buffer_size(self) -> int:
        return 0


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock stands still until it is moved."""

    now_s = 1_000.0

    def time(self) -> float:
        return self.now_s

    def turn(self, times: int = 1) -> None:
        """Runs what is ready, so many times over."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(times):
                self.call_soon(int)  # so that it does not wait for a timer
                self._run_once()
        finally:
            asyncio._set_running_loop(None)

    def pass_time(self, seconds: float) -> None:
        """Moves the clock and runs what came due."""
        self.now_s += seconds
        self.turn(3)


def run_now(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns if it need not wait, else `WAITS`; it is then ended."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    return WAITS


def cuts(data: bytes, lengths: bytes) -> Iterator[bytes]:
    """The data in pieces; `lengths` come round again, 0 stands for all the rest."""
    at = number = 0
    while at < len(data):
        length = lengths[number % len(lengths)] if lengths else 0
        number += 1
        yield data[at : at + length] if length else data[at:]
        at = at + length if length else len(data)


def kept_bytes(root: object, *, apart_from: tuple[type, ...] = ()) -> int:
    """Roughly how much memory hangs on an object: its bytes, and 64 for each thing that it has."""
    total = 0
    seen: set[int] = set()
    ahead: list[Any] = [root]
    while ahead:
        item = ahead.pop()
        if id(item) in seen or isinstance(item, (type, int, float, bool, *apart_from)):
            continue
        seen.add(id(item))
        total += 64
        if isinstance(item, (bytes, bytearray, str)):
            total += len(item)
        elif isinstance(item, dict):
            ahead += item.keys()
            ahead += item.values()
        elif isinstance(item, (list, tuple, set, frozenset, deque)):
            ahead += item
        elif type(item).__module__.startswith("gateway"):
            ahead += vars(item).values()
    return total
