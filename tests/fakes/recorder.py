"""Between a gateway and a real backend: keeps what went by, byte for byte."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Recorder:
    """Forwards each request on a connection of its own. `bodies`: answers without their framing;
    `requests`: bodies of what was asked. Both in the order in which they were asked."""

    def __init__(self, port: int) -> None:
        self.bodies: list[bytes] = []
        self.requests: list[bytes] = []
        self._upstream = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(("127.0.0.1", self._upstream)) as upstream:
                request = self._request(client)
                self.requests.append(request.partition(b"\r\n\r\n")[2])
                upstream.sendall(request)
                answer = b""
                with contextlib.suppress(OSError):  # whoever asked hung up: so do we
                    while piece := upstream.recv(65_536):
                        answer += piece
                        client.sendall(piece)
                self.bodies.append(body_of(answer))

    def _request(self, client: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += client.recv(65_536)
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        while len(body) < length:
            body += client.recv(65_536)
        return head + b"\r\nconnection: close\r\n\r\n" + body


def body_of(answer: bytes) -> bytes:
    """The body of a raw HTTP answer, chunks joined."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    joined = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        joined += rest[:count]
        body = rest[count + 2 :]
    return joined
