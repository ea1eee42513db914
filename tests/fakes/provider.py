"""A provider of models on real sockets, scripted: OpenAI's, Anthropic's and Google's protocols.

What it answers stands in `dialects`. It knows no gateway; it keeps everything it was asked.
"""

import http.server
import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from tests.fakes.dialects.anthropic import Anthropic
from tests.fakes.dialects.gemini import Gemini
from tests.fakes.dialects.openai import OpenAi
from tests.fakes.dialects.turn import Refused, Reply, Request

HOLD_S = 20.0  # a held stream that nobody lets go on is a mistake of the test

Delivery = Literal["events", "bytes"]


class Dialect(Protocol):
    """One provider's protocol."""

    models: tuple[str, ...]

    def key_header(self, key: str) -> tuple[str, str]:
        """The header that shows a key, in this dialect."""

    def answer(self, request: Request) -> Reply:
        """The answer. Raises: Refused."""

    def error(self, status: int, message: str) -> dict[str, Any]:
        """The body of an answer that refuses."""


class Hold:
    """A place in a stream, before its n-th event, where the provider waits to be let go on."""

    def __init__(self, before: int) -> None:
        self.before = before
        self.reached = threading.Event()
        self.open = threading.Event()

    def wait(self) -> None:
        """Returns when the test lets go."""
        self.reached.set()
        if not self.open.wait(HOLD_S):
            raise TimeoutError("nobody let the stream go on")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and what it was answered with. `reply` None: refused.

    `is_broken`: the provider hung up in the middle of the answer.
    """

    dialect: str
    request: Request
    reply: Reply | None
    is_broken: bool = False


class Provider:
    """Listens on a free loopback port; each dialect has a part of the address for itself.

    `delivery`: a chunk for each event of an answer, or for each byte. `hold` and `break_before` are
    for the next stream: to wait, or to hang up, before its n-th event.
    """

    def __init__(self, keys: dict[str, str]) -> None:
        self.keys = keys
        self.dialects: dict[str, Dialect] = {
            "openai": OpenAi(), "anthropic": Anthropic(), "gemini": Gemini(),
        }  # fmt: skip
        self.delivery: Delivery = "events"
        self.hold: Hold | None = None
        self.break_before: int | None = None
        self.asked: list[Asked] = []
        self._numbers = itertools.count()
        provider = self

        class Bound(_Exchange):
            def do_GET(self) -> None:
                provider.serve(self)

            do_POST = do_GET

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def url(self, dialect: str) -> str:
        """The address that an SDK of this dialect is given, without the version."""
        return f"http://127.0.0.1:{self._server.server_port}/{dialect}"

    def models(self) -> list[str]:
        """Every model there is."""
        return [model for dialect in self.dialects.values() for model in dialect.models]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, exchange: "_Exchange") -> None:
        """Answers one request."""
        name, request = exchange.read(next(self._numbers))
        dialect = self.dialects[name]
        header, value = dialect.key_header(self.keys[name])
        try:
            if request.headers.get(header) != value:
                raise Refused(401, "this is not the key of an account")
            reply = dialect.answer(request)
        except Refused as refusal:
            self.asked.append(Asked(name, request, None))
            body = dialect.error(refusal.status, str(refusal))
            exchange.send_whole(refusal.status, body, "events")
            return
        if isinstance(reply.content, dict):
            self.asked.append(Asked(name, request, reply))
            exchange.send_whole(200, reply.content, self.delivery)
            return
        hold, self.hold = self.hold, None
        end, self.break_before = self.break_before, None
        self.asked.append(Asked(name, request, reply, is_broken=end is not None))
        events = _held(reply.content[:end], hold)
        exchange.send_stream(events, self.delivery, is_whole=end is None)


class _Exchange(http.server.BaseHTTPRequestHandler):
    """One request and its answer on a socket; the connection is kept for the next."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def read(self, number: int) -> tuple[str, Request]:
        """The dialect's name, which begins the path, and the request."""
        path, _, query = self.path.partition("?")
        _, name, rest = path.split("/", 2)
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        headers = {key.lower(): value for key, value in self.headers.items()}
        parsed = json.loads(body) if body else None
        return name, Request(number, self.command, f"/{rest}", query, headers, parsed)

    def send_whole(self, status: int, body: dict[str, Any], delivery: Delivery) -> None:
        """Sends a JSON body of a known length."""
        content = json.dumps(body, ensure_ascii=False).encode()
        self._send_head(status)
        self.send_header("content-type", "application/json; charset=utf-8")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        for piece in _pieces(content, delivery):
            self.wfile.write(piece)

    def send_stream(self, events: Iterable[bytes], delivery: Delivery, *, is_whole: bool) -> None:
        """Sends events in chunks, each written by itself; hangs up if that is not the whole."""
        self._send_head(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            for piece in _pieces(event, delivery):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        if is_whole:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = not is_whole

    def _send_head(self, status: int) -> None:
        self.send_response(status)
        self.send_header("x-request-id", "req_of_the_provider")

    def log_message(self, format: str, *args: Any) -> None:
        return


def _held(events: list[bytes], hold: Hold | None) -> Iterator[bytes]:
    for at, event in enumerate(events):
        if hold is not None and at == hold.before:
            hold.wait()
        yield event


def _pieces(content: bytes, delivery: Delivery) -> Iterable[bytes]:
    if delivery == "events":
        return [content]
    return (content[at : at + 1] for at in range(len(content)))
