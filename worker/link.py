"""The ROUTER socket and the thread that owns it. Knows bytes and connections, no run.

Decoded messages go to `dispatch`; what cannot be decoded is answered here and harms nobody.
"""

import fcntl
import ipaddress
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import structlog
import zmq

from proto.codec import decode, encode
from proto.faults import CodecFault, RefusalCode, VersionMismatch
from proto.limits import LINK_BEAT_S, LINK_MESSAGE_BYTES
from proto.messages import FromWorker, Metric, Ready
from worker.dispatch import Dispatch
from worker.faults import EndpointFault
from worker.limits import MESSAGE_SLACK_BYTES, RECEIVED_AT_ONCE
from worker.mailbox import Board, Inbox, Outbox
from worker.types import ToLoop, ToPreparer

log = structlog.get_logger()

MESSAGE_UNSENDABLE = "message.unsendable"
PEER_UNREACHABLE = "gateway.unreachable"

STUCK_AFTER_S = 30.0  # a loop that has not turned for so long gets no beats sent
LINGER_S = 5.0  # how long a stopping worker waits for the last acknowledgements


class Endpoint:
    """An address that is ours alone: locked before anything is loaded, bound after it.

    Raises: EndpointFault, one sentence.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._path: Path | None = None
        self._lock: IO[bytes] | None = None
        if address.startswith("ipc://"):
            self._path = Path(address.removeprefix("ipc://"))
            self._lock = _lock(self._path)
        else:
            _check_loopback(address)

    def bind(self, socket: "zmq.Socket[bytes]") -> None:
        """Binds; an ipc socket gets mode 0600 from its first moment."""
        old_mask = os.umask(0o177)
        try:
            if self._path is not None:
                self._path.unlink(missing_ok=True)  # of a worker that died: we hold its lock
            socket.bind(self.address)
        except zmq.ZMQError as fault:
            raise EndpointFault(f"{self.address!r} cannot be bound: {fault.strerror}.") from fault
        finally:
            os.umask(old_mask)

    def release(self) -> None:
        """Removes the socket file and gives the lock back."""
        if self._path is not None and self._lock is not None:
            self._path.unlink(missing_ok=True)
            self._lock.close()


def _lock(path: Path) -> IO[bytes]:
    if not path.is_absolute():
        raise EndpointFault(f"'ipc://{path}' must name an absolute path.")
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            raise EndpointFault(
                f"The folder {str(folder)!r} of the worker's socket is open to other users: "
                "give it mode 0700 or choose another."
            )
        lock = path.with_name(path.name + ".lock").open("wb")
    except OSError as fault:
        raise EndpointFault(f"The socket {str(path)!r} cannot be made: {fault}.") from fault
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as fault:
        lock.close()
        raise EndpointFault(f"Another worker already listens at 'ipc://{path}'.") from fault
    return lock


def _check_loopback(address: str) -> None:
    parts = urlsplit(address)
    if parts.scheme != "tcp" or not parts.hostname:
        raise EndpointFault(f"{address!r} is neither an ipc:// nor a tcp:// address.")
    if parts.hostname == "localhost":
        return
    try:
        is_loopback = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise EndpointFault(
            f"{address!r} is not on loopback, and plain tcp:// beyond it is refused: "
            "use ipc:// or a loopback address."
        )


class Link:
    """Sends and receives until told to stop."""

    def __init__(
        self,
        endpoint: Endpoint,
        ready: Ready,
        *,
        preparer: Inbox[ToPreparer],
        loop: Inbox[ToLoop],
        outbox: Outbox,
        board: Board,
        clock: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._outbox = outbox
        self._board = board
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, int(LINGER_S * 1000))
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        # Credits bound what may wait for a gateway; a high-water mark would drop instead.
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.MAXMSGSIZE, LINK_MESSAGE_BYTES + MESSAGE_SLACK_BYTES)
        endpoint.bind(self._socket)
        self._dispatch = Dispatch(ready, self._send, preparer=preparer, loop=loop)

    def run(self, stop: threading.Event) -> None:
        """Serves the socket until told to stop and the last ends are acknowledged."""
        poller = zmq.Poller()
        poller.register(self._outbox.wake_fd, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)
        next_tick = self._clock()
        give_up = None
        while True:
            is_stopping = stop.is_set()  # asked first: what was said before it is sent below
            for outgoing in self._outbox.take_all():
                self._dispatch.forward(outgoing, self._clock())
            if is_stopping:
                give_up = give_up or self._clock() + LINGER_S
                if self._clock() >= give_up or not self._dispatch.unacknowledged:
                    break
            # A loop that is far behind makes us leave messages in the socket.
            poller.modify(self._socket, 0 if self._loop.is_full else zmq.POLLIN)
            wait_ms = max(0, int((next_tick - self._clock()) * 1000) + 1)
            if self._socket in dict(poller.poll(wait_ms)):
                # All that waits, before clocks are looked at: after a pause the beats are in there.
                for _ in range(RECEIVED_AT_ONCE):
                    if not self._receive():
                        break
            if self._clock() >= next_tick:
                next_tick = self._clock() + LINK_BEAT_S
                self._tick()
        self._socket.close()
        self._context.term()

    def loop_has_ended(self) -> None:
        """From now on nobody works off what is put into the loop's box."""
        self._dispatch.has_loop = False

    def _tick(self) -> None:
        now = self._clock()
        is_stuck = now - self._board.pulse_s > STUCK_AFTER_S
        age = Metric("tandem_worker_loop_pulse_age_s", {}, round(now - self._board.pulse_s, 3))
        beat = self._board.beat
        beat = replace(beat, metrics=(*beat.metrics, age))
        self._dispatch.tick(now, None if is_stuck else beat)

    def _receive(self) -> bool:
        """Acts on one message; False when there is none, or the loop is too far behind for it."""
        if self._loop.is_full:
            return False
        try:
            sender, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        if len(frames) != 1:
            self._dispatch.refuse_bytes(sender, f"a message is one frame, not {len(frames)}")
        else:
            self._read(sender, frames[0])
        return True

    def _read(self, sender: bytes, data: bytes) -> None:
        try:
            message = decode(data)
        except CodecFault as fault:
            code: RefusalCode = "version" if isinstance(fault, VersionMismatch) else "bad_message"
            self._dispatch.refuse_bytes(sender, str(fault), code)
            return
        except Exception as fault:  # noqa: BLE001 - no bytes from outside may end the worker
            self._dispatch.refuse_bytes(sender, f"unreadable: {type(fault).__name__}")
            return
        self._dispatch.receive(sender, message, self._clock())

    def _send(self, receiver: bytes, message: FromWorker) -> bool:
        try:
            self._socket.send_multipart((receiver, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as fault:
            # It is gone or going: its lease will end, and its runs with it.
            log.debug(PEER_UNREACHABLE, reason=fault.strerror)
            return False
        except CodecFault as fault:  # no message may end the worker, and so every run of everybody
            log.error(MESSAGE_UNSENDABLE, type=type(message).__name__, fault=str(fault)[:200])
            return False
        return True
