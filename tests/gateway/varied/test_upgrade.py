"""A request that offers another protocol is a request like any other: its body is its body."""

from pathlib import Path

from tests.gateway.harness import running_gateway
from tests.gateway.varied.client import Client, Request
from tests.gateway.varied.headers import CLIENT_KEY
from tests.gateway.varied.ways import settings

INNER = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_body_behind_an_offered_upgrade_is_no_second_request(tmp_path: Path) -> None:
    """The body comes apart from its head and reads like a request; the next request is answered."""
    headers = [
        (b"Host", b"x"),
        (b"x-api-key", CLIENT_KEY),
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"h2c"),
        (b"Content-Length", b"%d" % len(INNER)),
    ]
    apart = (b"",) * 10  # each gives the gateway a turn to read the head
    posted = Request(b"POST", b"/v1/chat/completions", headers, (*apart, INNER))
    async with running_gateway(tmp_path, **settings("http://127.0.0.1:1")) as gateway:
        with Client(gateway.port) as client:
            refused = await client.send(posted)
            root = await client.send(Request(b"GET", b"/", [(b"Host", b"x")]))
    assert refused.status == 400 and b"JSON" in refused.body
    assert b"Tandem" in root.body


async def test_an_old_client_that_offers_an_upgrade_is_answered_as_an_old_client(
    tmp_path: Path,
) -> None:
    """HTTP/1.0 with an Upgrade: the answer has no chunks, and its end is the connection's."""
    headers = [(b"Connection", b"Upgrade"), (b"Upgrade", b"h2c")]
    asked = Request(b"GET", b"/livez", headers, version=b"HTTP/1.0")
    async with running_gateway(tmp_path, **settings("http://127.0.0.1:1")) as gateway:
        with Client(gateway.port) as client:
            answer = await client.send(asked)
    assert answer.status == 200 and answer.is_last
