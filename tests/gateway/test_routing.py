"""From names to targets, from headers to identities, from errors to the caller's own form."""

import hashlib
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from conductor.client import detect
from gateway.backends.base import Backend, Health
from gateway.backends.catalog import ModelCard, read_cards
from gateway.errors import ApiError, error_body, stream_error_end
from gateway.exchange import Exchange, header_text
from gateway.middleware.auth import Auth
from gateway.middleware.request_id import RequestIds
from gateway.relay.usage import Reading, reader_of
from gateway.routing.table import RoutingTable, Target, shadowed_models, spoken_by
from gateway.settings.types import (
    BackendSettings,
    ClientKey,
    RouteSettings,
    RouteTarget,
    Secret,
    ServerSettings,
    Settings,
    Surface,
    WorkerHostSettings,
)


def openai(**more: Any) -> BackendSettings:
    return BackendSettings(**{"kind": "openai", "base_url": "http://x/v1", **more})


SETTINGS = Settings(
    worker=WorkerHostSettings(),
    backends={
        "one": openai(models=("a", "shared")),
        "two": openai(prefix="two-"),
        "three": openai(prefix="two-big-", models=("c",)),
    },
    routes={"quick": RouteSettings((RouteTarget("one", "fast"),), ("mini",))},
)
LISTED = {"one": ["a", "shared"], "two": ["b", "shared", "a/b"], "three": ["c"]}
TABLE = RoutingTable(SETTINGS, lambda name: LISTED[name])


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("TandemLLM", Target(None, "TandemLLM")),
        ("quick", Target("one", "fast")),
        ("mini", Target("one", "fast")),
        ("fast", Target("one", "fast")),
        ("one/a", Target("one", "a")),
        ("two/anything", Target("two", "anything")),
        ("three/c", Target("three", "c")),
        ("three/two-big-x", Target("three", "two-big-x")),
        ("a", Target("one", "a")),
        ("shared", Target("one", "shared")),
        ("two/shared", Target("two", "shared")),
        ("b", Target("two", "b")),
        ("a/b", Target("two", "a/b")),
        ("two-x", Target("two", "two-x")),
        ("two-big-x", Target("three", "two-big-x")),
        ("one/unlisted", None),
        ("three/unlisted", None),
        ("tandemllm", None),
        ("quickk", None),
        ("one/", None),
    ],
)
def test_a_name_leads_to_exactly_one_place(model: str, target: Target | None) -> None:
    assert TABLE.find(model) == target


def test_no_name_leads_to_the_default_alone() -> None:
    """Without one nothing takes it: no route, no prefix, no worker that answers any name."""
    backends = {**SETTINGS.backends, "last": openai(default=True)}
    table = RoutingTable(Settings(backends=backends), lambda name: [""])
    assert table.resolve("", "files") == Target("last", "")
    assert table.resolve("", "batches").routed_via == "last"
    for settings in (SETTINGS, Settings(worker=WorkerHostSettings())):
        with pytest.raises(ApiError) as fault:
            RoutingTable(settings, lambda name: [""]).find("")
        assert (fault.value.status, fault.value.code) == (404, "no_default_backend")


@pytest.mark.parametrize(
    ("backend", "surfaces"),
    [
        (openai(), ("chat", "completions", "responses", "embeddings", "audio", "images",
                    "moderations")),
        (openai(flavor="vllm"), ("chat", "completions", "embeddings")),
        (openai(flavor="openrouter"), ("chat", "completions")),
        (openai(kind="anthropic"), ("messages", "count_tokens")),
        (openai(kind="gemini"), ("gemini",)),
        (openai(flavor="vllm", speaks=("audio",)), ("audio",)),
    ],
)  # fmt: skip
def test_a_backend_speaks_by_its_kind_and_flavor(backend: Any, surfaces: Any) -> None:
    """The table of docs/configuration.md; what is configured goes before it."""
    assert spoken_by(backend) == surfaces


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ApiError) as fault:
        TABLE.resolve("kestral", "chat")
    assert (fault.value.status, fault.value.code) == (404, "model_not_found")
    assert "TandemLLM" in fault.value.message and "quick" in fault.value.message
    with pytest.raises(ApiError) as fault:
        TABLE.resolve("kestral", "responses")
    assert fault.value.status == 400


def test_a_surface_that_is_not_spoken_is_refused_with_those_that_are() -> None:
    with pytest.raises(ApiError) as fault:
        TABLE.resolve("a", "messages")
    assert (fault.value.status, fault.value.code) == (404, "surface_not_served")
    assert "responses" in fault.value.message


def test_a_worker_without_backends_answers_any_name() -> None:
    alone = RoutingTable(Settings(worker=WorkerHostSettings()), lambda name: [])
    assert alone.find("gpt-5") == Target(None, "gpt-5")
    assert RoutingTable(Settings(), lambda name: []).find("gpt-5") is None


def test_shadowed_models_are_told() -> None:
    assert shadowed_models(LISTED) == [("shared", "one", "two")]


@pytest.mark.parametrize(
    ("kind", "base_url", "path", "query", "target"),
    [
        ("openai", "http://x/v1", "/v1/chat/completions", b"", "/v1/chat/completions"),
        ("openai", "http://x", "/v1/chat/completions", b"", "/v1/chat/completions"),
        ("openai", "http://x/api/paas/v4/", "/v1/models", b"", "/api/paas/v4/models"),
        ("openai", "http://x/v1beta/openai", "/v1/models", b"", "/v1beta/openai/models"),
        ("anthropic", "http://x", "/v1/messages", b"beta=true", "/v1/messages?beta=true"),
        ("anthropic", "http://x/anthropic", "/v1/messages", b"", "/anthropic/v1/messages"),
        ("anthropic", "http://x/v1", "/v1/messages", b"", "/v1/messages"),
        ("gemini", "http://x", "/v1beta/models/m:generateContent", b"key=K&alt=sse&q=a%20b+c&e=",
         "/v1beta/models/m:generateContent?alt=sse&q=a%20b+c&e="),
        ("gemini", "http://x", "/v1/x", b"%6bey=K&api_key=K&access_token=K", "/v1/x"),
    ],
)  # fmt: skip
def test_paths_at_the_backend(
    kind: Any, base_url: str, path: str, query: bytes, target: str
) -> None:
    backend = Backend("b", openai(kind=kind, base_url=base_url))
    assert backend.url_path(path, query) == target


def test_health_follows_the_last_outcomes() -> None:
    health = Health()
    for _ in range(3):
        health.note_answer(500)
    assert health.state == "up"
    health.note_answer(429)
    assert health.state == "degraded"
    for _ in range(17):
        health.note_answer(404)
    assert health.state == "up"
    for _ in range(5):
        health.note_fault(is_connect=True)
    assert health.state == "down"
    health.note_answer(200)
    assert health.state != "down"
    health.note_check(is_ok=False)
    health.note_check(is_ok=False)
    assert health.state == "down"
    health.note_check(is_ok=True)
    assert health.state != "down"


@pytest.mark.parametrize(
    ("body", "cards"),
    [
        ({"data": [{"id": "m", "max_model_len": 5}]}, [ModelCard("m", 5)]),
        ({"models": [{"name": "models/g", "inputTokenLimit": 9}]}, [ModelCard("g", 9)]),
        ({"data": [{"id": "m", "meta": {"n_ctx_train": 7}}, {"x": 1}, 5]}, [ModelCard("m", 7)]),
    ],
)
def test_lists_of_models_in_three_forms(body: Any, cards: list[ModelCard]) -> None:
    assert read_cards(body) == cards


@pytest.mark.parametrize("body", [{}, [], 5, {"data": 5}, None])
def test_what_is_no_list_of_models_is_refused(body: Any) -> None:
    if body == []:
        assert read_cards(body) == []
        return
    with pytest.raises(ValueError, match="not a list"):
        read_cards(body)


def exchange(
    *headers: tuple[bytes, bytes],
    query: bytes = b"",
    is_peer_local: bool = True,
    method: str = "GET",
) -> Exchange:
    target = ("/v1/x", b"/v1/x", query)
    made = Exchange(None, method, target, list(headers), dict(headers), "r")  # type: ignore[arg-type]
    made.is_peer_local = is_peer_local
    return made


KEYED = Settings(
    server=ServerSettings(admin_token=Secret("env:A", "root")),
    keys=(
        ClientKey("laptop", sha256=hashlib.sha256(b"k1").hexdigest(), models=("quick", "gpt-*")),
        ClientKey("ci", secret=Secret("env:K", "k2")),
        ClientKey("old", secret=Secret("env:O", "k3"), disabled=True),
    ),
)


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ([(b"authorization", b"Bearer k1")], b""),
        ([(b"authorization", b"bearer  k1")], b""),
        ([(b"x-api-key", b"k1")], b""),
        ([(b"api-key", b"k1")], b""),
        ([(b"x-goog-api-key", b"k1")], b""),
        ([], b"alt=sse&key=k1"),
    ],
)
def test_a_key_is_taken_from_wherever_clients_put_it(headers: Any, query: bytes) -> None:
    identity = Auth(KEYED).check("client", exchange(*headers, query=query))
    assert identity.client_id == f"k:{hashlib.sha256(b'k1').hexdigest()[:12]}"
    assert identity.may_use("quick") and identity.may_use("gpt-5") and not identity.may_use("x")


@pytest.mark.parametrize(
    "headers",
    [[], [(b"authorization", b"Bearer nope")], [(b"authorization", b"Basic k1")],
     [(b"authorization", b"Bearer k3")], [(b"authorization", b"Bearer " + b"k" * 600)],
     [(b"x-api-key", b"")]],
)  # fmt: skip
def test_a_missing_or_wrong_key_is_401(headers: Any) -> None:
    with pytest.raises(ApiError) as fault:
        Auth(KEYED).check("client", exchange(*headers))
    assert (fault.value.status, fault.value.code) == (401, "invalid_api_key")


def test_without_keys_everybody_is_anonymous() -> None:
    assert Auth(Settings()).check("client", exchange()).client_id == "anon"


def test_operators_pages_need_the_token_or_the_machine_itself() -> None:
    auth = Auth(KEYED)
    auth.check("dashboard", exchange((b"authorization", b"Bearer root")))
    with pytest.raises(ApiError) as fault:
        auth.check("dashboard", exchange((b"authorization", b"Bearer k1")))
    assert fault.value.status == 401
    openly = Auth(Settings())
    openly.check("dashboard", exchange())
    for closed in (
        exchange(is_peer_local=False),
        exchange((b"x-forwarded-for", b"1.2.3.4")),
        exchange(method="POST"),
    ):
        with pytest.raises(ApiError) as fault:
            openly.check("dashboard", closed)
        assert fault.value.status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_an_admins_page_needs_the_token_on_the_machine_itself_too(method: str) -> None:
    for settings, token, status in (
        (Settings(), b"root", 404), (KEYED, b"k1", 401), (KEYED, b"", 401),
    ):  # fmt: skip
        with pytest.raises(ApiError) as fault:
            shown = exchange((b"authorization", b"Bearer " + token), method=method)
            Auth(settings).check("admin", shown)
        assert fault.value.status == status
    Auth(KEYED).check("admin", exchange((b"authorization", b"Bearer root"), method=method))


CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def test_request_ids_sort_by_time_and_differ() -> None:
    times = iter([1.0, 1.0, 2.0])
    new_id = RequestIds(lambda: next(times))
    one, other, late = new_id(), new_id(), new_id()
    assert len(one) == 26 and one != other and max(one, other) < late
    assert RequestIds(lambda: 1.469918176385, bytes)() == "00000001DX0000000000000000"
    assert len({RequestIds()() for _ in range(100)}) == 100
    for ms in (0, 1023, 1024, 1025, 1_785_499_200_123, 2**48 - 1):
        shown = RequestIds(lambda ms=ms: (ms + 0.5) / 1000)()[:10]
        assert sum(CROCKFORD.index(c) << 5 * at for at, c in enumerate(reversed(shown))) == ms


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"user-agent": "codex_cli_rs/0.1"}, "codex"), ({"originator": "codex_exec"}, "codex"),
        ({"user-agent": "claude-cli/2.1"}, "claude-code"), ({"x-app": "cli"}, "claude-code"),
        ({"user-agent": "opencode/1.18"}, "opencode"), ({"user-agent": "curl/7"}, "curl"),
        ({"user-agent": "OpenAI/Python 3.57"}, "openai-sdk"), ({}, "other"),
        ({"user-agent": "AsyncOpenAI/Python 3.57"}, "openai-sdk"),
        ({"user-agent": "Python/3.11 aiohttp/3"}, "other"),
        ({"user-agent": "Python/3.11 aiohttp/3", "x-openwebui-chat-id": "1"}, "open-webui"),
        ({"x-tandem-client": "hermes", "user-agent": "curl/7"}, "hermes"),
        ({"x-tandem-client": "invented", "user-agent": "curl/7"}, "curl"),
    ],
)  # fmt: skip
def test_clients_are_known_by_their_headers(headers: dict[str, str], kind: str) -> None:
    assert detect({name.encode(): value.encode() for name, value in headers.items()}) == kind


ERROR = ApiError(429, "queue_timeout", 'quoted "é"', param="model", retry_after_s=10)


def test_errors_have_the_form_of_their_surface() -> None:
    body = json.loads(error_body("chat", ERROR, "r1"))["error"]
    assert (body["type"], body["code"], body["param"]) == (
        "rate_limit_error",
        "queue_timeout",
        "model",
    )
    body = json.loads(error_body("messages", ERROR, "r1"))
    assert (body["type"], body["error"]["type"]) == ("error", "rate_limit_error")
    body = json.loads(error_body("gemini", ERROR, "r1"))["error"]
    assert (body["code"], body["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert (b"retry-after", b"10") in ERROR.headers()
    unavailable = ApiError(503, "x", "m")
    assert (
        json.loads(error_body("messages", unavailable, "r"))["error"]["type"] == "overloaded_error"
    )
    late = ApiError(504, "x", "m")
    assert json.loads(error_body("messages", late, "r"))["error"]["type"] == "api_error"
    failed = ApiError(502, "x", "m")
    assert json.loads(error_body("messages", failed, "r"))["error"]["type"] == "api_error"


@pytest.mark.parametrize(
    ("surface", "begins", "ends"),
    [
        ("chat", b'data: {"error":', b"\n\ndata: [DONE]\n\n"),
        ("completions", b'data: {"error":', b"\n\ndata: [DONE]\n\n"),
        ("messages", b'event: error\ndata: {"type":"error",', b"}\n\n"),
        ("responses", b'event: response.failed\ndata: {"type":"response.failed",', b"}\n\n"),
        ("gemini", b'data: {"error":{"code":502,', b"}\n\n"),
    ],
)
def test_the_error_end_of_each_stream(surface: Any, begins: bytes, ends: bytes) -> None:
    end = stream_error_end(surface, ERROR, "r1")
    assert end.startswith(begins) and end.endswith(ends)


def test_the_error_end_of_a_response_continues_it() -> None:
    """Id and number of the last event are read from the stream; without them ours stand in."""
    reading = Reading()
    for event in (
        {"type": "response.created", "sequence_number": 0,
         "response": {"id": "resp_7", "object": "response", "status": "in_progress"}},
        {"type": "response.output_text.delta", "sequence_number": 4, "delta": "x"},
    ):  # fmt: skip
        reader_of("responses")(reading, event)
    end = stream_error_end(
        "responses", ERROR, "r1",
        response_id=reading.response_id, sequence_number=reading.sequence_number,
    )  # fmt: skip
    body = json.loads(end.partition(b"data: ")[2])
    assert (body["response"]["id"], body["sequence_number"]) == ("resp_7", 5)
    alone = json.loads(stream_error_end("responses", ERROR, "r1").partition(b"data: ")[2])
    assert (alone["response"]["id"], alone["sequence_number"]) == ("resp_r1", 0)


def test_header_values_survive_any_name() -> None:
    assert header_text("b/m-1 x") == b"b/m-1 x"
    assert header_text("é%\n😀\ud800") == b"%C3%A9%25%0A%F0%9F%98%80%EF%BF%BD"


USAGES: list[tuple[Any, list[dict[str, Any]], tuple[int | None, ...]]] = [
    ("chat", [{"usage": {"prompt_tokens": 9, "completion_tokens": 4,
                         "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
                         "completion_tokens_details": {"reasoning_tokens": 1}}}], (9, 3, 2, 4, 1)),
    ("chat", [{"usage": {"prompt_tokens": 9, "prompt_cache_hit_tokens": 5,
                         "completion_tokens": 1}}], (9, 5, None, 1, None)),
    ("chat", [{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}, {"usage": None},
              {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}],
     (9, None, None, 4, None)),
    ("responses", [{"type": "response.completed", "response": {
        "object": "response", "status": "completed",
        "usage": {"input_tokens": 9, "output_tokens": 4,
                  "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 2},
                  "output_tokens_details": {"reasoning_tokens": 1}}}}], (9, 3, 2, 4, 1)),
    ("messages", [{"type": "message_start", "message": {"usage": {
        "input_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 2,
        "output_tokens": 1}}}, {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                                "usage": {"output_tokens": 4, "output_tokens_details": {
                                    "thinking_tokens": 1}}}], (9, 3, 2, 4, 1)),
    ("gemini", [{"usageMetadata": {"promptTokenCount": 7, "toolUsePromptTokenCount": 2,
                                   "cachedContentTokenCount": 3, "candidatesTokenCount": 3,
                                   "thoughtsTokenCount": 1}}], (9, 3, None, 4, 1)),
    ("chat", [{"usage": {"prompt_tokens": True, "completion_tokens": -4}}], (None,) * 5),
    ("embeddings", [{"usage": {"prompt_tokens": 9}}], (9, None, None, 0, None)),
    ("count_tokens", [{"input_tokens": 9}], (9, None, None, None, None)),
    ("gemini", [{"totalTokens": 9}], (9, None, None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("surface", "events", "tokens"), USAGES)
def test_usage_of_every_surface(surface: Any, events: Any, tokens: tuple[int | None, ...]) -> None:
    reading = Reading()
    for event in events:
        reader_of(surface)(reading, event)
    found = reading.tokens
    assert (found.prompt, found.cached, found.cache_write, found.output, found.reasoning) == tokens


def test_a_ping_is_no_sign_of_life() -> None:
    assert reader_of("messages")(Reading(), {"type": "ping"}) is False
    assert reader_of("messages")(Reading(), {"type": "content_block_delta"}) is True


def test_readers_take_any_json_without_a_fault(tmp_path: Path) -> None:
    odd: list[Any] = [None, 5, "x", [], {}, [5], {"a": 1}]
    keys = ("choices", "usage", "delta", "message", "response", "type", "content", "candidates",
            "usageMetadata", "model", "output", "finish_reason", "object", "status")  # fmt: skip
    for surface in get_args(Surface):
        for value in odd:
            reader_of(surface)(Reading(), dict.fromkeys(keys, value))
