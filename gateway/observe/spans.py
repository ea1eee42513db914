"""One OpenTelemetry span a model call, sent to a collector over HTTP. Knows no backend.

Made of the closed entry, behind the client's back, with what the access line says but for the
client: no attribute holds a key, a user or text. Loaded only where a collector is configured.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from threading import Thread

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.exchange import Exchange
from gateway.ledger.entry import Entry
from gateway.middleware.auth import Identity
from gateway.middleware.request_id import RequestIds
from gateway.observe.logs import AccessLog, facts_of

log = structlog.get_logger(__name__)

NAME = "tandem.request"
PREFIX = "tandem."
TRACES_PATH = "/v1/traces"  # of OTLP over HTTP
NOT_SAID = frozenset({"client_id"})  # whose request it is stays in the books
FAILED = frozenset({"failed", "lost"})
MOST_CALLERS = 10_000  # traces that running requests belong to; more are not joined
CLOSE_S = 3.0  # for what waits when the process ends
LOG_EVERY_S = 60.0
NS_PER_MS = 1_000_000

ModelCall = Callable[[Exchange, Identity], Awaitable[None]]


class Spans:
    """Makes spans and sends them in batches, from a thread of its own."""

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        resource = Resource.create({
            SERVICE_NAME: "tandem",
            SERVICE_VERSION: version,
            SERVICE_INSTANCE_ID: RequestIds()(),
        })  # fmt: skip
        _be_quiet()
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Telling(exporter)))
        self._tracer = self._provider.get_tracer("tandem", version)
        self._callers: dict[str, Mapping[str, str]] = {}  # by request id, until it is closed

    @classmethod
    def to(cls, endpoint: str, version: str) -> "Spans":
        """Spans for the collector at the base address `endpoint`."""
        address = endpoint.rstrip("/")
        if not address.endswith(TRACES_PATH):
            address += TRACES_PATH
        return cls(OTLPSpanExporter(endpoint=address), version)

    def watching(self, serve: ModelCall) -> ModelCall:
        """The same, and the trace that the client says it belongs to is remembered.

        Source: W3C Trace Context, `traceparent` and `tracestate`.
        """

        async def watched(exchange: Exchange, identity: Identity) -> None:
            fields = exchange.fields
            if b"traceparent" in fields and len(self._callers) < MOST_CALLERS:
                self._callers[exchange.request_id] = {
                    name: fields[name.encode()].decode("latin-1")
                    for name in ("traceparent", "tracestate")
                    if name.encode() in fields
                }
            await serve(exchange, identity)

        return watched

    def beside(self, access: AccessLog) -> AccessLog:
        """Writes the access line, then makes the span."""

        def both(entry: Entry) -> None:
            access(entry)
            self.note_closed(entry)

        return both

    def note_closed(self, entry: Entry) -> None:
        """Makes the span of a closed request; it belongs to its client's trace, if it said one."""
        caller = self._callers.pop(entry.request_id, None)
        context = Context()
        if caller is not None:
            context = TraceContextTextMapPropagator().extract(caller, context)
        span = self._tracer.start_span(
            NAME,
            context=context,
            kind=SpanKind.SERVER,
            attributes=_attributes(entry),
            start_time=entry.ts_ms * NS_PER_MS,
        )
        if entry.outcome in FAILED:
            span.set_status(StatusCode.ERROR, entry.error_type)
        span.end((entry.ts_ms + (entry.total_ms or 0)) * NS_PER_MS)

    def close(self) -> None:
        """Sends what waits, for CLOSE_S at most. Blocks: not for an event loop."""
        last = Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        last.start()
        last.join(CLOSE_S)


class _Telling(SpanExporter):
    """Says when a collector does not take spans, in our words and at most once a minute."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0
        self._say_at_s = 0.0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hands them on."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._lost += len(spans)
            if time.monotonic() >= self._say_at_s:
                log.warning("spans.not_sent", span_count=self._lost)
                self._lost = 0
                self._say_at_s = time.monotonic() + LOG_EVERY_S
        return result

    def shutdown(self) -> None:
        """Ends the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


def _attributes(entry: Entry) -> dict[str, str | int | float]:
    known = {
        PREFIX + name: value
        for name, value in facts_of(entry).items()
        if value is not None and name not in NOT_SAID
    }
    if entry.backend is None:
        known.pop(PREFIX + "model", None)  # a name that leads nowhere is the client's own text
    return known


def _be_quiet() -> None:
    """The libraries' own log lines have no form of ours, and come with every failed batch."""
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.addHandler(logging.NullHandler())
