"""`/v1/cache`: what our own engine keeps of earlier requests, and how it is dropped.

Knows no socket and no key. Loaded only where there is an engine.
"""

import asyncio
from typing import Any, Literal
from urllib.parse import parse_qsl

from gateway.backends.engine import EngineLink, no_engine, refusal_error
from gateway.backends.engine_run import EngineLost
from gateway.errors import ApiError
from proto.faults import Refusal
from proto.messages import STATE_KINDS, CacheInfo

CACHE_S = 30.0  # a worker is between two of its steps long before


async def cache_body(engine: EngineLink, query: str, *, is_clear: bool) -> dict[str, Any]:
    """The body of `GET` and of `DELETE /v1/cache?kind=prefix`: one entry a worker.

    `kind` may be given several times; without it all kinds are meant. Raises: ApiError.
    """
    kinds = _kinds(query)
    if (ready := engine.ready) is None:
        raise no_engine()
    info = await _ask(engine, "clear" if is_clear else "stats", kinds)
    worker = {"worker_id": ready.worker_id, "model": ready.model}
    return {"workers": [worker | _shown(info, kinds)]}


def _kinds(query: str) -> tuple[str, ...] | None:
    # A `kind` without a value must not mean all of them, nor a mistyped name that there is none.
    fields = parse_qsl(query, keep_blank_values=True)
    for name, kind in fields:
        if name != "kind":
            message = f"'{name[:64]}' is not known here; known: kind."
            raise ApiError(400, "invalid_request", message, param=name[:64])
        if kind not in STATE_KINDS:
            message = f"'kind' is {kind[:64]!r}; it must be one of {', '.join(STATE_KINDS)}."
            raise ApiError(400, "invalid_request", message, param="kind")
    return tuple(dict.fromkeys(kind for _, kind in fields)) or None


async def _ask(
    engine: EngineLink, op: Literal["stats", "clear"], kinds: tuple[str, ...] | None
) -> CacheInfo:
    try:
        async with asyncio.timeout(CACHE_S):
            return await engine.cache(op, kinds if op == "clear" else None)
    except EngineLost as fault:
        raise no_engine() from fault
    except Refusal as refusal:
        raise refusal_error(refusal) from refusal
    except TimeoutError as fault:
        message = f"The engine did not answer within {CACHE_S:g} s."
        raise ApiError(504, "upstream_timeout", message) from fault


def _shown(info: CacheInfo, kinds: tuple[str, ...] | None) -> dict[str, Any]:
    # A worker of another version may know a kind that we do not.
    shown = kinds or tuple(dict.fromkeys((*STATE_KINDS, *info.entries)))
    by_kind = {
        kind: {
            "entries": info.entries.get(kind, 0),
            "bytes": info.size_bytes.get(kind, 0),
            "hits": info.hits.get(kind, 0),
            "evictions": info.evictions.get(kind, 0),
        }
        for kind in shown
    }
    cleared = {} if info.cleared_bytes is None else {"cleared_bytes": info.cleared_bytes}
    return {
        "kinds": by_kind,
        "misses": info.misses,
        "collisions": info.collisions,
        "skipped": info.skipped,
        **cleared,
    }
