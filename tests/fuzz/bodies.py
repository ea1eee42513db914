"""What a request's body may be: Content-Encoding undone, the top level read, one value replaced.

The first two bytes of an input choose encoding and limit; one bit packs the rest first.
"""

import json
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import brotli
import zstandard

from gateway.errors import ApiError, error_body
from gateway.ledger.entry import body_hash
from gateway.surfaces.encoding import decoded_body
from gateway.surfaces.envelope import (
    Envelope,
    edited,
    member_edit,
    model_of,
    read_envelope,
    value_edit,
)
from gateway.surfaces.request import prompt_bytes
from tests.fuzz.packing import packed

LIMITS: dict[str, Any] = {"gateway.surfaces.encoding.LEAST_UNPACKED_BYTES": 2048}
MOST_BYTES = 3072
ENCODINGS = (None, b"gzip", b"br", b"zstd", b"deflate", b"identity", b"rot13", b" X-GZip ")
BODY_LIMITS = (64, 1024, 4096, 65_536)
IS_PACKED, IS_BOMB = 1, 2
BOMB_TIMES = 4096
OBJECT, MEMBER = "stream_options", "include_usage"


def check(data: bytes) -> None:
    """One input. Raises: AssertionError, or whatever the gateway must not raise."""
    if len(data) < 2:
        return
    kind, way, body = data[0], data[1], data[2:]
    encoding = ENCODINGS[kind % len(ENCODINGS)]
    limit_bytes = BODY_LIMITS[kind // 16 % len(BODY_LIMITS)]
    plain = body * BOMB_TIMES if way & IS_BOMB and len(body) < 32 else body
    sent = packed(plain, encoding) if way & IS_PACKED else body
    try:
        decoded = decoded_body(sent, encoding, limit_bytes)
    except ApiError as fault:
        assert fault.status in (400, 413, 415)
        if way & IS_PACKED and encoding != b"rot13":
            assert fault.status == 413, fault
            assert len(plain) > min(limit_bytes, max(100 * len(sent), 2048)), fault
    else:
        if encoding not in (None, b"identity"):
            assert len(decoded) <= limit_bytes
            assert decoded == _unpacked(sent, encoding)
        if way & IS_PACKED:
            assert decoded == plain
    _check_envelope(body)


def _check_envelope(body: bytes) -> None:
    try:
        envelope = read_envelope(body)
    except ApiError as fault:
        assert (fault.status, fault.code) == (400, "invalid_json")
        error_body("chat", fault, "r").decode()
        _check_refusal(body)
        return
    pairs = _pairs(envelope.text)
    assert envelope.fields == dict(pairs), (envelope.fields, pairs)
    assert [*envelope.fields] == [*dict(pairs)]
    names = [name for name, _ in pairs]
    assert envelope.repeated == {name for name in names if names.count(name) > 1}
    assert envelope.text.encode() == body
    assert len(body_hash(b"k", envelope.text, envelope.spans)) == 16
    assert prompt_bytes(envelope) >= 0
    try:
        assert 0 < len(model_of(envelope)) <= 256
    except ApiError as fault:
        assert (fault.status, fault.param) == (400, "model")
    for name in envelope.spans:
        _check_edit(envelope, name, body)
    _check_member(envelope)


def _check_edit(envelope: Envelope, name: str, body: bytes) -> None:
    """One value is another one, and every other byte is as it was."""
    value = 'größer/"quoted" \u2028'
    changed = edited(envelope.text, [value_edit(envelope, name, value)])
    start, end = envelope.spans[name]
    before, after = envelope.text[:start].encode(), envelope.text[end:].encode()
    assert changed.startswith(before)
    assert changed.endswith(after)
    pairs = _pairs(envelope.text)
    last = max(number for number, pair in enumerate(pairs) if pair[0] == name)
    pairs[last] = (name, value)
    assert _pairs(changed.decode()) == pairs
    assert read_envelope(changed).fields == dict(pairs)


def _check_member(envelope: Envelope) -> None:
    """One member is set in an object, and everything else means what it did."""
    set_edit = member_edit(envelope, OBJECT, MEMBER, "true")
    pairs = dict(_pairs(envelope.text))
    before = pairs.get(OBJECT)
    if set_edit is None:
        assert not pairs or OBJECT in pairs
        return
    edits = [set_edit]
    if "model" in envelope.spans:
        edits.append(value_edit(envelope, "model", "another"))
        pairs["model"] = "another"
    assert before is None or isinstance(before, dict)
    pairs[OBJECT] = {**(before or {}), MEMBER: True}
    assert json.loads(edited(envelope.text, edits), parse_int=_integer) == pairs


def _check_refusal(body: bytes) -> None:
    """What Python's own reader takes is refused for its depth, a constant, or no object."""
    try:
        value = json.loads(body.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        return
    assert not isinstance(value, dict) or _is_deep(value), body


def _pairs(text: str) -> list[tuple[str, Any]]:
    """Name and value of each top-level field, repeated ones too, by Python's own reader."""
    kept: list[list[tuple[str, Any]]] = []

    def keep(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        kept.append(pairs)
        return dict(pairs)

    json.loads(text, object_pairs_hook=keep, parse_int=_integer, parse_constant=_refuse)
    return kept[-1]


def _integer(digits: str) -> int | float:
    is_readable = len(digits) <= sys.get_int_max_str_digits()
    return int(digits) if is_readable else float(digits)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _is_deep(value: Any) -> bool:
    return json.dumps(value).count("[") + json.dumps(value).count("{") > 100


def _unpacked(sent: bytes, encoding: bytes) -> bytes:
    """The whole of it, by the libraries' simplest functions."""
    match encoding:
        case b"br":
            return bytes(brotli.decompress(sent))
        case b"zstd":
            reader = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
            return reader.decompress(sent)
        case _:
            plain = b""
            while sent:
                unpacker = zlib.decompressobj(32 + zlib.MAX_WBITS)
                plain += unpacker.decompress(sent)
                sent = unpacker.unused_data
            return plain


def _seeds() -> Iterator[bytes]:
    bodies = [
        b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}',
        b' { "model" : "m\\u00e9" ,\n"n":1.5e3, "x":null,"y":[[]],"z":{"a":{}} } ',
        b'{"model":"a","model":"b","":1,"\\u006dodel":"c"}',
        '{"model":"größer","🙂":"🙂","s":"\\ud83d"}'.encode(),
        b'{"model":"m","stream_options":{"include_usage":false,"x":[1]},"z":1}',
        b'{"stream_options" : { } , "model":"m"}', b'{"stream_options":null}',
        b'{"model":"m","stream_options":{"a":1,"include_usage" : null }}',
        b"{}", b"{ }", b"[]", b"", b"null", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}',
        b'{"a":1}{"b":2}', b'{"a":1,}', b'{"a" 1}', b'{a:1}', b'{"a":01}', b'{"a":"\x01"}',
        b"\xef\xbb\xbf{}", b"\xff\xfe{}", b'{"a":"\xed\xa0\x80"}',
        b'{"a":' + b"[" * 101 + b"]" * 101 + b"}",
        b'{"a":' + b"[" * 1500, b'{"a":' + b"9" * 1200 + b"}", b'{"a":-0,"b":1E+2,"c":1e999}',
        b'{"a":tru}', b'{"a":"\\x"}', b'{"a":"b', b'{"a\\n":1,"b":\t2}',
    ]  # fmt: skip
    for number, body in enumerate(bodies):
        yield bytes([0x30, 0]) + body
        yield bytes([0x30 + number % len(ENCODINGS), IS_PACKED]) + body
    for encoding in range(len(ENCODINGS)):
        for way in (0, IS_PACKED, IS_PACKED | IS_BOMB):
            for limit in range(len(BODY_LIMITS)):
                yield bytes([encoding + 16 * limit, way]) + b'{"model":"m"}'
        yield bytes([encoding + 48, 0]) + packed(bodies[0], ENCODINGS[encoding])
        yield bytes([encoding + 48, 0]) + packed(bodies[0], ENCODINGS[encoding])[:-4]


FINDS: dict[str, bytes] = {
    "a zstd body of two frames": b"\x33\1" + b'{"model":"m"}',
}
SEEDS: list[bytes] = [*_seeds(), *FINDS.values()]
WORDS: list[bytes] = [
    b'"model":', b'"stream_options":{', b'"include_usage":', b"null", b"true", b"NaN", b"\\ud800",
    b"\\u0000", b"1e5", b"[[[[", b'{"":', b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd",
]  # fmt: skip
