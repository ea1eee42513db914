"""R41: nobody gets more rights than the configuration gives to the key that is shown.

Keys are not made at run time, so no route takes rights as its input. What is left of the table of
role x route x field: every route asks for its rule, and no field or header of a request changes
what a key may do, where its request goes and whose it is.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.routes import Endpoints, Route, url_table
from gateway.settings.types import BackendKey, ClientKey, Secret
from tests.gateway.cases.samples import CHAT, MESSAGES, SAMPLES, Sample
from tests.gateway.cases.scripted import speaking
from tests.gateway.cases.stage import Caller as Connection
from tests.gateway.cases.stage import Stage, call, error_code, request, stage


async def _nothing(*_: object) -> None:
    raise AssertionError("nobody calls it here")


TABLE = url_table(Endpoints(*[_nothing] * 8))
HASH = hashlib.sha256(b"client-key").hexdigest()
KEYS = (
    ClientKey("whole", sha256=HASH, user="ann"),
    ClientKey("narrow", secret=Secret("env:N", "narrow-key"), user="bob", models=("other-*",)),
    ClientKey("off", secret=Secret("env:O", "off-key"), disabled=True),
)
SHOWN = {
    "nobody": None, "unknown": "no-key-of-ours", "hash": HASH, "id": f"k:{HASH[:12]}",
    "off": "off-key", "client": "client-key", "narrow": "narrow-key", "metrics": "metrics-token",
    "admin": "admin-token", "backend": "backend-key",
}  # fmt: skip
MAY = {
    "open": set(SHOWN),
    "client": {"client", "narrow"},
    "metrics": {"metrics", "admin"},
    "dashboard": {"admin"},
    "admin": {"admin"},
}
# What gateways took for rights, or for somebody else's name.
CLAIMS: dict[str, Any] = {
    "user_id": "ann", "client_id": f"k:{HASH[:12]}", "key": "client-key", "api_key": "client-key",
    "token": "admin-token", "role": "admin", "user_role": "proxy_admin", "is_admin": True,
    "permissions": ["*"], "models": ["*"], "allowed_models": ["*"], "budget": {"usd": 1e9},
    "max_budget": 1e9, "team_id": "t", "organization_id": "o", "owner": "ann", "billed": False,
    "metadata": {"user_api_key_user_id": "ann", "user_api_key": "client-key", "role": "admin"},
    "user_api_key_dict": {"user_role": "proxy_admin"}, "backend": "b", "api_base": "http://x",
}  # fmt: skip
CLAIMED_BY_HEADER = {
    "x-user-id": "ann", "x-client-id": f"k:{HASH[:12]}", "x-role": "admin", "x-admin": "1",
    "x-tandem-user": "ann", "x-tandem-client": f"k:{HASH[:12]}", "x-tandem-models": "*",
    "x-litellm-api-key": "client-key", "x-original-url": "/livez", "x-rewrite-url": "/livez",
    "x-http-method-override": "GET", "x-forwarded-user": "ann", "remote-user": "ann",
    "cookie": "key=client-key; role=admin",
}  # fmt: skip


def rights(tmp_path: Path, sample: Sample) -> Any:
    """A gateway with keys and tokens in front of a backend of this sample."""
    tokens = {
        "admin_token": Secret("env:A", "admin-token"),
        "metrics_token": Secret("env:M", "metrics-token"),
    }
    return stage(
        tmp_path, sample, speaking(sample),
        keys=(BackendKey("main", Secret("env:B", "backend-key")),),
        sections={"keys": KEYS, "server": tokens},
    )  # fmt: skip


def shown(role: str) -> list[tuple[str, str]]:
    """The role's key, where every rule looks."""
    key = SHOWN[role]
    return [] if key is None else [("authorization", f"Bearer {key}")]


async def status_of(on: Stage, route: Route, headers: list[tuple[str, str]]) -> int:
    caller = await Connection.connect(on.port)
    target = route.path.replace("*", "m:generateContent" if route.surface == "gemini" else "m")
    try:
        await caller.send(request(target, b"{}" if route.method == "POST" else b"", headers,
                                  method=route.method))  # fmt: skip
        return (await caller.head()).status
    finally:
        caller.close()


@pytest.mark.parametrize("role", SHOWN)
async def test_every_route_asks_for_its_rule(tmp_path: Path, role: str) -> None:
    """R41: role x route. A stored hash and an id from the ledger open nothing."""
    async with rights(tmp_path, CHAT) as on:
        for route in TABLE:
            status = await status_of(on, route, shown(role))
            may = role in MAY[route.rule]
            assert (status not in (401, 403)) == may or (role, status) == ("narrow", 403), route


@pytest.mark.parametrize("role", [role for role in SHOWN if role not in MAY["client"]])
async def test_no_field_lets_a_stranger_in(tmp_path: Path, role: str) -> None:
    """R41: every model call x every field, all at once and with every header."""
    headers = [*shown(role), *CLAIMED_BY_HEADER.items()]
    async with rights(tmp_path, CHAT) as on:
        body = json.dumps(CHAT.request | CLAIMS).encode()
        for route in TABLE:
            if route.rule == "client" and route.method == "POST":
                target = route.path.replace("*", "m:generateContent")
                answer = await call(on.port, target, body, headers)
                assert answer.status == 401, route
        assert not on.up.asked and not on.gateway.books.rows


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("sample", [CHAT, MESSAGES], ids=str)
async def test_no_field_widens_a_key(tmp_path: Path, sample: Sample, name: str) -> None:
    """R41: a key for other models stays one, whatever the body says."""
    body = json.dumps(sample.request | {name: CLAIMS[name]}).encode()
    async with rights(tmp_path, sample) as on:
        answer = await call(on.port, sample.path, body, shown("narrow"))
        assert answer.status == 403 and error_code(sample.surface, answer.body) != "None"
        row = await on.row()
        assert not on.up.asked
    assert (row.user_id, row.outcome) == ("bob", "refused")


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
async def test_a_request_is_booked_to_the_key_that_was_shown(
    tmp_path: Path, sample: Sample
) -> None:
    """R41: every claim by field and by header; the row and the backend's key are what they are."""
    claims = {name: value for name, value in CLAIMS.items() if name not in sample.request}
    body = json.dumps(sample.request | claims).encode()
    async with rights(tmp_path, sample) as on:
        await call(on.port, sample.path, body, [*shown("client"), *CLAIMED_BY_HEADER.items()])
        row, asked = await on.row(), on.up.asked[0]
    assert (row.client_id, row.user_id, row.backend) == (f"k:{HASH[:12]}", "ann", "b")
    assert row.model == "m"
    credentials = [value for name, value in asked.headers
                   if name in ("authorization", "x-api-key", "x-goog-api-key")]  # fmt: skip
    assert [value.removeprefix("Bearer ") for value in credentials] == ["backend-key"]
