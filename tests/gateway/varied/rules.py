"""What may differ between a call straight to a backend and the same call through the gateway.

Knows the promises and no code of the gateway: each rule is written down here a second time. Every
function returns what is wrong, in words; nothing means that the rules held.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tests.gateway.varied.backend import Received
from tests.gateway.varied.client import Answer, Headers, Request, tokens, values

HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
    b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
}  # fmt: skip
CREDENTIALS = {
    b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie",
    b"openai-organization", b"openai-project",
}  # fmt: skip
# `Expect` was answered by the gateway itself, and it asks for no coding of its own.
NEVER_SENT = HOP_BY_HOP | CREDENTIALS | {
    b"host", b"content-length", b"expect", b"accept-encoding", b"forwarded", b"x-real-ip", b"via",
}  # fmt: skip
NEVER_SENT_PREFIXES = (b"x-tandem-", b"x-freellm-", b"x-forwarded-")
NEVER_ANSWERED = HOP_BY_HOP | {
    b"set-cookie", b"x-request-id", b"x-routed-via", b"content-length",
}  # fmt: skip
OF_STREAMS = {b"x-accel-buffering": b"no", b"cache-control": b"no-cache"}
ULID = re.compile(rb"[0-7][0-9A-HJKMNP-TV-Z]{25}")
SECRET = b"s3cret"  # part of everything that a client must not have passed on


@dataclass(frozen=True, slots=True)
class Expected:
    """What a backend must receive, beside the headers that pass, and how the answer is signed.

    `is_edited`: the body's model was replaced, so that it goes up without its coding.
    """

    target: bytes
    body: bytes
    own_credential: tuple[bytes, bytes]
    routed_via: bytes
    is_edited: bool = False


def faults_of_request(sent: Request, got: Received, expected: Expected, host: bytes) -> list[str]:
    """What is wrong with the request that the gateway made of a client's. `host`: the backend's."""
    never = NEVER_SENT | tokens(sent.headers, b"connection")
    never |= {b"content-encoding"} if expected.is_edited else set()
    due = [
        (name.lower(), value)
        for name, value in sent.headers
        if name.lower() not in never and not name.lower().startswith(NEVER_SENT_PREFIXES)
    ]
    credential, shown = expected.own_credential
    ours = {b"host", b"content-length", b"transfer-encoding", b"accept-encoding", credential}
    passed = [(name.lower(), value) for name, value in got.headers if name.lower() not in ours]
    return [
        *_unlike("method upstream", sent.method, got.method),
        *_unlike("target upstream", expected.target, got.target),
        *_unlike("body upstream", expected.body, got.body),
        *_unlike_headers("upstream", due, passed),
        *_unlike("host upstream", [host], values(got.headers, b"host")),
        *_unlike("codings asked for", [b"identity"], values(got.headers, b"accept-encoding")),
        *_unlike("our credential", [shown], values(got.headers, credential)),
        *(["a secret of the client went upstream"] if SECRET in got.head else []),
    ]


def faults_of_answer(direct: Answer, got: Answer, expected: Expected) -> list[str]:
    """What is wrong with the answer that a client had through the gateway."""
    if direct.status != got.status:
        return [f"status {direct.status} became {got.status}: {got.body[:120]!r}"]
    content_type = b",".join(values(direct.headers, b"content-type")).lower()
    is_stream = content_type.startswith(b"text/event-stream")
    never = NEVER_ANSWERED | tokens(direct.headers, b"connection")
    never |= set(OF_STREAMS) if is_stream else set()
    due = [(name.lower(), value) for name, value in direct.headers if name.lower() not in never]
    ours = {b"connection", b"transfer-encoding", b"content-length", b"x-request-id",
            b"x-routed-via"} | (set(OF_STREAMS) if is_stream else set())  # fmt: skip
    passed = [(name.lower(), value) for name, value in got.headers if name.lower() not in ours]
    faults = [
        *_unlike("body", direct.body, got.body),
        *_unlike_headers("in the answer", due, passed),
        *_faults_of_signature(got, expected.routed_via),
        *_faults_of_length(direct, got, is_stream=is_stream),
    ]
    if is_stream:
        for name, value in OF_STREAMS.items():
            faults += _unlike(f"{name.decode()} of a stream", [value], values(got.headers, name))
    return faults


def _faults_of_signature(got: Answer, routed_via: bytes) -> list[str]:
    """Every answer says who gave it and which request it belongs to, once each."""
    ids, via = values(got.headers, b"x-request-id"), values(got.headers, b"x-routed-via")
    if b"/" not in routed_via:  # no model was named: how its place is filled is not promised
        via = [value.partition(b"/")[0] for value in via]
    faults = _unlike("X-Routed-Via", [routed_via], via)
    if len(ids) != 1 or not ULID.fullmatch(ids[0]):
        faults.append(f"X-Request-ID is no single ULID: {ids}")
    return faults


def _faults_of_length(direct: Answer, got: Answer, *, is_stream: bool) -> list[str]:
    """A length that the backend gave stays, except on a stream, whose end may become ours."""
    lengths = values(got.headers, b"content-length")
    if is_stream or direct.status in (204, 304):
        return []
    before = values(direct.headers, b"content-length")
    return _unlike("content-length", before, lengths) if before else []


def _unlike(what: str, due: object, got: object) -> list[str]:
    if due == got:
        return []
    if isinstance(due, bytes) and isinstance(got, bytes):
        return [f"{what}: {_first_difference(due, got)}"]
    return [f"{what}: {due!r} became {got!r}"]


def _unlike_headers(where: str, due: Headers, got: Headers) -> list[str]:
    if due == got:
        return []
    missing, added = _without(due, got), _without(got, due)
    if not missing and not added:
        return [f"headers {where}: another order"]
    return [f"headers {where}: missing {_brief(missing)}, added {_brief(added)}"]


def _without(headers: Headers, others: Headers) -> Headers:
    left = others[:]
    rest = []
    for header in headers:
        if header in left:
            left.remove(header)
        else:
            rest.append(header)
    return rest


def _brief(headers: Headers) -> Sequence[tuple[bytes, bytes]]:
    return [(name, value[:60]) for name, value in headers[:6]]


def _first_difference(due: bytes, got: bytes) -> str:
    size = min(len(due), len(got))
    at = next((at for at in range(size) if due[at] != got[at]), size)
    around = slice(max(0, at - 20), at + 40)
    return f"{len(due)} bytes became {len(got)}; at {at}: {due[around]!r} became {got[around]!r}"
