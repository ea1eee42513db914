"""A gateway's end of the link over a real DEALER socket."""

import time
from types import TracebackType

import msgpack
import zmq

from proto.codec import decode, encode
from proto.messages import Beat, FromWorker, Hello, LinkMessage

BEAT_MS = 1000
PATIENCE_S = 60.0  # a worker that says nothing for so long has failed


class Gateway:
    """One connection, which beats while it waits. Beats it hears are set aside."""

    def __init__(self, endpoint: str, identity: bytes = b"gw:1") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.IDENTITY, identity)
        self._socket.set(zmq.LINGER, 0)
        self._socket.connect(endpoint)
        self.beats = 0
        self._is_known = False

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._context.term()

    def say(self, *messages: LinkMessage) -> None:
        """Sends messages."""
        for message in messages:
            self._is_known |= isinstance(message, Hello)
            self._socket.send(encode(message))

    def say_bytes(self, *frames: bytes) -> None:
        """Sends frames as they are."""
        self._socket.send_multipart(frames)

    def hear(self, patience_s: float = PATIENCE_S) -> FromWorker:
        """The next message that is no beat."""
        deadline = time.monotonic() + patience_s
        while True:
            data = self._next(deadline)
            if msgpack.unpackb(data)["t"] != "Beat":
                return decode(data)
            self.beats += 1

    def hear_beat(self, patience_s: float = PATIENCE_S) -> dict[str, object]:
        """The fields of the next beat."""
        deadline = time.monotonic() + patience_s
        while True:
            fields = msgpack.unpackb(self._next(deadline))
            if fields["t"] == "Beat":
                return fields

    def hear_until(self, kind: type[FromWorker]) -> list[FromWorker]:
        """Messages up to the first of a kind, which is the last."""
        heard = [self.hear()]
        while not isinstance(heard[-1], kind):
            heard.append(self.hear())
        return heard

    def _next(self, deadline: float) -> bytes:
        while time.monotonic() < deadline:
            if self._socket.poll(BEAT_MS):
                return self._socket.recv()
            if self._is_known:
                self._socket.send(encode(Beat("up")))
        raise AssertionError("the worker said nothing")
