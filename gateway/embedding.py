"""The way of an embeddings request that our own engine answers, from its body to its row.

Knows no socket of a backend and no other request. A request is asked part by part, so that others
get between, and one whose client has left is soon over. Loaded only where there is an engine.
"""

import re

from gateway.backends.engine import EngineLink, no_engine, refusal_error
from gateway.backends.engine_run import EngineLost
from gateway.errors import ApiError
from gateway.exchange import Exchange
from gateway.ledger.entry import Entry, Outcome
from gateway.routing.table import Target
from gateway.surfaces.embeddings.parse import EmbeddingRequest, parse_embedding
from gateway.surfaces.embeddings.render import item, whole
from gateway.surfaces.fields import clean
from gateway.surfaces.request import ModelRequest
from proto.faults import CodecFault, Refusal
from proto.limits import EMBED_TEXTS_ASKED
from proto.messages import Embedded

_NAMED_TEXT = re.compile(r"texts\[([0-9]+)\]")


async def serve_embeddings(
    engine: EngineLink, exchange: Exchange, request: ModelRequest, target: Target, entry: Entry
) -> Outcome:
    """Answers one request and books what it took. Raises: ApiError; nothing was sent then."""
    asked = parse_embedding(clean(request.envelope.fields))
    entry.served_model = engine.ready.model if engine.ready else None
    weights = engine.ready.weights_hash if engine.ready else None
    items: list[bytes] = []
    tokens = 0
    for first in range(0, len(asked.texts), EMBED_TEXTS_ASKED):
        answer = await _ask(engine, asked, first)
        if engine.ready is not None and engine.ready.weights_hash != weights:
            raise no_engine()  # vectors of two models have nothing to do with each other
        tokens += answer.tokens
        entry.book_usage(prompt=tokens, completion=0, source="backend")
        items += (item(asked, index, v) for index, v in enumerate(answer.vectors, first))
    body = whole(asked.model, items, tokens)
    exchange.reply(200, body, [(b"x-routed-via", target.via_header)])
    entry.status = entry.upstream_status = 200
    return "succeeded"


async def _ask(engine: EngineLink, asked: EmbeddingRequest, first: int) -> Embedded:
    try:
        return await engine.embed(asked.texts[first : first + EMBED_TEXTS_ASKED])
    except CodecFault as fault:
        message = f"The texts cannot be sent to the engine: {fault}."
        raise ApiError(400, "invalid_request", message, param="input") from fault
    except EngineLost as fault:
        raise no_engine() from fault
    except Refusal as refusal:
        raise _refused(refusal, asked, first) from refusal


def _refused(refusal: Refusal, asked: EmbeddingRequest, first: int) -> ApiError:
    """The worker counts the texts of a part; the client counts its own."""
    error = refusal_error(refusal)
    named = _NAMED_TEXT.fullmatch(refusal.param or "")
    if named is None:
        return error
    field = asked.field_of(first + int(named[1]))
    message = f"'{field}' cannot be embedded: {refusal.detail}."
    return ApiError(error.status, error.code, message, param=field)
