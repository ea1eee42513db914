"""Content-Encoding: bodies of requests unpacked whole, answers piece by piece. Knows no surface.

Everything is bounded: a small body that unpacks to a huge one costs no more memory than it may.
The libraries for br and zstd are loaded when the first such body comes.
"""

import zlib
from collections.abc import Callable

from gateway.errors import ApiError
from gateway.exchange import too_large
from proto.limits import ANSWER_TAP_BYTES, DECOMPRESSION_RATIO

DEFLATE_ANY = 32 + zlib.MAX_WBITS  # zlib or gzip header, whichever is there
ZSTD_WINDOW_BYTES = 8 * 1024**2  # RFC 8878 wants at least this much of every reader
ZSTD_STEP_BYTES = 1024  # fed at a time: it cannot be told how much to give out at most
LEAST_UNPACKED_BYTES = 64 * 1024  # a tiny body may be all zeros

ENCODINGS = "gzip, deflate, br or zstd"


class _Broken(Exception):
    """The bytes are not what their encoding says."""


def decoded_body(body: bytes, encoding: bytes | None, limit_bytes: int) -> bytes:
    """The body without its Content-Encoding.

    Raises: ApiError 415 for an encoding we cannot read, 413 for a bomb, 400 for a broken one.
    """
    if encoding is None or (name := _name(encoding)) == b"identity":
        return body
    unpack = _WHOLE.get(name)
    if unpack is None:
        message = f"Send the body as it is, or with Content-Encoding {ENCODINGS}."
        raise ApiError(415, "unsupported_content_encoding", message, param="content-encoding")
    most = min(limit_bytes, max(len(body) * DECOMPRESSION_RATIO, LEAST_UNPACKED_BYTES))
    try:
        plain, is_whole = unpack(body, most + 1)
    except _Broken as fault:
        raise ApiError(400, "invalid_json", "The compressed body cannot be unpacked.") from fault
    if len(plain) > most:
        if most == limit_bytes:
            raise too_large(limit_bytes)
        message = f"The body unpacks to more than {DECOMPRESSION_RATIO} times its size."
        raise ApiError(413, "request_too_large", message, param="content-encoding")
    if not is_whole:
        raise ApiError(400, "invalid_json", "The compressed body is cut short.")
    return plain


def unpacker(encoding: bytes | None) -> Callable[[bytes], bytes] | None:
    """Unpacks an answer piece by piece; None when there is nothing to unpack.

    What it returns raises ValueError for an encoding it cannot read, for a broken one, and for a
    piece that unpacks to more than the tap could hold.
    """
    if encoding is None or (name := _name(encoding)) == b"identity":
        return None
    if name in (b"gzip", b"deflate", b"x-gzip"):
        return _Deflate().feed
    if name == b"br":
        return _Brotli().feed
    if name == b"zstd":
        return _Zstd().feed

    def refuse(piece: bytes) -> bytes:
        raise ValueError("content encoding that the tap cannot read")

    return refuse


def _name(encoding: bytes) -> bytes:
    return encoding.strip().lower() or b"identity"


def _inflate(body: bytes, most_bytes: int) -> tuple[bytes, bool]:
    plain = bytearray()
    while True:  # gzip may have several members, one behind the other
        reader = zlib.decompressobj(DEFLATE_ANY)
        try:
            plain += reader.decompress(body, most_bytes - len(plain))
        except zlib.error as fault:
            raise _Broken from fault
        if not reader.eof or not reader.unused_data or len(plain) >= most_bytes:
            return bytes(plain), reader.eof
        body = reader.unused_data


def _unbrotli(body: bytes, most_bytes: int) -> tuple[bytes, bool]:
    import brotli

    reader = brotli.Decompressor()
    try:
        plain = bytearray(reader.process(body, output_buffer_limit=most_bytes))
        while len(plain) < most_bytes and not reader.is_finished():
            more = reader.process(b"", output_buffer_limit=most_bytes)
            if not more:
                break
            plain += more
    except brotli.error as fault:
        raise _Broken from fault
    return bytes(plain), reader.is_finished()


def _unzstd(body: bytes, most_bytes: int) -> tuple[bytes, bool]:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    reader = unpacker.decompressobj()
    plain = bytearray()
    try:
        for start in range(0, len(body), ZSTD_STEP_BYTES):
            step = body[start : start + ZSTD_STEP_BYTES]
            while step and len(plain) < most_bytes:
                if reader.eof:  # there may be several frames, one behind the other
                    reader = unpacker.decompressobj()
                plain += reader.decompress(step)
                step = reader.unused_data
    except zstandard.ZstdError as fault:
        raise _Broken from fault
    return bytes(plain), reader.eof


_WHOLE = {
    b"gzip": _inflate,
    b"x-gzip": _inflate,
    b"deflate": _inflate,
    b"br": _unbrotli,
    b"zstd": _unzstd,
}


def _check(plain: bytes) -> bytes:
    if len(plain) > ANSWER_TAP_BYTES:
        raise ValueError(f"a piece that unpacks to more than {ANSWER_TAP_BYTES} bytes")
    return plain


class _Deflate:
    def __init__(self) -> None:
        self._reader = zlib.decompressobj(DEFLATE_ANY)

    def feed(self, piece: bytes) -> bytes:
        plain = b""
        try:
            while True:
                plain = _check(plain + self._reader.decompress(piece, ANSWER_TAP_BYTES + 1))
                if not self._reader.eof or not self._reader.unused_data:
                    return plain
                piece = self._reader.unused_data  # the next member
                self._reader = zlib.decompressobj(DEFLATE_ANY)
        except zlib.error as fault:
            raise ValueError("broken gzip") from fault


class _Brotli:
    def __init__(self) -> None:
        import brotli

        self._reader = brotli.Decompressor()
        self._fault: type[Exception] = brotli.error

    def feed(self, piece: bytes) -> bytes:
        try:
            plain = self._reader.process(piece, output_buffer_limit=ANSWER_TAP_BYTES)
            while not self._reader.can_accept_more_data():
                plain = _check(plain + self._reader.process(b"", output_buffer_limit=65_536))
        except self._fault as fault:
            raise ValueError("broken br") from fault
        return _check(plain)


class _Zstd:
    def __init__(self) -> None:
        import zstandard

        self._reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj(
            read_across_frames=True
        )
        self._fault: type[Exception] = zstandard.ZstdError

    def feed(self, piece: bytes) -> bytes:
        plain = b""
        try:
            for start in range(0, len(piece), ZSTD_STEP_BYTES):
                step = self._reader.decompress(piece[start : start + ZSTD_STEP_BYTES])
                plain = _check(plain + step)
        except self._fault as fault:
            raise ValueError("broken zstd") from fault
        return plain
