"""The head of a client's request: what it says, and what makes us refuse it. Knows no socket."""

from functools import lru_cache
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
