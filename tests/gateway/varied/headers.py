"""Headers as clients and backends really send them, and as they legally could. Knows no rule."""

from random import Random

from tests.gateway.varied.client import Headers

CLIENT_KEY = b"s3cret-client-key"
CREDENTIALS = ("bearer", "bearer in lower case", "x-api-key", "api-key", "x-goog-api-key",
    "query", "query in percent form", "basic beside x-api-key", "everywhere")  # fmt: skip

_TOKEN_CHARS = b"x-!#$%&'*+.^_`|~0A"
_SENT: dict[str, Headers] = {
    "versions": [
        (b"anthropic-version", b"2026-10-21"),
        (b"anthropic-beta", b"claude-code-20250219, interleaved-thinking-2025-05-14"),
        (b"Anthropic-Beta", b"never-heard-of-2099-01-01"),
        (b"OpenAI-Beta", b"assistants=v2"),
    ],
    "sessions": [
        (b"session_id", b"0199-abc"),
        (b"X-Claude-Code-Session-Id", b"5e55"),
        (b"x-session-affinity", b"ses_1"),
        (b"conversation_id", b"c"),
        (b"x-client-request-id", b"r"),
    ],
    "stainless": [
        (b"X-Stainless-Lang", b"python"),
        (b"x-stainless-retry-count", b"0"),
        (b"x-stainless-timeout", b"NOT_GIVEN"),
        (b"x-stainless-read-timeout", b"600.5"),
        (b"x-stainless-raw-response", b"stream"),
    ],
    "proxies": [
        (b"Forwarded", b"for=192.0.2.60;proto=http"),
        (b"X-Forwarded-For", b"192.0.2.1"),
        (b"x-forwarded-for", b"192.0.2.2"),
        (b"X-Forwarded-Proto", b"https"),
        (b"X-Forwarded-Anything", b"s3cret"),
        (b"X-Real-IP", b"192.0.2.3"),
        (b"Via", b"1.1 nginx"),
    ],
    "ours": [(b"X-Tandem-Anything", b"s3cret"), (b"x-freellm-anything", b"s3cret")],
    "cookies": [
        (b"Cookie", b"session=s3cret"),
        (b"cookie", b"other=s3cret"),
        (b"Proxy-Authorization", b"Basic s3cret"),
        (b"OpenAI-Organization", b"org-s3cret"),
        (b"OpenAI-Project", b"proj_s3cret"),
    ],
    "named by connection": [
        (b"Connection", b"keep-alive, X-Foo"),
        (b"X-Foo", b"s3cret"),
        (b"Keep-Alive", b"timeout=5"),
        (b"X-Food", b"stays"),
    ],
    "named by two connections": [
        (b"connection", b" x-bar ,, Authorization"),
        (b"X-Bar", b"s3cret"),
        (b"Connection", b"X-BAZ"),
        (b"x-baz", b"s3cret"),
        (b"Proxy-Connection", b"keep-alive"),
    ],
    "te": [(b"TE", b"trailers, deflate;q=0.5"), (b"Connection", b"TE")],
    "upgrade": [
        (b"Connection", b"Upgrade, HTTP2-Settings"),
        (b"Upgrade", b"h2c"),
        (b"HTTP2-Settings", b"AAMAAABkAAQCAAAAAAIAAAAA"),
    ],
    "repeated": [
        (b"X-Rep", b"1"),
        (b"Accept", b"text/event-stream"),
        (b"X-Rep", b"2"),
        (b"x-rep", b"1"),
        (b"ACCEPT", b"*/*;q=0.1"),
    ],
    "many": [(b"X-Many-%d" % number, b"v" * (number % 7)) for number in range(80)],
    "long": [(b"x-long", b"0123456789abcdef" * 1024)],
    "bytes": [
        (b"X-Name", b"J\xc3\xbcrgen \xe9\xff"),
        (b"X-Tabs", b"a\tb   c"),
        (b"X-Empty", b""),
        (b"X-Percent", b"%0d%0ax-evil: 1"),
        (b"X-Quoted", b'"a, b"; c=\\"'),
    ],
    "names": [(_TOKEN_CHARS, b"1"), (b"X", b"1"), (b"x_y", b"1"), (b"x-y", b"2"), (b"0", b"0")],
    "browser": [
        (b"Origin", b"https://chat.invalid"),
        (b"Referer", b"https://chat.invalid/c/1?q=2"),
        (b"Accept-Language", b"de-AT, en;q=0.5"),
        (b"Sec-Fetch-Mode", b"cors"),
        (b"DNT", b"1"),
        (b"Priority", b"u=1, i"),
        (b"Cache-Control", b"no-cache"),
        (b"Pragma", b"no-cache"),
    ],
    "traces": [
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        (b"tracestate", b"a=1,b=2"),
        (b"baggage", b"k=v"),
        (b"Idempotency-Key", b'"8e03978e-40d5-43dd-bc93-6894a57f9324"'),
    ],
    "codings": [(b"Accept-Encoding", b"gzip, br"), (b"accept-encoding", b"zstd;q=0.5, *;q=0")],
    "entity": [
        (b"Content-Language", b"ja"),
        (b"Digest", b"sha-256=4REjxQ4yrqUVicfSKYNO/cF9zNj5ANbzgDZt3/h3Qxo="),
        (b"If-None-Match", b'W/"x"'),
        (b"Range", b"bytes=0-99"),
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
        (b"Max-Forwards", b"3"),
    ],
}
_ANSWERED: dict[str, Headers] = {
    "none": [],
    "ids": [
        (b"X-Request-ID", b"the-backends-own"),
        (b"x-request-id", b"twice"),
        (b"request-id", b"req_01"),
        (b"X-Routed-Via", b"somebody/else"),
        (b"openai-processing-ms", b"12"),
    ],
    "cookies": [(b"Set-Cookie", b"a=1; Path=/"), (b"set-cookie", b"b=2"), (b"X-Cookie", b"stays")],
    "named by connection": [
        (b"Connection", b"keep-alive, X-Foo"),
        (b"X-Foo", b"s3cret"),
        (b"Keep-Alive", b"timeout=5, max=100"),
        (b"Proxy-Authenticate", b"Basic"),
        (b"Upgrade", b"h2,h2c"),
        (b"X-Food", b"stays"),
    ],
    "limits": [
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"X-RateLimit-Reset-Tokens", b"6m0s"),
        (b"anthropic-ratelimit-unified-status", b"allowed"),
        (b"Retry-After", b"0"),
    ],
    "buffers": [
        (b"Cache-Control", b"private, max-age=60"),
        (b"cache-control", b"no-transform"),
        (b"X-Accel-Buffering", b"yes"),
    ],
    "repeated": [(b"X-Rep", b"2"), (b"x-rep", b"1"), (b"Vary", b"Origin"), (b"vary", b"Accept")],
    "bytes": [
        (b"X-Name", b"J\xc3\xbcrgen \xe9\xff"),
        (b"X-Tabs", b"a\tb   c"),
        (b"X-Empty", b""),
        (b"X-Percent", b"%0d%0aset-cookie: x=1"),
    ],
    "names": [(_TOKEN_CHARS, b"1"), (b"x_y", b"1"), (b"sErVeR", b"uvicorn")],
    "web": [
        (b"Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
        (b"Server", b"nginx"),
        (b"ETag", b'"x"'),
        (b"Strict-Transport-Security", b"max-age=1"),
        (b"Access-Control-Allow-Origin", b"*"),
        (b"Alt-Svc", b'h3=":443"'),
        (b"CF-RAY", b"9-VIE"),
        (b"Location", b"/v1/elsewhere"),
        (b"Warning", b'199 - "x"'),
        (b"Server-Timing", b"a;dur=1"),
    ],
    "many": [(b"X-Many-%d" % number, b"v" * (number % 7)) for number in range(80)],
    "long": [(b"x-long", b"0123456789abcdef" * 1024)],
}
SENT = tuple(_SENT)
ANSWERED = tuple(_ANSWERED)


def sent(kind: str, rng: Random) -> Headers:
    """Request headers of a kind, some with their names in an odd case."""
    return [(_any_case(name, rng), value) for name, value in _SENT[kind]]


def answered(kind: str, rng: Random) -> Headers:
    """Answer headers of a kind, some with their names in an odd case."""
    return [(_any_case(name, rng), value) for name, value in _ANSWERED[kind]]


def credentials(kind: str) -> Headers:
    """Headers that show the client's key, with junk beside it."""
    key = CLIENT_KEY
    shown: dict[str, Headers] = {
        "bearer": [(b"Authorization", b"Bearer " + key), (b"x-api-key", b"s3cret-too")],
        "bearer in lower case": [(b"authorization", b"bearer  " + key)],
        "x-api-key": [(b"X-Api-Key", key), (b"X-Goog-Api-Key", b"s3cret-too")],
        "api-key": [(b"api-key", key), (b"Cookie", b"s3cret")],
        "x-goog-api-key": [(b"x-goog-api-key", key), (b"OpenAI-Organization", b"s3cret")],
        "basic beside x-api-key": [(b"Authorization", b"Basic s3cret"), (b"x-api-key", key)],
        "everywhere": [
            (b"Authorization", b"Bearer " + key),
            (b"x-api-key", key),
            (b"API-KEY", key),
            (b"X-GOOG-API-KEY", key),
            (b"Proxy-Authorization", b"Bearer " + key),
            (b"Cookie", b"key=" + key),
        ],
    }
    return shown.get(kind, [])


def credentials_in_query(kind: str) -> list[bytes]:
    """Pieces of a query that show the client's key, or what looks like one."""
    key = CLIENT_KEY
    shown = {
        "query": [b"key=" + key],
        "query in percent form": [b"key=" + key.replace(b"-", b"%2D"), b"access%5Ftoken=s3cret"],
        "bearer": [b"%6Bey=s3cret", b"api_key=s3cret&access_token"],
        "everywhere": [b"key=" + key, b"api_key=" + key, b"access_token=", b"api%5Fkey=s3cret"],
    }
    return shown.get(kind, [])


def _any_case(name: bytes, rng: Random) -> bytes:
    return rng.choice((name, name, name.lower(), name.upper(), name.swapcase(), name.title()))
