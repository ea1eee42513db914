"""A second reader of HTTP/1.1, to compare with: strict, small, slow. Source: RFC 9112, RFC 9110.

It reads a whole buffer and knows three answers: a message and where it ends, a message that is not
whole yet, and `Malformed`. It shares no code and no idea with the parser that the gateway uses.
"""

import re
from dataclasses import dataclass

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# More than one space is let pass: section 3.
_REQUEST_LINE = re.compile(rb"(%b) +([\x21-\x7e\x80-\xff]+) +HTTP/(1\.[01])" % TOKEN)
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([0-9]{3}) ([\t\x20-\x7e\x80-\xff]*)")
_FIELD = re.compile(rb"(%b):[ \t]*([\t\x20-\x7e\x80-\xff]*)" % TOKEN)
_EXTENSION = rb';%b(?:=(?:%b|"[\t !#-\[\]-~\x80-\xff]*"))?' % (TOKEN, TOKEN)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,16})(?:%b)*" % _EXTENSION)
_LENGTH = re.compile(rb"[0-9]{1,18}")

_FRAMING = (b"transfer-encoding", b"content-length")

Fields = list[tuple[bytes, bytes]]


class Malformed(Exception):
    """Not HTTP/1.1, or not in only one way."""


class Odd(Malformed):
    """Not as it should be, but it can be read in one way only: whether to refuse it is a choice."""


class NotWhole(Exception):
    """More bytes are needed. `fields` are there if the head is, `body` as far as it came."""

    def __init__(self, head: "Message | None" = None) -> None:
        super().__init__()
        self.head = head


@dataclass(slots=True)
class Message:
    """One message. `first`: of a request method, target, version; of an answer version, status."""

    first: tuple[bytes, ...]
    fields: Fields
    body: bytes = b""
    ends_by_close: bool = False

    def values(self, name: bytes) -> list[bytes]:
        return [value for field, value in self.fields if field == name]


def read_request(data: bytes, at: int) -> tuple[Message, int]:
    """The request that begins here, and where the next one would."""
    while data[at : at + 1] in (b"\r", b"\n"):  # section 2.2: empty lines before the request line
        at += 1
    message, at = _head(data, at, _REQUEST_LINE)
    is_chunked, length = _framing(message)
    return _body(data, at, message, is_chunked=is_chunked, length=length or 0)


def read_answer(data: bytes, at: int, *, to_head: bool) -> tuple[Message, int]:
    """The final answer that begins here, with what comes before it (1xx) left out."""
    while True:
        message, at = _head(data, at, _STATUS_LINE)
        status = int(message.first[1])
        if status == 101 or not 100 <= status < 600:
            raise Malformed("a status that is no answer to us")
        if status >= 200:
            break
        if message.first[0] == b"0" or message.values(b"connection"):
            raise Malformed("an answer that is no end closes the connection")
    is_chunked, length = _framing(message)
    if to_head or status in (204, 304):
        return message, at
    if not is_chunked and length is None:
        message.ends_by_close = True
        message.body = data[at:]
        return message, len(data)
    return _body(data, at, message, is_chunked=is_chunked, length=length or 0)


def _line(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise NotWhole
    return data[at:end], end + 2


def _head(data: bytes, at: int, first_line: re.Pattern[bytes]) -> tuple[Message, int]:
    line, at = _line(data, at)
    found = first_line.fullmatch(line)
    if found is None:
        raise Malformed("the first line")
    fields, at = _fields(data, at)
    return Message(found.groups(), fields), at


def _fields(data: bytes, at: int) -> tuple[Fields, int]:
    fields: Fields = []
    while True:
        line, at = _line(data, at)
        if not line:
            return fields, at
        found = _FIELD.fullmatch(line)  # no folding, no space before the colon: section 5
        if found is None:
            raise Malformed("a header")
        fields.append((found[1].lower(), found[2].rstrip(b" \t")))


def _framing(message: Message) -> tuple[bool, int | None]:
    """Section 6.3, without any of the repairs that it allows."""
    codings, lengths = message.values(b"transfer-encoding"), message.values(b"content-length")
    if codings and lengths:
        raise Malformed("two lengths")
    if codings:
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            raise Malformed("a transfer coding that we do not know")
        return True, None
    if not lengths:
        return False, None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise Malformed("a length that is none")
    return False, int(lengths[0])


def _body(
    data: bytes, at: int, message: Message, *, is_chunked: bool, length: int
) -> tuple[Message, int]:
    if not is_chunked:
        message.body = data[at : at + length]
        if len(message.body) < length:
            raise NotWhole(message)
        return message, at + length
    while True:
        try:
            line, at = _line(data, at)
            found = _CHUNK.fullmatch(line)
            if found is None:
                raise Malformed("the size of a chunk")
            size = int(found[1], 16)
            if size == 0:
                trailers, at = _fields(data, at)
                if any(name in _FRAMING for name, _ in trailers):
                    raise Odd("a trailer that must not be one")
                return message, at
        except NotWhole:
            raise NotWhole(message) from None
        message.body += data[at : at + size]
        if len(data) < at + size + 2:
            if not b"\r\n".startswith(data[at + size :]):
                raise Malformed("what stands behind a chunk")
            raise NotWhole(message)
        if data[at + size : at + size + 2] != b"\r\n":
            raise Malformed("what stands behind a chunk")
        at += size + 2
