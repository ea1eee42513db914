"""The gateway's own pages: HEAD says what GET would, and no byte of its body."""

from pathlib import Path

import pytest

from tests.gateway.harness import running_gateway
from tests.gateway.varied.client import Answer, Client, Headers, Request, values
from tests.gateway.varied.headers import CLIENT_KEY
from tests.gateway.varied.ways import settings

NOWHERE = "http://127.0.0.1:1"
PAGES = (
    b"/", b"/livez", b"/health", b"/readyz", b"/v1/models", b"/v1/models?limit=1", b"/v1/models/m",
    b"/v1/models/org%2Fm-7b:free", b"/v1/models/nobodys", b"/v1beta/models", b"/v1/dashboard/usage",
    b"/v1/cache", b"/nowhere",
)  # fmt: skip


@pytest.mark.parametrize(
    "key", [CLIENT_KEY, b"", b"wrong"], ids=["right key", "no key", "wrong key"]
)
async def test_head_is_get_without_its_body(tmp_path: Path, key: bytes) -> None:
    """Every page, with every answer it has: found, not found, not allowed, not you."""
    shown = [(b"Authorization", b"Bearer " + key)] if key else []
    async with running_gateway(tmp_path, **settings(NOWHERE)) as gateway:
        with Client(gateway.port) as client:
            for page in PAGES:
                got, headed = [
                    await client.send(Request(method, page, [(b"Host", b"x"), *shown]))
                    for method in (b"GET", b"HEAD")
                ]
                assert headed.status == got.status, page
                assert without_id(headed) == without_id(got), page
                assert values(headed.headers, b"content-length") == [b"%d" % len(got.body)], page
                assert got.body and not headed.body, page


def without_id(answer: Answer) -> Headers:
    """The headers but the one that differs with every request."""
    return [header for header in answer.headers if header[0].lower() != b"x-request-id"]
