"""What the gateway answers about itself, and who may ask."""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.middleware.auth import not_found
from gateway.observe.logs import Logs, log_access
from gateway.settings.types import ClientKey, RouteSettings, RouteTarget, Secret
from tests.fakes.backend import FakeBackend, Reply, Seen, sse
from tests.gateway.harness import backend, running_gateway

MODELS = b'{"object":"list","data":[{"id":"big","max_model_len":4096},{"id":"small"}]}'
ROUTES = {"quick": RouteSettings((RouteTarget("b", "small"),))}


def models_or(reply: Reply) -> Any:
    return lambda seen: Reply(pieces=[MODELS]) if seen.target.endswith("/models") else reply


async def test_models_are_merged_in_the_callers_form(tmp_path: Path) -> None:
    async with (
        FakeBackend(models_or(Reply())) as up,
        running_gateway(
            tmp_path,
            backends={"b": backend(up.url, models="auto"), "c": backend("http://127.0.0.1:1")},
            routes=ROUTES,
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        openai = (await client.get("/v1/models")).json()
        claude = (await client.get("/v1/models", headers={"anthropic-version": "x"})).json()
        google = (await client.get("/v1beta/models")).json()
        one = (await client.get("/v1/models/big")).json()
        none = await client.get("/v1/models/huge")
    assert {item["id"]: item["owned_by"] for item in openai["data"]} == {
        "quick": "b", "big": "b", "small": "b", "m": "c",
    }  # fmt: skip
    assert openai["data"][1]["max_model_len"] == one["max_model_len"] == 4096
    assert [item["id"] for item in claude["data"]] == ["quick", "big", "small", "m"]
    assert claude["has_more"] is False and claude["last_id"] == "m"
    assert google["models"][1] == {
        "name": "models/big", "displayName": "big", "inputTokenLimit": 4096,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }  # fmt: skip
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_model_that_was_loaded_just_now_is_found(tmp_path: Path) -> None:
    models = [b'{"data":[]}']

    def script(seen: Seen) -> Reply:
        return Reply(pieces=[models[0]]) if seen.target.endswith("/models") else Reply(
            pieces=[b'{"choices":[]}']
        )  # fmt: skip

    async with (
        FakeBackend(script) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, models="auto")}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        body = {"model": "fresh", "messages": []}
        before = await client.post("/v1/chat/completions", json=body)
        models[0] = b'{"data":[{"id":"fresh"}]}'
        gateway.gateway.pipeline.routing.catalog._read_s = None
        after = await client.post("/v1/chat/completions", json=body)
    assert (before.status_code, after.status_code) == (404, 200)


async def test_models_are_asked_for_the_way_that_calls_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy in the environment, which calls do not use, does not hide a backend's models."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with (
        FakeBackend(models_or(Reply())) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url, models="auto")}) as gateway,
        httpx.AsyncClient(base_url=gateway.base, trust_env=False) as client,
    ):
        listed = (await client.get("/v1/models")).json()
    assert [item["id"] for item in listed["data"]] == ["big", "small"]


async def test_health_and_readiness(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, backends={"b": backend("http://127.0.0.1:1")}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.get("/health")).status_code == 200
        root = await client.head("/")
        assert (root.status_code, root.content) == (200, b"")
        for _ in range(5):
            gateway.gateway.pipeline.routing.backends["b"].health.note_fault(is_connect=True)
        assert (await client.get("/readyz")).json() == {"reason": "all_upstreams_unhealthy"}
        gateway.gateway.pipeline.is_draining = True
        assert (await client.get("/readyz")).json() == {"reason": "draining"}
        assert (await client.get("/health")).status_code == 503
        assert (await client.get("/livez")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/tags", 404), ("POST", "/v1/nothing", 404), ("GET", "/v1beta/x", 404),
        ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405),
        ("POST", "/v1beta/models/m:invent", 404), ("POST", "/v1beta/models/m", 404),
        ("GET", "/v1/chat/completions/", 404),
    ],
)  # fmt: skip
async def test_what_does_not_exist_is_said_in_the_callers_form(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async with (
        running_gateway(tmp_path, backends={"b": backend("http://127.0.0.1:1")}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answer = await client.request(method, path, json={})
    assert answer.status_code == status
    assert "x-request-id" in answer.headers
    error = answer.json()["error"]
    assert error["message"] and ("status" in error) is path.startswith("/v1beta")


KEYS = (
    ClientKey("one", sha256=hashlib.sha256(b"k1").hexdigest(), models=("m",)),
    ClientKey("two", secret=Secret("env:K", "k2"), models=("other",)),
)


async def test_keys_open_what_they_name_and_nothing_else(tmp_path: Path) -> None:
    body = {"model": "m", "messages": []}
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b'{"choices":[]}'])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}, keys=KEYS) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        answers = [
            await client.post("/v1/chat/completions", json=body, headers=headers)
            for headers in ({}, {"x-api-key": "no"}, {"x-api-key": "k2"}, {"x-api-key": "k1"})
        ]
        listed = (await client.get("/v1/models", headers={"x-api-key": "k1"})).json()["data"]
        hidden = (await client.get("/v1/models", headers={"x-api-key": "k2"})).json()["data"]
        row = await gateway.row(1)
    assert [answer.status_code for answer in answers] == [401, 401, 403, 200]
    assert answers[2].json()["error"]["code"] == "model_not_allowed"
    assert [item["id"] for item in listed] == ["m"] and hidden == []
    assert len(up.seen) == 1
    assert row.client_id.startswith("k:") and row.user_id == "one"


async def test_every_path_has_a_rule_and_none_is_open_that_costs(tmp_path: Path) -> None:
    from gateway.app import Gateway
    from gateway.ledger.command import OpenLedger
    from gateway.settings.types import ServerSettings, Settings
    from tests.fakes.books import MemoryBooks

    settings = Settings(
        server=ServerSettings(state_dir=tmp_path), backends={"b": backend("http://127.0.0.1:1")}
    )
    gateway = Gateway(settings, OpenLedger(MemoryBooks()))
    rules = {route.path: route.rule for route in gateway.table}
    assert {path for path, rule in rules.items() if rule == "open"} == {
        "/", "/livez", "/health", "/readyz",
    }  # fmt: skip
    assert {path for path, rule in rules.items() if rule == "dashboard"} == {"/v1/dashboard/usage"}
    assert {path for path, rule in rules.items() if rule == "admin"} == {"/v1/cache"}
    assert not_found("/x").status == 404


SURFACES: list[tuple[str, dict[str, Any], bytes, tuple[int, int]]] = [
    ("/v1/responses", {"model": "m", "input": "hi"},
     b'{"object":"response","status":"completed","model":"m","output":[],'
     b'"usage":{"input_tokens":3,"output_tokens":2}}', (3, 2)),
    ("/v1/completions", {"model": "m", "prompt": "hi"},
     b'{"choices":[{"text":"x","finish_reason":"stop"}],'
     b'"usage":{"prompt_tokens":3,"completion_tokens":2}}', (3, 2)),
    ("/v1/embeddings", {"model": "m", "input": "hi"},
     b'{"data":[],"usage":{"prompt_tokens":3,"total_tokens":3}}', (3, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "answer", "tokens"), SURFACES)
async def test_every_openai_surface_is_relayed_and_booked(
    tmp_path: Path, path: str, body: dict[str, Any], answer: bytes, tokens: tuple[int, int]
) -> None:
    async with (
        FakeBackend(lambda seen: Reply(pieces=[answer])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        got = await client.post(path, json=body)
        row = await gateway.row()
    assert got.content == answer
    assert up.seen[0].target == path
    assert (row.prompt_tokens, row.completion_tokens) == tokens
    assert (row.outcome, row.surface) == ("succeeded", path.rpartition("/")[2])
    assert row.kind == ("embedding" if "embeddings" in path else "generation")


async def test_messages_are_relayed_with_the_backends_own_key(tmp_path: Path) -> None:
    from gateway.settings.types import BackendKey

    stream = (
        b'event: message_start\ndata: {"type":"message_start","message":{"model":"m",'
        b'"usage":{"input_tokens":3,"cache_read_input_tokens":2,"output_tokens":1}}}\n\n',
        b'event: ping\ndata: {"type":"ping"}\n\n',
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"hi"}}\n\n',
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
        b'"usage":{"output_tokens":4}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    )
    settings = backend(
        "", kind="anthropic", keys=(BackendKey("k", Secret("env:K", "our-key")),), prefix="claude"
    )
    from dataclasses import replace

    async with (
        FakeBackend(lambda seen: sse(*stream)) as up,
        running_gateway(tmp_path, backends={"a": replace(settings, base_url=up.url)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        got = await client.post(
            "/v1/messages?beta=true",
            json={"model": "claude-x", "messages": [], "stream": True, "max_tokens": 9},
            headers={"x-api-key": "client-key", "anthropic-version": "2026-10-21"},
        )
        row = await gateway.row()
    assert got.content == b"".join(stream)
    seen = up.seen[0]
    assert (seen.target, seen.headers["x-api-key"]) == ("/v1/messages?beta=true", "our-key")
    assert seen.headers["anthropic-version"] == "2026-10-21"
    assert (row.prompt_tokens, row.cached_tokens, row.completion_tokens) == (5, 2, 4)
    assert (row.max_tokens, row.upstream_key, row.finish_reason) == (9, "k", "end_turn")


async def test_gemini_is_relayed_and_an_alias_changes_only_the_path(tmp_path: Path) -> None:
    answer = (
        b'data: {"candidates":[{"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}],'
        b'"usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":2}}\r\n\r\n'
    )
    routes = {"swift": RouteSettings((RouteTarget("g", "gem/2:x"),))}
    async with FakeBackend(lambda seen: sse(answer)) as up:
        from gateway.settings.types import BackendSettings

        settings = BackendSettings(kind="gemini", base_url=up.url, models=("gem",))
        async with (
            running_gateway(tmp_path, backends={"g": settings}, routes=routes) as gateway,
            httpx.AsyncClient(base_url=gateway.base) as client,
        ):
            url = "/v1beta/models/swift:streamGenerateContent?alt=sse&key=client"
            got = await client.post(url, content=b'{ "contents": [] }')
            row = await gateway.row()
            unknown = await client.post("/v1beta/models/none:generateContent", json={})
    assert got.content == answer
    assert up.seen[0].target == "/v1beta/models/gem%2F2%3Ax:streamGenerateContent?alt=sse"
    assert up.seen[0].body == b'{ "contents": [] }'
    assert (row.prompt_tokens, row.completion_tokens, row.stream) == (3, 2, 1)
    assert unknown.json()["error"]["status"] == "NOT_FOUND"


async def test_a_body_over_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with (
        running_gateway(
            tmp_path, backends={"b": backend("http://127.0.0.1:1")}, server={"max_body_mb": 1}
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        big = await client.post("/v1/chat/completions", content=b"x" * (1024**2 + 1))
        row = await gateway.row()

        async def pieces() -> Any:
            for _ in range(17):
                yield b"x" * 65_536

        chunked = await client.post("/v1/messages", content=pieces())
    assert (big.status_code, big.json()["error"]["code"]) == (413, "request_too_large")
    assert chunked.json()["error"]["type"] == "request_too_large"
    assert (row.outcome, row.error_type) == ("refused", "request_too_large")


async def test_a_fault_of_ours_is_a_500_and_the_next_request_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FakeBackend(lambda seen: Reply(pieces=[b'{"choices":[]}'])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        body = {"model": "m", "messages": []}
        with monkeypatch.context() as patch:
            patch.setattr(gateway.gateway.pipeline._relay, "forward", None)
            broken = await client.post("/v1/chat/completions", json=body)
        row = await gateway.row()
        works = await client.post("/v1/chat/completions", json=body)
    assert (broken.status_code, broken.json()["error"]["code"]) == (500, "internal_error")
    assert (row.outcome, row.error_type) == ("failed", "internal_error")
    assert works.status_code == 200


async def test_a_configuration_that_was_read_again_serves_the_next_request(tmp_path: Path) -> None:
    from dataclasses import replace

    async with (
        FakeBackend(lambda seen: Reply(pieces=[b'{"choices":[]}'])) as up,
        running_gateway(tmp_path, backends={"b": backend(up.url)}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        body = {"model": "n", "messages": []}
        before = await client.post("/v1/chat/completions", json=body)
        gateway.gateway.apply(
            replace(
                gateway.gateway.settings,
                backends={"b": backend(up.url, models=("n",))},
                rev="second",
            )
        )
        after = await client.post("/v1/chat/completions", json=body)
        row = await gateway.row(1)
    assert (before.status_code, after.status_code) == (404, 200)
    assert row.config_rev == "second"


async def test_metrics_say_how_many_log_lines_nobody_took(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, backends={"b": backend("http://127.0.0.1:1")}) as gateway,
        httpx.AsyncClient(base_url=gateway.base) as client,
    ):
        before = (await client.get("/metrics")).text
        gateway.gateway.logs = Logs(log_access, lambda: 7)
        after = (await client.get("/metrics")).text
    assert "tandem_log_lines_dropped_total 0.0" in before
    assert "tandem_log_lines_dropped_total 7.0" in after
