"""Writes a run's events to the client in its surface's form. Knows no worker and no ledger.

A surface that our own engine answers on has one line in `MANAGED`: how it is parsed and rendered.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any, Protocol

from conductor.profiles import Profile
from gateway.backends.engine_run import EngineLost
from gateway.backends.run import Silence
from gateway.errors import ApiError, stream_error_end
from gateway.exchange import Exchange
from gateway.routing.table import Target
from gateway.settings.types import Surface
from gateway.surfaces.chat.parse import parse_chat
from gateway.surfaces.chat.render import ChatRenderer
from gateway.surfaces.completions.parse import parse_completion
from gateway.surfaces.completions.render import CompletionRenderer
from gateway.surfaces.params import ManagedRequest
from proto.events import Event, Finished, Reading, ReasoningDelta, TextDelta, Usage, Waiting

HEARTBEAT_S = 15.0  # of silence on an open stream
HEARTBEAT = b"\n\n"  # a blank line: every client takes it


class Renderer(Protocol):
    """Turns events into one surface's bytes."""

    def chunk(self, event: Event) -> bytes:
        """The bytes of one event in a stream; b"" for what the surface does not show."""

    def whole(self, answers: Sequence[tuple[Iterable[Event], Finished]], usage: Usage) -> bytes:
        """The JSON body of answers that are not streamed, one choice each."""


@dataclass(frozen=True, slots=True)
class ManagedSurface:
    """How a surface is parsed and rendered when our own engine answers."""

    parse: Callable[[dict[str, Any]], ManagedRequest]
    renderer: Callable[..., Renderer]
    id_prefix: str


MANAGED: dict[Surface, ManagedSurface] = {
    "chat": ManagedSurface(parse_chat, ChatRenderer, "chatcmpl-"),
    "completions": ManagedSurface(parse_completion, CompletionRenderer, "cmpl-"),
}


class Answer:
    """The answer to one request that our own engine serves. `created`: epoch seconds.
    `profile`: of its request, where the conductor chose one."""

    def __init__(
        self, exchange: Exchange, request: ManagedRequest, target: Target, *, created: int,
        profile: Profile | None = None,
    ) -> None:  # fmt: skip
        surface = MANAGED[exchange.surface]
        self._exchange = exchange
        self._headers = [(b"x-routed-via", target.via_header)]
        if profile is not None:
            self._headers.append((b"x-tandem-profile", profile.name.encode()))
        self._renderer = surface.renderer(
            answer_id=f"{surface.id_prefix}{token_hex(12)}",
            model=request.call.model,
            created=created,
            include_usage=request.include_usage,
            **_options(exchange, profile),
        )

    async def stream(
        self,
        events: AsyncIterator[Event | Silence],
        open_after_s: float,
        now: Callable[[], float],
    ) -> Finished:
        """Writes everything to the end and returns how it ended.

        A stream opens with its first text, or after `open_after_s` of waiting, so that no proxy
        gives up on it: with what was last heard of the wait, where the surface shows that. From
        then on silence is filled with heartbeats.
        """
        opened_by_s = now() + open_after_s
        written_s = now()
        heard: Event | None = None  # of the wait, and not shown yet
        heard_s = opened_by_s
        async for event in events:
            is_wait = isinstance(event, (Silence, Waiting, Reading))
            if is_wait and now() < opened_by_s:
                if not isinstance(event, Silence):
                    heard, heard_s = event, now()
                continue
            shown = _aged(heard, now() - heard_s) if isinstance(event, Silence) else event
            heard = None
            piece = b"" if shown is None else self._renderer.chunk(shown)
            if not piece and is_wait and now() - written_s >= HEARTBEAT_S:
                piece = HEARTBEAT
            if piece or not self._exchange.has_started:
                self._open()
                written_s = now()
                if isinstance(event, Finished):
                    self._exchange.finish(piece)
                else:
                    self._exchange.write(piece)
                    await self._exchange.drain()
            if isinstance(event, Finished):
                return event
        raise EngineLost

    async def end_with_error(self, error: ApiError) -> None:
        """Ends a started stream with an error."""
        exchange = self._exchange
        end = stream_error_end(exchange.surface, error, exchange.request_id)
        await exchange.finish_soon(end)

    def write(self, answers: Sequence[tuple[Iterable[Event], Finished]], usage: Usage) -> None:
        """Writes answers that are not streamed."""
        split = [(_split(events, end.reasoned_chars), end) for events, end in answers]
        body = self._renderer.whole(split, usage)
        self._exchange.reply(200, body, self._headers)

    def _open(self) -> None:
        if self._exchange.has_started:
            return
        self._exchange.start(
            200,
            [
                (b"content-type", b"text/event-stream; charset=utf-8"),
                (b"cache-control", b"no-cache"),
                (b"x-accel-buffering", b"no"),
                (b"x-request-id", self._exchange.request_id.encode()),
                *self._headers,
            ],
        )


def _options(exchange: Exchange, profile: Profile | None) -> dict[str, Any]:
    """Only chat shows reasoning."""
    if profile is None or exchange.surface != "chat":
        return {}
    return {"reasoning_format": profile.reasoning_format}


def _aged(event: Event | None, seconds: float) -> Event | None:
    """What was heard of a wait, as it is some seconds later."""
    if not isinstance(event, Waiting):
        return event
    return replace(event, est_wait_ms=max(0, event.est_wait_ms - int(seconds * 1000)))


def _split(events: Iterable[Event], reasoned_chars: int) -> Iterable[Event]:
    """The events with so many characters of their text as reasoning; a stream has shown them as
    text by then. What is nothing but reasoning stays the answer, and so does a text whose
    log-probabilities were asked for."""
    events = [*events]
    texts = [event for event in events if isinstance(event, TextDelta)]
    text = "".join(one.text for one in texts)
    if not 0 < reasoned_chars < len(text) or any(one.logprobs for one in texts):
        return events
    return [
        ReasoningDelta(text[:reasoned_chars].strip("\n")),
        TextDelta(text[reasoned_chars:].lstrip("\n")),
        *(event for event in events if not isinstance(event, TextDelta)),
    ]
