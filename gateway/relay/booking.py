"""From what a relayed answer said to the columns of its row. Knows no socket.

The ladder: the backend's own usage if the answer carried it, else an estimate from the text that
went by; nothing at all if nothing was produced.
"""

from gateway.ledger.entry import Entry
from gateway.relay.forward import Relayed
from gateway.relay.tap import BYTES_PER_TOKEN
from gateway.relay.usage import Reading
from gateway.settings.types import BackendSettings
from gateway.surfaces.request import ModelRequest, prompt_bytes


def book_relayed(
    entry: Entry, relayed: Relayed, request: ModelRequest, backend: BackendSettings
) -> None:
    """Fills a row in from what is known, however the request ended."""
    entry.status = relayed.status or entry.status
    entry.upstream_status = relayed.upstream_status
    entry.error_type = relayed.error_type or entry.error_type
    if relayed.tap is None:
        return
    reading = relayed.tap.reading
    entry.first_delta_s, entry.last_delta_s = relayed.tap.first_s, relayed.tap.last_s
    if not request.is_stream:
        entry.first_delta_s = entry.last_delta_s = None  # one piece has no first token
    entry.finish_reason = reading.finish
    entry.served_model = reading.model
    entry.tool_calls = reading.tool_calls
    has_arrived = relayed.outcome == "succeeded" or relayed.error_type == "no_finish_reason"
    is_whole = has_arrived and relayed.tap.is_on
    _book_tokens(entry, reading, request, backend, is_whole=is_whole)
    if reading.cost is not None:
        entry.book_cost(reading.cost)


def _book_tokens(
    entry: Entry,
    reading: Reading,
    request: ModelRequest,
    backend: BackendSettings,
    *,
    is_whole: bool,
) -> None:
    tokens = reading.tokens
    # A stream that broke off may have carried the counts of its beginning: they are not its end's.
    if reading.has_usage and (is_whole or reading.finish is not None):
        entry.book_usage(
            prompt=tokens.prompt,
            completion=tokens.output,
            cached=tokens.cached,
            cache_write=tokens.cache_write,
            reasoning=tokens.reasoning,
            source="backend",
        )
    elif reading.delta_count:
        prompt = tokens.prompt
        if prompt is None:
            prompt = -(-prompt_bytes(request.envelope) // BYTES_PER_TOKEN)
        one = backend.tokens_per_delta == "one" and request.is_stream
        completion = reading.delta_count if one else -(-reading.delta_bytes // BYTES_PER_TOKEN)
        entry.book_usage(
            prompt=prompt,
            completion=completion,
            cached=tokens.cached,
            cache_write=tokens.cache_write,
            source="estimated",
        )
