"""OpenTelemetry: one span a model call, in its client's trace, with no key, user or text."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from gateway.observe import spans as spans_module
from gateway.observe.spans import Spans
from gateway.settings.types import ClientKey, Secret
from tests.fakes.backend import FakeBackend, Reply
from tests.gateway.harness import Running, backend, running_gateway
from tests.gateway.ledger.made import NOON_MS, closed

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
BODY = {
    "model": "m", "user": "canary-of-the-user",
    "messages": [{"role": "user", "content": "canary-of-the-prompt"}],
}  # fmt: skip
ANSWER = (
    b'{"choices":[{"message":{"content":"canary-of-the-answer"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":7,"completion_tokens":3}}'
)
KEY = "canary-of-the-key"


class Collector(FakeBackend):
    """A collector that takes OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(lambda seen: Reply(headers={"content-type": "application/x-protobuf"}))

    def spans(self) -> list[Any]:
        """Every span that came, in protobuf."""
        found = []
        for seen in self.seen:
            assert (seen.method, seen.target) == ("POST", "/v1/traces")
            for of_resource in ExportTraceServiceRequest.FromString(seen.body).resource_spans:
                names = {a.key: a.value.string_value for a in of_resource.resource.attributes}
                assert names["service.name"] == "tandem"
                found += [span for scope in of_resource.scope_spans for span in scope.spans]
        return found


class Traced:
    """A gateway, its backend and its collector. After the block, `spans` are what came."""

    def __init__(self, gateway: Running, up: FakeBackend, client: httpx.AsyncClient) -> None:
        self.gateway = gateway
        self.up = up
        self.spans: list[Any] = []
        self._client = client

    async def ask(self, model: str = "m", **headers: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {KEY}", **headers}
        body = {**BODY, "model": model}
        return await self._client.post("/v1/chat/completions", json=body, headers=headers)


@asynccontextmanager
async def traced(tmp_path: Path, reply: Reply | None = None) -> AsyncIterator[Traced]:
    answers = reply or Reply(pieces=[ANSWER])
    keys = (ClientKey("canary-of-the-label", secret=Secret("env:K", KEY)),)
    async with Collector() as collector:
        async with (
            FakeBackend(lambda seen: answers) as up,
            running_gateway(
                tmp_path,
                backends={"b": backend(up.url)},
                keys=keys,
                server={"otel_endpoint": f"{collector.url}/"},
            ) as gateway,
            httpx.AsyncClient(base_url=gateway.base) as client,
        ):
            running = Traced(gateway, up, client)
            yield running
        running.spans = collector.spans()
        assert not any(b"canary" in seen.body for seen in collector.seen)


def attributes(span: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


async def test_a_request_leaves_one_span_that_says_what_its_row_says(tmp_path: Path) -> None:
    async with traced(tmp_path) as running:
        answer = await running.ask()
        row = await running.gateway.row()
    (span,) = running.spans
    assert answer.status_code == 200
    assert (span.name, span.kind, span.parent_span_id) == ("tandem.request", 2, b"")
    assert span.start_time_unix_nano == row.ts_ms * 1_000_000
    assert span.end_time_unix_nano == (row.ts_ms + row.total_ms) * 1_000_000
    found = attributes(span)
    assert found.pop("tandem.total_ms") == row.total_ms
    assert found == {
        "tandem.request_id": answer.headers["x-request-id"], "tandem.surface": "chat",
        "tandem.model": "m", "tandem.backend": "b", "tandem.client_kind": row.client_kind,
        "tandem.status": 200, "tandem.outcome": "succeeded", "tandem.finish_reason": "stop",
        "tandem.prompt_tokens": 7, "tandem.completion_tokens": 3,
        "tandem.usage_source": "backend",
        **({} if row.ttft_ms is None else {"tandem.ttft_ms": row.ttft_ms}),
    }  # fmt: skip
    assert span.status.code == 0


async def test_a_span_belongs_to_its_clients_trace_and_the_header_passes_unchanged(
    tmp_path: Path,
) -> None:
    async with traced(tmp_path) as running:
        await running.ask(traceparent=TRACEPARENT, tracestate="a=1,b=2")
        (seen,) = running.up.seen
    (span,) = running.spans
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert span.trace_state == "a=1,b=2"
    assert (seen.headers["traceparent"], seen.headers["tracestate"]) == (TRACEPARENT, "a=1,b=2")


@pytest.mark.parametrize("header", ["", "junk", f"00-{'0' * 32}-{PARENT_ID}-01", TRACEPARENT[:-3]])
async def test_a_header_that_names_no_trace_begins_a_new_one(tmp_path: Path, header: str) -> None:
    async with traced(tmp_path) as running:
        await running.ask(traceparent=header)
    (span,) = running.spans
    assert span.parent_span_id == b"" and span.trace_id.hex() not in ("0" * 32, TRACE_ID)


async def test_a_client_that_does_not_record_its_trace_gets_no_span(tmp_path: Path) -> None:
    async with traced(tmp_path) as running:
        await running.ask(traceparent=f"{TRACEPARENT[:-2]}00")
        await running.ask()
    assert len(running.spans) == 1


async def test_a_failure_is_told_and_an_unknown_model_is_not_quoted(tmp_path: Path) -> None:
    """The name of a model that nobody has is whatever the client chose to write."""
    async with traced(tmp_path, Reply(status=500, pieces=[b"{}"])) as running:
        await running.ask()
        await running.ask(model="canary-of-a-model")
    failed, refused = sorted(running.spans, key=lambda span: attributes(span)["tandem.outcome"])
    assert (failed.status.code, attributes(failed)["tandem.status"]) == (2, 500)
    assert (refused.status.code, attributes(refused)["tandem.error_type"]) == (0, "model_not_found")


class Refusing(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


class Hanging(SpanExporter):
    def __init__(self) -> None:
        self.begins, self.ends = Event(), Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begins.set()
        self.ends.wait(20)
        return SpanExportResult.SUCCESS


def test_a_collector_that_takes_nothing_is_said_in_one_line() -> None:
    with capture_logs() as logs:
        spans = Spans(Refusing(), "1")
        for count in (3, 2):
            for _ in range(count):
                spans.note_closed(closed())
            spans._provider.force_flush()
        spans.close()
    assert [(e["event"], e["span_count"]) for e in logs] == [("spans.not_sent", 3)]


def test_a_collector_that_hangs_holds_up_neither_requests_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spans_module, "CLOSE_S", 0.1)
    exporter = Hanging()
    spans = Spans(exporter, "1")
    begun_s = time.monotonic()
    for _ in range(10_000):  # more than wait in memory
        spans.note_closed(closed())
    spans.close()
    assert exporter.begins.wait(5)
    assert time.monotonic() - begun_s < 15
    exporter.ends.set()


def test_traces_are_forgotten_with_their_requests() -> None:
    exporter = InMemorySpanExporter()
    spans = Spans(exporter, "1")
    spans._callers["req-x"] = {"traceparent": TRACEPARENT}
    for name in ("req-x", "req-x"):
        spans.note_closed(closed(name, ts_ms=NOON_MS))
    spans.close()
    first, second = exporter.get_finished_spans()
    assert (first.parent is not None, second.parent) == (True, None)


def test_without_the_packages_serve_says_so_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "tandem.yaml"
    file.write_text(
        f"server: {{state_dir: '{tmp_path}/state', otel_endpoint: 'http://127.0.0.1:4318'}}\n"
        "backends: {b: {kind: openai, base_url: 'http://127.0.0.1:1/v1', models: [m]}}\n"
    )
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").touch()  # stands in front of the real one
    done = subprocess.run(
        [sys.executable, "-m", "gateway.cli", "serve", "--port", "0", "--config", str(file)],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "tandem: server.otel_endpoint needs OpenTelemetry: pip install 'tandem-llm[otel]'\n"
    )
