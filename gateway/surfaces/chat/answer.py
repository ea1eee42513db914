"""Writes a run's events to a chat client, streamed or whole. Knows no worker and no ledger."""

from collections.abc import AsyncIterator, Callable
from secrets import token_hex

from gateway.backends.engine import EngineLost, Silence
from gateway.errors import ApiError, stream_error_end
from gateway.exchange import Exchange
from gateway.relay.forward import header_text
from gateway.routing.table import Target
from gateway.surfaces.chat.parse import ChatRequest
from gateway.surfaces.chat.render import HEARTBEAT, ChatRenderer
from proto.events import Event, Failed, Finished, Reading, Waiting

HEARTBEAT_S = 15.0  # of silence on an open stream


class ChatAnswer:
    """The answer to one chat request. `created`: epoch seconds."""

    def __init__(
        self, exchange: Exchange, request: ChatRequest, target: Target, *, created: int
    ) -> None:
        self._exchange = exchange
        self._is_stream = request.is_stream
        self._routed_via = header_text(target.routed_via)
        self._renderer = ChatRenderer(
            answer_id=f"chatcmpl-{token_hex(12)}",
            model=request.call.model,
            created=created,
            include_usage=request.include_usage,
        )

    async def write(
        self,
        events: AsyncIterator[Event | Silence],
        open_after_s: float,
        now: Callable[[], float],
    ) -> Finished:
        """Writes everything to the end and returns how it ended.

        A stream opens with its first text, or after `open_after_s` of waiting, so that no proxy
        gives up on it; from then on silence is filled with heartbeats.
        """
        if not self._is_stream:
            return await self._write_whole(events)
        opened_by_s = now() + open_after_s
        written_s = now()
        async for event in events:
            is_wait = isinstance(event, (Silence, Waiting, Reading))
            if is_wait and now() < opened_by_s:
                continue
            piece = b"" if isinstance(event, Silence) else self._renderer.chunk(event)
            if not piece and is_wait and now() - written_s >= HEARTBEAT_S:
                piece = HEARTBEAT
            if piece or not self._exchange.has_started:
                await self._open()
                written_s = now()
                await self._exchange.write(piece, is_last=isinstance(event, Finished))
            if isinstance(event, Finished):
                return event
        raise EngineLost

    async def end_with_error(self, error: ApiError) -> None:
        """Ends a started stream with an error."""
        exchange = self._exchange
        end = stream_error_end(exchange.surface, error, exchange.request_id)
        await exchange.write(end, is_last=True)

    async def _write_whole(self, events: AsyncIterator[Event | Silence]) -> Finished:
        seen: list[Event] = []
        async for event in events:
            if isinstance(event, Finished):
                body = self._renderer.whole(seen, event)
                await self._exchange.reply(200, body, [(b"x-routed-via", self._routed_via)])
                return event
            if not isinstance(event, (Silence, Failed)):
                seen.append(event)
        raise EngineLost

    async def _open(self) -> None:
        if self._exchange.has_started:
            return
        await self._exchange.start(
            200,
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                (b"x-request-id", self._exchange.request_id.encode()),
                (b"x-routed-via", self._routed_via),
            ],
        )
