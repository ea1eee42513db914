"""One streamed request to an HTTP backend: a body up, JSON events down, under its clocks.

Knows no field of a body or an event, and no client. What a backend says about itself in an error
is quoted only without keys, addresses and what was sent.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any

from gateway.backends.base import Backend
from gateway.backends.run import SILENCE_S, Silence
from gateway.errors import ApiError
from gateway.relay.client import UpstreamClient
from gateway.relay.connection import (
    Clock,
    Connection,
    UpstreamBroken,
    UpstreamFault,
    UpstreamTimeout,
)
from gateway.relay.forward import note_fault, own_error
from gateway.surfaces.encoding import unpacker
from gateway.surfaces.json_text import json_value
from gateway.surfaces.sse import RecordTooLarge, SseEvent, SseParser
from gateway.version import VERSION
from proto.limits import ANSWER_TAP_BYTES, QUOTED_ERROR_CHARS

ERROR_BYTES = 16 * 1024  # of an error's body are read; they have less than 1 KiB
ERROR_S = 2.0  # for that to come
_ADDRESS = re.compile(r"https?://\S+")
_TOO_LONG = re.compile(
    r"(?i)context_length_exceeded|maximum context length|exceeds? (?:the )?(?:available )?context|"
    r"prompt is too long|exceeds max length|exceed_context_size"
)


class EventStream:
    """A request on its way. `close` it, whatever happened.

    `sent`: texts that an error of the backend may quote. `total`: a clock over everything, with its
    seconds. `status` 0: no answer came yet. `is_done`: its end mark `[DONE]` came.
    """

    def __init__(
        self,
        client: UpstreamClient,
        backend: Backend,
        body: bytes,
        *,
        sent: bytes,
        total: tuple[Clock, float] | None = None,
        now: Callable[[], float],
    ) -> None:
        self.status = 0
        self.is_done = False
        self._client = client
        self._backend = backend
        self._sent = sent
        self._now = now
        self._total = None if total is None else UpstreamTimeout(*total)
        self._total_until_s = 0.0 if total is None else now() + total[1]
        self._clock: Clock = "first_event_s"
        self._left_s = backend.settings.first_event_s or None
        self._connection: Connection | None = None
        self._sse: SseParser | None = None
        self._whole: list[bytes] = []  # of an answer that is no stream
        self._whole_bytes = 0
        self._unpack: Callable[[bytes], bytes] | None = None
        self._ready: deque[dict[str, Any]] = deque()
        self._fault: ApiError | None = None
        self._is_over = False
        head = _head(backend, len(body))
        self._sending = asyncio.create_task(
            client.send(backend.origin, head, body, connect_s=backend.settings.connect_s)
        )

    async def next(self) -> dict[str, Any] | Silence | None:
        """The next JSON object, None behind the last one.

        Raises: ApiError for an answer that is none; UpstreamFault.
        """
        try:
            while not self._ready:
                if self._fault is not None:  # what came before it is read first
                    raise self._fault
                if self._is_over:
                    return None
                if not await self._read_some():
                    return Silence()
        except UpstreamFault as fault:
            note_fault(self._backend, fault)
            raise
        return self._ready.popleft()

    async def close(self) -> None:
        """Gives the connection back, or hangs up where the answer goes on. Once is enough."""
        self._is_over = True
        self._sending.cancel()
        (sent,) = await asyncio.gather(self._sending, return_exceptions=True)
        if isinstance(sent, Connection):
            self._connection = sent
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_dead:
            self._client.release(self._backend.origin, connection)

    async def _read_some(self) -> bool:
        """Takes what comes; False where nothing came for a while."""
        began_s = self._now()
        try:
            async with asyncio.timeout(self._wait_s(began_s)):
                piece = await self._piece()
        except TimeoutError:
            self._spend(self._now() - began_s)
            return False
        events = self._parse(piece)
        if events:
            self._clock, self._left_s = "idle_s", self._backend.settings.idle_s or None
        else:  # comments and pings do not hide a dead backend
            self._spend(self._now() - began_s)
        for event in events:
            self._take(event.data)
        if not piece:
            self._is_over = True
        return True

    def _wait_s(self, now_s: float) -> float:
        """How long to wait for the next bytes: only this is time that a backend takes."""
        waits = [SILENCE_S]
        if self._left_s is not None:
            waits.append(self._left_s)
        if self._total is not None:
            waits.append(max(self._total_until_s - now_s, 0.0))
        return min(waits)

    def _spend(self, seconds: float) -> None:
        """Raises: UpstreamTimeout when a clock has run out."""
        if self._total is not None and self._now() >= self._total_until_s:
            raise self._total
        if self._left_s is not None:
            self._left_s -= seconds
            if self._left_s <= 0:
                limit_s = getattr(self._backend.settings, self._clock)
                raise UpstreamTimeout(self._clock, limit_s)

    async def _piece(self) -> bytes:
        if self._connection is None:
            self._connection = await asyncio.shield(self._sending)
            await self._begin(self._connection)
        return await self._connection.read()

    async def _begin(self, connection: Connection) -> None:
        """Looks at status and headers. Raises: ApiError for an answer that is an error."""
        self.status = connection.status
        self._backend.health.note_answer(connection.status)
        if connection.status >= 300:
            if (error := own_error(connection, self._backend, self._sent)) is not None:
                raise error
            words = await _error_words(connection)
            raise _status_error(connection, words, self._quoted(words))
        headers = dict(connection.headers)
        self._unpack = unpacker(headers.get(b"content-encoding"))
        if headers.get(b"content-type", b"")[:17].lower() == b"text/event-stream":
            self._sse = SseParser()

    def _parse(self, piece: bytes) -> list[SseEvent]:
        """Raises: UpstreamBroken for bytes that nobody can read."""
        try:
            if piece and self._unpack is not None:
                piece = self._unpack(piece)
            if self._sse is not None:
                return self._sse.feed(piece) if piece else self._sse.finish()
        except (ValueError, RecordTooLarge) as fault:
            raise UpstreamBroken("it cannot be read", before_answer=False) from fault
        self._whole.append(piece)
        self._whole_bytes += len(piece)
        if self._whole_bytes > ANSWER_TAP_BYTES:
            raise UpstreamBroken("it is too large", before_answer=False)
        return [] if piece else [SseEvent(b"", b"".join(self._whole))]

    def _take(self, data: bytes) -> None:
        if self._sse is not None and data.strip() == b"[DONE]":
            self.is_done = True
            return
        try:
            body = json_value(data)
        except ValueError as fault:
            if self._sse is None:
                raise UpstreamBroken("it is no JSON", before_answer=False) from fault
            return  # one malformed event says nothing about the next
        if not isinstance(body, dict):
            return
        if self._sse is None:
            self.is_done = True
        if body.get("error") and body.get("choices") is None:
            words = json.dumps(body["error"], ensure_ascii=False).encode(errors="replace")
            self._fault = _in_band_error(words, self._quoted(words))
            self._is_over = True
            return
        self._ready.append(body)

    def _quoted(self, words: bytes) -> str:
        """A backend's words as a client may read them."""
        text = self._backend.masked(_message_in(words)[: 2 * QUOTED_ERROR_CHARS], self._sent)
        text = text.replace(self._backend.origin.host, "***")
        return _ADDRESS.sub("***", text)[:QUOTED_ERROR_CHARS]


def _head(backend: Backend, body_bytes: int) -> bytes:
    lines = b"".join(
        line for line in _LINES if line.partition(b":")[0] not in backend.own_names
    )  # what the operator set stands in its own lines
    path = backend.url_path("/v1/chat/completions").encode("latin-1")
    first = b"POST %b HTTP/1.1\r\n" % path
    return b"%b%b%bcontent-length: %d\r\n\r\n" % (first, backend.head_lines, lines, body_bytes)


_LINES = (
    b"content-type: application/json\r\n",
    b"accept: text/event-stream\r\n",
    b"user-agent: tandem/%b\r\n" % VERSION.encode(),
)


async def _error_words(connection: Connection) -> bytes:
    """The body of an error, as far as it comes soon."""
    words = b""
    try:
        async with asyncio.timeout(ERROR_S):
            while len(words) < ERROR_BYTES and (piece := await connection.read()):
                words += piece
    except (TimeoutError, UpstreamFault):
        connection.hang_up()
    return words[:ERROR_BYTES]


def _message_in(words: bytes) -> bytes:
    """The sentence in an error's body, or the body where there is none."""
    try:
        body = json_value(words)
    except ValueError:
        return words
    for _ in range(2):
        if isinstance(body, dict):
            body = body.get("error") or body.get("message") or body.get("detail") or ""
    return body.encode(errors="replace") if isinstance(body, str) and body else words


def _status_error(connection: Connection, words: bytes, quoted: str) -> ApiError:
    """What a client is told about an answer that is an error of the backend's.

    Source: `streaming.md` 8, for one attempt.
    """
    status = connection.status
    said = f"The backend answered with status {status}: {quoted}"
    after = next((v for name, v in connection.headers if name == b"retry-after"), b"")
    after_s = int(after) if after.isdigit() and len(after) < 8 else None
    if status == 413 or (status < 500 and _TOO_LONG.search(words.decode(errors="replace"))):
        return ApiError(400, "context_length_exceeded", said, param="messages")
    if status in (404, 410):
        return ApiError(404, "model_not_found", said, param="model")
    if status == 429:
        return ApiError(429, "rate_limit_exceeded", said, retry_after_s=after_s)
    if status < 500:
        return ApiError(400, "provider_rejected_request", said)
    return ApiError(502, "upstream_failed", said, retry_after_s=after_s)


def _in_band_error(words: bytes, quoted: str) -> ApiError:
    if _TOO_LONG.search(words.decode(errors="replace")):
        return ApiError(400, "context_length_exceeded", quoted, param="messages")
    return ApiError(502, "upstream_failed", f"The backend broke off: {quoted}")
