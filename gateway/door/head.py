"""The head of a client's request: what it says, and what makes us refuse it. Knows no socket."""

from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import httptools

from gateway.errors import ApiError
from gateway.exchange import Headers
from proto.limits import HEADER_BLOCK_BYTES, HEADER_COUNT


class _Unread(Headers):
    """Headers that nobody reads: what comes behind a body."""

    def append(self, header: tuple[bytes, bytes]) -> None:
        """Forgets it."""


UNREAD = _Unread()
_OFFERS = frozenset({b"upgrade", b"http2-settings"})


class KnownHead:
    """A head as a connection sent it last. Most clients send the same again, but for its length.

    `facts`: what others found out from these headers and need not find out again, by who asks.
    """

    def __init__(self, headers: Headers) -> None:
        self._headers = headers
        self._fields = dict(reversed(headers))  # the first of each name
        self._length_at = next(
            (at for at, (name, _) in enumerate(headers) if name == b"content-length"), -1
        )
        self.facts: dict[object, Any] = {}
        self._is_sound = False  # nothing is wrong with it, in HTTP/1.1

    @classmethod
    def of(cls, headers: Headers, last: "KnownHead | None") -> "KnownHead":
        """The last one if these headers are like it."""
        return last if last is not None and last.is_like(headers) else cls(headers)

    def is_like(self, headers: Headers) -> bool:
        """Whether these are the same headers, in their order, but for the body's length."""
        known, at = self._headers, self._length_at
        if headers == known:
            return True
        return (
            at >= 0
            and len(headers) == len(known)
            and headers[at][0] == b"content-length"
            and headers[:at] == known[:at]
            and headers[at + 1 :] == known[at + 1 :]
        )

    def fields_of(self, headers: Headers) -> dict[bytes, bytes]:
        """The first of each name, of headers that are like these."""
        at = self._length_at
        if at < 0 or headers[at] == self._headers[at]:
            return self._fields
        return self._fields | {b"content-length": headers[at][1]}

    def fault(self, version: str, *, at_most_bytes: int) -> ApiError | None:
        """What is wrong with it, as `head_fault` says; looked for once."""
        if self._is_sound and version == "1.1":
            return None
        fault = head_fault(self._headers, self._fields, version, at_most_bytes=at_most_bytes)
        self._is_sound = fault is None and version == "1.1"
        return fault


@lru_cache(maxsize=256)
def split_target(target: bytes) -> tuple[str, bytes, bytes]:
    """Decoded path, path as it came, query."""
    if not target.startswith(b"/"):
        try:
            parsed = httptools.parse_url(target)  # the absolute form that proxies are sent
            target = (parsed.path or b"/") + (b"?" + parsed.query if parsed.query else b"")
        except httptools.HttpParserInvalidURLError:
            return target.decode("latin-1"), target, b""
    raw_path, _, query = target.partition(b"#")[0].partition(b"?")
    path = raw_path.decode("latin-1")
    return (unquote(path) if "%" in path else path), raw_path, query


def head_fault(
    headers: Headers, fields: dict[bytes, bytes], version: str, *, at_most_bytes: int
) -> ApiError | None:
    """What is wrong with a head that is HTTP. `at_most_bytes`: it is no larger than this."""
    if len(headers) > HEADER_COUNT or (
        at_most_bytes > HEADER_BLOCK_BYTES and _block_bytes(headers) > HEADER_BLOCK_BYTES
    ):
        return headers_too_large()
    if version not in ("1.1", "1.0"):
        return malformed("use HTTP/1.1")
    if b"expect" in fields and fields[b"expect"].strip().lower() != b"100-continue":
        message = "'Expect' can only be 100-continue here."
        return ApiError(417, "expectation_failed", message, param="expect")
    if b"host" not in fields and version == "1.1":
        return malformed("it has no Host header")
    if fields.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        message = "'Transfer-Encoding' can only be chunked here; a body's own coding is named by "
        return ApiError(501, "unsupported_transfer_encoding", message + "'Content-Encoding'.")
    is_repeated = len(fields) < len(headers)
    if is_repeated and sum(name == b"host" for name, _ in headers) > 1:
        return malformed("it has two Host headers")
    return None


def head_without_offer(method: bytes, target: bytes, version: str, headers: Headers) -> bytes:
    """The same head without its offer to go on in another protocol."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, target, version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in _OFFERS)
        if name not in _OFFERS:
            lines.append(b"%b: %b\r\n" % (name, value))
    return b"".join(lines) + b"\r\n"


def malformed(reason: str) -> ApiError:
    """The error of a request that is not what it says it is."""
    return ApiError(400, "invalid_request", f"The request cannot be read: {reason}.")


def headers_too_large() -> ApiError:
    """The error of a head over the limits."""
    message = (
        f"The headers are larger than {HEADER_BLOCK_BYTES // 1024} KiB, "
        f"or more than {HEADER_COUNT} fields."
    )
    return ApiError(431, "headers_too_large", message)


def _block_bytes(headers: Headers) -> int:
    """The size of headers as lines."""
    return sum(len(name) + len(value) + 4 for name, value in headers)
